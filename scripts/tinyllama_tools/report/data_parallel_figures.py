"""Figures of data-parallel runs: curves against ideal, losses, collectives, projections."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.core.app import Json
from tinyllama_tools.report.document import Figure
from tinyllama_tools.report.plots import (
    DASHES,
    LIGHT,
    ROOF,
    axis,
    bars,
    error_bars,
    layout,
    line,
    markers,
    spaced,
)
from tinyllama_tools.scaling.alpha_beta import AlphaBeta
from tinyllama_tools.scaling.analysis import Analysis
from tinyllama_tools.scaling.efficiency import ScalingPoint
from tinyllama_tools.scaling.estimate import interval_words
from tinyllama_tools.scaling.projection import ProjectedStep
from tinyllama_tools.scaling.scaling_result import STEPS

GIGA = 1e9
CURVE_POINTS = 40
PROJECTED = (
    "Projections, not measurements. The line is with nothing hidden behind the backward, the bar "
    "reaches to as much hidden as can be."
)


def _speedup_errors(points: Sequence[ScalingPoint]) -> Json:
    found = [point.speedup for point in points if point.speedup is not None]
    lows = [one.interval.low if one.interval else one.median for one in found]
    highs = [one.interval.high if one.interval else one.median for one in found]
    return error_bars([one.median for one in found], lows, highs)


def speedup_figure(identity: str, analysis: Analysis) -> Figure:
    """How many times one rank's throughput, against as many times as there are ranks."""
    ranks = sorted({point.ranks for point in analysis.points})
    traces = [line("ideal", ranks, ranks, role=ROOF)] if ranks else []
    for number, mode in enumerate(STEPS):
        of = [p for p in analysis.points if p.mode == mode and p.speedup is not None]
        if not of:
            continue
        xs, ys = [p.ranks for p in of], [p.speedup.median for p in of if p.speedup]
        dash = DASHES[number % len(DASHES)]
        trace = line(mode.replace("_", " "), xs, ys, dash=dash, error_y=_speedup_errors(of))
        traces.append(trace | {"mode": "lines+markers"})
    axes = layout(axis("ranks", log=True), axis("speed-up over one rank alone", log=True))
    sure = interval_words(point.speedup for point in analysis.points)
    note = f"Medians over rounds with {sure}; within a round, ways of a step take turns."
    return Figure(identity, "Speed-up against ideal", traces, axes, note)


def loss_figure(identity: str, analysis: Analysis) -> Figure:
    """Efficiency and losses as parts of a step, which make up 100 %."""
    drawn = [one for one in analysis.waterfalls if not one.refusal]
    labels = [f"{one.ranks} ranks" for one in drawn]
    traces = [bars("efficiency", labels, [one.efficiency for one in drawn], role=LIGHT)]
    for name in dict.fromkeys(part.name for one in drawn for part in one.parts):
        of = [(one.ranks, p.percent) for one in drawn for p in one.parts if p.name == name]
        traces.append(bars(name, [f"{ranks} ranks" for ranks, _ in of], [p for _, p in of]))
    axes = layout(axis("", type="category"), axis("share of the step", "%"), barmode="relative")
    note = "Means over rounds. A part below 0 is a gain, such as a cache that holds more."
    return Figure(identity, "Where the rest of an ideal step went", traces, axes, note)


def _fit_curve(fit: AlphaBeta, name: str, dash: str) -> Json:
    sizes = spaced(fit.smallest, fit.largest, CURVE_POINTS)
    return line(name, sizes, [size / fit.seconds(size) / GIGA for size in sizes], dash=dash)


def bandwidth_figure(identity: str, analysis: Analysis, ranks: int) -> Figure:
    """Algorithm bandwidth over size, measured and as latency and bandwidth say."""
    traces = []
    rows = [row for row in analysis.collectives if row.name.ranks == ranks]
    fits = {fit.operation: fit for fit in analysis.fits if fit.ranks == ranks}
    for number, operation in enumerate(dict.fromkeys(row.name.operation for row in rows)):
        of = sorted((r for r in rows if r.name.operation == operation), key=lambda r: r.name.bytes)
        group = {"legendgroup": operation, "series": number}
        xs = [row.name.bytes for row in of]
        ys = [row.name.bytes / row.median_seconds / GIGA for row in of]
        traces.append(markers(operation, xs, ys) | group)
        if operation in fits:
            dash = DASHES[number % len(DASHES)]
            traces.append(_fit_curve(fits[operation], f"{operation}, fit", dash) | group)
    axes = layout(axis("size", "bytes", log=True), axis("algorithm bandwidth", "GB/s", log=True))
    note = (
        "Bytes over time, as nccl-tests counts them; fits: bytes / (latency + bytes / bandwidth)."
    )
    return Figure(identity, f"Collectives of {ranks} ranks", traces, axes, note)


def projection_figure(
    identity: str, steps: Sequence[ProjectedStep], size: str, scaling: str
) -> Figure:
    """Efficiency over devices, a line for each interconnect."""
    traces = []
    of = [step for step in steps if (step.size, step.scaling) == (size, scaling)]
    for number, link in enumerate(dict.fromkeys(step.interconnect for step in of)):
        rows = sorted((s for s in of if s.interconnect == link), key=lambda s: s.ranks)
        lows = [step.efficiency_low for step in rows]
        highs = [step.efficiency_high for step in rows]
        errors = error_bars(lows, lows, highs)
        dash = DASHES[number % len(DASHES)]
        trace = line(link, [s.ranks for s in rows], lows, dash=dash, error_y=errors)
        traces.append(trace | {"mode": "lines+markers"})
    axes = layout(axis("devices", log=True), axis("projected efficiency", "%", rangemode="tozero"))
    title = f"Projection: {scaling} scaling of {size}"
    return Figure(identity, title, traces, axes, PROJECTED)
