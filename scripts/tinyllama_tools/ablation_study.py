"""What an ablation measured: cells of rows (variants) and points (cases), as they are kept."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from tinyllama_tools.data.programs import SuiteCase

Json = dict[str, Any]
BASELINE = "baseline"
FUSED = "fused"
OPTIMIZED = "optimized"
SETS = (FUSED, OPTIMIZED)
FORMAT_VERSION = 1


class Kind(str, Enum):
    """Why a row is there."""

    baseline = "baseline"
    single = "single"
    combination = "combination"
    named_set = "set"
    removed = "removed"


@dataclass(frozen=True)
class RowName:
    """A row of the tables. `name` of a removed switch: `optimized without qkv`."""

    name: str
    kind: Kind

    @property
    def removed_switch(self) -> str:
        """The switch that a removed row leaves out."""
        return self.name.removeprefix(f"{OPTIMIZED} without ")


def removed_row(switch: str) -> RowName:
    """The row of `optimized` without one switch."""
    return RowName(f"{OPTIMIZED} without {switch}", Kind.removed)


@dataclass(frozen=True, order=True)
class Point:
    """A case without its variant."""

    size: str
    dtype: str
    batch: int
    seq: int
    component: str = "full_step"
    pass_name: str = "train"

    def case(self, variant: str) -> SuiteCase:
        """The case that the program runs for a variant here."""
        return SuiteCase(
            self.size, self.dtype, self.batch, self.seq, variant, self.component, self.pass_name
        )

    @property
    def shape(self) -> str:
        """`8 x 128`: batch x sequence."""
        return f"{self.batch} x {self.seq}"

    @property
    def title(self) -> str:
        """For headings; the component where it is not the full step."""
        text = f"{self.size} {self.dtype}, batch {self.batch} x sequence {self.seq}"
        if self.component == "full_step":
            return text
        return f"{self.component} {self.pass_name} {text}"


@dataclass
class Cell:
    """One row at one point.

    `variant`: as the program spells it, empty where it was refused. `reason`: why nothing was
    measured; `failure`: what was wrong; `above_peak`: why it has no shares of peaks. `counters`: of
    an iteration, from the verified run where there was one. `turns`: seconds of a step by turn,
    each the median of one process.
    """

    row: str
    point: Point
    variant: str = ""
    label: str = ""
    reason: str = ""
    failure: str = ""
    above_peak: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    turns: dict[int, float] = field(default_factory=dict)

    @property
    def can_run(self) -> bool:
        """Neither skipped nor failed so far."""
        return not self.reason and not self.failure

    @property
    def seconds(self) -> float | None:
        """Median over turns; None where no turn was measured."""
        return statistics.median(self.turns.values()) if self.turns else None

    @property
    def note(self) -> str:
        """Why there is no number, or no share of a peak; empty where there is one."""
        if self.failure:
            return f"failed: {self.failure}"
        return f"skipped: {self.reason}" if self.reason else self.above_peak

    def counter(self, name: str) -> float | None:
        """A counter, None where the case has none of that name."""
        return self.counters.get(name)

    def as_json(self) -> Json:
        """Plain values; JSON knows only texts as keys."""
        turns = [[turn, seconds] for turn, seconds in sorted(self.turns.items())]
        return asdict(self) | {"turns": turns}

    @classmethod
    def from_json(cls, found: Json) -> Cell:
        """What as_json() wrote."""
        turns = {int(turn): float(seconds) for turn, seconds in found["turns"]}
        return cls(**(found | {"point": Point(**found["point"]), "turns": turns}))


@dataclass
class Table:
    """Cells by row and point, in the order in which they were added."""

    cells: dict[tuple[str, Point], Cell] = field(default_factory=dict)

    def add(self, cell: Cell) -> Cell:
        """Puts a cell where there may be none yet."""
        return self.cells.setdefault((cell.row, cell.point), cell)

    def get(self, row: str, point: Point) -> Cell | None:
        """The cell, None where that row was not asked for at that point."""
        return self.cells.get((row, point))

    def points(self) -> list[Point]:
        """Every point, once."""
        return list(dict.fromkeys(point for _, point in self.cells))

    def rows_at(self, point: Point) -> list[str]:
        """The rows that were asked for at a point."""
        return [row for row, at in self.cells if at == point]

    def failures(self) -> list[Cell]:
        """Cells whose result was wrong."""
        return [cell for cell in self.cells.values() if cell.failure]

    def as_json(self) -> list[Json]:
        """A list of cells."""
        return [cell.as_json() for cell in self.cells.values()]

    @classmethod
    def from_json(cls, found: Iterable[Json]) -> Table:
        """What as_json() wrote."""
        table = cls()
        for entry in found:
            table.add(Cell.from_json(entry))
        return table


@dataclass
class GateRun:
    """Tests of a quality gate: how many ran, which failed; `reason`: why none ran."""

    name: str
    command: str
    ran: int = 0
    failed: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Study:
    """A whole run. `meta`: date, command, turns, steps and so on; `context`: of the program."""

    rows: list[RowName]
    meta: Json = field(default_factory=dict)
    context: Json = field(default_factory=dict)
    main: Table = field(default_factory=Table)
    batches: Table = field(default_factory=Table)
    types: Table = field(default_factory=Table)
    memory: Table = field(default_factory=Table)
    grid: Table = field(default_factory=Table)
    gates: list[GateRun] = field(default_factory=list)
    peers: list[Json] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> Mapping[str, Table]:
        """By the name that they have in the file."""
        names = ("main", "batches", "types", "memory", "grid")
        return {name: getattr(self, name) for name in names}

    @property
    def failures(self) -> list[Cell]:
        """Wrong results of any table."""
        return [cell for table in self.tables.values() for cell in table.failures()]

    @property
    def has_failed(self) -> bool:
        """Whether a result was wrong, or a test of a quality gate failed."""
        return bool(self.failures) or any(gate.failed for gate in self.gates)

    def rows_of(self, *kinds: Kind) -> list[RowName]:
        """The rows of these kinds, in order."""
        return [row for row in self.rows if row.kind in kinds]

    def as_json(self) -> Json:
        """The result file."""
        return {
            "format_version": FORMAT_VERSION,
            "meta": self.meta,
            "context": self.context,
            "rows": [[row.name, row.kind.value] for row in self.rows],
            **{name: table.as_json() for name, table in self.tables.items()},
            "gates": [asdict(gate) for gate in self.gates],
            "peers": self.peers,
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, found: Json) -> Study:
        """What as_json() wrote. ValueError where the file is not one of those."""
        if found.get("format_version") != FORMAT_VERSION:
            version = found.get("format_version")
            raise ValueError(f"format_version {version!r}: must be {FORMAT_VERSION}")
        study = cls([RowName(name, Kind(kind)) for name, kind in found["rows"]])
        for name in study.tables:
            setattr(study, name, Table.from_json(found[name]))
        study.meta, study.context = found["meta"], found["context"]
        study.gates = [GateRun(**g | {"failed": tuple(g["failed"])}) for g in found["gates"]]
        study.peers, study.notes = found["peers"], found["notes"]
        return study
