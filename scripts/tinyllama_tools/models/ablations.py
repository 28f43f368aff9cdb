"""What an ablation measured: cells of rows (variants) and points (cases), and what follows.

What the workshop's text expects of each optimisation (the column that is not measured) is from
reference/exercise_3_bottlenecks.md (bottleneck assessment, roadmap of version 2, priority order),
reference/workshop_walkthrough.md 5.5 (memory) and the quick wins of
reference/profiling_summary_component_benchmark.md.
"""

from __future__ import annotations

import contextlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import (
    RESULTS,
    BadInputError,
    Json,
    made_by,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.text import NOT_MEASURED, compact_json
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

# In the order of a variant's name; what the workshop expects, empty where it says nothing.
ROADMAP = {
    "qkv": "1.2-1.5x",
    "gate_up": "1.1-1.3x",
    "fused_swiglu": "1.1-1.3x",
    "sdpa": "1.3-2.0x",
    "fused_attention": "1.2-1.8x",
    "fused_norm": "1.4-1.8x",
    "fused_rotary": "1.4-1.8x",
    "fused_loss": "1.1-1.4x",
    "foreach_adamw": "1.1-1.2x",
    "fused_adamw": "1.1-1.2x",
    "library_adamw": "1.1-1.2x",
    "checkpoint": "20-30 % slower, activations / 2-4",
    "onednn": "",
    "wide_gemm": "",
    "graph": "1.5-3.0x",
    "layout": "1.1-1.3x",
}
SWITCHES = tuple(ROADMAP)

BASELINE, FUSED, OPTIMIZED = "baseline", "fused", "optimized"
# The workshop's version 2 and what its roadmap promises in all.
EXPECTED = ROADMAP | {
    FUSED: "1.5-2.0x (version 2)",
    OPTIMIZED: "2.0-3.0x (optimistic target)",
}


class Kind(str, Enum):
    """Why a row is there."""

    baseline = "baseline"
    single = "single"
    combination = "combination"
    named_set = "set"
    removed = "removed"


WITHOUT = f"{OPTIMIZED} without "


class RowName(NamedTuple):
    """A row of the tables. `name` of a removed switch: `optimized without qkv`."""

    name: str
    kind: Kind


VERSIONS = (
    RowName(BASELINE, Kind.baseline),
    RowName(FUSED, Kind.named_set),
    RowName(OPTIMIZED, Kind.named_set),
)


@dataclass(frozen=True, order=True)
class Point:
    """A full step without its variant."""

    size: str
    dtype: str
    batch: int
    seq: int

    def case(self, variant: str) -> CaseName:
        """The case that the program runs for a variant here."""
        return full_step(self.size, self.dtype, self.batch, self.seq, variant)

    @property
    def title(self) -> str:
        """For headings."""
        return f"{self.size} {self.dtype}, batch {self.batch} x sequence {self.seq}"


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

    @property
    def peak_mib(self) -> float | None:
        """Peak memory of an iteration."""
        return self.counter("peak_memory_MiB")


@dataclass
class Table:
    """Cells by row and point, in the order in which they were added."""

    cells: dict[tuple[str, Point], Cell] = field(default_factory=dict)

    def add(self, cell: Cell) -> None:
        """Puts a cell where there is none yet."""
        self.cells.setdefault((cell.row, cell.point), cell)

    def get(self, row: str, point: Point) -> Cell | None:
        """The cell, None where that row was not asked for at that point."""
        return self.cells.get((row, point))

    def points(self) -> list[Point]:
        """Every point, once."""
        return list(dict.fromkeys(point for _, point in self.cells))

    def cells_at(self, point: Point) -> list[Cell]:
        """What was asked for at a point."""
        return [cell for cell in self.cells.values() if cell.point == point]


FORMAT_VERSION = 1
# of a file; the latter two are of files of before the points were all in one
MAIN, FURTHER = "main", ("types", "batches")


@dataclass
class Study:
    """A whole run. `meta`: date, command, turns, steps and so on; `context`: of the program."""

    rows: list[RowName]
    meta: Json = field(default_factory=dict)
    context: Json = field(default_factory=dict)
    main: Table = field(default_factory=Table)
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[Cell]:
        """Wrong results."""
        return [cell for cell in self.main.cells.values() if cell.failure]

    def rows_of(self, *kinds: Kind) -> list[RowName]:
        """The rows of these kinds, in order."""
        return [row for row in self.rows if row.kind in kinds]


RESULT = "ablation.json"


def result_text(study: Study) -> str:
    """The result file, a line a cell; JSON knows only texts as keys."""
    cells = [
        asdict(cell) | {"turns": [list(turn) for turn in sorted(cell.turns.items())]}
        for cell in study.main.cells.values()
    ]
    document = {
        "format_version": FORMAT_VERSION,
        "meta": study.meta,
        "context": study.context,
        "rows": [[row.name, row.kind.value] for row in study.rows],
        MAIN: cells,
        "notes": study.notes,
    }
    return compact_json(document, (MAIN, "rows"))


_OBJECT, _TEXT, _COUNT = {"type": "object"}, {"type": "string"}, {"type": "integer", "minimum": 1}
_TEXTS = ("row", "variant", "label", "reason", "failure", "above_peak")
_CELL = {
    **_OBJECT,
    "required": ["row", "point", "turns"],
    "properties": {
        **dict.fromkeys(_TEXTS, _TEXT),
        "point": {
            **_OBJECT,
            "properties": {
                **dict.fromkeys(("size", "dtype"), _TEXT),
                **dict.fromkeys(("batch", "seq"), _COUNT),
            },
        },
        "counters": {**_OBJECT, "additionalProperties": {"type": "number"}},
        # its number, and seconds of a step
        "turns": {
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "number", "exclusiveMinimum": 0}],
            },
        },
    },
}
_CELLS = {"type": "array", "items": _CELL}
_STUDY = {
    "required": ["format_version", "meta", "context", "rows", MAIN, "notes"],
    "properties": {
        "format_version": {"const": FORMAT_VERSION},
        "meta": _OBJECT,
        "context": {**_OBJECT, "properties": {"device": _OBJECT}},
        # name and kind
        "rows": {"type": "array", "items": {"type": "array", "items": _TEXT}},
        **dict.fromkeys((MAIN, *FURTHER), _CELLS),
        "notes": {"type": "array", "items": _TEXT},
    },
}


