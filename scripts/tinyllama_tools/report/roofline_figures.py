"""The roofline itself, and the launch-bound region, as figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinyllama_tools.compare.output import seconds_text
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.machine import Machine
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.roofline import LaunchCost, RooflinePoint
from tinyllama_tools.report.document import Figure
from tinyllama_tools.report.plots import (
    DASHES,
    OTHER,
    ROOF,
    axis,
    layout,
    line,
    markers,
    spaced,
)
from tinyllama_tools.report.selection import COMPONENTS, WHOLE_PASSES, rank

GIGA = 1e9
ROOF_POINTS = 25
# beyond it, the page would be too large to mail
MOST_TEXTS = 6000
# plotly's numbers of circle, square and triangle-up: thousands of them stay small
BOUND_SYMBOLS = {"compute": 0, "bandwidth": 1, "latency": 5}
# added to the number of a symbol
OPEN = 100
MEANINGS = (
    "Circles are bound by products, squares by bandwidth, triangles by latency: there the start of"
    " operators takes longer than products and traffic at their peaks."
)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    """With some room on either side."""
    found = sorted(values)
    return found[0] / 2, found[-1] * 2


def _roofs(machine: Machine, first: float, last: float) -> list[Json]:
    """A roof a product type over memory, or over the cache where memory's bandwidth is not known,
    and else the cache's slope up to the highest peak."""
    memory = machine.memory_bandwidth
    bandwidth, level = (machine.cache_bandwidth, "cache") if memory is None else (memory, "memory")
    traces = []
    for number, (name, peak) in enumerate(machine.peak_flops.items()):
        ridge = peak / bandwidth
        xs = sorted({*spaced(first, last, ROOF_POINTS), *([ridge] if first < ridge < last else [])})
        ys = [min(peak, x * bandwidth) / GIGA for x in xs]
        dash = DASHES[number % len(DASHES)]
        traces.append(line(f"{name} products, {level}", xs, ys, role=ROOF, dash=dash))
    highest = max(machine.peak_flops.values(), default=0.0)
    ridge = highest / machine.cache_bandwidth
    if machine.cache_bandwidth > bandwidth and first < ridge:
        xs = spaced(first, ridge, ROOF_POINTS)
        ys = [x * machine.cache_bandwidth / GIGA for x in xs]
        traces.append(line("last-level cache", xs, ys, role=ROOF, dash="dot"))
    return traces


def _of_component(name: str, points: Sequence[RooflinePoint], texts: bool) -> Json:
    """In the colour that the component has in every figure; every second one has open marks."""
    series = rank(name, COMPONENTS)[0]
    trace = _scatter(name, points, texts, series=series)
    if series % 2:
        trace["marker"]["symbol"] = [OPEN + symbol for symbol in trace["marker"]["symbol"]]
    return trace


def _scatter(name: str, points: Sequence[RooflinePoint], texts: bool, **more: Any) -> Json:  # noqa: ANN401
    trace = markers(
        name,
        [point.intensity for point in points],
        [point.flops_per_second / GIGA for point in points],
        **more,
    )
    trace["marker"]["symbol"] = [BOUND_SYMBOLS[point.bound] for point in points]
    if texts:
        trace["text"] = [_short(point) for point in points]
    return trace


def _short(point: RooflinePoint) -> str:
    """`optimized tiny f32 8x128`, without the component, which is the trace's name, and the pass
    that a step consists of."""
    of = point.case
    if of is None:
        return point.name.rpartition("/")[2]
    other_pass = [] if of.pass_name in WHOLE_PASSES else [of.pass_name]
    return " ".join([*other_pass, of.variant, of.size, of.dtype, f"{of.batch}x{of.seq}"])


def _by_component(points: Sequence[RooflinePoint]) -> dict[str, list[RooflinePoint]]:
    found: dict[str, list[RooflinePoint]] = {}
    for point in points:
        if point.case is not None:
            found.setdefault(point.case.component, []).append(point)
    return {name: found[name] for name in sorted(found, key=lambda name: rank(name, COMPONENTS))}


def roofline_figure(
    points: Sequence[RooflinePoint], products: Sequence[RooflinePoint], machine: Machine
) -> Figure:
    first, last = _ends(point.intensity for point in [*points, *products])
    texts = len(points) + len(products) <= MOST_TEXTS
    traces = _roofs(machine, first, last)
    traces += [_of_component(name, own, texts) for name, own in _by_component(points).items()]
    if products:
        traces.append(_scatter("matrix products", products, texts, role=OTHER))
    axes = layout(axis("intensity", "FLOP/byte", log=True), axis("rate", "GFLOP/s", log=True))
    return Figure("roofline_plot", "Roofline", traces, axes, MEANINGS)


def launch_figure(
    points: Sequence[RooflinePoint], results: ResultSet, machine: Machine, launch: LaunchCost
) -> Figure | None:
    """The rate over the FLOPs of one operator: left of the ridge, starting it takes longer."""
    shown: list[tuple[RooflinePoint, float]] = []
    for point in points:
        counters = results.cases[point.name].counters
        operators, flops = counters.get("operators"), counters.get("model_flops")
        if operators and flops:
            shown.append((point, flops / operators))
    peak = max(machine.peak_flops.values(), default=0.0)
    if not shown or not peak:
        return None
    ridge = peak * launch.seconds
    first, last = _ends([ridge, *(work for _, work in shown)])
    xs = sorted({*spaced(first, last, ROOF_POINTS), ridge})
    ys = [min(peak, x / launch.seconds) / GIGA for x in xs]
    traces = [line("start of an operator, then the peak", xs, ys, role=ROOF)]
    for name, own in _by_component([point for point, _ in shown]).items():
        work = {id(point): flops for point, flops in shown}
        trace = _of_component(name, own, texts=False)
        trace["x"] = [work[id(point)] for point in own]
        traces.append(trace)
    title = "Launch-bound region: rate over the work of one operator"
    region = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": first,
        "x1": ridge,
        "y0": 0,
        "y1": 1,
        # grey on either ground
        "fillcolor": "rgba(128, 128, 128, 0.2)",
        "line": {"width": 0},
        "layer": "below",
    }
    axes = layout(
        axis("FLOPs of an operator", log=True),
        axis("rate", "GFLOP/s", log=True),
        shapes=[region],
    )
    note = (
        "In the shaded region, left of the ridge, starting an operator "
        f"({seconds_text(launch.seconds)}) takes longer than its products at the peak."
    )
    return Figure("launch_bound", title, traces, axes, note)
