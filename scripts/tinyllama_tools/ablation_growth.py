"""How peak memory grows with the sequence: the exponent of a power law, fitted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from tinyllama_tools.ablation_study import Point, Table

# Below this length weights and optimizer states, which do not grow, hide what does.
FIT_FROM = 1024
FEWEST_FITTED = 3
LINEAR_BELOW = 1.25
QUADRATIC_ABOVE = 1.75


@dataclass(frozen=True)
class Growth:
    """memory ~ sequence ** exponent, over the lengths from `first` to `last`."""

    exponent: float
    first: int
    last: int

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.exponent < LINEAR_BELOW:
            return "linear"
        return "quadratic" if self.exponent > QUADRATIC_ABOVE else "between"


def fit_exponent(memory: Mapping[int, float]) -> Growth | None:
    """Least squares slope of log(memory) over log(sequence).

    Over the lengths from FIT_FROM on where those are three or more, else over the last three; None
    where fewer were measured.
    """
    lengths = sorted(memory)
    fitted = [length for length in lengths if length >= FIT_FROM]
    if len(fitted) < FEWEST_FITTED:
        fitted = lengths[-FEWEST_FITTED:]
    if len(fitted) < FEWEST_FITTED:
        return None
    logs = [math.log(length) for length in fitted]
    slope = statistics.linear_regression(logs, [math.log(memory[n]) for n in fitted]).slope
    return Growth(slope, fitted[0], fitted[-1])


@dataclass(frozen=True)
class Series:
    """Cells of one row over the sequence, all else equal."""

    row: str
    cells: Mapping[int, str | float]

    @property
    def measured(self) -> dict[int, float]:
        """MiB by length, without those that have a reason instead."""
        return {n: value for n, value in self.cells.items() if isinstance(value, float)}

    @property
    def growth(self) -> Growth | None:
        """The fit over what was measured."""
        return fit_exponent(self.measured)


def series_of(table: Table, component: str, batch: int) -> list[Series]:
    """Rows of a component at a batch: MiB, or the reason why there are none, by length."""
    found: dict[str, dict[int, str | float]] = {}
    for (row, point), cell in table.cells.items():
        if point.component == component and point.batch == batch:
            peak = cell.counter("peak_memory_MiB")
            value = cell.note or "not run" if peak is None else float(peak)
            found.setdefault(row, {})[point.seq] = value
    return [Series(row, cells) for row, cells in found.items()]


def exercise_points(table: Table, lines: tuple[tuple[int, int], ...]) -> list[Point]:
    """The points of the workshop's memory exercise that the table has, in its order."""
    points = [point for point in table.points() if point.component == "full_step"]
    by_shape = {(point.seq, point.batch): point for point in points}
    return [by_shape[line] for line in lines if line in by_shape]
