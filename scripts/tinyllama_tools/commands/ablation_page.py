"""ABLATION.md and what the terminal shows of it: rows of its tables, success metrics, impact."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import NOT_MEASURED, number, template
from tinyllama_tools.models.ablations import (
    BASELINE,
    BY_SWITCH,
    EXPECTED,
    FIT_FROM,
    LINEAR_BELOW,
    OPTIMIZED,
    QUADRATIC_ABOVE,
    VERSIONS,
    Kind,
    Point,
    Roadmap,
    Row,
    RowName,
    Rule,
    Study,
    Table,
    check_rule,
    fit_exponent,
    is_decisive,
    memory_ratio,
    ratio_of_cells,
    ratio_text,
    row_at,
    rows_at,
    shows_difference,
    switches_of_optimized,
)
from tinyllama_tools.stats.rank_tests import Ratio

TEMPLATE = Path(__file__).parent / "templates/ablation.md.j2"
# The smallest speedup that the workshop expects of anything, and version 2's own gate.
MEDIUM_IMPACT, HIGH_IMPACT, THROUGHPUT_GATE = 1.1, 1.3, 1.3
# What is a saving of memory worth naming.
MEMORY_IMPACT = 0.8
QUADRANTS = (
    ("High Impact, Low Effort (Priority 1)", True, True),
    ("High Impact, High Effort (Priority 2)", True, False),
    ("Low Impact, Low Effort (Priority 3)", False, True),
    ("Low Impact, High Effort (Priority 4 - Skip)", False, False),
)
# Step 3 of the workshop's memory exercise: sequence and batch of each line.
MEMORY_EXERCISE = ((64, 8), (128, 8), (256, 8), (512, 4))
Texts = list[str]


def mebibytes(value: float | None) -> str:
    """Small ones with a digit more."""
    return number(value, 2 if value is not None and value < 10 else 1)


def times(value: float | None) -> str:
    """A ratio such as 0.45."""
    return number(value, 2)


def milliseconds(seconds: float | None) -> str:
    """Three or four digits."""
    return number(seconds and seconds * 1e3, 2 if seconds and seconds < 0.1 else 1)


@dataclass(frozen=True)
class Impact:
    """What a switch did in one dtype: geometric means over the points at which it was measured.
    `is_shown`: at one of them at least, the interval leaves 1 out."""

    entry: Roadmap
    speedup: float | None
    memory_ratio: float | None
    is_shown: bool
    note: str = ""

    @property
    def impact(self) -> str:
        """`high`, `medium`, `low`, `none shown`, `slower`; empty where nothing was measured."""
        if self.speedup is None:
            return ""
        if not self.is_shown:
            return "none shown"
        limits = ((HIGH_IMPACT, "high"), (MEDIUM_IMPACT, "medium"), (1, "low"), (0, "slower"))
        return next(word for least, word in limits if self.speedup >= least)

    @property
    def saves_memory(self) -> bool:
        """By a fifth or more."""
        return self.memory_ratio is not None and self.memory_ratio <= MEMORY_IMPACT

    @property
    def is_high(self) -> bool:
        """The upper half of the matrix."""
        return self.impact in {"high", "medium"} or self.saves_memory

    @property
    def text(self) -> str:
        """`qkv 1.20x`, with the memory where it saves some."""
        memory = f", memory {self.memory_ratio:.2f}x" if self.saves_memory else ""
        return f"{self.entry.switch} {self.speedup:.2f}x{memory}"


def impacts(table: Table, rows: Iterable[RowName], dtype: str) -> list[Impact]:
    """Every single switch in a dtype, the fastest first and those without a number last."""

    def mean(values: Sequence[float]) -> float | None:
        return statistics.geometric_mean(values) if values else None

    points = [point for point in table.points() if point.dtype == dtype]
    found = []
    for name in (row for row in rows if row.kind == Kind.single):
        at = [row for point in points if (row := row_at(table, name, point))]
        ratios = [row.ratio for row in at if row.ratio]
        found.append(
            Impact(
                BY_SWITCH.get(name.name, Roadmap(name.name)),
                mean([ratio.median for ratio in ratios]),
                mean([row.memory_ratio for row in at if row.memory_ratio]),
                any(shows_difference(ratio) for ratio in ratios),
                next((row.cell.note for row in at if row.cell.note), ""),
            )
        )
    return sorted(found, key=lambda impact: -(impact.speedup or 0))


def in_quadrant(found: Sequence[Impact], is_high: bool, is_low_effort: bool | None) -> list[Impact]:
    """The measured ones of a quadrant; effort None: those of which the workshop names none."""
    wanted = (is_high, is_low_effort)
    measured = [impact for impact in found if impact.speedup is not None]
    return [one for one in measured if (one.is_high, one.entry.is_low_effort) == wanted]


def impact_parts(study: Study, dtype: str) -> tuple[str, list[Texts], list[tuple], Texts]:
    """Bottleneck assessment and matrix of a dtype, and the switches whose effort is not named."""
    found = impacts(study.main, study.rows, dtype)
    rows = [
        [
            impact.entry.category or NOT_MEASURED,
            impact.entry.switch,
            impact.entry.effort or "not named by the workshop",
            impact.entry.expected or NOT_MEASURED,
            times(impact.speedup),
            times(impact.memory_ratio),
            impact.impact or NOT_MEASURED,
            str(rank) if impact.speedup else NOT_MEASURED,
            impact.note,
        ]
        for rank, impact in enumerate(found, start=1)
    ]
    quadrants = [(title, [i.text for i in in_quadrant(found, *of)]) for title, *of in QUADRANTS]
    others = [
        f"{impact.text} ({'high' if is_high else 'low'} impact)"
        for is_high in (True, False)
        for impact in in_quadrant(found, is_high, None)
    ]
    return dtype, rows, quadrants, others


PARITY = "training parity"
DETERMINISM = "determinism"
NARROW_PARITY = "training parity of narrow types"
HELD, NOT_HELD, UNKNOWN, NO_FIGURE = "held", "**not held**", "not shown", "not measured"


class Gate(NamedTuple):
    """One line: what has to hold, how it stands, and the figure behind that."""

    name: str
    verdict: str
    evidence: str


def gate_of_tests(study: Study, name: str, title: str) -> Gate:
    """A gate that tests decide. Not having been run is not holding."""
    gate = next((found for found in study.gates if found.name == name), None)
    if gate is None:
        return Gate(title, NO_FIGURE, "left out of this run")
    if gate.failed:
        return Gate(title, NOT_HELD, f"`{gate.command}`: failed: {', '.join(gate.failed)}")
    if gate.reason:
        return Gate(title, NO_FIGURE, f"`{gate.command}`: {gate.reason}")
    return Gate(title, HELD, f"`{gate.command}`: {gate.ran} tests passed")


def accuracy_gate(study: Study, row: Row) -> Gate:
    """The training parity test, and the case's comparison with the float64 baseline."""
    name = PARITY if row.cell.point.dtype == "f32" else NARROW_PARITY
    gate = gate_of_tests(study, name, "No degradation in model accuracy")
    if row.cell.failure:
        return gate._replace(verdict=NOT_HELD, evidence=row.cell.note)
    error = row.cell.counter("max_rel_error")
    worst = "" if error is None else f"; largest error against float64 {error:.1e}"
    return gate._replace(evidence=gate.evidence + worst)


