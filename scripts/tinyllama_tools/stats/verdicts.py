"""What can be said of a case, the rule that every comparison judges by, the design of a run, and
what a number of observations can show.

A case is `slower` or `faster` where its corrected p-value passes alpha and its estimate lies beyond
the margin; else `same` where the interval lies within the margin on both sides; else `unclear`.

Of `looks` planned numbers of blocks each may spend alpha / looks, so whoever stops at any of them
for any reason has made a false alarm with a chance of at most alpha (Bonferroni, the simplest
spending function of Lan and DeMets, Biometrika 70, 1983, which asks for nothing about how looks
depend on each other). Only a quarter of alpha is spent: a procedure that errs in exactly 1 of 1,000
families cannot be shown to err in at most 1 of 1,000. The price is two blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import count as counted
from itertools import pairwise

import numpy as np

from tinyllama_tools.stats.rank_tests import (
    MOST_BLOCKS,
    Array,
    critical_value,
    differences,
    rank_sum_tail,
    signed_rank_tail,
    walsh_averages,
)


class Outcome(str, Enum):
    """The values are the words that people and JSON read."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    """Equivalence shown: the interval lies within the margin on both sides."""
    UNCLEAR = "unclear"
    """Neither shown."""
    NO_VERDICT = "no verdict"
    """Not what an error rate could be stated from: one run a side, or the base's own failure."""
    MISSING = "missing"
    """In the base only."""
    ADDED = "added"
    """In the new only: the base does not have it, or skips it."""
    FAILED = "failed"
    """Measured in the base, failed in the new: wrong result, crash, hang."""
    SKIPPED = "skipped"
    """Not measured on a side, with that side's reason, and no fault of the new."""

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


class DesignError(ValueError):
    """A design that cannot reach a verdict; the message says what it takes."""


def fewest_at(level: float) -> int:
    """Blocks whose smallest p-value, 2^(1 - n) where all point the same way, passes `level`."""
    return next(blocks for blocks in counted(1) if 2.0 ** (1 - blocks) <= level)


def fewest_blocks(cases: int, alpha: float, looks: int) -> int:
    """At which `slower` and `same` are possible at all.

    The smallest p-value has to pass the strictest step, alpha / 4 / (cases x looks), as a quarter
    of alpha is spent. An interval over n blocks reaches a confidence of 1 - 2^(1 - n) at most.
    """
    if min(cases, looks) < 1:
        raise DesignError(f"{cases} cases, {looks} looks: at least 1 of each")
    if not 0 < alpha < 1:
        raise DesignError(f"alpha {alpha}: must lie between 0 and 1, both excluded")
    return fewest_at(min(SPENT * alpha / cases, 1 - CONFIDENCE) / looks)


def fewest_files(cases: int, alpha: float) -> int:
    """A side, of stored results, at which `slower` and `same` are possible at all.

    Of C(2 n, n) ways to divide 2 n files, the two that separate the sides have the smallest p-value
    there is: 2 / C(2 n, n) <= alpha / cases.
    """
    level = min(alpha / cases, 1 - CONFIDENCE)
    return next(files for files in counted(1) if 2 / math.comb(2 * files, files) <= level)


