"""Where memory goes: by part, over batch and sequence, and measured against predicted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.data.names import STEP
from tinyllama_tools.report.analysis import MIB, PEAK_MEMORY, main_step, refused, steps
from tinyllama_tools.report.document import (
    MEASURED,
    PREDICTED,
    Cell,
    Column,
    Figure,
    Section,
    Table,
    axis,
    bars,
    bytes_text,
    case_text,
    layout,
    line,
    markers,
    text_column,
)
from tinyllama_tools.report.law_parts import (
    NOTE,
    MemoryParts,
    Quantity,
    coefficient_table,
    drawn,
    held_out_summary,
    measured_parts,
    predicted_parts,
    shown_fits,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase, ResultSet
    from tinyllama_tools.report.inputs import ReportInputs, TrainingRun

ID, TITLE = "memory", "Memory"
MAKE = f"measure some: {Kind.SUITE.command}"
BYTES = Quantity("memory", "peak memory", "MiB", 1 / MIB)
UNITS = (
    ("base", "MiB", 1 / MIB),
    ("per sample", "KiB", 1 / 1024),
    ("per token", "bytes", 1.0),
    ("per token and token", "bytes", 1.0),
    ("per position", "bytes", 1.0),
    ("per position and position", "bytes", 1.0),
)
# percent, of the median error of held-out cells
GOAL = 5.0
PREDICTED_MEMORY = "predicted_memory_MiB"
MOST_FIGURES = 4


def _stack(identity: str, title: str, every: Sequence[MemoryParts], note: str) -> Figure:
    labels = [parts.label for parts in every]
    names = dict.fromkeys(name for parts in every for name in parts.bytes_by_part)
    traces = [
        bars(name, labels, [parts.bytes_by_part.get(name, 0.0) / MIB for parts in every])
        for name in names
    ]
    axes = layout(
        axis("", automargin=True, type="category"), axis("memory", "MiB"), barmode="stack"
    )
    return Figure(identity, title, traces, axes, note)


def _of_step(results: ResultSet) -> Figure | None:
    """Every batch and sequence of the main step's series, stacked by part."""
    main = main_step(results)
    if main is None:
        return None
    of = main.name
    same = (of.variant, of.size, of.dtype)
    cases = [c for c in steps(results) if (c.name.variant, c.name.size, c.name.dtype) == same]
    every = [parts for case in cases if (parts := measured_parts(case)) is not None]
    if not every:
        return None
    title = f"Peak of a step by part: {of.size}, {of.variant}, {of.dtype}; batch x sequence"
    return _stack("memory_parts", title, every, NOTE)


def _of_training(runs: Iterable[TrainingRun]) -> Figure | None:
    """What the peak consists of, allocation by allocation, where the memory profiler ran."""
    every = []
    for run in runs:
        found = (run.summary.get("memory") or {}).get("breakdown_at_peak")
        if found:
            parts = {name.replace("_", " "): float(size) for name, size in found.items() if size}
            every.append(MemoryParts(run.name, parts))
    if not every:
        return None
    note = "Counted allocation by allocation by the training program's memory profiler."
    return _stack("memory_at_peak", "What the peak of a training step consists of", every, note)


def _of_sizes(inputs: ReportInputs) -> Figure | None:
    """Predicted, of every size at its own shape, in shares since sizes differ by decades."""
    every = predicted_parts(inputs.costs)
    if not every:
        return None
    shares = []
    for parts in every:
        total = sum(parts.bytes_by_part.values())
        percents = {name: 100 * size / total for name, size in parts.bytes_by_part.items()}
        shares.append(MemoryParts(f"{parts.label}: {bytes_text(total)}", percents))
    names = list(shares[0].bytes_by_part)
    labels = [parts.label for parts in shares]
    traces = [bars(name, labels, [p.bytes_by_part[name] for p in shares]) for name in names]
    axes = layout(axis("", automargin=True), axis("share of the peak", "%"), barmode="stack")
    title = "Predicted peak of a step by part, at each size's own batch and sequence"
    return Figure("memory_of_sizes", title, traces, axes, f"Predictions. {NOTE}")