def memory_gate(row: Row) -> Gate:
    """Peak memory not above the baseline's. It is counted to the byte."""
    name, ratio = "Memory usage reduced or stable", row.memory_ratio
    if ratio is None:
        return Gate(name, NO_FIGURE, row.cell.note)
    return Gate(name, HELD if ratio <= 1 else NOT_HELD, f"{ratio:.3f} of the baseline's peak")


def throughput_gate(row: Row) -> Gate:
    """More than 30 % above the baseline; the interval has to say so."""
    name, ratio = "Throughput improved by >30%", row.ratio
    if ratio is None:
        return Gate(name, NO_FIGURE, row.cell.note)
    text = f"{ratio.text()} times the baseline's"
    if ratio.interval is None or not is_decisive(ratio):
        return Gate(name, UNKNOWN, f"{text}; fewer than five turns decide nothing")
    if ratio.interval.low > THROUGHPUT_GATE:
        return Gate(name, HELD, text)
    return Gate(name, NOT_HELD if ratio.interval.high <= THROUGHPUT_GATE else UNKNOWN, text)


def gates_of(study: Study, row: Row) -> list[Gate]:
    """All four gates of a set at one point."""
    return [
        accuracy_gate(study, row),
        gate_of_tests(study, DETERMINISM, "Deterministic execution maintained"),
        memory_gate(row),
        throughput_gate(row),
    ]


