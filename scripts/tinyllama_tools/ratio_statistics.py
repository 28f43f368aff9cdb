"""Ratio of two sides that took turns: its median over turns, and how sure that is.

A machine drifts by tens of percent within minutes, so only neighbours in time are divided by each
other, and a turn is one observation. The interval is the exact one of a median: between two of the
ordered ratios, whatever their distribution. Its true confidence stands beside it, since few turns
cannot reach 95 %: five give 93.75 % at most.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

WANTED_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, both included; holds the true median with probability `confidence`."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Ratio:
    """`median` of a_i / b_i over `turns`; without an interval where there was one turn only."""

    median: float
    interval: Interval | None
    turns: int
    of_each_turn: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        """Plain values for a result file."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any] | None) -> Ratio | None:
        """What as_json() made, or a mapping that has more beside it; None of None."""
        if found is None:
            return None
        interval = Interval(**found["interval"]) if found["interval"] else None
        return cls(found["median"], interval, found["turns"], tuple(found["of_each_turn"]))

    def text(self) -> str:
        """`1.23 (1.20 to 1.26)`, `1.23 (1.10 to 1.40 at 75 %)` below 95 %, or `1.23` alone."""
        if self.interval is None:
            return f"{self.median:.2f}"
        low, high, confidence = astuple(self.interval)
        sure = "" if confidence >= WANTED_CONFIDENCE else f" at {100 * confidence:.0f} %"
        return f"{self.median:.2f} ({low:.2f} to {high:.2f}{sure})"


def _confidence(count: int, left_out: int) -> float:
    """That the median lies within all but the `left_out` smallest and largest of `count` values.

    It lies below a value with probability 1/2, so how many are below it is binomial.
    """
    outside = sum(math.comb(count, below) for below in range(left_out + 1))
    return 1 - 2 * outside / 2**count


def median_interval(values: Sequence[float]) -> Interval | None:
    """The narrowest interval of 95 % or more, else the whole range; None for a single value."""
    count = len(values)
    if count < 2:
        return None
    left_out = 0
    while _confidence(count, left_out + 1) >= WANTED_CONFIDENCE:
        left_out += 1
    ordered = sorted(values)
    low, high = ordered[left_out], ordered[count - 1 - left_out]
    return Interval(low, high, _confidence(count, left_out))


def ratio_of_turns(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Median of a_i / b_i with its interval; a_i and b_i are medians of neighbouring processes.

    Raises ValueError where there are no turns, different numbers of them, or a value that is no
    positive time.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} turns against {len(b)}: as many on both sides, at least 1")
    for value in (*a, *b):
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{value}: must be a positive time")
    ratios = tuple(x / y for x, y in zip(a, b, strict=True))
    return Ratio(statistics.median(ratios), median_interval(ratios), len(ratios), ratios)
