"""ABLATION.md and what the terminal shows of it, quality gates and success metrics included."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import PROJECT, Json
from tinyllama_tools.core.process import placed_threads
from tinyllama_tools.core.text import cell, markdown_table
from tinyllama_tools.data.names import UNITS
from tinyllama_tools.models.ablations import (
    BASELINE,
    BATCH_SCALING,
    BY_SWITCH,
    COMPILE,
    FUSED,
    LINEAR_BELOW,
    MEMORY_EXERCISE,
    MIXED_PRECISION,
    NO_DIFFERENCE,
    NOTHING,
    OPTIMIZED,
    QUADRATIC_ABOVE,
    SETS,
    THROUGHPUT_GATE,
    GateRun,
    Kind,
    Point,
    Roadmap,
    Row,
    RowName,
    Rule,
    Series,
    Study,
    Table,
    check_rule,
    count,
    error,
    exercise_points,
    expected_of,
    is_decisive,
    mebibytes,
    memory_ratio,
    milliseconds,
    number,
    ratio_of_cells,
    ratio_text,
    resolved_switches,
    row_at,
    rows_at,
    series_of,
    shows_difference,
    times,
)
from tinyllama_tools.proofs.rows import read_report
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

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


VERSIONS = (
    RowName(BASELINE, Kind.baseline),
    RowName(FUSED, Kind.named_set),
    RowName(OPTIMIZED, Kind.named_set),
)
Figure = Callable[[Row], str]


def metrics_table(study: Study, point: Point, rows: list[Row]) -> list[str]:
    """Before and after, as the workshop's worksheet asks for."""
    figures: list[tuple[str, Figure]] = [
        ("Training throughput, samples/s", lambda row: number(row.samples_per_second)),
        ("Model FLOPS Utilization, %", lambda row: number(row.mfu_percent)),
        ("Peak memory usage, MiB", lambda row: mebibytes(row.cell.counter("peak_memory_MiB"))),
        (f"{launches_heading(study).capitalize()} per step", lambda row: count(row.launches)),
        ("Time per step, ms", lambda row: milliseconds(row.cell.seconds)),
        ("Speedup", lambda row: row.ratio_text),
    ]
    header = [f"{point.dtype}, {point.shape}", *(version_title(row) for row in rows)]
    lines = [[name, *(figure(row) for row in rows)] for name, figure in figures]
    lines.append(["Speedup that the workshop expects", *(expected_of(r.row.name) for r in rows)])
    return markdown_table(header, lines)


def version_title(row: Row) -> str:
    """`baseline` is before, the sets are after."""
    return "before: baseline" if row.row.name == BASELINE else f"after: {row.row.name}"


def gates_table(study: Study, point: Point, rows: list[Row]) -> list[str]:
    """Every gate of both sets."""
    lines = [
        (gate.name, row.row.name, gate.verdict, gate.evidence)
        for row in rows
        for gate in gates_of(study, row)
    ]
    return markdown_table(
        (f"gate at {point.dtype}, {point.shape}", "of", "verdict", "evidence"), lines
    )


def success_lines(study: Study) -> list[str]:
    """The section, a pair of tables a point."""
    if not study.main.cells:
        return []
    lines = ["## Success metrics of version 2", ""]
    for point in study.main.points():
        rows = [row for name in VERSIONS if (row := row_at(study.main, name, point)) is not None]
        after = [row for row in rows if row.row.name in SETS]
        lines += [*metrics_table(study, point, rows), ""]
        lines += [*gates_table(study, point, after), ""]
    return lines


def both(first: Table, second: Table) -> Table:
    """The cells of both tables."""
    return Table(first.cells | second.cells)