def launches_heading(study: Study) -> str:
    """What `launches` of a row counts here."""
    is_gpu = study.context.get("device", {}).get("backend", "cpu") != "cpu"
    return "kernels" if is_gpu else "operators"


Header, Figure = list[str], Callable[[Row], str]


def figures_of(study: Study, ratio_heading: str) -> dict[str, Figure]:
    """Every column of a row by its heading."""

    def error(row: Row) -> str:
        value = row.cell.counter("max_rel_error")
        return NOT_MEASURED if value is None else f"{value:.1e}"

    return {
        "variant": lambda row: row.row.name,
        ratio_heading: lambda row: row.ratio_text,
        "workshop": lambda row: EXPECTED.get(row.row.name) or NOT_MEASURED,
        "ms": lambda row: milliseconds(row.cell.seconds),
        "samples/s": lambda row: number(row.samples_per_second),
        "MFU %": lambda row: number(row.mfu_percent),
        "peak MiB": lambda row: mebibytes(row.cell.peak_mib),
        "memory x": lambda row: times(row.memory_ratio),
        "allocations": lambda row: number(row.cell.counter("allocations"), 0),
        launches_heading(study): lambda row: number(row.launches, 0),
        "rel error": error,
        "note": lambda row: row.cell.note,
    }


def point_tables(study: Study, point: Point, left_out: Sequence[str]) -> Json:
    """Both tables of a test point, and what `optimized` stands for there."""

    def rows_table(kinds: Sequence[Kind], ratio: str, left_out: Sequence[str]) -> tuple | None:
        figures = figures_of(study, ratio)
        header = [name for name in figures if name not in left_out]
        rows = rows_at(study.main, study.rows_of(*kinds), point)
        return (header, [[figures[name](row) for name in header] for row in rows]) if rows else None

    switches = switches_of_optimized(study.main, point)
    is_what = f"`{OPTIMIZED}` is `{'+'.join(switches or ()) or BASELINE}` here."
    unknown = f"What `{OPTIMIZED}` stands for here is not known: its case has no such label."
    added = [kind for kind in Kind if kind != Kind.removed]
    removed = (Kind.removed,)
    return {
        "title": point.title,
        "added": rows_table(added, "speedup over baseline", left_out),
        "optimized": unknown if switches is None else is_what,
        "removed": rows_table(removed, "slowdown against optimized", [*left_out, "workshop"]),
    }


def success_tables(study: Study, point: Point) -> tuple[tuple, tuple]:
    """Before and after, as the workshop's worksheet asks for, and every gate of both sets."""
    figures: dict[str, Figure] = {
        "Training throughput, samples/s": lambda row: number(row.samples_per_second),
        "Model FLOPS Utilization, %": lambda row: number(row.mfu_percent),
        "Peak memory usage, MiB": lambda row: mebibytes(row.cell.peak_mib),
        f"{launches_heading(study).capitalize()} per step": lambda row: number(row.launches, 0),
        "Time per step, ms": lambda row: milliseconds(row.cell.seconds),
        "Speedup": lambda row: row.ratio_text,
        "Speedup that the workshop expects": lambda row: EXPECTED.get(row.row.name, ""),
    }
    rows = rows_at(study.main, VERSIONS, point)
    at = f"{point.dtype}, {point.shape}"
    after = [row for row in rows if row.row.name != BASELINE]
    titles = [f"{'after' if row in after else 'before'}: {row.row.name}" for row in rows]
    metrics = [[name, *(figure(row) for row in rows)] for name, figure in figures.items()]
    gates = [
        (gate.name, row.row.name, gate.verdict, gate.evidence)
        for row in after
        for gate in gates_of(study, row)
    ]
    return ([at, *titles], metrics), ((f"gate at {at}", "of", "verdict", "evidence"), gates)


def type_rows(study: Study) -> Iterator[Texts]:
    """Mixed precision: each type beside float32 of the same variant and shape."""
    if not study.types.cells:
        return
    table = Table(study.main.cells | study.types.cells)
    pairs = sorted(
        ((point, name) for point in table.points() for name in VERSIONS),
        key=lambda pair: (pair[0].batch, pair[0].seq, VERSIONS.index(pair[1])),
    )
    for point, name in pairs:
        row = row_at(table, name, point)
        plain = table.get(name.name, replace(point, dtype="f32"))
        if row is None:
            continue
        yield [
            point.shape,
            name.name,
            point.dtype,
            milliseconds(row.cell.seconds),
            number(row.samples_per_second),
            ratio_text(ratio_of_cells(plain, row.cell) if point.dtype != "f32" else None),
            row.ratio_text,
            mebibytes(row.cell.peak_mib),
            times(memory_ratio(row.cell, plain)),
            row.cell.note,
        ]


