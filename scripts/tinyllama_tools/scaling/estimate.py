"""A figure over rounds, and how sure it is.

Rounds are the sample: in each every way of doing a step is run, in an order drawn anew, so a figure
of one round compares neighbours in time. The interval is the exact one of a median
(ratio_statistics.py), whatever the distribution; fewer than six rounds cannot reach 95 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.ratio_statistics import WANTED_CONFIDENCE, Interval, median_interval


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


def estimate(values: Sequence[float]) -> Estimate:
    """ValueError where there are none."""
    if not values:
        raise ValueError("no round: at least one is needed")
    return Estimate(statistics.median(values), median_interval(values), len(values))
