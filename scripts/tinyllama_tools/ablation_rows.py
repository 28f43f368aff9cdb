"""Rows of the ablation's tables: what follows from the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.ablation_study import BASELINE, OPTIMIZED, Cell, Kind, Point, RowName, Table
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

TERA = 1e12
NO_DIFFERENCE = "~"
# Five turns reach it: fewer decide nothing.
DECISIVE_CONFIDENCE = 0.9


def ratio_of_cells(above: Cell | None, below: Cell | None) -> Ratio | None:
    """Median over the turns that both have of above's time / below's; None where there is none."""
    if above is None or below is None:
        return None
    turns = sorted(above.turns.keys() & below.turns.keys())
    if not turns:
        return None
    return ratio_of_turns([above.turns[t] for t in turns], [below.turns[t] for t in turns])


def shows_difference(ratio: Ratio) -> bool:
    """Whether its interval leaves 1 out; too few turns show nothing."""
    interval = ratio.interval
    return interval is not None and is_decisive(ratio) and not interval.low <= 1 <= interval.high


def is_decisive(ratio: Ratio) -> bool:
    """Whether there were turns enough for its interval to decide anything."""
    return ratio.interval is not None and ratio.interval.confidence >= DECISIVE_CONFIDENCE


def ratio_text(ratio: Ratio | None) -> str:
    """The same, `~` before it where no difference was shown; `-` where there is none."""
    if ratio is None:
        return "-"
    mark = "" if shows_difference(ratio) else f"{NO_DIFFERENCE} "
    return f"{mark}{ratio.text()}"


@dataclass(frozen=True)
class Row:
    """One variant at one point.

    `ratio`: speedup over the baseline (its time / this time); of a removed row, slowdown against
    `optimized` (this time / its time): above 1, the switch was worth having. `memory_ratio`: peak
    over the baseline's, of a removed row over that of `optimized`.
    """

    row: RowName
    cell: Cell
    ratio: Ratio | None
    memory_ratio: float | None

    @property
    def ratio_text(self) -> str:
        """For a table; the baseline's own is 1 and has no interval."""
        return "1" if self.row.kind == Kind.baseline else ratio_text(self.ratio)

    @property
    def samples_per_second(self) -> float | None:
        """At the median time."""
        seconds = self.cell.seconds
        return self.cell.point.batch / seconds if seconds else None

    @property
    def mfu_percent(self) -> float | None:
        """Of the same denominator as the program's own MFU, at the median time over turns."""
        counters, seconds = self.cell.counters, self.cell.seconds
        if not seconds or not counters.get("TFLOPS"):
            return None
        percent_of_a_tera = counters.get("MFU_percent", 0.0) / counters["TFLOPS"]
        return counters["model_flops"] / seconds / TERA * percent_of_a_tera or None

    @property
    def launches(self) -> float | None:
        """Kernels of an iteration on a GPU, operators elsewhere."""
        kernels = self.cell.counter("kernels")
        return self.cell.counter("operators") if kernels is None else kernels


def memory_ratio(cell: Cell | None, other: Cell | None) -> float | None:
    """Peak memory of a cell over another's."""
    peaks = [c.counter("peak_memory_MiB") if c else None for c in (cell, other)]
    if peaks[0] is None or not peaks[1]:
        return None
    return peaks[0] / peaks[1]


def row_at(table: Table, row: RowName, point: Point) -> Row | None:
    """The row at a point; None where it was not asked for there."""
    cell = table.get(row.name, point)
    if cell is None:
        return None
    if row.kind == Kind.removed:
        optimized = table.get(OPTIMIZED, point)
        return Row(row, cell, ratio_of_cells(cell, optimized), memory_ratio(cell, optimized))
    baseline = table.get(BASELINE, point)
    return Row(row, cell, ratio_of_cells(baseline, cell), memory_ratio(cell, baseline))


def rows_at(table: Table, rows: Sequence[RowName], point: Point) -> list[Row]:
    """All rows that a point has, in order."""
    return [found for row in rows if (found := row_at(table, row, point)) is not None]