@dataclass(frozen=True, kw_only=True)
class Design:
    """`cases`: of the family. `alpha`: chance of any false `slower` or `faster` in the family.

    `margin`: fraction below which a difference does not matter. `looks`: numbers of blocks at which
    it judges. `confidence`: of the interval that shows `same`, over all looks together.
    """

    cases: int
    alpha: float = ALPHA
    margin: float = MARGIN
    looks: tuple[int, ...]
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise DesignError(f"margin {self.margin}: must lie between 0 and 1, both excluded")
        if not self.looks or any(later <= earlier for earlier, later in pairwise((0, *self.looks))):
            raise DesignError(f"looks {self.looks}: growing numbers of blocks, at least one")
        needed = fewest_blocks(self.cases, self.alpha, len(self.looks))
        if self.looks[0] < needed:
            raise DesignError(
                f"{self.looks[0]} blocks cannot reach a verdict: {needed} are needed for "
                f"{self.cases} cases at alpha {self.alpha:g}; allow more blocks (a larger budget), "
                "compare fewer cases or raise alpha"
            )

    @property
    def look_confidence(self) -> float:
        """Of the interval at each look, so that all looks together keep `confidence`."""
        return 1 - (1 - self.confidence) / len(self.looks)

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

    Raises DesignError where a value is out of its range, or there are so many looks that the last
    ones pass what the exact test can take.
    """
    planned = [fewest_blocks(cases, alpha, looks)]
    while len(planned) < looks and planned[-1] <= MOST_BLOCKS:
        planned.append(math.ceil(GROWTH * planned[-1]))
    if planned[-1] > MOST_BLOCKS:
        raise DesignError(
            f"{looks} looks: look {len(planned)} would come after {planned[-1]} blocks, and the "
            f"exact test takes at most {MOST_BLOCKS}; plan fewer looks or a larger alpha"
        )
    return Design(cases=cases, alpha=alpha, margin=margin, looks=tuple(planned))


@dataclass(frozen=True)
class Evidence:
    """What a verdict stands on. `estimate`, `low`, `high`: log(new / base); an interval that too
    few blocks cannot give at this `confidence` is infinite.

    `p_value`: corrected for looks, not for the family. `scatter`: standard deviation of log(new /
    base) between blocks, robustly. `smallest_difference`: the true difference, as a fraction, that
    as many blocks of this scatter would have called `slower` in 95 % of tries.

    `distance`: blocks after which an unclear case is likely to have an answer, if estimate and
    scatter stay what they are (infinite: none are enough); of any other, `blocks`. `blocks_needed`:
    the planned look or whole number that this comes to. None: more may not settle it, because the
    estimate lies too near the margin or no planned look comes so late.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    p_value: float
    blocks: int
    scatter: float
    smallest_difference: float
    distance: float
    blocks_needed: int | None


@dataclass(frozen=True)
class Judgement:
    """`adjusted_p_value`: corrected for looks and family. `outcome`: slower, faster, same or
    unclear."""

    outcome: Outcome
    evidence: Evidence
    adjusted_p_value: float


def verdict(
    adjusted_p: float, estimate: float, low: float, high: float, alpha: float, margin: float
) -> Outcome:
    """The rule, for every way of comparing; estimate and interval are log-ratios, so that a case
    3 % slower is as far off as its mirror image."""
    log_margin = math.log1p(margin)
    if adjusted_p <= alpha and abs(estimate) > log_margin:
        return Outcome.SLOWER if estimate > 0 else Outcome.FASTER
    return Outcome.SAME if max(-low, high) <= log_margin else Outcome.UNCLEAR


POWER = 0.95
# standard normal quantile of POWER
POWER_QUANTILE = 1.6448536269514722
# variance of the Hodges-Lehmann estimate over that of the mean, for normal values
ESTIMATE_VARIANCE = math.pi / 3
SAMPLES = 800
GRID_POINTS = 9
SEED = 20240607


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
        if count < self.first:
            return math.inf
        position = count - self.first
        is_known = position < self.shifts.size
        return float(self.shifts[position]) if is_known else self.limit / math.sqrt(count)

    def observations(self, shift: float) -> float:
        """Fewest (a side) that show this shift; infinite for none."""
        if shift == 0:
            return math.inf
        position = int(np.searchsorted(-self.shifts, -shift, side="left"))
        is_known = position < self.shifts.size
        return self.first + position if is_known else math.ceil((self.limit / shift) ** 2)


def _shift(count: int, level: float, is_paired: bool) -> float:
    generator = np.random.default_rng(SEED)
    if is_paired:
        ordered = walsh_averages(generator.standard_normal((SAMPLES, count)))
        left_out = critical_value(signed_rank_tail(count), level / 2)
    else:
        ordered = differences(*generator.standard_normal((2, SAMPLES, count)))
        left_out = critical_value(rank_sum_tail(count, count), level / 2)
    return float(np.quantile(-ordered[:, left_out], POWER))


@lru_cache(maxsize=64)
def detection(level: float, *, is_paired: bool) -> Detection:
    """Made once for each level."""
    return Detection(level, is_paired=is_paired)


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
