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

from tinyllama_tools.data.names import BASELINE, STEP, CaseName
from tinyllama_tools.report.analysis import (
    F32,
    MIB,
    PEAK_MEMORY,
    WHOLE_PASSES,
    HeldOutCell,
    SeriesFit,
    best_of_each,
    held_out_by_size,
    is_own_shape,
    range_kind,
    rank,
    sizes_by_name,
    variant_rank,
)
from tinyllama_tools.report.document import (
    DASHES,
    FIT,
    HELD_OUT,
    MEASURED,
    SYMBOLS,
    Cell,
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
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import MeasuredCase

# of a curve between two measured lengths or more; straight pieces on logarithmic axes
CURVE_POINTS = 13


@dataclass(frozen=True)
class Quantity:
    """What is drawn upwards: `scale` units a second or byte."""

    id: str
    title: str
    unit: str
    scale: float


def _of_batch(fit: SeriesFit, number: int, batch: int, by: Quantity) -> list[Json]:
    points = sorted((p for p in fit.points if p.batch == batch), key=lambda point: point.seq)
    lengths, values = [p.seq for p in points], [by.scale * p.value for p in points]
    symbol, dash = SYMBOLS[number % len(SYMBOLS)], DASHES[number % len(DASHES)]
    name = f"batch {batch}"
    traces = [markers(name, lengths, values, role=MEASURED, symbol=symbol, legendgroup=name)]
    if fit.law is not None and len(lengths) > 1:
        curve = [round(seq) for seq in spaced(lengths[0], lengths[-1], CURVE_POINTS)]
        fitted = [by.scale * fit.law.at(batch, seq) for seq in curve]
        of_law = line(f"law, batch {batch}", curve, fitted, role=FIT, dash=dash, legendgroup=name)
        traces.append(of_law)
    return traces


def _held_out(held: Sequence[HeldOutCell], by: Quantity) -> Json:
    values, lows, highs = (
        [by.scale * getattr(one, key) for one in held] for key in ("value", "low", "high")
    )
    return markers(
        "predicted without them",
        [one.point.seq for one in held],
        values,
        role=HELD_OUT,
        symbol="x",
        text=[
            f"batch {one.point.batch}: {one.error_percent:+.1f} % of the measured" for one in held
        ],
        error_y=error_bars(values, lows, highs),
    )


def law_figure(fit: SeriesFit, by: Quantity) -> Figure:
    """The series over the sequence, a curve a batch; without a law the points alone."""
    of = fit.series.name
    batches = sorted({case.name.batch for case in fit.series.cases})
    traces = [t for number, batch in enumerate(batches) for t in _of_batch(fit, number, batch, by)]
    traces += [_held_out(fit.held_out, by)] if fit.held_out else []
    note = fit.law.formula if fit.law is not None else f"No law: {fit.refusal}."
    if fit.law is not None and fit.held_out:
        note += f". Bars: {fit.law.range_kind.short}."
    lengths = [x for trace in traces if trace.get("mode") == "markers" for x in trace["x"]]
    sequence = axis("sequence", "tokens", log=True, ticks=lengths)
    identity = re.sub(r"\W", "_", f"{by.id}_{fit.series}".replace("+", "_plus_"))
    title = f"{of.component}, {of.pass_name}: {of.size}, {of.variant}, {of.dtype}"
    axes = layout(sequence, axis(by.title, by.unit, log=True))
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
SAME_ROUNDS = (
    " The cells left out are of the same rounds as the others, so more of them lie in it than of "
    "new ones would."
)


def _count(title: str) -> Column:
    return Column(title, digits=6)


def _percent(title: str) -> Column:
    return Column(title, "%", digits=3)


def _held_note(fits: Sequence[SeriesFit]) -> str:
    kind = range_kind(fits)
    return (
        "Cells of half the largest batch x sequence and more were left out of the fit and "
        "predicted from the others. Covered: how many lie in the law's range "
        f"({kind.short}), whose median width is given in percent. {kind.meaning}"
        f"{SAME_ROUNDS if kind == RangeKind.NEW_ROUNDS else ''}"
    )


def coefficient_table(
    identity: str, title: str, fits: Sequence[SeriesFit], units: Sequence[tuple[str, str, float]]
) -> Table:
    """`units`: of each term of the law its title, its unit, and how many a second or byte is. The
    remarks are what the law leaves out: terms with their reasons, and sizes."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        row: list[Cell] = [str(fit.series), len(fit.law.points)]
        for term, (_, _, scale) in zip(fit.law.coefficients, units, strict=True):
            values = (term.value, term.low, term.high)
            row += [scale * value for value in values] if term.supported else [None] * 3
        worst = round(max(map(abs, fit.law.residuals_percent), default=0.0), DECIMALS)
        remarks = [f"{c.name}: {c.reason}" for c in fit.law.coefficients if not c.supported]
        if fit.law.below:
            remarks.append(f"{len(fit.law.below)} smaller sizes have their peak at another moment")
        rows.append([*row, worst, "; ".join(remarks)])
    columns = [text_column("series"), _count("sizes")]
    for name, unit, _ in units:
        columns += [Column(name, unit), Column("from", unit), Column("to", unit)]
    columns += [_percent("largest residual"), text_column("remarks")]
    note = f"{range_kind(fits).meaning} {UNSUPPORTED}"
    return Table(identity, title, columns, rows, note)


def exponent_table(identity: str, fits: Sequence[SeriesFit], title: str) -> Table:
    """value ~ B^b S^s, of every series whose sizes decide both."""
    rows = [
        [
            *(str(fit.series), len(fit.points)),
            *(value for e in (of.batch, of.seq) for value in (e.value, e.low, e.high)),
            of.r_squared,
        ]
        for fit in fits
        if (of := fit.exponents) is not None
    ]
    columns = [text_column("series"), _count("sizes")]
    for name in ("batch ^", "from", "to", "sequence ^", "from", "to"):
        columns.append(Column(name, digits=3))
    return Table(identity, title, [*columns, Column("R²", digits=4)], rows, POWER_LAW)


def held_out_table(identity: str, title: str, fits: Sequence[SeriesFit]) -> Table:
    """Of every series that has enough sizes to hold some out."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if not fit.held_out:
            continue
        errors = [round(held.error_percent, DECIMALS) for held in fit.held_out]
        covered = sum(held.is_covered for held in fit.held_out)
        middle, largest = statistics.median(map(abs, errors)), max(errors, key=abs)
        width = statistics.median(held.width_percent for held in fit.held_out)
        rows.append([str(fit.series), len(errors), covered, middle, largest, width])
    columns = (
        *(text_column("series"), _count("held out"), _count("covered")),
        *map(_percent, ("median error", "largest error", "median width")),
    )
    return Table(identity, title, columns, rows, _held_note(fits))


def held_out_summary(
    identity: str, title: str, fits: Sequence[SeriesFit], goal_percent: float
) -> Table:
    """By problem size: over all held-out sizes of all its series. `goal_percent`: what their
    median error is to be at most."""
    rows: list[list[Cell]] = []
    for size, found in held_out_by_size(fits).items():
        errors = [round(abs(held.error_percent), DECIMALS) for held in found]
        covered = 100.0 * sum(held.is_covered for held in found) / len(found)
        middle, width = (
            statistics.median(values) for values in (errors, [held.width_percent for held in found])
        )
        verdict = f"{'within' if middle <= goal_percent else 'above'} {goal_percent:g} %"
        rows.append([size, len(found), middle, verdict, max(errors), covered, width])
    columns = (
        *(text_column("size"), _count("held-out cells"), _percent("median error")),
        text_column("which is"),
        *map(_percent, ("largest error", "covered", "median width")),
    )
    return Table(identity, title, columns, rows, _held_note(fits), is_key=True)


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
    found = best_of_each(of_steps, lambda c: c.name.size, lambda c: variant_rank(c.name))
    found.sort(key=lambda cost: rank(cost.name.size, tuple(sizes_by_name())))
    known = [
        parts
        for of in found
        if (parts := _parts(of.name.size, of.name, of.parameters, of.predicted_memory_bytes))
    ]
    names = dict.fromkeys(name for parts in known for name in parts.bytes_by_part)
    return [
        MemoryParts(parts.label, {name: parts.bytes_by_part.get(name, 0.0) for name in names})
        for parts in known
    ]


def shown_fits(fits: Sequence[SeriesFit]) -> list[SeriesFit]:
    """One a component and size: the passes that a step consists of, `optimized`, f32."""
    return best_of_each(
        (f for f in fits if f.series.name.pass_name in WHOLE_PASSES and len(f.points) > 1),
        lambda fit: (fit.series.name.component, fit.series.name.size),
        lambda fit: (fit.law is None, variant_rank(fit.series.name)),
    )


def drawn(
    fits: Sequence[SeriesFit], by: Quantity, most: int
) -> tuple[list[Figure], list[Omission]]:
    """The first of them; and the others by name."""
    figures = [law_figure(fit, by) for fit in fits[:most]]
    reason = f"the page draws {most} laws at most; the tables have them all"
    omissions = [Omission(f"figure of {by.title}", str(fit.series), reason) for fit in fits[most:]]
    return figures, omissions
