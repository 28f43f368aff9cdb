"""Figures and tables of laws: curves, coefficients, exponents, held-out sizes, memory's parts.

What a step's peak memory consists of, as far as counting parameters tells it exactly.

Weights and AdamW's two moments are alive throughout. A step's peak is in its backward pass or in
its update. In the update all gradients are alive and no activation is, so that every part is known.
In the backward pass gradients are made while activations go, and how many there are at the peak
does not follow from any count: then they are one part with the activations. A training run's memory
profile counts them, allocation by allocation.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP
from tinyllama_tools.report.analysis import (
    F32,
    MIB,
    PEAK_MEMORY,
    WHOLE_PASSES,
    is_own_shape,
    range_kind,
    rank,
    sizes_by_name,
)
from tinyllama_tools.report.document import (
    DASHES,
    FIT,
    HELD_OUT,
    MEASURED,
    SYMBOLS,
    Column,
    Figure,
    Omission,
    Table,
    axis,
    error_bars,
    layout,
    line,
    markers,
    shape_text,
    spaced,
    text_column,
)
from tinyllama_tools.stats.laws import RangeKind

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import MeasuredCase
    from tinyllama_tools.report.analysis import HeldOutCell, SeriesFit
    from tinyllama_tools.report.document import Cell
    from tinyllama_tools.stats.laws import Law

# of a curve between two measured lengths or more; straight pieces on logarithmic axes
CURVE_POINTS = 13


@dataclass(frozen=True)
class Quantity:
    """What is drawn upwards: `scale` units a second or byte."""

    id: str
    title: str
    unit: str
    scale: float


def _of_batch(fit: SeriesFit, number: int, batch: int, law: Law | None, by: Quantity) -> list[Json]:
    points = sorted((p for p in fit.points if p.batch == batch), key=lambda point: point.seq)
    lengths = [point.seq for point in points]
    symbol, dash = SYMBOLS[number % len(SYMBOLS)], DASHES[number % len(DASHES)]
    values = [by.scale * point.value for point in points]
    name = f"batch {batch}"
    traces = [markers(name, lengths, values, role=MEASURED, symbol=symbol, legendgroup=name)]
    if law is not None and len(lengths) > 1:
        curve = [round(seq) for seq in spaced(lengths[0], lengths[-1], CURVE_POINTS)]
        fitted = [by.scale * law.at(batch, seq) for seq in curve]
        traces.append(
            line(f"law, batch {batch}", curve, fitted, role=FIT, dash=dash, legendgroup=name)
        )
    return traces


def _held_out(fit: SeriesFit, by: Quantity) -> list[Json]:
    if not fit.held_out:
        return []
    predicted = [by.scale * held.value for held in fit.held_out]
    lows = [by.scale * held.low for held in fit.held_out]
    highs = [by.scale * held.high for held in fit.held_out]
    texts = [
        f"batch {held.point.batch}: {held.error_percent:+.1f} % of the measured"
        for held in fit.held_out
    ]
    return [
        markers(
            "predicted without them",
            [held.point.seq for held in fit.held_out],
            predicted,
            role=HELD_OUT,
            symbol="x",
            text=texts,
            error_y=error_bars(predicted, lows, highs),
        )
    ]


def law_figure(fit: SeriesFit, by: Quantity, batches: Sequence[int] | None = None) -> Figure:
    """The series over the sequence, a curve a batch; without a law the points alone."""
    of = fit.series.name
    shown = fit.series.batches if batches is None else batches
    traces = [
        trace
        for number, batch in enumerate(shown)
        for trace in _of_batch(fit, number, batch, fit.law, by)
    ]
    traces += _held_out(fit, by)
    note = fit.law.formula if fit.law is not None else f"No law: {fit.refusal}."
    if fit.law is not None and fit.held_out:
        note += f". Bars: {fit.law.range_kind.short}."
    title = f"{of.component}, {of.pass_name}: {of.size}, {of.variant}, {of.dtype}"
    lengths = [x for trace in traces if trace.get("mode") == "markers" for x in trace["x"]]
    sequence = axis("sequence", "tokens", log=True, ticks=lengths)
    axes = layout(sequence, axis(by.title, by.unit, log=True))
    axes_of = (by.id, of.component, of.pass_name, of.variant, of.size, of.dtype)
    identity = re.sub(r"\W", "_", "_".join(axes_of).replace("+", "_plus_"))
    return Figure(identity, title, traces, axes, note)


UNSUPPORTED = (
    "A term without a figure is one that the data does not support; the last column says why."
)
POWER_LAW = (
    "By regression of logarithms: value ~ batch^b sequence^s, on average over the grid. The 95 % "
    "intervals hold only as far as the series is a power law: where launches, caches or attention "
    "change how it grows, the largest sizes have other exponents, and the law above says more."
)
# of a percentage; what is less is rounding of the computation
DECIMALS = 6
# what laws/held_out.py says of its own figures
SAME_ROUNDS = (
    " The cells left out are of the same rounds as the others, so more of them lie in it than of "
    "new ones would."
)


def _held_note(kind: RangeKind) -> str:
    return (
        "Cells of half the largest batch x sequence and more were left out of the fit and "
        "predicted from the others. Covered: how many lie in the law's range "
        f"({kind.short}), whose median width is given in percent. {kind.of_values}"
        f"{SAME_ROUNDS if kind == RangeKind.NEW_ROUNDS else ''}"
    )


def _remarks(fit: SeriesFit) -> str:
    """What the law leaves out: terms with their reasons, and sizes."""
    if fit.law is None:
        return ""
    found = [f"{c.name}: {c.reason}" for c in fit.law.coefficients if not c.supported]
    if fit.law.below:
        found.append(f"{len(fit.law.below)} smaller sizes have their peak at another moment")
    return "; ".join(found)


def coefficient_table(
    identity: str, title: str, fits: Sequence[SeriesFit], units: Sequence[tuple[str, str, float]]
) -> Table:
    """`units`: of each term of the law its title, its unit, and how many a second or byte is."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        row: list[Cell] = [str(fit.series), len(fit.law.points)]
        for term, (_, _, scale) in zip(fit.law.coefficients, units, strict=True):
            values = (term.value, term.low, term.high) if term.supported else (None, None, None)
            row += [value if value is None else scale * value for value in values]
        worst = round(max(map(abs, fit.law.residuals_percent), default=0.0), DECIMALS)
        rows.append([*row, worst, _remarks(fit)])
    columns = [text_column("series"), Column("sizes", digits=6)]
    for name, unit, _ in units:
        columns += [Column(name, unit), Column("from", unit), Column("to", unit)]
    columns += [Column("largest residual", "%", digits=3), text_column("remarks")]
    note = f"{range_kind(fits).of_coefficients} {UNSUPPORTED}"
    return Table(identity, title, columns, rows, note)