def type_lines(study: Study) -> list[str]:
    """Mixed precision: each type beside float32 of the same variant and shape."""
    if not study.types.cells:
        return []
    table = both(study.main, study.types)
    found = sorted(
        ((point, name) for point in table.points() for name in VERSIONS),
        key=lambda pair: (pair[0].batch, pair[0].seq, VERSIONS.index(pair[1])),
    )
    lines = []
    for point, name in found:
        row = row_at(table, name, point)
        plain = table.get(name.name, Point(point.size, "f32", point.batch, point.seq))
        if row is None:
            continue
        over_f32 = ratio_of_cells(plain, row.cell) if point.dtype != "f32" else None
        memory = memory_ratio(row.cell, plain)
        texts = [point.shape, name.name, point.dtype, milliseconds(row.cell.seconds)]
        texts += [number(row.samples_per_second), ratio_text(over_f32), row.ratio_text]
        texts += [mebibytes(row.cell.counter("peak_memory_MiB")), times(memory), row.cell.note]
        lines.append(texts)
    header = ["B x S", "variant", "dtype", "ms", "samples/s", "speedup over f32"]
    header += ["over baseline", "peak MiB", "memory x f32", "note"]
    text = f"The workshop expects {MIXED_PRECISION}."
    return [
        "## Mixed precision",
        "",
        *textwrap.wrap(text, 100),
        "",
        *markdown_table(header, lines),
        "",
    ]


def batch_lines(study: Study) -> list[str]:
    """Throughput and memory over the batch."""
    if not study.batches.cells:
        return []
    points = sorted(study.batches.points())
    smallest = points[0]
    lines = []
    for point in points:
        for name in VERSIONS:
            row = row_at(study.batches, name, point)
            first = row_at(study.batches, name, smallest)
            if row is None or first is None:
                continue
            speed, at_first = row.samples_per_second, first.samples_per_second
            gain = speed / at_first if speed and at_first else None
            texts = [str(point.batch), name.name, milliseconds(row.cell.seconds), number(speed)]
            texts += [times(gain), row.ratio_text]
            texts += [mebibytes(row.cell.counter("peak_memory_MiB")), row.cell.note]
            lines.append(texts)
    header = ["batch", "variant", "ms", "samples/s", f"samples/s x batch {smallest.batch}"]
    header += ["speedup over baseline", "peak MiB", "note"]
    text = f"{smallest.size} {smallest.dtype}, sequence {smallest.seq}. The workshop expects "
    return ["## Batch size", "", f"{text}{BATCH_SCALING}.", "", *markdown_table(header, lines), ""]


PARITY = "training parity"
DETERMINISM = "determinism"
NARROW_PARITY = "training parity of narrow types"
# Name, and the tests of golden_test that decide it.
TESTS = (
    (PARITY, "TrainingParityTest.Float32*"),
    (NARROW_PARITY, "TrainingParityTest.NarrowTypes*"),
    (DETERMINISM, "Determinism*"),
)
PROGRAM = "model/golden_test"
TIMEOUT_S = 7200
HELD, NOT_HELD, UNKNOWN = "held", "**not held**", "not shown"


@dataclass(frozen=True)
class Gate:
    """One line: what has to hold, how it stands, and the figure behind that."""

    name: str
    verdict: str
    evidence: str


