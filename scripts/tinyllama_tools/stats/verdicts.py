"""What can be said of a case, the rule that every comparison judges by, and the design of a run.

A case is `slower` or `faster` where its corrected p-value passes alpha and its estimate lies beyond
the margin; else `same` where the interval lies within the margin on both sides; else `unclear`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from tinyllama_tools.stats.rank_tests import MOST_BLOCKS


class Outcome(str, Enum):
    """The values are the words that people and JSON read."""

    SLOWER = "slower"
    """The corrected p-value and an estimate beyond the margin say so."""
    FASTER = "faster"
    """As `slower`, the other way."""
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
        """The one colour that every output gives it: red, green, yellow or grey."""
        if self.is_regression:
            return "red"
        if self in {Outcome.FASTER, Outcome.SAME}:
            return "green"
        return "yellow" if self is Outcome.UNCLEAR else "grey"


NO_REGRESSION = 0
REGRESSION = 1
BAD_INPUT = 2
STILL_UNCLEAR = 3


def exit_status(outcomes: Iterable[Outcome], *, strict: bool = False) -> int:
    """Of the whole comparison. `strict`: cases without an answer end it with 3."""
    found = set(outcomes)
    if any(outcome.is_regression for outcome in found):
        return REGRESSION
    if strict and found & {Outcome.UNCLEAR, Outcome.NO_VERDICT}:
        return STILL_UNCLEAR
    return NO_REGRESSION


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


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise DesignError(f"{name} {value}: must lie between 0 and 1, both excluded")


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise DesignError(f"{value} {name}: at least 1")


def fewest_blocks(cases: int, alpha: float, looks: int) -> int:
    """At which `slower` and `same` are possible at all.

    n blocks that all point the same way have the smallest p-value there is, 2 / 2^n; it has to pass
    the strictest step: 2^(1 - n) <= alpha / 4 / (cases x looks), as a quarter of alpha is spent.
    An interval over n blocks reaches at most a confidence of 1 - 2^(1 - n).
    """
    _check_count("cases", cases)
    _check_count("looks", looks)
    _check_fraction("alpha", alpha)
    return fewest_at(min(SPENT * alpha / cases, 1 - CONFIDENCE) / looks)


def fewest_at(level: float) -> int:
    """Blocks whose smallest p-value, 2^(1 - n), passes `level`."""
    blocks = 1
    while 2.0 ** (1 - blocks) > level:
        blocks += 1
    return blocks


def fewest_files(cases: int, alpha: float) -> int:
    """A side, of stored results, at which `slower` and `same` are possible at all.

    Of C(2 n, n) ways to divide 2 n files, the two that separate the sides have the smallest p-value
    there is: 2 / C(2 n, n) <= alpha / cases.
    """
    _check_count("cases", cases)
    _check_fraction("alpha", alpha)
    level = min(alpha / cases, 1 - CONFIDENCE)
    files = 1
    while 2 / math.comb(2 * files, files) > level:
        files += 1
    return files


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
        _check_fraction("alpha", self.alpha)
        _check_fraction("margin", self.margin)
        _check_fraction("confidence", self.confidence)
        if not self.looks or any(later <= earlier for earlier, later in pairwise((0, *self.looks))):
            raise DesignError(f"looks {self.looks}: growing numbers of blocks, at least one")
        needed = fewest_blocks(self.cases, self.alpha, len(self.looks))
        if self.looks[0] < needed:
            raise DesignError(_too_few(self.looks[0], needed, self.cases, self.alpha))

    @property
    def look_confidence(self) -> float:
        """Of the interval at each look, so that all looks together keep `confidence`."""
        return 1 - (1 - self.confidence) / len(self.looks)

    @property
    def strictest_level(self) -> float:
        """What the p-value of one case at one look must not exceed to be sure of passing Holm."""
        return self.alpha / (self.cases * self.correction)

    @property
    def correction(self) -> float:
        """What the p-value of a look is multiplied by before it is held against alpha."""
        return len(self.looks) / SPENT


def _too_few(blocks: int, needed: int, cases: int, alpha: float) -> str:
    return (
        f"{blocks} blocks cannot reach a verdict: {needed} are needed for {cases} cases at alpha "
        f"{alpha:g}; allow more blocks (a larger budget), compare fewer cases or raise alpha"
    )


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


@dataclass(frozen=True)
class Limits:
    """What a verdict is held against."""

    alpha: float
    margin: float

    @property
    def log_margin(self) -> float:
        """The same both ways: a case 3 % slower is as far off as its mirror image."""
        return math.log1p(self.margin)

    def smallest_difference(self, significant: float, above_margin: float) -> float:
        """As a fraction: a log-ratio that is both significant and estimated beyond the margin, the
        second being so where it lies above it by `above_margin`."""
        return math.expm1(max(significant, self.log_margin + above_margin))


def verdict(adjusted_p: float, estimate: float, low: float, high: float, limits: Limits) -> Outcome:
    """The rule, for every way of comparing."""
    if adjusted_p <= limits.alpha and abs(estimate) > limits.log_margin:
        return Outcome.SLOWER if estimate > 0 else Outcome.FASTER
    if -limits.log_margin <= low and high <= limits.log_margin:
        return Outcome.SAME
    return Outcome.UNCLEAR