def read_study(path: Path) -> Study:
    """BadInputError where the file cannot be read or is no result of an ablation."""
    found, _ = read_json(path)
    if problem := schema_problem(found, _STUDY):
        raise BadInputError(f"{path}: no result of scripts/ablation: {problem}")
    with made_by("scripts/ablation", path):
        study = Study([RowName(name, Kind(kind)) for name, kind in found["rows"]])
        for entry in (entry for name in (MAIN, *FURTHER) for entry in found.get(name, ())):
            point = Point(*(entry["point"][axis] for axis in ("size", "dtype", "batch", "seq")))
            turns = {int(turn): float(seconds) for turn, seconds in entry["turns"]}
            study.main.add(Cell(**(entry | {"point": point, "turns": turns})))
        study.meta, study.context = found["meta"], found["context"]
        study.notes = found["notes"]
    return study


def resolved_switches(label: str) -> list[str] | None:
    """The switches that the label of an `optimized` case names; None where it names none."""
    found = re.search(rf"\b{OPTIMIZED} = ([a-z0-9_+]+)", label)
    if not found:
        return None
    names = found.group(1).split("+")
    return [] if names == [BASELINE] else names


def switches_of_optimized(table: Table, point: Point) -> list[str] | None:
    """As the label of its case at a point says; None where that says nothing."""
    cell = table.get(OPTIMIZED, point)
    return resolved_switches(cell.label) if cell else None


