"""What an ablation measured: cells of rows (variants) and points (cases), and what follows.

What the workshop's text says about each optimisation: the columns that are not measured.

From reference/exercise_3_bottlenecks.md (bottleneck assessment, roadmap of version 2, priority
order), reference/workshop_walkthrough.md 5.5 (memory) and the quick wins of
reference/profiling_summary_component_benchmark.md.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

NOTHING = "-"


def number(value: float | None, digits: int = 1) -> str:
    """With so many digits after the point, thousands set apart."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number."""
    return number(value, 0)


def mebibytes(value: float | None) -> str:
    """Small ones with a digit more."""
    return number(value, 2 if value is not None and value < 10 else 1)


def times(value: float | None) -> str:
    """A ratio such as 0.45."""
    return number(value, 2)


def error(value: float | None) -> str:
    """A relative error."""
    return NOTHING if value is None else f"{value:.1e}"


def milliseconds(seconds: float | None) -> str:
    """Three or four digits."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:,.1f}"


@dataclass(frozen=True)
class Roadmap:
    """A switch in the workshop's words. `effort` and `expected` are empty where it says nothing."""

    switch: str
    what: str
    category: str
    effort: str = ""
    expected: str = ""

    @property
    def is_low_effort(self) -> bool | None:
        """Low-Medium counts as low; None where the workshop names no effort."""
        if not self.effort:
            return None
        return self.effort in {"Very low", "Low", "Low-Medium"}


KERNEL_FUSION = "Kernel Fusion (phase 1)"
# The order is that of a variant's name.
ROADMAP = (
    Roadmap("qkv", "one projection for Q, K, V", "QKV Projections", "Low-Medium", "1.2-1.5x"),
    Roadmap("gate_up", "one projection for gate and up", "SwiGLU Gate/Up", "Low", "1.1-1.3x"),
    Roadmap("fused_swiglu", "SiLU x up in one pass", "SwiGLU Gate/Up", "Low", "1.1-1.3x"),
    Roadmap("sdpa", "library attention", "Attention Computation", "Medium", "1.3-2.0x"),
    Roadmap(
        "fused_attention",
        "our own causal attention in tiles",
        "Softmax Operations",
        "Medium-High",
        "1.2-1.8x",
    ),
    Roadmap("fused_norm", "RMSNorm and residual in one pass", KERNEL_FUSION, "", "1.4-1.8x"),
    Roadmap("fused_rotary", "rotary embedding in one pass", KERNEL_FUSION, "", "1.4-1.8x"),
    Roadmap(
        "fused_loss",
        "LM head and loss by chunks of tokens",
        "Memory Fragmentation",
        "Medium",
        "1.1-1.4x",
    ),
    Roadmap("foreach_adamw", "AdamW over lists of tensors", "Fused optimizer", "Low", "1.1-1.2x"),
    Roadmap("fused_adamw", "AdamW in one pass", "Fused optimizer", "Low", "1.1-1.2x"),
    Roadmap(
        "checkpoint",
        "a block's activations computed again",
        "Gradient Checkpointing",
        "",
        "20-30 % slower, activations / 2-4",
    ),
    Roadmap("onednn", "float32 GEMMs through oneDNN (CPU)", "Library (not in the workshop)"),
    Roadmap("wide_gemm", "narrow GEMMs in float32 (CPU)", "Library (not in the workshop)"),
    Roadmap(
        "graph",
        "the whole step captured and replayed (GPU)",
        "Kernel Launch Overhead",
        "Medium-High",
        "1.5-3.0x",
    ),
    Roadmap("layout", "weights in the products' layout", "Memory Layout (phase 3)", "", "1.1-1.3x"),
)
SWITCHES = tuple(entry.switch for entry in ROADMAP)
BY_SWITCH = {entry.switch: entry for entry in ROADMAP}
# The workshop's version 2 and what its roadmap promises in all.
EXPECTED_OF_SETS = {
    "fused": "1.5-2.0x (version 2)",
    "optimized": "2.0-3.0x (optimistic target)",
}
COMPILE = Roadmap("torch.compile", "automatic fusion", "Torch Compile", "Very low", "variable")
MIXED_PRECISION = "1.1-1.3x (phase 3), memory / 2"
BATCH_SCALING = "1.2-1.5x from a larger batch"
# Step 3 of its memory exercise: sequence and batch of each line.
MEMORY_EXERCISE = ((64, 8), (128, 8), (256, 8), (512, 4))
# Gate of version 2: throughput improved by more than 30 %.
THROUGHPUT_GATE = 1.3


def expected_of(row: str) -> str:
    """The workshop's promise for a row; empty where it makes none."""
    if row in BY_SWITCH:
        return BY_SWITCH[row].expected
    return EXPECTED_OF_SETS.get(row, "")


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

    def case(self, variant: str) -> CaseName:
        """The case that the program runs for a variant here."""
        return CaseName(
            self.component, self.pass_name, variant, self.size, self.dtype, self.batch, self.seq
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


RESULT = "ablation.json"
PAGE = "ABLATION.md"


def result_text(study: Study) -> str:
    """The result, a line a cell."""
    return compact_json(study.as_json(), (*study.tables, "rows", "gates", "peers"))


def read_study(path: Path) -> Study:
    """BadInputError where the file is no result of an ablation; OSError where it cannot be read."""
    try:
        return Study.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInputError(f"{path}: no result of scripts/ablation: {error}") from error


RESOLVED = re.compile(rf"\b{OPTIMIZED} = ([a-z0-9_+]+)")


def resolved_switches(label: str) -> list[str] | None:
    """The switches that the label of an `optimized` case names; None where it names none."""
    found = RESOLVED.search(label)
    if not found:
        return None
    names = found.group(1).split("+")
    return [] if names == [BASELINE] else names


def without(switches: Iterable[str], switch: str) -> str:
    """The spelling of a set without one of its switches."""
    return "+".join(name for name in switches if name != switch) or BASELINE


def planned_rows(switches: Sequence[str], combinations: Sequence[str]) -> list[RowName]:
    """The rows that are known before anything ran: all but the removed ones."""
    return [
        RowName(BASELINE, Kind.baseline),
        *(RowName(name, Kind.single) for name in switches),
        *(RowName(name, Kind.combination) for name in combinations),
        *(RowName(name, Kind.named_set) for name in SETS),
    ]


def removed_rows(table: Table, switches: Sequence[str]) -> list[RowName]:
    """A row for each of the switches that `optimized` holds at some point of the table."""
    held: set[str] = set()
    for point in table.points():
        cell = table.get(OPTIMIZED, point)
        held.update(resolved_switches(cell.label) or [] if cell else [])
    # switches that this script does not know yet come last
    names = [*(name for name in SWITCHES if name in held), *sorted(held - set(SWITCHES))]
    wanted = set(switches)
    return [removed_row(name) for name in names if name in wanted or name not in SWITCHES]


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
