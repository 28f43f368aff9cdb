"""Figures of a law: what was measured, the curve through it, and what was held out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.report.document import Figure
from tinyllama_tools.report.plots import (
    DASHES,
    FIT,
    HELD_OUT,
    MEASURED,
    SYMBOLS,
    axis,
    error_bars,
    layout,
    line,
    markers,
    spaced,
)
from tinyllama_tools.report.scaling_fits import SeriesFit
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
    axes = layout(axis("sequence", "tokens", log=True), axis(by.title, by.unit, log=True))
    axes_of = (by.id, of.component, of.pass_name, of.variant, of.size, of.dtype)
    identity = re.sub(r"\W", "_", "_".join(axes_of).replace("+", "_plus_"))
    return Figure(identity, title, traces, axes, note)
