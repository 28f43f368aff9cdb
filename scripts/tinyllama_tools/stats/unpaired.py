"""Verdicts on stored results: a file is an observation, and the sides are not paired.

Nothing here removes the machine's drift between files, so differences have to be larger than those
that `compare run` shows. There is one look. In the evidence, `blocks` are files a side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from tinyllama_tools.stats.rank_tests import (
    Array,
    differences,
    holm_adjusted,
    interval_ends,
    rank_sum_p_value,
    rank_sum_tail,
    standard_errors,
)
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    CONFIDENCE,
    ESTIMATE_VARIANCE,
    MARGIN,
    POWER_QUANTILE,
    Evidence,
    Judgement,
    Outcome,
    answered_after,
    detection,
    fewest_files,
    smallest_difference,
    verdict,
)


def _judged(
    base: Array,
    new: Array,
    p_value: float,
    adjusted_p: float,
    family: int,
    alpha: float,
    margin: float,
) -> Judgement:
    ordered, tail = (
        differences(base[np.newaxis], new[np.newaxis]),
        rank_sum_tail(base.size, new.size),
    )
    estimate = float(np.median(ordered))
    ends = interval_ends(ordered, tail, CONFIDENCE)
    low, high = (float(end[0]) for end in ends) if ends else (-math.inf, math.inf)
    # of unequal sides, the harmonic mean: as much information as so many files a side
    per_side = 2 / (1 / base.size + 1 / new.size)
    degrees = base.size + new.size - 2
    # robust, from the interval's width as for blocks; of few files their pooled deviation
    errors = standard_errors(ordered, tail, degrees)
    if errors is not None:
        scatter = float(errors[0]) / math.sqrt(ESTIMATE_VARIANCE * 2 / per_side)
    else:
        squares = ((base - base.mean()) ** 2).sum() + ((new - new.mean()) ** 2).sum()
        scatter = math.sqrt(squares / degrees) if degrees else 0.0
    error = scatter * math.sqrt(ESTIMATE_VARIANCE * 2 / per_side)
    outcome = verdict(adjusted_p, estimate, low, high, alpha, margin)
    shifts, files = detection(alpha / family, is_paired=False), math.floor(per_side)
    distance: float = files
    if outcome is Outcome.UNCLEAR:
        student = float(special.stdtrit(max(1.0, 2 * per_side - 2), (1 + CONFIDENCE) / 2))
        reach = (high - low) / 2 if ends else error * student
        shown = shifts.observations(abs(estimate) / scatter if scatter else math.inf)
        found = answered_after(estimate, reach, error, math.ceil(per_side), margin, shown)
        distance = max(found, fewest_files(family, alpha))
    # no scatter shows nothing where nothing can be significant
    shift = shifts.shift(files)
    significant = shift * scatter if math.isfinite(shift) else math.inf
    smallest = smallest_difference(significant, error, margin)
    needed = math.ceil(distance) if math.isfinite(distance) else None
    evidence = Evidence(
        estimate, low, high, CONFIDENCE, p_value, files, scatter, smallest, distance, needed
    )
    return Judgement(outcome, evidence, adjusted_p)


def judge_unpaired(
    cases: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> dict[str, Judgement]:
    """Judges each case from the seconds of its (base files, new files), with Holm over the cases.

    Exact two-sided rank-sum test; Hodges-Lehmann shift of log seconds with its exact interval,
    which is infinite where there are too few files for 95 %; `smallest_difference` is infinite
    where so few cannot reach `slower` at all.
    """
    logs = [tuple(np.log(side) for side in sides) for sides in cases.values()]
    p_values = np.array([rank_sum_p_value(base, new) for base, new in logs])
    adjusted = holm_adjusted(p_values)
    return {
        name: _judged(*sides, *p, len(cases), alpha, margin)
        for name, sides, p in zip(
            cases, logs, np.stack([p_values, adjusted], axis=1).tolist(), strict=True
        )
    }


def judge_with_profile(
    base_seconds: float,
    new_seconds: float,
    scatter: float,
    degrees: int,
    *,
    cases: int = 1,
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> Judgement:
    """Judges one file a side by what a recorded noise profile says of the machine.

    `scatter`: standard deviation of log seconds between processes, estimated with `degrees` degrees
    of freedom; log seconds are taken to be normal, which files of one a side cannot show. The
    difference of two has a standard error of sqrt(2) x scatter (Student t). `cases`: of the family;
    alpha is divided by them (Bonferroni).
    """
    estimate = math.log(new_seconds) - math.log(base_seconds)
    error = math.sqrt(2) * scatter
    p_value = float(2 * special.stdtr(degrees, -abs(estimate) / error))
    reach = error * float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))
    significant = error * (float(special.stdtrit(degrees, 1 - alpha / cases / 2)) + POWER_QUANTILE)
    adjusted = min(1.0, cases * p_value)
    low, high = estimate - reach, estimate + reach
    outcome = verdict(adjusted, estimate, low, high, alpha, margin)
    distance = 1.0
    if outcome is Outcome.UNCLEAR:
        shown = (significant / estimate) ** 2 if estimate else math.inf
        distance = answered_after(estimate, reach, error, 1, margin, shown)
    smallest = smallest_difference(significant, error, margin)
    needed = math.ceil(distance) if math.isfinite(distance) else None
    evidence = Evidence(
        estimate, low, high, CONFIDENCE, p_value, 1, scatter, smallest, distance, needed
    )
    return Judgement(outcome, evidence, adjusted)
