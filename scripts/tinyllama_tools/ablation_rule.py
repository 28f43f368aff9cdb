"""The rule that `optimized` has to keep: nowhere slower than the baseline or any single switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.ablation_rows import is_decisive, ratio_of_cells
from tinyllama_tools.ablation_study import OPTIMIZED, Kind, Point, RowName, Table
from tinyllama_tools.stats.rank_tests import Ratio


@dataclass(frozen=True)
class Comparison:
    """Time of `optimized` over the other row's at one point; above 1, `optimized` is slower."""

    row: str
    point: Point
    slowdown: Ratio

    @property
    def is_slower(self) -> bool:
        """Even at the low end of the interval; without an interval, by the median."""
        interval = self.slowdown.interval
        return (interval.low if interval else self.slowdown.median) > 1


@dataclass(frozen=True)
class Rule:
    """All comparisons of a table, and the points that had none because of a missing number."""

    comparisons: tuple[Comparison, ...]
    unmeasured: tuple[str, ...] = ()

    @property
    def broken(self) -> list[Comparison]:
        """Where `optimized` is slower."""
        return [c for c in self.comparisons if c.is_slower and is_decisive(c.slowdown)]

    @property
    def undecided(self) -> list[Comparison]:
        """Whose turns were too few to show a difference, whichever way they point."""
        return [c for c in self.comparisons if not is_decisive(c.slowdown)]

    @property
    def held(self) -> bool:
        """Everything was compared in enough turns, and nothing shown to be faster."""
        compared = bool(self.comparisons) and not self.unmeasured
        return compared and not self.broken and not self.undecided

    @property
    def expected_false(self) -> float:
        """How many comparisons would look broken by chance if all were ties."""
        intervals = [c.slowdown.interval for c in self.comparisons]
        return sum((1 - found.confidence) / 2 for found in intervals if found is not None)

    def closest(self) -> Comparison | None:
        """The comparison with the largest slowdown."""
        return max(self.comparisons, key=lambda found: found.slowdown.median, default=None)

    def widest(self) -> float:
        """The largest slowdown that no comparison excludes."""
        ends = [c.slowdown.interval.high for c in self.comparisons if c.slowdown.interval]
        return max(ends, default=float("nan"))


def check_rule(table: Table, rows: Sequence[RowName]) -> Rule:
    """Compares `optimized` with the baseline and each single switch at every point of the table."""
    others = [row for row in rows if row.kind in (Kind.baseline, Kind.single)]
    comparisons: list[Comparison] = []
    unmeasured: list[str] = []
    for point in table.points():
        optimized = table.get(OPTIMIZED, point)
        if optimized is None or not optimized.turns:
            reason = (optimized.note if optimized else "") or "no turn"
            unmeasured.append(f"{point.title}: {reason}")
            continue
        for row in others:
            ratio = ratio_of_cells(optimized, table.get(row.name, point))
            if ratio is not None:
                comparisons.append(Comparison(row.name, point, ratio))
    return Rule(tuple(comparisons), tuple(unmeasured))
