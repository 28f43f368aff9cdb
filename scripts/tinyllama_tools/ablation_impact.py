"""The workshop's matrix of impact and effort, with the impact that was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.ablation_reference import BY_SWITCH, Roadmap
from tinyllama_tools.ablation_rows import Row, row_at, shows_difference
from tinyllama_tools.ablation_study import Kind, Point, RowName, Table

# The smallest speedup that the workshop expects of anything, and version 2's own gate.
MEDIUM_IMPACT = 1.1
HIGH_IMPACT = 1.3
# What is a saving of memory worth naming.
MEMORY_IMPACT = 0.8
QUADRANTS = (
    ("High Impact, Low Effort (Priority 1)", True, True),
    ("High Impact, High Effort (Priority 2)", True, False),
    ("Low Impact, Low Effort (Priority 3)", False, True),
    ("Low Impact, High Effort (Priority 4 - Skip)", False, False),
)
NO_EFFORT_NAMED = "not named by the workshop"


@dataclass(frozen=True)
class Impact:
    """What a switch did in one dtype: means over the points at which it was measured.

    `is_shown`: at one of them at least, the interval leaves 1 out.
    """

    entry: Roadmap
    dtype: str
    speedup: float | None
    memory_ratio: float | None
    is_shown: bool
    note: str = ""

    @property
    def impact(self) -> str:
        """`high`, `medium`, `low`, `none shown`, `slower` or nothing where nothing was measured."""
        if self.speedup is None:
            return ""
        if not self.is_shown:
            return "none shown"
        if self.speedup < 1:
            return "slower"
        if self.speedup >= HIGH_IMPACT:
            return "high"
        return "medium" if self.speedup >= MEDIUM_IMPACT else "low"

    @property
    def saves_memory(self) -> bool:
        """By a fifth or more."""
        return self.memory_ratio is not None and self.memory_ratio <= MEMORY_IMPACT

    @property
    def is_high(self) -> bool:
        """The upper half of the matrix."""
        return self.impact in {"high", "medium"} or self.saves_memory


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return statistics.geometric_mean(values) if values else None


def impact_of(entry: Roadmap, dtype: str, rows: Sequence[Row]) -> Impact:
    """From the rows of a switch at the points of a dtype."""
    ratios = [row.ratio for row in rows if row.ratio]
    memory = [row.memory_ratio for row in rows if row.memory_ratio]
    return Impact(
        entry,
        dtype,
        geometric_mean([ratio.median for ratio in ratios]),
        geometric_mean(memory),
        any(shows_difference(ratio) for ratio in ratios),
        next((row.cell.note for row in rows if row.cell.note), ""),
    )


def impacts(table: Table, rows: Sequence[RowName], dtype: str) -> list[Impact]:
    """Every single switch in a dtype, the fastest first and those without a number last."""
    points: list[Point] = [point for point in table.points() if point.dtype == dtype]
    found: list[Impact] = []
    for row in rows:
        if row.kind != Kind.single:
            continue
        entry = BY_SWITCH.get(row.name, Roadmap(row.name, "", ""))
        at_points = [at for point in points if (at := row_at(table, row, point)) is not None]
        found.append(impact_of(entry, dtype, at_points))
    return sorted(found, key=lambda impact: -(impact.speedup or 0))


def in_quadrant(found: Sequence[Impact], is_high: bool, is_low_effort: bool | None) -> list[Impact]:
    """The measured ones of a quadrant; effort None: those of which the workshop names none."""
    return [
        impact
        for impact in found
        if impact.speedup is not None
        and impact.is_high == is_high
        and impact.entry.is_low_effort == is_low_effort
    ]