def batch_rows(study: Study, points: Sequence[Point]) -> Iterator[Texts]:
    """Throughput and memory over the batch, against the smallest."""
    for point in points:
        for row in rows_at(study.batches, VERSIONS, point):
            first = row_at(study.batches, row.row, points[0])
            if first is None:
                continue
            speed, at_first = row.samples_per_second, first.samples_per_second
            yield [
                str(point.batch),
                row.row.name,
                milliseconds(row.cell.seconds),
                number(speed),
                times(speed / at_first if speed and at_first else None),
                row.ratio_text,
                mebibytes(row.cell.peak_mib),
                row.cell.note,
            ]


def memory_part(study: Study, title: str, component: str) -> Iterator[tuple]:
    """Memory of a component at batch 1: MiB at each length, the fitted exponent, and reasons."""
    series: dict[str, dict[int, float | None]] = {}
    reasons = []
    for cell in study.memory.cells.values():
        if cell.point.component == component and cell.point.batch == 1:
            series.setdefault(cell.row, {})[cell.point.seq] = cell.peak_mib
            if cell.peak_mib is None:
                reasons.append(f"{cell.row}, S {cell.point.seq}: {cell.note or 'not run'}")
    if not series:
        return
    lengths = sorted({length for peaks in series.values() for length in peaks})
    rows = []
    for name, peaks in series.items():
        growth = fit_exponent({n: peak for n, peak in peaks.items() if peak is not None})
        texts = [name, *(mebibytes(peaks.get(length)) for length in lengths)]
        if growth:
            texts += [f"{growth.exponent:.2f} ({growth.first} to {growth.last})", growth.verdict]
        rows.append(texts if growth else [*texts, NOT_MEASURED, NOT_MEASURED])
    header = ["variant", *(f"S {length}" for length in lengths), "MiB ~ S ^", "growth"]
    point = study.memory.points()[0]
    reasons.sort(key=lambda reason: [*series].index(reason.partition(",")[0]))
    yield f"{title}, {point.size} {point.dtype}, batch 1", header, rows, reasons


def exercise_rows(study: Study) -> Iterator[Texts]:
    """The table of the workshop's memory exercise, filled in for three variants."""
    points = [point for point in study.memory.points() if point.component == "full_step"]
    by_shape = {(point.seq, point.batch): point for point in points}
    asked = [by_shape[shape] for shape in MEMORY_EXERCISE if shape in by_shape]
    for name, point in ((row.name, point) for row in VERSIONS for point in asked):
        cell, first = study.memory.get(name, point), study.memory.get(name, asked[0])
        if cell and first:
            is_known = cell.peak_mib is not None and first.peak_mib is not None
            more = cell.peak_mib - first.peak_mib if is_known else None
            texts = [name, str(point.seq), str(point.batch), mebibytes(cell.peak_mib)]
            yield [*texts, mebibytes(more), times(memory_ratio(cell, first)), cell.note]


HOW_TO = "`scripts/peers` writes them; this script reads its newest result, or `--peers FILE`"


def compiled_rows(study: Study) -> list[Texts]:
    """torch.compile's; where no result was found, how to make one."""
    missing = f"no result of torch.compile at these points: {HOW_TO}"
    return [
        [
            row["row"],
            row["point"],
            milliseconds(row["seconds"]),
            number(row["samples_per_second"]),
            ratio_text(Ratio.from_json(row["speedup"])),
            row["against"],
            ratio_text(Ratio.from_json(row["over_optimized"])),
            row["note"],
        ]
        for row in study.peers
    ] or [["torch.compile", "all", *[NOT_MEASURED] * 5, missing]]


def grid_rows(study: Study) -> Iterator[Texts]:
    """The default grid: baseline and optimized."""
    for point in study.grid.points():
        row = row_at(study.grid, VERSIONS[-1], point)
        baseline = study.grid.get(BASELINE, point)
        if row and baseline:
            yield [
                f"{point.component} {point.pass_name} {point.size}",
                point.dtype,
                point.shape,
                milliseconds(baseline.seconds),
                milliseconds(row.cell.seconds),
                row.ratio_text,
                times(row.memory_ratio),
                row.cell.note or baseline.note,
            ]