def exponent_table(identity: str, fits: Sequence[SeriesFit], title: str) -> Table:
    """value ~ B^b S^s, of every series whose sizes decide both."""
    rows: list[list[Cell]] = []
    for fit in fits:
        found = fit.exponents
        if found is None:
            continue
        cells = [value for e in (found.batch, found.seq) for value in (e.value, e.low, e.high)]
        rows.append([str(fit.series), len(fit.points), *cells, found.r_squared])
    columns = [text_column("series"), Column("sizes", digits=6)]
    for name in ("batch", "sequence"):
        columns += [Column(f"{name} ^", digits=3), Column("from", digits=3), Column("to", digits=3)]
    return Table(identity, title, [*columns, Column("R²", digits=4)], rows, POWER_LAW)


def held_out_table(identity: str, title: str, fits: Sequence[SeriesFit]) -> Table:
    """Of every series that has enough sizes to hold some out."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if not fit.held_out:
            continue
        errors = [round(held.error_percent, DECIMALS) for held in fit.held_out]
        rows.append(
            [
                str(fit.series),
                len(errors),
                sum(held.is_covered for held in fit.held_out),
                statistics.median(map(abs, errors)),
                max(errors, key=abs),
                statistics.median(held.width_percent for held in fit.held_out),
            ]
        )
    columns = (
        text_column("series"),
        Column("held out", digits=6),
        Column("covered", digits=6),
        Column("median error", "%", digits=3),
        Column("largest error", "%", digits=3),
        Column("median width", "%", digits=3),
    )
    return Table(identity, title, columns, rows, _held_note(range_kind(fits)))


def held_out_summary(
    identity: str, title: str, fits: Sequence[SeriesFit], goal_percent: float
) -> Table:
    """By problem size: over all held-out sizes of all its series. `goal_percent`: what their
    median error is to be at most."""
    by_size: dict[str, list[HeldOutCell]] = {}
    for fit in fits:
        by_size.setdefault(fit.series.name.size, []).extend(fit.held_out)
    rows = []
    for size, found in by_size.items():
        if not found:
            continue
        errors = [round(abs(held.error_percent), DECIMALS) for held in found]
        covered = sum(held.is_covered for held in found)
        widths = [held.width_percent for held in found]
        percent = 100.0 * covered / len(found)
        middle, widest = statistics.median(errors), max(errors)
        verdict = f"{'within' if middle <= goal_percent else 'above'} {goal_percent:g} %"
        width = statistics.median(widths)
        rows.append([size, len(found), middle, verdict, widest, percent, width])
    columns = (
        text_column("size"),
        Column("held-out cells", digits=6),
        Column("median error", "%", digits=3),
        text_column("which is"),
        Column("largest error", "%", digits=3),
        Column("covered", "%", digits=3),
        Column("median width", "%", digits=3),
    )
    return Table(identity, title, columns, rows, _held_note(range_kind(fits)), is_key=True)


# amp_* keeps parameters and moments in float32
NARROW = ("bf16", "f16")
TOKEN_BYTES = 8
# of the allocator's rounding, and less than anything that has a part of its own
SLACK = 0.001
NOTE = (
    "Weights and AdamW's two moments are alive throughout. Where the update is the peak, all "
    "gradients are; where the backward pass is, the gradients made by then are one part with the "
    "activations."
)
WEIGHTS, MOMENTS, GRADIENTS = "weights", "AdamW moments", "gradients"
SCRATCH = "inputs and scratch of the update"
REST = "activations, gradients made by then, scratch"


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of each part; together they are the peak."""

    label: str
    bytes_by_part: Mapping[str, float]


