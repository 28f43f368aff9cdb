"""What can be said of a case, the rule that every comparison judges by, the design of a run, what a
number of observations can show, and verdicts on stored results.

A case is `slower` or `faster` where its corrected p-value passes alpha and its estimate lies beyond
the margin; else `same` where the interval lies within the margin on both sides; else `unclear`.

Of `looks` planned numbers of blocks each may spend alpha / looks, so whoever stops at any of them
for any reason has made a false alarm with a chance of at most alpha (Bonferroni, the simplest
spending function of Lan and DeMets, Biometrika 70, 1983, which asks for nothing about how looks
depend on each other). Only a quarter of alpha is spent: a procedure that errs in exactly 1 of 1,000
families cannot be shown to err in at most 1 of 1,000. The price is two blocks.

Of stored results a file is an observation, the sides are not paired, and there is one look. Nothing
removes the machine's drift between files, so differences have to be larger than those that
`compare run` shows. Of a judgement, `blocks` are then files a side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import count as counted
from typing import NamedTuple

import numpy as np
from scipy import special

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.rank_tests import (
    MOST_BLOCKS,
    Array,
    critical_value,
    differences,
    holm_adjusted,
    interval_ends,
    rank_sum_p_value,
    rank_sum_tail,
    signed_rank_tail,
    standard_errors,
    walsh_averages,
)


class Outcome(str, Enum):
    """The values are the words that people and JSON read."""

    SLOWER = "slower"
    FASTER = "faster"
    # equivalence shown: the interval lies within the margin on both sides
    SAME = "same"
    UNCLEAR = "unclear"
    # not what an error rate could be stated from: one run a side, or the base's own failure
    NO_VERDICT = "no verdict"
    # in the base only; in the new only (the base does not have it, or skips it)
    MISSING = "missing"
    ADDED = "added"
    # measured in the base, failed in the new: wrong result, crash, hang
    FAILED = "failed"
    # not measured on a side, with that side's reason, and no fault of the new
    SKIPPED = "skipped"

    @property
    def is_regression(self) -> bool:
        """Whether it fails the gate, unless it was allowed by name."""
        return self in {Outcome.SLOWER, Outcome.MISSING, Outcome.FAILED}

    @property
    def colour(self) -> str:
        """The one colour that every output gives it."""
        if self.is_regression:
            return "red"
        green = self in {Outcome.FASTER, Outcome.SAME}
        return "green" if green else "yellow" if self is Outcome.UNCLEAR else "grey"


# a case with one of these needs no more data
DECIDED = frozenset({Outcome.SLOWER, Outcome.FASTER, Outcome.SAME})


NO_REGRESSION, REGRESSION, BAD_INPUT, STILL_UNCLEAR = 0, 1, 2, 3
ALPHA = 1e-3
MARGIN = 0.03
LOOKS = 6
CONFIDENCE = 0.95
# of the number of blocks from look to look: few looks, and at most a quarter measured in vain
GROWTH = 1.27
# share of alpha that looks may spend
SPENT = 0.25


def fewest_at(level: float) -> int:
    """Blocks whose smallest p-value, 2^(1 - n) where all point the same way, passes `level`."""
    return next(blocks for blocks in counted(1) if 2.0 ** (1 - blocks) <= level)


def fewest_blocks(cases: int, alpha: float, looks: int) -> int:
    """At which `slower` and `same` are possible at all.

    The smallest p-value has to pass the strictest step, alpha / 4 / (cases x looks), as a quarter
    of alpha is spent. An interval over n blocks reaches a confidence of 1 - 2^(1 - n) at most.
    """
    return fewest_at(min(SPENT * alpha / cases, 1 - CONFIDENCE) / looks)


def fewest_files(cases: int, alpha: float) -> int:
    """A side, of stored results, at which `slower` and `same` are possible at all.

    Of C(2 n, n) ways to divide 2 n files, the two that separate the sides have the smallest p-value
    there is: 2 / C(2 n, n) <= alpha / cases.
    """
    level = min(alpha / cases, 1 - CONFIDENCE)
    return next(files for files in counted(1) if 2 / math.comb(2 * files, files) <= level)


@dataclass(frozen=True)
class Design:
    """`cases`: of the family. `alpha`: chance of any false `slower` or `faster` in the family.
    `margin`: fraction below which a difference does not matter. `looks`: growing numbers of blocks
    at which it judges, at least fewest_blocks()."""

    cases: int
    alpha: float
    margin: float
    looks: tuple[int, ...]

    @property
    def look_confidence(self) -> float:
        """Of the interval at each look, so that all looks together keep CONFIDENCE."""
        return 1 - (1 - CONFIDENCE) / len(self.looks)

    @property
    def correction(self) -> float:
        """What the p-value of a look is multiplied by before it is held against alpha."""
        return len(self.looks) / SPENT

    @property
    def strictest_level(self) -> float:
        """What the p-value of one case at one look must not exceed to be sure of passing Holm."""
        return self.alpha / (self.cases * self.correction)


def plan_design(
    cases: int, *, alpha: float = ALPHA, margin: float = MARGIN, looks: int = LOOKS
) -> Design:
    """Looks from the fewest blocks on, each about 1.27 times the one before.

    Raises BadInputError for so many looks that the last ones pass what the exact test can take.
    """
    planned = [fewest_blocks(cases, alpha, looks)]
    while len(planned) < looks and planned[-1] <= MOST_BLOCKS:
        planned.append(math.ceil(GROWTH * planned[-1]))
    if planned[-1] > MOST_BLOCKS:
        raise BadInputError(
            f"{looks} looks: look {len(planned)} would come after {planned[-1]} blocks, and the "
            f"exact test takes at most {MOST_BLOCKS}; plan fewer looks or a larger alpha"
        )
    return Design(cases, alpha, margin, tuple(planned))


@dataclass(frozen=True)
class Judgement:
    """A verdict (slower, faster, same or unclear) and what it stands on. `estimate`, `low`, `high`:
    log(new / base); an interval that too few blocks cannot give at this `confidence` is infinite.

    `p_value`: corrected for looks; `adjusted_p_value`: for the family too. `scatter`: standard
    deviation of log(new / base) between blocks, robustly. `smallest_difference`: the true
    difference, as a fraction, that as many blocks of this scatter would have called `slower` in
    95 % of tries.

    `distance`: blocks after which an unclear case is likely to have an answer, if estimate and
    scatter stay what they are (infinite: none are enough); of any other, `blocks`. `blocks_needed`:
    the planned look or whole number that this comes to. None: more may not settle it, because the
    estimate lies too near the margin or no planned look comes so late.
    """

    outcome: Outcome
    estimate: float
    low: float
    high: float
    confidence: float
    p_value: float
    adjusted_p_value: float
    blocks: int
    scatter: float
    smallest_difference: float
    distance: float
    blocks_needed: int | None


class Rule(NamedTuple):
    """What every way of comparing judges by. `confidence`: of the interval that shows `same`."""

    alpha: float
    margin: float
    confidence: float = CONFIDENCE


def judgement(
    estimate: float,
    low: float,
    high: float,
    p_value: float,
    adjusted_p: float,
    count: int,
    scatter: float,
    rule: Rule,
    *,
    smallest: float,
    distance: float,
    looks: Sequence[int] | None = None,
) -> Judgement:
    """The rule applied. Estimate and interval are log-ratios, so that a case 3 % slower is as far
    off as its mirror image. `distance`: as Judgement has it, should the case be unclear; `looks`:
    numbers of blocks that are planned, None for any."""
    margin = math.log1p(rule.margin)
    if adjusted_p <= rule.alpha and abs(estimate) > margin:
        outcome = Outcome.SLOWER if estimate > 0 else Outcome.FASTER
    else:
        outcome = Outcome.SAME if max(-low, high) <= margin else Outcome.UNCLEAR
    needed: int | None = count
    if outcome is not Outcome.UNCLEAR:
        distance = count
    elif looks is not None:
        needed = next((n for n in looks if n > count and n >= distance), None)
    else:
        needed = math.ceil(distance) if math.isfinite(distance) else None
    found = (estimate, low, high, rule.confidence, p_value, adjusted_p)
    return Judgement(outcome, *found, count, scatter, smallest, distance, needed)


POWER = 0.95
# standard normal quantile of POWER
POWER_QUANTILE = 1.6448536269514722
# variance of the Hodges-Lehmann estimate over that of the mean, for normal values
ESTIMATE_VARIANCE = math.pi / 3
SAMPLES = 800
GRID_POINTS = 9
SEED = 20240607


def _shift(count: int, level: float, is_paired: bool) -> float:
    generator = np.random.default_rng(SEED)
    if is_paired:
        ordered = walsh_averages(generator.standard_normal((SAMPLES, count)))
        left_out = critical_value(signed_rank_tail(count), level / 2)
    else:
        ordered = differences(*generator.standard_normal((2, SAMPLES, count)))
        left_out = critical_value(rank_sum_tail(count, count), level / 2)
    return float(np.quantile(-ordered[:, left_out], POWER))


class Detection:
    """Shifts, in standard deviations of an observation, that are found at a two-sided `level` in
    95 % of tries, by the number of blocks, or of files a side (`is_paired` is false).

    A normal sample moved by d is found when all but k of its Walsh averages (or differences) are
    positive, k being the critical value; so each has a shift that it needs, and the 95 % point over
    simulated samples is the answer. The usual normal approximation does not hold at the few
    observations and small levels used here.
    """

    def __init__(self, level: float, *, is_paired: bool) -> None:
        self.first = first = fewest_at(level) if is_paired else fewest_files(1, level)
        last = max(90 if is_paired else 40, 2 * first)
        # times the root it changes little, but for the first numbers, so that few points suffice
        wide = np.geomspace(first, last, GRID_POINTS).round().astype(int)
        grid = np.union1d(wide, np.arange(first, min(first + GRID_POINTS, last)))
        scaled = [_shift(count, level, is_paired) * math.sqrt(count) for count in grid.tolist()]
        counts = np.arange(first, last + 1)
        shifts = np.interp(np.log(counts), np.log(grid), scaled) / np.sqrt(counts)
        self.shifts: Array = np.minimum.accumulate(shifts)
        # beyond the last, the shift falls with the root of the number
        self.limit = scaled[-1]

    def shift(self, count: int) -> float:
        """Found with so many observations; infinite where nothing can be significant."""
        position = count - self.first
        if position < 0:
            return math.inf
        is_known = position < self.shifts.size
        return float(self.shifts[position]) if is_known else self.limit / math.sqrt(count)

    def observations(self, shift: float) -> float:
        """Fewest (a side) that show this shift; infinite for none."""
        if shift == 0:
            return math.inf
        position = int(np.searchsorted(-self.shifts, -shift, side="left"))
        is_known = position < self.shifts.size
        return self.first + position if is_known else math.ceil((self.limit / shift) ** 2)


# made once for each level
detection = lru_cache(maxsize=64)(Detection)


def smallest_difference(significant: float, error: float, margin: float) -> float:
    """As a fraction: a log-ratio that is both `significant` and estimated, with this standard
    error, beyond the margin."""
    with np.errstate(over="ignore"):
        return float(np.expm1(max(significant, math.log1p(margin) + POWER_QUANTILE * error)))


def answered_after(
    estimate: float, reach: float, error: float, count: int, margin: float, significant: float
) -> float:
    """Observations after which a case of this estimate has an answer in 95 % of tries; infinite:
    never.

    `reach`: half-width of the interval; `error`: standard error of the estimate; both shrink with
    the root of the `count` of observations that there are. Within the margin, the interval has to
    fit in beside the estimate, which moves. Beyond it, the estimate has to stay there and to be
    significant, which it is after `significant` observations.
    """
    room = abs(estimate) - math.log1p(margin)
    if room == 0:
        return math.inf
    moves = POWER_QUANTILE * error
    if room < 0:
        return count * ((reach + moves) / room) ** 2
    return max(significant, count * (moves / room) ** 2)


def _judged_files(
    base: Array, new: Array, p_value: float, adjusted_p: float, level: float, rule: Rule
) -> Judgement:
    ordered = differences(base[np.newaxis], new[np.newaxis])
    tail = rank_sum_tail(base.size, new.size)
    estimate = float(np.median(ordered))
    ends = interval_ends(ordered, tail, CONFIDENCE)
    low, high = (float(end[0]) for end in ends) if ends else (-math.inf, math.inf)
    # of unequal sides, the harmonic mean: as much information as so many files a side
    per_side = 2 / (1 / base.size + 1 / new.size)
    files, degrees = math.floor(per_side), base.size + new.size - 2
    of_estimate = math.sqrt(ESTIMATE_VARIANCE * 2 / per_side)
    # robust, from the interval's width as for blocks; of few files their pooled deviation
    errors = standard_errors(ordered, tail, degrees)
    if errors is not None:
        scatter = float(errors[0]) / of_estimate
    else:
        squares = ((base - base.mean()) ** 2).sum() + ((new - new.mean()) ** 2).sum()
        scatter = math.sqrt(squares / degrees) if degrees else 0.0
    error, shifts = scatter * of_estimate, detection(level, is_paired=False)
    student = float(special.stdtrit(max(1.0, 2 * per_side - 2), (1 + CONFIDENCE) / 2))
    reach = (high - low) / 2 if ends else error * student
    shown = shifts.observations(abs(estimate) / scatter if scatter else math.inf)
    distance = answered_after(estimate, reach, error, math.ceil(per_side), rule.margin, shown)
    # no scatter shows nothing where nothing can be significant
    shift = shifts.shift(files)
    significant = shift * scatter if math.isfinite(shift) else math.inf
    return judgement(
        *(estimate, low, high, p_value, adjusted_p, files, scatter, rule),
        smallest=smallest_difference(significant, error, rule.margin),
        distance=max(distance, fewest_files(1, level)),
    )


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
    found = zip(cases, logs, p_values.tolist(), holm_adjusted(p_values).tolist(), strict=True)
    return {
        name: _judged_files(*sides, p, adjusted, alpha / len(cases), Rule(alpha, margin))
        for name, sides, p, adjusted in found
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
    shown = (significant / estimate) ** 2 if estimate else math.inf
    ends = (estimate, estimate - reach, estimate + reach)
    return judgement(
        *(*ends, p_value, min(1.0, cases * p_value), 1, scatter, Rule(alpha, margin)),
        smallest=smallest_difference(significant, error, margin),
        distance=answered_after(estimate, reach, error, 1, margin, shown),
    )