def _pairs(cases: Iterable[MeasuredCase]) -> list[tuple[MeasuredCase, float, float]]:
    """Cases with a measured and a predicted peak, in MiB."""
    found = []
    for case in cases:
        measured, predicted = (case.counters.get(key) for key in (PEAK_MEMORY, PREDICTED_MEMORY))
        if measured and predicted:
            found.append((case, measured, predicted))
    return found


def _agreement_figure(pairs: Sequence[tuple[MeasuredCase, float, float]]) -> Figure:
    predicted = [p for _, _, p in pairs]
    ends = [min(predicted), max(predicted)]
    traces = [
        markers(
            "cases",
            predicted,
            [measured for _, measured, _ in pairs],
            role=MEASURED,
            text=[f"{case.name.component}, {case_text(case.name)}" for case, _, _ in pairs]
            if len(pairs) <= 500
            else [],
        ),
        line("as predicted", ends, ends, role=PREDICTED),
    ]
    axes = layout(axis("predicted peak", "MiB", log=True), axis("measured peak", "MiB", log=True))
    return Figure("memory_agreement_plot", "Measured against predicted peak", traces, axes)


def _agreement_table(pairs: Sequence[tuple[MeasuredCase, float, float]]) -> Table:
    found: dict[str, list[float]] = {}
    for case, measured, predicted in pairs:
        found.setdefault(case.name.component, []).append(100 * (measured / predicted - 1))
    rows: list[list[Cell]] = [
        [name, len(percents), statistics.median(percents), max(percents, key=abs)]
        for name, percents in found.items()
    ]
    columns = (
        text_column("component"),
        Column("cases", digits=6),
        Column("median", "%", digits=3),
        Column("largest", "%", digits=3),
    )
    note = (
        "Measured over predicted peak, less 100 %; the prediction comes from the cost formulas "
        "alone."
    )
    return Table("memory_agreement", "Measured against predicted peak", columns, rows, note)


def build(inputs: ReportInputs) -> Section:
    """Of the first result, and of training runs whose memory was profiled."""
    results = inputs.main
    figures = [f for f in (_of_training(inputs.trainings), _of_sizes(inputs)) if f is not None]
    if results is None:
        missing = "" if figures else f"no peak memory was measured; {MAKE}"
        return Section(ID, TITLE, missing=missing, figures=figures)
    stack = _of_step(results)
    fits = inputs.memory_fits
    of_steps = [fit for fit in shown_fits(fits) if fit.series.name.component == STEP]
    laws, not_drawn = drawn(of_steps, BYTES, MOST_FIGURES)
    pairs = _pairs(results.cases.values())
    figures = [*([stack] if stack else []), *laws, *figures]
    tables = [
        held_out_summary("held_out_memory", "Held-out cells by size", fits, GOAL),
        coefficient_table("memory_laws", "Laws of peak memory", fits, UNITS),
    ]
    if pairs:
        figures.append(_agreement_figure(pairs))
        tables.append(_agreement_table(pairs))
    tables = [table for table in tables if table.rows]
    if not (figures or tables):
        return Section(ID, TITLE, missing=f"{results.title} has no peak memory; {MAKE}")
    text = (
        "Peak bytes alive in tensors, from the allocator that served them. At one model size, "
        "memory = base + c B + d B S + e B S² + f S + g S²: B is the batch, S the sequence; f and "
        "g are what all samples share, tables and the causal mask. The law is of the moment that "
        "is the peak at the large sizes."
    )
    return Section(
        ID,
        TITLE,
        [text],
        figures=figures,
        tables=tables,
        omissions=[*refused(fits, "memory"), *not_drawn],
    )