MOST_SHOWN = 20


def rule_lines(rule: Rule, what: str, as_table: Callable[..., str]) -> Iterator[str]:
    """Held or not, where not, and how close it came."""
    number_of, slower = len(rule.comparisons), rule.broken
    by_chance = f"{rule.expected_false:.1f} would look"
    if not number_of:
        yield f"**Not measured** ({what}): no two of the compared rows ran in the same turn."
    elif rule.held:
        closest = max(rule.comparisons, key=lambda found: found.slowdown.median)
        widest = max(c.slowdown.interval.high for c in rule.comparisons if c.slowdown.interval)
        yield (
            f"**Held** ({what}): nowhere shown slower, in {number_of} comparisons, of which "
            f"{by_chance} slower by chance if all were ties; no slowdown above {widest:.2f} is "
            "left open."
        )
        where, taken = f"{closest.row} at {closest.point.title}", closest.slowdown.text()
        yield f"Closest: {where}, optimized takes {taken} of its time."
    elif not slower:
        yield (
            f"**Not shown** ({what}): {len(rule.undecided)} of {number_of} comparisons had too few "
            "turns; none of the others is slower."
        )
    else:
        yield (
            f"**Not held** ({what}) at {len(slower)} of {number_of} comparisons, of which "
            f"{by_chance} so by chance if all were ties:\n"
        )
        slower.sort(key=lambda found: -found.slowdown.median)
        rows = [(c.point.title, c.row, c.slowdown.text()) for c in slower[:MOST_SHOWN]]
        yield as_table(("case", "is faster", "optimized takes, x its time"), rows)
    if rule.unmeasured:
        yield "\nWithout a number:\n"
        yield from (f"- {text}" for text in rule.unmeasured)


def environment(study: Study) -> Json:
    """What the numbers belong to."""
    context, meta = study.context, study.meta
    device, peaks = context.get("device", {}), context.get("peaks", {})
    dirty = " with uncommitted changes" if context.get("git_dirty") else ""
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


def notes_of(study: Study) -> list[str]:
    """What a reader must know before anything else. Failures of one kind share a line."""
    places: dict[tuple[str, str], list[str]] = {}
    for found in study.failures:
        places.setdefault((found.row, found.failure), []).append(found.point.title)
    return [*study.notes] + [
        f"{row} at {at[0]}{f' and {len(at) - 1} more' if len(at) > 1 else ''}: {failure}"
        for (row, failure), at in places.items()
    ]


def ablation_page(study: Study, *, is_brief: bool = False) -> str:
    """The page; brief: the main tables as wide as a terminal, and the rule."""
    page, main = template(TEMPLATE), study.main.points()
    left_out = ("workshop", "samples/s", "allocations") if is_brief else ()
    batches = sorted(study.batches.points())
    compared = (
        (study.main, "test points"),
        (study.batches, "batches, baseline only"),
        (study.grid, "default grid"),
    )
    memory = (
        ("Full step", "full_step"),
        ("Attention, forward and backward", "attention"),
    )
    return page.render(
        is_brief=is_brief,
        notes=notes_of(study),
        environment=environment(study).items(),
        rules=[
            list(rule_lines(check_rule(table, study.rows), what, page.globals["table"]))
            for table, what in compared
            if table.cells
        ],
        points=[point_tables(study, point, left_out) for point in main],
        impacts=[impact_parts(study, d) for d in dict.fromkeys(point.dtype for point in main)],
        success=[success_tables(study, point) for point in main],
        types=list(type_rows(study)),
        batches=list(batch_rows(study, batches)),
        smallest=batches[0] if batches else None,
        memory=[part for titles in memory for part in memory_part(study, *titles)],
        exercise=list(exercise_rows(study)),
        compiled=compiled_rows(study),
        sources=sorted({row["source"] for row in study.peers}),
        grid=list(grid_rows(study)),
        high=HIGH_IMPACT,
        medium=MEDIUM_IMPACT,
        memory_impact=MEMORY_IMPACT,
        fit_from=FIT_FROM,
        linear=LINEAR_BELOW,
        quadratic=QUADRATIC_ABOVE,
    )


def terminal_text(study: Study) -> str:
    """The main tables and the rule, without Markdown's emphasis and code marks."""
    page = ablation_page(study, is_brief=True)
    return page.replace("**", "").replace("`", "").rstrip() + "\n"
