"""Words of the history that the terminal and the pages share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tinyllama_tools.compare.wording import change_text, seconds_text
from tinyllama_tools.history.change_points import ChangePoint

ADVISORY = (
    "Advisory: results of different days are not paired, so a change point is a hint where to look "
    "and has no stated error rate. Only scripts/compare run gives a verdict."
)


def before_text(seconds: Sequence[float]) -> str:
    """The last value against the median of those before it: `+2.1 % of 9.8 ms (15 before)`."""
    *before, last = seconds
    if not before:
        return "the first"
    median = statistics.median(before)
    return f"{change_text(last / median)} of {seconds_text(median)} ({len(before)} before)"


def between_text(point: ChangePoint) -> str:
    """`between 0007abcdef and 0008abcdef`, the two commits around it."""
    return f"between {point.before[-1].label} and {point.after[0].label}"


def files_text(point: ChangePoint) -> str:
    """`12.1 ms in 8 files after, 10.0 ms in 8 before`."""
    return (
        f"{seconds_text(point.seconds_after)} in {len(point.after)} files after, "
        f"{seconds_text(point.seconds_before)} in {len(point.before)} before"
    )