def _update_scratch(name: CaseName, element: int) -> float | None:
    """Bytes beside weights, moments and gradients in the baseline's update: the denominators of
    its largest weight, and the step's inputs: tokens and targets, rotary
    tables and the mask. None where the update may be another one, or the size has no name."""
    of = sizes_by_name().get(name.size)
    if of is None or name.variant != BASELINE or name.dtype != F32:
        return None
    hidden, heads = of["hidden_dim"], of["n_heads"]
    largest = hidden * max(of["vocab_size"], of["intermediate_dim"], hidden)
    tables = 2 * name.seq * (hidden // heads)
    mask = heads // of["n_kv_heads"] * name.seq**2
    return element * (largest + tables + mask) + 2 * TOKEN_BYTES * name.batch * name.seq


def _parts(label: str, name: CaseName, parameters: float, peak: float) -> MemoryParts | None:
    """None where the peak is smaller than what is alive throughout: then something is wrong."""
    element = 2 if name.dtype in NARROW else 4
    weights = parameters * element
    rest = peak - 3 * weights
    if parameters <= 0 or rest < 0:
        return None
    found = {WEIGHTS: weights, MOMENTS: 2 * weights}
    scratch = _update_scratch(name, element)
    if scratch is not None and 0 <= rest - weights <= scratch + SLACK * peak:
        return MemoryParts(label, found | {GRADIENTS: weights, SCRATCH: rest - weights})
    return MemoryParts(label, found | {REST: rest})


def measured_parts(case: MeasuredCase) -> MemoryParts | None:
    """Of a measured step; None without its counters."""
    parameters, peak = case.counters.get("parameters"), case.counters.get(PEAK_MEMORY)
    if not parameters or not peak:
        return None
    return _parts(shape_text(case.name), case.name, parameters, peak * MIB)


def predicted_parts(costs: Sequence[CaseCost]) -> list[MemoryParts]:
    """Of every problem size's step at its own shape, smallest size first; one variant and type.
    All have the same parts, 0 bytes where a size has none of one."""
    of_steps = [c for c in costs if c.name.component == STEP and is_own_shape(c.name)]
    found: dict[str, CaseCost] = {}

    def preference(cost: CaseCost) -> tuple[object, ...]:
        return (rank(cost.name.variant, (OPTIMIZED, BASELINE)), rank(cost.name.dtype, (F32,)))

    for cost in of_steps:
        size = cost.name.size
        if size not in found or preference(cost) < preference(found[size]):
            found[size] = cost
    ordered = sorted(found, key=lambda size: rank(size, tuple(sizes_by_name())))
    every = [
        _parts(size, of.name, of.parameters, of.predicted_memory_bytes)
        for size in ordered
        if (of := found[size])
    ]
    known = [parts for parts in every if parts is not None]
    names = dict.fromkeys(name for parts in known for name in parts.bytes_by_part)
    return [
        MemoryParts(parts.label, {name: parts.bytes_by_part.get(name, 0.0) for name in names})
        for parts in known
    ]


def shown_fits(fits: Sequence[SeriesFit]) -> list[SeriesFit]:
    """One a component and size: the passes that a step consists of, `optimized`, f32."""
    found: dict[tuple[str, str], SeriesFit] = {}

    def preference(fit: SeriesFit) -> tuple[object, ...]:
        of = fit.series.name
        return (
            fit.law is None,
            rank(of.variant, (OPTIMIZED, BASELINE)),
            rank(of.dtype, (F32,)),
        )

    for fit in fits:
        of = fit.series.name
        if of.pass_name not in WHOLE_PASSES or len(fit.points) < 2:
            continue
        key = (of.component, of.size)
        if key not in found or preference(fit) < preference(found[key]):
            found[key] = fit
    return list(found.values())


def drawn(
    fits: Sequence[SeriesFit], by: Quantity, most: int
) -> tuple[list[Figure], list[Omission]]:
    """The first of them; and the others by name."""
    figures = [law_figure(fit, by) for fit in fits[:most]]
    reason = f"the page draws {most} laws at most; the tables have them all"
    omissions = [Omission(f"figure of {by.title}", str(fit.series), reason) for fit in fits[most:]]
    return figures, omissions
