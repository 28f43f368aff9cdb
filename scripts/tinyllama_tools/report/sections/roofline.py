"""Every case and every GEMM under the machine's own roofline, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.models.roofline import LaunchCost, Roofline, RooflinePoint, roofline_of
from tinyllama_tools.report.analysis import COMPONENTS, WHOLE_PASSES, name_rank, rank
from tinyllama_tools.report.document import (
    DASHES,
    OTHER,
    ROOF,
    Column,
    Figure,
    Omission,
    Section,
    Table,
    axis,
    count_of,
    layout,
    line,
    markers,
    rate_text,
    spaced,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.machine import Machine
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.data.results import ResultSet
    from tinyllama_tools.report.inputs import ReportInputs

GIGA = 1e9
ROOF_POINTS = 25
# beyond it, the page would be too large to mail
MOST_TEXTS = 6000
# plotly's numbers of circle, square and triangle-up: thousands of them stay small
BOUND_SYMBOLS = {"compute": 0, "bandwidth": 1, "latency": 5}
# added to the number of a symbol
OPEN = 100
MEANINGS = (
    "Circles are bound by GEMMs, squares by bandwidth, triangles by latency: there the start of"
    " operators takes longer than GEMMs and traffic at their peaks."
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
        traces.append(line(f"{name} GEMMs, {level}", xs, ys, role=ROOF, dash=dash))
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
        traces.append(_scatter("GEMMs", products, texts, role=OTHER))
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
        f"({seconds_text(launch.seconds)}) takes longer than its GEMMs at the peak."
    )
    return Figure("launch_bound", title, traces, axes, note)


ID, TITLE = "roofline", "Roofline"
MAKE = f"make one: {Kind.SUITE.command}"
# of more cases than the first, only the second number is listed: the page has to be mailed
ALL_ROWS, MOST_ROWS = 500, 250
POINT_COLUMNS = (
    text_column("case"),
    Column("intensity", "FLOP/byte"),
    Column("rate", "GFLOP/s"),
    Column("attainable", "GFLOP/s"),
    Column("of the attainable", "%", digits=3),
    text_column("bound"),
    Column("GEMMs at the peak", "ms"),
    Column("traffic", "ms"),
    Column("starts of operators at most", "ms"),
)
MILLI = 1e3


def case_of(point: RooflinePoint) -> CaseName:
    """Of a point that is no product."""
    assert point.case is not None
    return point.case


def _lost(point: RooflinePoint, results: ResultSet) -> float:
    """Seconds above what the roofline allows."""
    share = (point.percent or 100.0) / 100.0
    return results.cases[point.name].median_seconds * (1.0 - share)


def _rows(points: Sequence[RooflinePoint]) -> list[list[str | float | None]]:
    return [
        [
            point.name,
            point.intensity,
            point.flops_per_second / GIGA,
            point.attainable / GIGA,
            point.percent,
            point.bound,
            MILLI * point.least.products,
            MILLI * point.least.traffic,
            None if point.starts_seconds is None else MILLI * point.starts_seconds,
        ]
        for point in points
    ]


def _table(points: Sequence[RooflinePoint], results: ResultSet) -> Table:
    shown, note = points, ""
    if len(points) > ALL_ROWS:
        shown = sorted(points, key=lambda point: _lost(point, results), reverse=True)[:MOST_ROWS]
        note = (
            f"The {MOST_ROWS} of {len(points):,} cases that lose most time against the roofline; "
            f"the figure shows all."
        )
    return Table("roofline_points", "Cases under the roofline", POINT_COLUMNS, _rows(shown), note)


def _products_table(products: Sequence[RooflinePoint]) -> Table:
    columns = (text_column("product"), *POINT_COLUMNS[1:])
    note = "Each at its own shape: m x n x k, or so many at once x m x n x k."
    return Table("product_points", "GEMMs", columns, _rows(products)[:ALL_ROWS], note)


def bounds_text(points: Sequence[RooflinePoint]) -> str:
    """How many cases each bound has."""
    counts = {bound: sum(p.bound == bound for p in points) for bound in BOUND_SYMBOLS}
    parts = [f"{number:,} by {bound}" for bound, number in counts.items() if number]
    return f"{count_of(len(points), 'case')}: bound {', '.join(parts)}."


def _omissions(of: Roofline) -> list[Omission]:
    found = [Omission("roofline", name, reason) for name, reason in of.left_out.items()]
    return found + [
        Omission("roofline", point.name, point.error, is_error=True)
        for point in of.points
        if point.error
    ]


def build(inputs: ReportInputs) -> Section:
    """Of the first result. BadInputError for a file without measured peaks."""
    results = inputs.main
    if results is None:
        return Section(ID, TITLE, missing=f"no result of the suite was given; {MAKE}")
    found = roofline_of(results)
    machine, launch, products = found.machine, found.launch, found.products
    points = sorted(found.points, key=lambda point: name_rank(case_of(point)))
    omissions = _omissions(found)
    if not points and not products:
        missing = f"no case of {results.title} has FLOPs, bytes and a measured peak; {MAKE}"
        return Section(ID, TITLE, missing=missing, omissions=omissions)
    memory = machine.memory_bandwidth
    of_memory = f"Memory gives {rate_text(memory, 'B/s')}, the" if memory is not None else "The"
    text = [
        f"{of_memory} last-level cache gives {rate_text(machine.cache_bandwidth, 'B/s')}. "
        f"{bounds_text(points)}"
    ]
    figures = [roofline_figure(points, products, machine)]
    if launch is not None:
        text.append(
            f"Starting an operator takes at most {seconds_text(launch.seconds)}. That is inferred "
            f"from this data, not measured: it is what the fastest operators, those of "
            f"{launch.source}, take beyond their roofline time. That case is not called "
            "latency-bound by it."
        )
        launches = launch_figure(points, results, machine, launch)
        figures += [launches] if launches is not None else []
    else:
        text.append("No case is small enough to show what the start of an operator costs.")
    tables = [_table(points, results)] if points else []
    if products:
        tables.append(_products_table(products))
    else:
        text.append(f"No GEMM was measured at its own shape; `{Kind.STUDY.command}` measures them.")
    return Section(ID, TITLE, text, figures=figures, tables=tables, omissions=omissions)
