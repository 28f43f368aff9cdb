"""A figure over rounds, and how sure it is.

Rounds are the sample: in each every way of doing a step is run, in an order drawn anew, so a figure
of one round compares neighbours in time. The interval is the exact one of a median
(ratio_statistics.py), whatever the distribution; fewer than six rounds cannot reach 95 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE, Interval, median_interval


@dataclass(frozen=True)
class Estimate:
    """`median` over `rounds`; `interval`: None where there was one round only."""

    median: float
    interval: Interval | None
    rounds: int

    def text(self, digits: int = 1) -> str:
        """`92.1 (91.0 to 93.4)`, with the confidence where that is below 95 %."""
        middle = f"{self.median:.{digits}f}"
        if self.interval is None:
            return middle
        ends = f"{self.interval.low:.{digits}f} to {self.interval.high:.{digits}f}"
        sure = self.interval.confidence
        return f"{middle} ({ends}{'' if sure >= WANTED_CONFIDENCE else f' at {100 * sure:.0f} %'})"


def interval_words(found: Iterable[Estimate | None]) -> str:
    """`95 % intervals`, or `intervals of 75 % confidence or more` where rounds were too few."""
    sure = [one.interval.confidence for one in found if one is not None and one.interval]
    if not sure:
        return "no intervals, since there was one round only"
    if min(sure) >= WANTED_CONFIDENCE:
        return "95 % intervals"
    return f"intervals of {100 * min(sure):.0f} % confidence or more, since rounds were few"


def estimate(values: Sequence[float]) -> Estimate:
    """ValueError where there are none."""
    if not values:
        raise ValueError("no round: at least one is needed")
    return Estimate(statistics.median(values), median_interval(values), len(values))