def run_tests(build_folder: Path, name: str, pattern: str) -> GateRun:
    """Runs the tests of a gate; every way of not running them is a reason, not a success."""
    program = build_folder / PROGRAM
    gate = GateRun(name, f"{PROGRAM} --gtest_filter={pattern}")
    if not program.is_file():
        gate.reason = f"{PROGRAM} is not built"
        return gate
    with tempfile.TemporaryDirectory(prefix="tiny_llama_gate_") as folder:
        report = Path(folder) / "report.json"
        command = [str(program), f"--gtest_filter={pattern}", f"--gtest_output=json:{report}"]
        try:
            status = subprocess.run(
                command,
                env=placed_threads(os.environ) | {"GTEST_COLOR": "no"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            gate.reason = f"did not end within {TIMEOUT_S} s"
            return gate
        if not report.exists():
            gate.reason = f"ended with status {status} before it wrote its report"
            return gate
        return read_gate(gate, report, status)


def read_gate(gate: GateRun, report: Path, status: int) -> GateRun:
    """Fills in what the report says."""
    proof = read_report(report, PROGRAM)
    tests = int(json.loads(report.read_text(encoding="utf-8"))["tests"])
    gate.ran = tests - len(proof.skipped)
    gate.failed = proof.failed
    if status != 0 and not gate.failed:
        gate.reason = f"ended with status {status} although no test failed"
    elif gate.ran == 0:
        gate.reason = "no such test ran"
    return gate


def gate_of_tests(study: Study, name: str, title: str) -> Gate:
    """A gate that tests decide. Not having been run is not holding."""
    gate = next((found for found in study.gates if found.name == name), None)
    if gate is None:
        return Gate(title, "not measured", "left out of this run")
    if gate.failed:
        return Gate(title, NOT_HELD, f"`{gate.command}`: failed: {', '.join(gate.failed)}")
    if gate.reason:
        return Gate(title, "not measured", f"`{gate.command}`: {gate.reason}")
    return Gate(title, HELD, f"`{gate.command}`: {gate.ran} tests passed")


def accuracy_gate(study: Study, rows: Sequence[Row]) -> Gate:
    """The training parity test, and every case's comparison with the float64 baseline."""
    is_float32 = all(row.cell.point.dtype == "f32" for row in rows)
    name = PARITY if is_float32 else NARROW_PARITY
    gate = gate_of_tests(study, name, "No degradation in model accuracy")
    errors = [e for row in rows if (e := row.cell.counter("max_rel_error")) is not None]
    worst = f"; largest error against float64 {max(errors):.1e}" if errors else ""
    failed = [row.cell.note for row in rows if row.cell.failure]
    if failed:
        return Gate(gate.name, NOT_HELD, failed[0])
    return Gate(gate.name, gate.verdict, f"{gate.evidence}{worst}")


def memory_gate(row: Row) -> Gate:
    """Peak memory not above the baseline's. It is counted to the byte."""
    name = "Memory usage reduced or stable"
    ratio = row.memory_ratio
    if ratio is None:
        return Gate(name, "not measured", row.cell.note)
    return Gate(name, HELD if ratio <= 1 else NOT_HELD, f"{ratio:.3f} of the baseline's peak")


def throughput_gate(row: Row) -> Gate:
    """More than 30 % above the baseline; the interval has to say so."""
    name = "Throughput improved by >30%"
    ratio = row.ratio
    if ratio is None:
        return Gate(name, "not measured", row.cell.note)
    text = f"{ratio.text()} times the baseline's"
    if ratio.interval is None or not is_decisive(ratio):
        return Gate(name, UNKNOWN, f"{text}; fewer than five turns decide nothing")
    if ratio.interval.low > THROUGHPUT_GATE:
        return Gate(name, HELD, text)
    return Gate(name, NOT_HELD if ratio.interval.high <= THROUGHPUT_GATE else UNKNOWN, text)


def gates_of(study: Study, row: Row) -> list[Gate]:
    """All four gates of a set at one point."""
    return [
        accuracy_gate(study, [row]),
        gate_of_tests(study, DETERMINISM, "Deterministic execution maintained"),
        memory_gate(row),
        throughput_gate(row),
    ]


COMPILED = "peer:compile"
HOW_TO = "`scripts/peers` writes them; this script reads its newest result, or `--peers FILE`"


class PeersError(Exception):
    """The file is no result of scripts/peers; the message names it."""


@dataclass
class PeerTimes:
    """What the file holds, by case name. `ratios`: of a peer's time over ours, by ours and peer."""

    path: Path
    context: Json
    seconds: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ratios: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, entry: Json) -> None:
        """One repetition, or the reason why there is none."""
        name = entry["run_name"].removesuffix("/manual_time")
        if "error_occurred" in entry:
            self.reasons[name] = f"failed: {entry['error_message']}"
        elif "skipped" in entry:
            self.reasons[name] = f"skipped: {entry['skip_message']}"
        elif entry["run_type"] == "iteration":
            seconds = entry["real_time"] * UNITS[entry["time_unit"]]
            self.seconds.setdefault(name, []).append(seconds)

    @property
    def date(self) -> str:
        """When it was measured."""
        return str(self.context.get("date", ""))

    def is_of(self, context: Json) -> bool:
        """Whether the same processor, with as many threads, measured it."""
        return machine_of(self.context) == machine_of(context)

    @property
    def compiled(self) -> list[str]:
        """`peer:compile_tuned` and the like."""
        names = [name.split("/") for name in (*self.seconds, *self.reasons)]
        variants = dict.fromkeys(parts[2] for parts in names if len(parts) > 2)
        return [variant for variant in variants if variant.startswith(COMPILED)]


def machine_of(context: Json) -> tuple[object, object]:
    """What times depend on most."""
    return context.get("device", {}).get("name"), context.get("threads")


def read_times(path: Path) -> PeerTimes:
    """PeersError where the file cannot be read or is of another kind."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        context = document["context"]
        found = PeerTimes(path, context)
        for entry in document["benchmarks"]:
            found.add(entry)
        for ratio in context.get("peers", {}).get("ratios", []):
            found.ratios[ratio["case"], ratio["peer"]] = list(ratio["of_each_turn"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PeersError(f"{path}: not in the suite's format: {error!r}") from error
    return found


def newest_peers(context: Json, project: Path = PROJECT) -> Path | None:
    """The newest run's file of the machine that `context` is of, else a reference result of it;
    None where there is none in the suite's format."""
    results = project / "results"
    # names of runs begin with the time
    runs = sorted(results.glob("*_peers/peers.json"), reverse=True)
    for path in (*runs, *sorted(results.glob("reference/peers_*.json"))):
        try:
            if read_times(path).is_of(context):
                return path
        except PeersError:
            continue
    return None


def compile_rows(path: Path, main: Table) -> list[Json]:
    """A row for each compiled peer at each point of the table that the file names."""
    times = read_times(path)
    return [
        compile_row(times, variant, point, main)
        for point in main.points()
        for variant in times.compiled
        if str(point.case(variant)) in {*times.seconds, *times.reasons}
    ]


def compile_row(times: PeerTimes, variant: str, point: Point, main: Table) -> Json:
    """One of them, as it is kept in the result. Ratios are of turns of the peers' own run.

    Where that has no baseline, the speedup is over this run's, which ran at another time.
    """
    name = str(point.case(variant))
    seconds = times.seconds.get(name)
    median = statistics.median(seconds) if seconds else None
    over_baseline = times.ratios.get((str(point.case(BASELINE)), variant))
    to_optimized = times.ratios.get((str(point.case(OPTIMIZED)), variant))
    speedup, against = None, "the baseline of its own run"
    if over_baseline:
        speedup = ratio_of_turns([1.0] * len(over_baseline), over_baseline)
    elif median:
        cell = main.get(BASELINE, point)
        against = "this run's baseline, not in turn"
        speedup = ratio_of_turns([cell.seconds], [median]) if cell and cell.seconds else None
    slower = ratio_of_turns(to_optimized, [1.0] * len(to_optimized)) if to_optimized else None
    return {
        "row": f"torch.compile ({variant.removeprefix('peer:')})",
        "point": point.title,
        "seconds": median,
        "samples_per_second": point.batch / median if median else None,
        "speedup": speedup.as_json() if speedup else None,
        "against": against if speedup else "",
        "over_optimized": slower.as_json() if slower else None,
        "note": times.reasons.get(name, ""),
        "source": f"{times.path.parent.name}/{times.path.name}, {times.date}",
    }


LONG_BATCH = 1


def series_table(series: Sequence[Series]) -> list[str]:
    """A line a row: MiB at each length, the fitted exponent, and below the reasons."""
    lengths = sorted({length for one in series for length in one.cells})
    header = ["variant", *(f"S {length}" for length in lengths), "MiB ~ S ^", "growth"]
    lines, reasons = [], []
    for one in series:
        growth = one.growth
        texts = [mebibytes(one.measured.get(length)) for length in lengths]
        fit = f"{growth.exponent:.2f} ({growth.first} to {growth.last})" if growth else NOTHING
        lines.append([one.row, *texts, fit, growth.verdict if growth else NOTHING])
        reasons += [
            f"- {one.row}, S {length}: {value}"
            for length, value in one.cells.items()
            if isinstance(value, str)
        ]
    return [*markdown_table(header, lines), "", *reasons, *([""] if reasons else [])]


def exercise_table(study: Study) -> list[str]:
    """The table of the workshop's memory exercise, filled in for three variants."""
    points = exercise_points(study.memory, MEMORY_EXERCISE)
    lines = []
    for name in (BASELINE, FUSED, OPTIMIZED):
        for point in points:
            cell, first = study.memory.get(name, point), study.memory.get(name, points[0])
            if cell is None or first is None:
                continue
            peak, start = cell.counter("peak_memory_MiB"), first.counter("peak_memory_MiB")
            more = mebibytes(peak - start) if peak is not None and start is not None else NOTHING
            texts = [name, str(point.seq), str(point.batch), mebibytes(peak), more]
            lines.append([*texts, times(memory_ratio(cell, first)), cell.note])
    header = ["variant", "Seq Length", "Batch Size", "Peak Memory (MiB)", "Memory Increase (MiB)"]
    return markdown_table([*header, "Scaling Factor", "note"], lines) if lines else []


def memory_lines(study: Study) -> list[str]:
    """The section on memory over the sequence."""
    if not study.memory.cells:
        return []
    text = (
        "Peak MiB alive in tensors, exact, from one iteration. The exponent is the slope of "
        "log(MiB) over log(S), from S = 1024 on where three such lengths were measured (below, "
        "weights and moments hide what grows), else over the last three; "
        f"linear: below {LINEAR_BELOW}, quadratic: above {QUADRATIC_ABOVE}."
    )
    point = study.memory.points()[0]
    lines = ["## Memory over the sequence", "", *textwrap.wrap(text, 100), ""]
    parts = (("full step", "full_step"), ("attention, forward and backward", "attention"))
    for title, component in parts:
        series = series_of(study.memory, component, LONG_BATCH)
        if series:
            heading = f"### {title.capitalize()}, {point.size} {point.dtype}, batch {LONG_BATCH}"
            lines += [heading, "", *series_table(series)]
    table = exercise_table(study)
    if table:
        lines += ["### The workshop's exercise (its step 3)", "", *table, ""]
    return lines


def impact_text(impact: Impact) -> str:
    """`qkv 1.20x`, with the memory where it saves some."""
    memory = f", memory {impact.memory_ratio:.2f}x" if impact.saves_memory else ""
    return f"{impact.entry.switch} {impact.speedup:.2f}x{memory}"


def quadrant_lines(found: Sequence[Impact]) -> list[str]:
    """The workshop's four lists, and those whose effort it does not name."""
    lines: list[str] = []
    for title, is_high, is_low_effort in QUADRANTS:
        inside = in_quadrant(found, is_high, is_low_effort)
        lines += [f"**{title}:**", "", *(f"- {impact_text(i)}" for i in inside or ())]
        lines += ["- none", ""] if not inside else [""]
    others = [*in_quadrant(found, True, None), *in_quadrant(found, False, None)]
    if others:
        listed = "; ".join(
            f"{impact_text(i)} ({'high' if i.is_high else 'low'} impact)" for i in others
        )
        lines += [f"Effort {NO_EFFORT_NAMED}: {listed}.", ""]
    return lines


def impact_lines(study: Study) -> list[str]:
    """Bottleneck assessment and matrix, one of each for a dtype."""
    if not study.main.cells:
        return []
    text = (
        f"Impact by the measured speedup, a geometric mean over the test points: high from "
        f"{HIGH_IMPACT}x on, medium from {MEDIUM_IMPACT}x, else low; none shown where every "
        f"interval includes 1. The upper half of the matrix is high, medium, and what saves a "
        f"fifth of memory or more (peak x {MEMORY_IMPACT} or less). Effort and expected speedup "
        "are the workshop's; Low-Medium counts as low."
    )
    lines = ["## Impact and effort", "", *textwrap.wrap(text, 100), ""]
    for dtype in dict.fromkeys(point.dtype for point in study.main.points()):
        found = impacts(study.main, study.rows, dtype)
        table = [
            (
                impact.entry.category or NOTHING,
                impact.entry.switch,
                impact.entry.effort or NO_EFFORT_NAMED,
                impact.entry.expected or NOTHING,
                times(impact.speedup),
                times(impact.memory_ratio),
                impact.impact or NOTHING,
                str(rank) if impact.speedup else NOTHING,
                impact.note,
            )
            for rank, impact in enumerate(found, start=1)
        ]
        header = ("Bottleneck Category", "switch", "Optimization Difficulty", "Expected Speedup")
        header += ("measured", "memory x", "impact", "Priority Rank", "note")
        lines += [f"### {dtype}", "", *markdown_table(header, table), "", *quadrant_lines(found)]
    return lines


def compile_lines(study: Study) -> list[str]:
    """torch.compile's rows; where no result was found, how to make one."""
    lines = ["## torch.compile", ""]
    lines += [f"The workshop: {COMPILE.effort.lower()} effort, {COMPILE.expected} impact.", ""]
    table = [
        (
            row["row"],
            row["point"],
            milliseconds(row["seconds"]),
            number(row["samples_per_second"]),
            ratio_text(Ratio.from_json(row["speedup"])),
            row["against"],
            ratio_text(Ratio.from_json(row["over_optimized"])),
            row["note"],
        )
        for row in study.peers
    ]
    if not table:
        missing = f"no result of torch.compile at these points: {HOW_TO}"
        table = [("torch.compile", "all", *[NOTHING] * 5, missing)]
    header = ("variant", "case", "ms", "samples/s", "speedup", "over", "its time / optimized's")
    lines += [*markdown_table((*header, "note"), table), ""]
    sources = sorted({row["source"] for row in study.peers})
    if sources:
        lines += [f"From {', '.join(sources)}, where both took turns.", ""]
    return lines


MOST_SHOWN = 20
NOT_BRIEF = ("workshop", "samples/s", "allocations")
MAIN_TEXT = (
    "Speedup: time of the baseline over time of the variant, median over turns with its 95 % "
    f"interval; of fewer than six turns, with the confidence they reach. {NO_DIFFERENCE}: the "
    "interval includes 1, no difference shown. Removed: time without the switch over time of "
    "`optimized`; above 1, the switch is worth having. memory x: peak over the baseline's, of "
    "removed rows over that of `optimized`."
)
RULE_TEXT = (
    "The rule: `optimized` is nowhere slower than the baseline or any single switch. It is broken "
    "where even the low end of the interval of its time over the other's is above 1; of true "
    "ties, 1 to 3 in 100 look so by chance. Fewer than five turns decide nothing."
)


def is_gpu(study: Study) -> bool:
    """Whether kernels are what is launched."""
    return study.context.get("device", {}).get("backend", "cpu") != "cpu"


def launches_heading(study: Study) -> str:
    """What `launches` of a row counts here."""
    return "kernels" if is_gpu(study) else "operators"


def row_cells(study: Study, row: Row, ratio_heading: str) -> dict[str, str]:
    """Every column of a row by its heading."""
    cell = row.cell
    return {
        "variant": row.row.name,
        ratio_heading: row.ratio_text,
        "workshop": expected_of(row.row.name) or NOTHING,
        "ms": milliseconds(cell.seconds),
        "samples/s": number(row.samples_per_second),
        "MFU %": number(row.mfu_percent),
        "peak MiB": mebibytes(cell.counter("peak_memory_MiB")),
        "memory x": times(row.memory_ratio),
        "allocations": count(cell.counter("allocations")),
        launches_heading(study): count(row.launches),
        "rel error": error(cell.counter("max_rel_error")),
        "note": cell.note,
    }


def variant_table(
    study: Study, rows: Sequence[Row], ratio_heading: str, left_out: Collection[str]
) -> list[str]:
    """One line a row, skipped ones with their reason."""
    lines = [row_cells(study, row, ratio_heading) for row in rows]
    header = [name for name in lines[0] if name not in left_out]
    return markdown_table(header, [[line[name] for name in header] for line in lines])


def optimized_is(table: Table, point: Point) -> str:
    """What `optimized` stands for at a point, as the case's label says."""
    cell = table.get(OPTIMIZED, point)
    switches = resolved_switches(cell.label) if cell else None
    if switches is None:
        return f"What `{OPTIMIZED}` stands for here is not known: its case has no such label."
    return f"`{OPTIMIZED}` is `{'+'.join(switches) or 'baseline'}` here."


def point_lines(study: Study, point: Point, left_out: Collection[str]) -> list[str]:
    """Both tables of a test point."""
    added = study.rows_of(Kind.baseline, Kind.single, Kind.combination, Kind.named_set)
    rows = rows_at(study.main, added, point)
    removed = rows_at(study.main, study.rows_of(Kind.removed), point)
    lines = [f"### {point.title}", ""]
    lines += variant_table(study, rows, "speedup over baseline", left_out)
    lines += ["", optimized_is(study.main, point), ""]
    if removed:
        without = {*left_out, "workshop"}
        lines += [*variant_table(study, removed, "slowdown against optimized", without), ""]
    return lines


def main_lines(study: Study, *, is_brief: bool = False) -> list[str]:
    """All test points; brief: as wide as a terminal."""
    if not study.main.cells:
        return []
    lines = ["## Each switch, alone and removed", "", *textwrap.wrap(MAIN_TEXT, 100), ""]
    for point in study.main.points():
        lines += point_lines(study, point, NOT_BRIEF if is_brief else ())
    return lines


def rule_lines(rule: Rule, what: str) -> list[str]:
    """Held or not, where not, and how close it came."""
    if not rule.comparisons:
        lines = [f"**Not measured** ({what}): no two of the compared rows ran in the same turn."]
    elif rule.held:
        lines = [
            f"**Held** ({what}): nowhere shown slower, in {len(rule.comparisons)} comparisons, of "
            f"which {rule.expected_false:.1f} would look slower by chance if all were ties; no "
            f"slowdown above {rule.widest():.2f} is left open."
        ]
    elif not rule.broken:
        lines = [
            f"**Not shown** ({what}): {len(rule.undecided)} of {len(rule.comparisons)} comparisons "
            "had too few turns; none of the others is slower."
        ]
    else:
        slower = rule.broken
        lines = [
            f"**Not held** ({what}) at {len(slower)} of {len(rule.comparisons)} comparisons, of "
            f"which {rule.expected_false:.1f} would look so by chance if all were ties:"
        ]
        table = (
            (found.point.title, found.row, found.slowdown.text())
            for found in sorted(slower, key=lambda found: -found.slowdown.median)[:MOST_SHOWN]
        )
        lines += ["", *markdown_table(("case", "is faster", "optimized takes, x its time"), table)]
    closest = rule.closest()
    if closest and rule.held:
        where = f"{closest.row} at {closest.point.title}"
        taken = closest.slowdown.text()
        lines.append(f"Closest: {where}, optimized takes {taken} of its time.")
    if rule.unmeasured:
        lines += ["", "Without a number:", "", *(f"- {text}" for text in rule.unmeasured)]
    return [*lines, ""]


def rule_section(study: Study) -> list[str]:
    """The issue's rule, over the test points and, where it was measured, the grid."""
    lines = ["## Is optimized the best of them?", "", *textwrap.wrap(RULE_TEXT, 100), ""]
    if study.main.cells:
        lines += rule_lines(check_rule(study.main, study.rows), "test points")
    if study.batches.cells:
        lines += rule_lines(check_rule(study.batches, study.rows), "batches, baseline only")
    if study.grid.cells:
        lines += rule_lines(check_rule(study.grid, study.rows), "default grid")
    return lines


def grid_lines(study: Study) -> list[str]:
    """The default grid: baseline, optimized, and the best single switch where those ran."""
    if not study.grid.cells:
        return []
    names = [RowName(OPTIMIZED, Kind.named_set)]
    lines = []
    for point in study.grid.points():
        row = next(iter(rows_at(study.grid, names, point)), None)
        baseline = study.grid.get("baseline", point)
        if row is None or baseline is None:
            continue
        lines.append(
            (
                f"{point.component} {point.pass_name} {point.size}",
                point.dtype,
                point.shape,
                milliseconds(baseline.seconds),
                milliseconds(row.cell.seconds),
                row.ratio_text,
                times(row.memory_ratio),
                row.cell.note or baseline.note,
            )
        )
    header = (
        "case",
        "dtype",
        "B x S",
        "baseline ms",
        "optimized ms",
        "speedup",
        "memory x",
        "note",
    )
    return ["## The default grid", "", *markdown_table(header, lines), ""]


INTRODUCTION = """\
Every optimisation alone, all together, and removed again from the best set: the workshop's tables
with measured numbers. A row was timed only after its loss and all gradients agreed with the float64
baseline (`rel error` is the largest difference). `scripts/ablation` measures it again."""
NOTES = """\
## How it was measured

Each time is the median over turns; in each turn every variant runs once at every point, a process
each, in an order drawn anew, and only times of the same turn are divided by each other. Memory,
allocations and operators are exact counts of one iteration. A case that was skipped or failed stays
in the table with its reason. Cells whose step is slow get fewer turns; their intervals are wide."""


def environment(study: Study) -> dict[str, str]:
    """What the numbers belong to."""
    context, meta = study.context, study.meta
    device = context.get("device", {})
    dirty = " with uncommitted changes" if context.get("git_dirty") else ""
    peaks = context.get("peaks", {})
    rates = [
        f"{name} {peak['flops_per_second'] / 1e9:,.0f} GFLOP/s"
        for name, peak in peaks.get("measured", {}).items()
        if "flops_per_second" in peak
    ]
    return {
        "date": str(meta.get("date", "")),
        "commit": f"{str(context.get('git_commit', 'unknown'))[:12]}{dirty}",
        "device": f"{device.get('name', 'unknown')} ({device.get('architecture', '')})",
        "threads": str(context.get("threads", "unknown")),
        "libtorch": str(context.get("torch_version", "unknown")),
        "measured peaks": ", ".join(rates) or "none",
        "MFU is against": str(peaks.get("mfu_is_against", "unknown")),
        "turns": f"{meta.get('turns_done', 0)} of {meta.get('turns')}",
        "steps": f"{meta.get('steps')} a turn",
        "took": str(meta.get("took", "")),
        "command": f"`{meta.get('command', '')}`",
    }


def note_lines(study: Study) -> list[str]:
    """What a reader must know before anything else. Failures of one kind share a line."""
    places: dict[tuple[str, str], list[str]] = {}
    for found in study.failures:
        places.setdefault((found.row, found.failure), []).append(found.point.title)
    notes = list(study.notes)
    for (row, failure), at in places.items():
        others = f" and {len(at) - 1} more" if len(at) > 1 else ""
        notes.append(f"{row} at {at[0]}{others}: {failure}")
    return [*(f"- **{cell(note)}**" for note in notes), *([""] if notes else [])]


def ablation_page(study: Study) -> str:
    """The page."""
    lines = ["# Ablation", "", INTRODUCTION, "", *note_lines(study)]
    lines += [*markdown_table(("", ""), environment(study).items()), ""]
    lines += [*rule_section(study), *main_lines(study), *impact_lines(study)]
    lines += [*success_lines(study), *type_lines(study), *batch_lines(study)]
    lines += [*memory_lines(study), *compile_lines(study), *grid_lines(study)]
    return "\n".join([*lines, NOTES]) + "\n"


def without_marks(lines: Iterable[str]) -> str:
    """For a terminal: Markdown's emphasis and code marks left out."""
    return "\n".join(lines).replace("**", "").replace("`", "")


def terminal_text(study: Study) -> str:
    """The main tables and the rule."""
    lines = [*note_lines(study), *main_lines(study, is_brief=True), *rule_section(study)]
    return without_marks(lines)