def planned_rows(switches: Sequence[str], combinations: Sequence[str]) -> list[RowName]:
    """The rows that are known before anything ran: all but the removed ones."""
    baseline, *sets = VERSIONS
    return [
        baseline,
        *(RowName(name, Kind.single) for name in switches),
        *(RowName(name, Kind.combination) for name in combinations),
        *sets,
    ]


def removed_rows(table: Table, switches: Sequence[str]) -> list[RowName]:
    """A row for each of the switches that `optimized` holds at some point of the table."""
    held = {name for point in table.points() for name in switches_of_optimized(table, point) or ()}
    # switches that this script does not know yet come last
    names = [
        *(name for name in SWITCHES if name in held & {*switches}),
        *sorted(held - {*SWITCHES}),
    ]
    return [RowName(WITHOUT + name, Kind.removed) for name in names]


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


def is_decisive(ratio: Ratio) -> bool:
    """Whether there were turns enough for its interval to decide anything."""
    return ratio.interval is not None and ratio.interval.confidence >= DECISIVE_CONFIDENCE


def shows_difference(ratio: Ratio) -> bool:
    """Whether its interval leaves 1 out; too few turns show nothing."""
    interval = ratio.interval
    return interval is not None and is_decisive(ratio) and not interval.low <= 1 <= interval.high


def ratio_text(ratio: Ratio | None) -> str:
    """The same, `~` before it where no difference was shown; `-` where there is none."""
    if ratio is None:
        return NOT_MEASURED
    return ratio.text() if shows_difference(ratio) else f"{NO_DIFFERENCE} {ratio.text()}"


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
        return counters["model_flops"] / seconds / 1e12 * percent_of_a_tera or None

    @property
    def launches(self) -> float | None:
        """Kernels of an iteration on a GPU, operators elsewhere."""
        return self.cell.counter("kernels" if "kernels" in self.cell.counters else "operators")


def memory_ratio(cell: Cell | None, other: Cell | None) -> float | None:
    """Peak memory of a cell over another's."""
    if not cell or not other or cell.peak_mib is None or not other.peak_mib:
        return None
    return cell.peak_mib / other.peak_mib


def row_at(table: Table, row: RowName, point: Point) -> Row | None:
    """The row at a point; None where it was not asked for there."""
    cell = table.get(row.name, point)
    if cell is None:
        return None
    is_removed = row.kind == Kind.removed
    other = table.get(OPTIMIZED if is_removed else BASELINE, point)
    pair = (cell, other) if is_removed else (other, cell)
    return Row(row, cell, ratio_of_cells(*pair), memory_ratio(cell, other))


def rows_at(table: Table, rows: Iterable[RowName], point: Point) -> list[Row]:
    """All rows that a point has, in order."""
    return [found for row in rows if (found := row_at(table, row, point)) is not None]


class Comparison(NamedTuple):
    """Time of `optimized` over the other row's at one point; above 1, `optimized` is slower."""

    row: str
    point: Point
    slowdown: Ratio


class Rule(NamedTuple):
    """All comparisons of a table, and the points that had none because of a missing number."""

    comparisons: list[Comparison]
    unmeasured: list[str]

    @property
    def broken(self) -> list[Comparison]:
        """Where `optimized` is slower even at the low end of the interval."""
        decided = [(c, c.slowdown.interval) for c in self.comparisons if is_decisive(c.slowdown)]
        return [c for c, interval in decided if interval and interval.low > 1]

    @property
    def undecided(self) -> list[Comparison]:
        """Whose turns were too few to show a difference, whichever way they point."""
        return [c for c in self.comparisons if not is_decisive(c.slowdown)]

    @property
    def held(self) -> bool:
        """Everything was compared in enough turns, and nothing shown to be faster."""
        return bool(self.comparisons) and not (self.unmeasured or self.broken or self.undecided)

    @property
    def expected_false(self) -> float:
        """How many comparisons would look broken by chance if all were ties."""
        intervals = [c.slowdown.interval for c in self.comparisons]
        return sum((1 - found.confidence) / 2 for found in intervals if found is not None)


