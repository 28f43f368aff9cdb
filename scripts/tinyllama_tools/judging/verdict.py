"""The rule that every way of comparing judges by, and what a verdict stands on.

A case is `slower` or `faster` where its corrected p-value passes alpha and its estimate lies beyond
the margin; else `same` where the interval lies within the margin on both sides; else `unclear`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinyllama_tools.judging.outcome import Outcome


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
