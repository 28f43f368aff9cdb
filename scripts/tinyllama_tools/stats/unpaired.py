"""Verdicts on stored results: a file is an observation, and the sides are not paired.

Nothing here removes the machine's drift between files, so differences have to be larger than those
that `compare run` shows. There is one look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from tinyllama_tools.stats.looks import (
    ESTIMATE_VARIANCE,
    POWER_QUANTILE,
    answered_after,
    unpaired_detection,
)
from tinyllama_tools.stats.rank_tests import (
    Array,
    confidence_without,
    critical_count,
    differences,
    holm_adjusted,
    p_value,
    shift_interval_ends,
)
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    CONFIDENCE,
    MARGIN,
    Evidence,
    Judgement,
    Limits,
    Outcome,
    fewest_files,
    verdict,
)

Sides = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class _Shift:
    """Log(new / base) of one case; `scatter`: standard deviation of log seconds between files."""

    p_value: float
    estimate: float
    low: float
    high: float
    scatter: float
    per_side: float
    """Files a side; of unequal sides, their harmonic mean: as much information as so many."""


def _logs(name: str, seconds: Sequence[float]) -> Array:
    values = np.asarray(seconds, dtype=np.float64)
    if values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise ValueError(f"{name}: {list(seconds)} seconds: at least one, positive and finite")
    return np.log(values)


def _scatter(ordered: Array, base: Array, new: Array) -> float:
    """Robust, from the width of the 95 % interval as for blocks; of few files their pooled one."""
    left_out = critical_count(base.size, new.size, 0.025)
    degrees = base.size + new.size - 2
    if left_out >= 0:
        true_confidence = confidence_without(base.size, new.size, left_out)
        quantile = special.stdtrit(degrees, (1 + true_confidence) / 2)
        error = (ordered[-1 - left_out] - ordered[left_out]) / (2 * quantile)
        return float(error / math.sqrt(ESTIMATE_VARIANCE * (1 / base.size + 1 / new.size)))
    squares = ((base - base.mean()) ** 2).sum() + ((new - new.mean()) ** 2).sum()
    return math.sqrt(squares / degrees) if degrees else 0.0


def _shift(name: str, sides: Sides) -> _Shift:
    base, new = (_logs(name, seconds) for seconds in sides)
    ordered = differences(base[np.newaxis, :], new[np.newaxis, :])[0]
    ends = shift_interval_ends(ordered, base.size, new.size, CONFIDENCE)
    return _Shift(
        p_value(base, new),
        float(np.median(ordered)),
        *(ends or (-math.inf, math.inf)),
        _scatter(ordered, base, new),
        2 / (1 / base.size + 1 / new.size),
    )


def _distance(shift: _Shift, limits: Limits, cases: int, error: float) -> float:
    """Of an unclear case, in files a side."""
    reach = (shift.high - shift.low) / 2
    if math.isinf(reach):
        degrees = max(1.0, 2 * shift.per_side - 2)
        reach = error * float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))
    found = unpaired_detection(limits.alpha / cases)
    shown = abs(shift.estimate) / shift.scatter if shift.scatter else math.inf
    files = answered_after(
        shift.estimate,
        reach,
        error,
        math.ceil(shift.per_side),
        limits.log_margin,
        found.observations(shown) if shown else math.inf,
    )
    return max(files, fewest_files(cases, limits.alpha))


def _whole(distance: float) -> int | None:
    return math.ceil(distance) if math.isfinite(distance) else None


def _evidence(shift: _Shift, outcome: Outcome, limits: Limits, cases: int) -> Evidence:
    found = unpaired_detection(limits.alpha / cases)
    error = shift.scatter * math.sqrt(ESTIMATE_VARIANCE * 2 / shift.per_side)
    shown = found.shift(math.floor(shift.per_side))
    # no scatter shows nothing where nothing can be significant
    shown = shown * shift.scatter if math.isfinite(shown) else math.inf
    files = math.floor(shift.per_side)
    needed = _distance(shift, limits, cases, error) if outcome is Outcome.UNCLEAR else files
    return Evidence(
        estimate=shift.estimate,
        low=shift.low,
        high=shift.high,
        confidence=CONFIDENCE,
        p_value=shift.p_value,
        blocks=files,
        scatter=shift.scatter,
        smallest_difference=limits.smallest_difference(shown, error * POWER_QUANTILE),
        distance=needed,
        blocks_needed=_whole(needed),
    )


def judge_unpaired(
    cases: Mapping[str, Sides], *, alpha: float = ALPHA, margin: float = MARGIN
) -> dict[str, Judgement]:
    """Judges each case from the seconds of its (base files, new files), with Holm over the cases.

    Exact two-sided rank-sum test; Hodges-Lehmann shift of log seconds with its exact interval,
    which is infinite where there are too few files for 95 %. In the evidence, `blocks` are files a
    side, and `smallest_difference` is infinite where so few cannot reach `slower` at all. Raises
    ValueError, naming the case, for seconds that are not positive or missing on a side, and
    DesignError for an alpha that is no fraction.
    """
    limits = Limits(alpha, margin)
    shifts = [_shift(name, sides) for name, sides in cases.items()]
    adjusted = holm_adjusted(np.array([shift.p_value for shift in shifts]))
    judgements = {}
    for name, shift, adjusted_p in zip(cases, shifts, adjusted.tolist(), strict=True):
        outcome = verdict(adjusted_p, shift.estimate, shift.low, shift.high, limits)
        evidence = _evidence(shift, outcome, limits, len(cases))
        judgements[name] = Judgement(outcome, evidence, adjusted_p)
    return judgements


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
    alpha is divided by them (Bonferroni). Raises ValueError for values that are not positive.
    """
    for value in (base_seconds, new_seconds, scatter, degrees, cases):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{value}: seconds, scatter, degrees and cases must be positive")
    limits = Limits(alpha, margin)
    estimate = math.log(new_seconds) - math.log(base_seconds)
    error = math.sqrt(2) * scatter
    p_value = float(2 * special.stdtr(degrees, -abs(estimate) / error))
    reach = error * float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))
    significant = float(special.stdtrit(degrees, 1 - alpha / cases / 2))
    beyond_chance = significant + POWER_QUANTILE
    adjusted = min(1.0, cases * p_value)
    low, high = estimate - reach, estimate + reach
    outcome = verdict(adjusted, estimate, low, high, limits)
    needed = 1.0
    if outcome is Outcome.UNCLEAR:
        shown = (beyond_chance * error / estimate) ** 2 if estimate else math.inf
        needed = answered_after(estimate, reach, error, 1, limits.log_margin, shown)
    evidence = Evidence(
        estimate=estimate,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        p_value=p_value,
        blocks=1,
        scatter=scatter,
        smallest_difference=limits.smallest_difference(
            beyond_chance * error, POWER_QUANTILE * error
        ),
        distance=needed,
        blocks_needed=_whole(needed),
    )
    return Judgement(outcome, evidence, adjusted)