def check_rule(table: Table, rows: Iterable[RowName]) -> Rule:
    """Compares `optimized` with the baseline and each single switch at every point of the table."""
    others = [row.name for row in rows if row.kind in (Kind.baseline, Kind.single)]
    rule = Rule([], [])
    for point in table.points():
        optimized = table.get(OPTIMIZED, point)
        cells = [cell for name in others if (cell := table.get(name, point))]
        if cells and all(cell.note and not cell.turns for cell in cells):
            continue  # none of them can be compared with, as in pure f16, which fails its proof
        if optimized is None or not optimized.turns:
            reason = (optimized.note if optimized else "") or "no turn"
            rule.unmeasured.append(f"{point.title}: {reason}")
            continue
        for cell in cells:
            if ratio := ratio_of_cells(optimized, cell):
                rule.comparisons.append(Comparison(cell.row, point, ratio))
    return rule


# What an ablation says of a profile: it was made on the same device, at the same shape.


@dataclass(frozen=True)
class Evidence:
    """An ablation's speedups of the whole step at one point, by switch or named set."""

    file: Path
    study: Study
    point: Point
    speedups: Mapping[str, Ratio]

    def best(self, switches: Iterable[str]) -> tuple[str, Ratio] | None:
        """Of the switch that helped most; None where none of them was measured."""
        found = [(switch, self.speedups[switch]) for switch in switches if switch in self.speedups]
        return max(found, key=lambda one: one[1].median, default=None)


def _machine(context: Json) -> tuple[object, ...]:
    device = context.get("device", {})
    # a CPU's speed is that of the threads it was given
    threads = context.get("threads") if device.get("backend") == "cpu" else None
    return device.get("name"), device.get("architecture"), device.get("backend"), threads


def evidence_at(file: Path, point: Point, variant: str = BASELINE) -> Evidence:
    """The speedups of an ablation's result at a point; BadInputError where it has none for a run of
    that variant there."""
    study = read_study(file)
    rows = study.rows_of(Kind.single, Kind.named_set, Kind.combination)
    speedups = {
        row.row.name: row.ratio
        for row in rows_at(study.main, rows, point)
        if row.ratio is not None and row.cell.can_run
    }
    if not speedups:
        reason = f"has no turn at {point.title}; profile a shape that it measured"
        raise BadInputError(f"{file}: {reason}")
    if variant != BASELINE:
        reason = f"its speedups are over {BASELINE}, not {variant}"
        raise BadInputError(f"{file}: {reason}; leave --ablation out, or profile {BASELINE}")
    return Evidence(file, study, point, speedups)


def read_evidence(file: Path, summary: Json) -> Evidence:
    """The speedups in an ablation's result; BadInputError where it has none for this profile."""
    of = summary["configuration"]
    # the case of the suite that does what the profiled program did
    point = Point(of["size"], of["dtype"], of["batch_size"], of["seq_len"])
    found = evidence_at(file, point, of["variant"])
    ours = (*_machine(summary["context"]), of.get("gradient_accumulation_steps", 1))
    wanted = (*_machine(found.study.context), 1)
    if ours != wanted:
        raise BadInputError(
            f"{file}: device, threads and micro-batches are {wanted}, those of the profile "
            f"{ours}; leave --ablation out, or run scripts/ablation here"
        )
    return found


def find_evidence(summary: Json, results: Path = RESULTS) -> Evidence | None:
    """The newest published or unpublished ablation that fits; None where there is none."""
    files = [*results.glob("reference/ablation_*.json"), *results.glob("*/ablation.json")]
    found: list[Evidence] = []
    for file in files:
        # another device's, or not ours: nobody asked for this file
        with contextlib.suppress(BadInputError):
            found.append(read_evidence(file, summary))
    return max(found, key=lambda one: one.study.meta.get("date", ""), default=None)
