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
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import (
    RESULTS,
    BadInputError,
    Json,
    made_by,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.text import NOT_MEASURED, compact_json
from tinyllama_tools.data.names import BASELINE, CaseName, full_step
from tinyllama_tools.data.studies import SCHEMAS
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
FUSED, OPTIMIZED = "fused", "optimized"
# The workshop's version 2 and what its roadmap promises in all.
EXPECTED = ROADMAP | {
    FUSED: "1.5-2.0x (version 2)",
    OPTIMIZED: "2.0-3.0x (optimistic target)",
}
# of the rows of removed switches, e.g. `optimized without qkv`
WITHOUT = f"{OPTIMIZED} without "


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

    `variant`: what the program runs. `reason`: why nothing was measured; `failure`: what was wrong;
    `above_peak`: why it has no shares of peaks. `counters`: of an iteration, from the verified run.
    `turns`: seconds of a step by turn, each the median of one process.
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

    @property
    def mfu_percent(self) -> float | None:
        """Of the same denominator as the program's own MFU, at the median time over turns."""
        counters, seconds = self.counters, self.seconds
        if not seconds or not counters.get("TFLOPS"):
            return None
        percent_of_a_tera = counters.get("MFU_percent", 0.0) / counters["TFLOPS"]
        return counters["model_flops"] / seconds / 1e12 * percent_of_a_tera or None


@dataclass
class Study:
    """A whole run. `meta`: date, command, turns and so on; `context`: of the program; `cells`: by
    row and point, in the order in which they were added."""

    meta: Json = field(default_factory=dict)
    context: Json = field(default_factory=dict)
    cells: dict[tuple[str, Point], Cell] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, cell: Cell) -> None:
        self.cells[cell.row, cell.point] = cell

    def get(self, row: str, point: Point) -> Cell | None:
        """The cell, None where that row was not asked for at that point."""
        return self.cells.get((row, point))

    def points(self) -> list[Point]:
        """Every point, once."""
        return list(dict.fromkeys(point for _, point in self.cells))

    def cells_at(self, point: Point) -> list[Cell]:
        """What was asked for at a point."""
        return [cell for cell in self.cells.values() if cell.point == point]

    @property
    def failures(self) -> list[Cell]:
        """Wrong results."""
        return [cell for cell in self.cells.values() if cell.failure]

    def switches_of_optimized(self, point: Point) -> list[str]:
        """As the label of its case at a point says; none where that says nothing."""
        cell = self.get(OPTIMIZED, point)
        found = re.search(rf"\b{OPTIMIZED} = ([a-z0-9_+]+)", cell.label if cell else BASELINE)
        names = found[1].split("+") if found else []
        return [] if names == [BASELINE] else names

    def _other(self, cell: Cell) -> Cell | None:
        """What it is compared with."""
        return self.get(OPTIMIZED if cell.row.startswith(WITHOUT) else BASELINE, cell.point)

    def ratio(self, cell: Cell) -> Ratio | None:
        """Speedup over the baseline (its time / this time); of a removed row, slowdown against
        `optimized` (this time / its time): above 1, the switch was worth having."""
        other = self._other(cell)
        return ratio_of(cell, other) if cell.row.startswith(WITHOUT) else ratio_of(other, cell)

    def memory_ratio(self, cell: Cell) -> float | None:
        """Peak memory over the baseline's, of a removed row over that of `optimized`."""
        other = self._other(cell)
        peak, before = (c and c.counters.get("peak_memory_MiB") for c in (cell, other))
        return None if peak is None or not before else peak / before


def ratio_of(above: Cell | None, below: Cell | None) -> Ratio | None:
    """Median over the turns that both have of above's time / below's; None where there is none."""
    turns = sorted(above.turns.keys() & below.turns.keys()) if above and below else []
    if not above or not below or not turns:
        return None
    return ratio_of_turns([above.turns[t] for t in turns], [below.turns[t] for t in turns])


NO_DIFFERENCE = "~"
# Five turns reach it: fewer decide nothing.
DECISIVE_CONFIDENCE = 0.9


def shows_difference(ratio: Ratio) -> bool:
    """Whether its interval leaves 1 out; too few turns show nothing."""
    interval = ratio.interval
    if interval is None or interval.confidence < DECISIVE_CONFIDENCE:
        return False
    return not interval.low <= 1 <= interval.high


def ratio_text(ratio: Ratio | None) -> str:
    """The same, `~` before it where no difference was shown; `-` where there is none."""
    if ratio is None:
        return NOT_MEASURED
    return ratio.text() if shows_difference(ratio) else f"{NO_DIFFERENCE} {ratio.text()}"


RESULT = "ablation.json"


def result_text(study: Study) -> str:
    """The result file, a line a cell; JSON knows only texts as keys."""
    cells = [
        asdict(cell) | {"turns": [list(turn) for turn in sorted(cell.turns.items())]}
        for cell in study.cells.values()
    ]
    document = {
        "format_version": 1,
        "meta": study.meta,
        "context": study.context,
        "main": cells,
        "notes": study.notes,
    }
    return compact_json(document, ("main",))


def read_study(path: Path) -> Study:
    """The result of a file; BadInputError where it is none."""
    found, _ = read_json(path)
    if problem := schema_problem(found, SCHEMAS["ablation"]):
        raise BadInputError(f"{path}: no result of scripts/ablation: {problem}")
    study = Study(found["meta"], found["context"], notes=found["notes"])
    with made_by("scripts/ablation", path):
        for entry in found["main"]:
            turns = {int(turn): float(seconds) for turn, seconds in entry["turns"]}
            study.add(Cell(**entry | {"point": Point(**entry["point"]), "turns": turns}))
    return study


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


def read_evidence(file: Path, summary: Json) -> Evidence:
    """The speedups in an ablation's result; BadInputError where it has none for this profile."""
    study, of = read_study(file), summary["configuration"]
    # the case of the suite that does what the profiled program did
    point, variant = Point(of["size"], of["dtype"], of["batch_size"], of["seq_len"]), of["variant"]
    speedups = {
        cell.row: ratio
        for cell in study.cells_at(point)
        if cell.row != BASELINE and not cell.row.startswith(WITHOUT) and cell.can_run
        if (ratio := study.ratio(cell))
    }
    ours = (*_machine(summary["context"]), of.get("gradient_accumulation_steps", 1))
    wanted = (*_machine(study.context), 1)
    problem = ""
    if not speedups:
        problem = f"has no turn at {point.title}; profile a shape that it measured"
    elif variant != BASELINE:
        problem = f"its speedups are over {BASELINE}, not {variant}; profile {BASELINE}"
    elif ours != wanted:
        problem = (
            f"device, threads and micro-batches are {wanted}, those of the profile {ours}; run "
            "scripts/ablation here"
        )
    if problem:
        raise BadInputError(f"{file}: {problem}")
    return Evidence(file, study, point, speedups)


def find_evidence(summary: Json, results: Path = RESULTS) -> Evidence | None:
    """The newest published or unpublished ablation that fits; None where there is none."""
    files = [*results.glob("reference/ablation_*.json"), *results.glob("*/ablation.json")]
    found: list[Evidence] = []
    for file in files:
        # another device's, or not ours: nobody asked for this file
        with contextlib.suppress(BadInputError):
            found.append(read_evidence(file, summary))
    return max(found, key=lambda one: one.study.meta.get("date", ""), default=None)
