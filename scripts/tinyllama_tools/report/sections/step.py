"""A training step beside what the machine can do: roofline, speed of light, and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.models.roofline import LaunchCost, RooflinePoint, roofline_of
from tinyllama_tools.report.analysis import (
    COMPONENTS,
    WHOLE_PASSES,
    is_same_device,
    name_rank,
    rank,
)
from tinyllama_tools.report.document import (
    DASHES,
    FIT,
    LIGHT,
    MEASURED,
    OTHER,
    ROOF,
    Cell,
    Figure,
    Kind,
    Missing,
    Omission,
    Section,
    Table,
    axis,
    bars,
    layout,
    line,
    listed,
    markers,
    rate_text,
    spaced,
    step_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.machine import Machine
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.data.results import ResultSet
    from tinyllama_tools.models.speed_of_light import Bar, LightPart, SpeedOfLight
    from tinyllama_tools.report.inputs import ReportInputs

GIGA, MILLI = 1e9, 1e3
ROOF_POINTS = 25
# beyond it, the page would be too large to mail
MOST_TEXTS = 6000
# plotly's numbers of circle, square and triangle-up: thousands of them stay small
BOUND_SYMBOLS = {"compute": 0, "bandwidth": 1, "latency": 5}
# added to the number of a symbol
OPEN = 100
MEANINGS = (
    "Circles are bound by GEMMs, squares by bandwidth, triangles by latency: there the start of "
    "operators takes longer than GEMMs and traffic at their peaks."
)


def _milliseconds(*values: float | None) -> list[float | None]:
    return [None if value is None else MILLI * value for value in values]


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


def _short(point: RooflinePoint) -> str:
    """`optimized tiny f32 8x128`, without the component, which is the trace's name, and the pass
    that a step consists of."""
    of = point.case
    if of is None:
        return point.name.rpartition("/")[2]
    other_pass = [] if of.pass_name in WHOLE_PASSES else [of.pass_name]
    return " ".join([*other_pass, of.variant, of.size, of.dtype, f"{of.batch}x{of.seq}"])


def _scatter(
    name: str,
    xs: Sequence[float],
    points: Sequence[RooflinePoint],
    texts: bool,
    opened: int = 0,
    **more: Any,  # noqa: ANN401
) -> Json:
    trace = markers(name, xs, [point.flops_per_second / GIGA for point in points], **more)
    trace["marker"]["symbol"] = [opened + BOUND_SYMBOLS[point.bound] for point in points]
    return trace | ({"text": [_short(point) for point in points]} if texts else {})


def _by_component(
    points: Sequence[RooflinePoint], xs: Sequence[float], texts: bool
) -> Iterable[Json]:
    """Each in the colour that it has in every figure; every second one has open marks."""
    found: dict[str, list[tuple[RooflinePoint, float]]] = {}
    for point, x in zip(points, xs, strict=True):
        found.setdefault(point.case.component if point.case else "", []).append((point, x))
    for name in sorted(found, key=lambda name: rank(name, COMPONENTS)):
        own, at = zip(*found[name], strict=True)
        series = rank(name, COMPONENTS)[0]
        yield _scatter(name, at, own, texts, OPEN * (series % 2), series=series)


def _roofline_figure(
    points: Sequence[RooflinePoint], products: Sequence[RooflinePoint], machine: Machine
) -> Figure:
    first, last = _ends(point.intensity for point in [*points, *products])
    texts = len(points) + len(products) <= MOST_TEXTS
    traces = _roofs(machine, first, last)
    traces += _by_component(points, [point.intensity for point in points], texts)
    if products:
        xs = [point.intensity for point in products]
        traces.append(_scatter("GEMMs", xs, products, texts, role=OTHER))
    axes = layout(axis("intensity", "FLOP/byte", log=True), axis("rate", "GFLOP/s", log=True))
    return Figure("roofline_plot", "Roofline", traces, axes, MEANINGS)


def _launch_figure(
    points: Sequence[RooflinePoint], results: ResultSet, machine: Machine, launch: LaunchCost
) -> list[Figure]:
    """The rate over the FLOPs of one operator: left of the ridge, starting it takes longer."""
    counters = [(point, results.cases[point.name].counters) for point in points]
    shown = [
        (point, of["model_flops"] / of["operators"])
        for point, of in counters
        if of.get("operators") and of.get("model_flops")
    ]
    peak = max(machine.peak_flops.values(), default=0.0)
    if not shown or not peak:
        return []
    ridge = peak * launch.seconds
    first, last = _ends([ridge, *(work for _, work in shown)])
    xs = sorted({*spaced(first, last, ROOF_POINTS), ridge})
    ys = [min(peak, x / launch.seconds) / GIGA for x in xs]
    traces = [line("start of an operator, then the peak", xs, ys, role=ROOF)]
    traces += _by_component([point for point, _ in shown], [work for _, work in shown], texts=False)
    region = {
        **{"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"},
        **{"x0": first, "x1": ridge, "line": {"width": 0}},
        # grey on either ground
        "fillcolor": "rgba(128, 128, 128, 0.2)",
    }
    flops = axis("FLOPs of an operator", log=True)
    axes = layout(flops, axis("rate", "GFLOP/s", log=True), shapes=[region])
    note = (
        "In the shaded region, left of the ridge, starting an operator "
        f"({seconds_text(launch.seconds)}) takes longer than its GEMMs at the peak."
    )
    title = "Launch-bound region: rate over the work of one operator"
    return [Figure("launch_bound", title, traces, axes, note)]


# of more cases than the first, only the second number is listed: the page has to be mailed
ALL_ROWS, MOST_ROWS = 500, 250
POINT_COLUMNS = (
    *("intensity [FLOP/byte]", "rate [GFLOP/s]", "attainable [GFLOP/s]", "of the attainable [%]"),
    *("bound", "GEMMs at the peak [ms]", "traffic [ms]", "starts of operators at most [ms]"),
)


def _rows(points: Sequence[RooflinePoint]) -> list[list[Cell]]:
    return [
        [
            *(point.name, point.intensity, point.flops_per_second / GIGA, point.attainable / GIGA),
            *(point.percent, point.bound),
            *_milliseconds(point.least.products, point.least.traffic, point.starts_seconds),
        ]
        for point in points
    ]


def _points_table(points: Sequence[RooflinePoint], results: ResultSet) -> Table:
    def lost(point: RooflinePoint) -> float:
        share = (point.percent or 100.0) / 100.0
        return results.cases[point.name].median_seconds * (1.0 - share)

    shown, note = points, ""
    if len(points) > ALL_ROWS:
        shown = sorted(points, key=lost, reverse=True)[:MOST_ROWS]
        note = (
            f"The {MOST_ROWS} of {len(points):,} cases that lose most time against the roofline; "
            f"the figure shows all."
        )
    columns = ("case", *POINT_COLUMNS)
    return Table("roofline_points", "Cases under the roofline", columns, _rows(shown), note)


def roofline(page: Section, inputs: ReportInputs) -> None:
    """Of the first result. BadInputError for a file without measured peaks."""
    results = inputs.main_result()
    found = roofline_of(results)
    machine, launch, products = found.machine, found.launch, found.products
    points = sorted(found.points, key=lambda p: name_rank(results.cases[p.name].name))
    page.omissions += [Omission("roofline", *pair) for pair in found.left_out.items()]
    page.omissions += [Omission("roofline", p.name, p.error, True) for p in points if p.error]
    if not points and not products:
        raise Missing(
            f"no case of {results.title} has FLOPs, bytes and a measured peak; "
            f"make one: {Kind.SUITE.command}"
        )
    rates = [("cache", machine.cache_bandwidth), ("memory", machine.memory_bandwidth)]
    shown = ", ".join(f"{name} {rate_text(rate, 'B/s')}" for name, rate in rates if rate)
    counts = {bound: sum(p.bound == bound for p in points) for bound in BOUND_SYMBOLS}
    bounds = ", ".join(f"{number:,} by {bound}" for bound, number in counts.items())
    page.text.append(f"Bandwidth: {shown}. Of {len(points):,} cases bound: {bounds}.")
    page.figures.append(_roofline_figure(points, products, machine))
    if launch is not None:
        page.text.append(
            f"Starting an operator takes at most {seconds_text(launch.seconds)}: inferred from this"
            f" data, not measured. It is what the fastest operators, those of {launch.source}, "
            "take beyond their roofline time."
        )
        page.figures += _launch_figure(points, results, machine, launch)
    page.tables += [
        _points_table(points, results),
        Table(
            *("product_points", "GEMMs", ("GEMM", *POINT_COLUMNS), _rows(products)[:ALL_ROWS]),
            "Each at its own shape: m x n x k, or so many at once x m x n x k.",
        ),
    ]


LIGHT_MEANING = (
    "The speed of light of a part is the longer of its GEMMs, each at the best rate measured at its"
    " own shape in any form (one by one, fused, in chunks), and its bytes at the bandwidth that "
    "they can see. Attention's scores and values count at the peak, without what the mask hides. "
    "It is the same for every variant. Lost is what was measured above it. Something that is faster"
    " shows that it is no bound: then there is no share, and Left out names it."
)


def _light_row(part: LightPart) -> list[Cell]:
    known = part.measured_seconds and part.lost_seconds is not None and part.lost_seconds >= 0
    share = 100.0 * part.light_seconds / part.measured_seconds if known else None
    seconds = (part.measured_seconds, part.light_seconds, part.lost_seconds)
    of_light = (part.products_seconds, part.traffic_seconds)
    return [part.name, part.count, *_milliseconds(*seconds, *of_light), share]


def speed_of_light(page: Section, inputs: ReportInputs) -> None:
    """The main step's parts, and every step at its size's own shape."""
    light, reason = inputs.light
    lights, omissions = inputs.lights
    page.omissions += omissions
    if light is None:
        raise Missing(f"{reason}; measure a step with its parts and GEMMs: {Kind.STUDY.command}")
    page.omissions += [
        Omission("speed of light", str(one.step), error, is_error=True)
        for one in lights
        for error in one.errors
    ]
    page.text += [f"Missing: {missing}." for missing in light.missing]
    shown = [part for part in light.parts if part.measured_seconds is not None]
    names, measured = [p.name for p in shown], [p.measured_seconds for p in shown]
    traces = [
        bars("measured", names, _milliseconds(*measured), role=MEASURED),
        bars("speed of light", names, [MILLI * p.light_seconds for p in shown], role=LIGHT),
    ]
    axes = layout(axis(""), axis("time in a step", "ms"), barmode="group")
    title = f"Measured against the speed of light: {step_text(light.step)}"
    page.figures.append(Figure("speed_of_light_plot", title, traces, axes, LIGHT_MEANING))
    columns = (
        *("part", "count", "measured [ms]", "speed of light [ms]", "lost [ms]", "GEMMs [ms]"),
        *("traffic [ms]", "share [%]"),
    )
    parts = [_light_row(part) for part in (*light.parts, light.total)]
    of_steps = [
        [
            step_text(one.step),
            *_milliseconds(one.total.measured_seconds, one.total.light_seconds),
            one.share_percent,
            listed(one.missing, 2),
        ]
        for one in lights
    ]
    step_columns = ("step", "measured [ms]", "speed of light [ms]", "share [%]", "missing")
    page.tables += [
        Table("speed_of_light_steps", "Steps", step_columns, of_steps, is_key=True),
        Table("speed_of_light_parts", f"Parts of {step_text(light.step)}", columns, parts),
    ]


SUM_NOTE = (
    "Each part was measured alone. A rest below 0: parts alone do work that the step shares, such "
    "as gradients of inputs."
)
PRODUCTS_NOTE = (
    "GEMMs at the best rate measured at their own shapes, what the rest of the step would take at "
    "its speed of light, and what is lost against both. The time that GEMMs themselves took is "
    "known only where an operator profile of the same step was given: its bar shows their measured "
    "share."
)
PRODUCT_SHARES = {
    "GEMMs at their best": LIGHT,
    "other work at the speed of light": ROOF,
    "lost against it": OTHER,
    "GEMMs, profiled": MEASURED,
    "everything else, profiled": FIT,
}


def _shares_figure(
    identity: str,
    title: str,
    shares: Mapping[str, Mapping[str, float]],
    roles: Mapping[str, str],
    note: str = "",
) -> Figure:
    """Bars of percents, by step and name."""
    traces = []
    for name in dict.fromkeys(name for of in shares.values() for name in of):
        found = {step: of[name] for step, of in shares.items() if name in of}
        own = {"role": roles[name]} if name in roles else {}
        percents, labels = list(found.values()), list(found)
        traces.append(bars(name, percents, labels, orientation="h", **own))
    axes = layout(axis("share of the step", "%"), axis(""), barmode="relative")
    return Figure(identity, title, traces, axes, note)


def _product_shares(
    lights: Sequence[SpeedOfLight], profiled: Mapping[CaseName, float]
) -> dict[str, dict[str, float]]:
    """`profiled`: measured percents of GEMMs, by step."""
    found: dict[str, dict[str, float]] = {}
    for light in lights:
        whole, lost = light.total.measured_seconds, light.lost_seconds
        label = step_text(light.step)
        if whole and lost is not None:
            best = (light.products_seconds, light.other_light_seconds, lost)
            percents = (100 * seconds / whole for seconds in best)
            found[label] = dict(zip(PRODUCT_SHARES, percents, strict=False))
        if light.step in profiled:
            percent = profiled[light.step]
            pair = (percent, 100 - percent)
            names = list(PRODUCT_SHARES)[3:]
            found[f"{label} (profiled)"] = dict(zip(names, pair, strict=True))
    return found


def _profiled(inputs: ReportInputs) -> dict[CaseName, float]:
    """Percents of a step's operators that GEMMs take, of training runs on the first result's
    device that were profiled."""
    main = inputs.main_result()
    return {
        run.step_name: run.summary["operators"]["matrix_product_percent"]
        for run in inputs.trainings
        if run.summary.get("operators") and is_same_device(run.summary["context"], main.context)
    }


def time(page: Section, inputs: ReportInputs) -> None:
    """Of the main step: its parts, its phases, GEMMs against the rest, what is lost."""
    found, reason = inputs.sum_of_parts
    light, _ = inputs.light
    if found is None:
        raise Missing(f"{reason}; measure a step with its parts: {Kind.STUDY.command}")
    missing = dict.fromkeys([*found.missing, *found.phases_missing])
    page.text += [f"Not measured: {listed(list(missing))}."] if missing else []
    whole = found.step_seconds
    waterfall = {
        **{"type": "waterfall", "name": "time", "role": MEASURED},
        "x": [*(bar.name for bar in found.bars), "step"],
        "y": [*(MILLI * bar.seconds for bar in found.bars), MILLI * whole],
        "measure": ["relative"] * len(found.bars) + ["total"],
    }
    others = [one for one in inputs.sums_of_parts if one.step != found.step]
    every = [found, *others]

    def row(bar: Bar, whole: float) -> list[Cell]:
        return [bar.name, MILLI * bar.seconds, 100 * bar.seconds / whole, bar.case]

    of_phases = [[step_text(o.step), *row(b, o.step_seconds)] for o in every for b in o.phases]
    phases: dict[str, dict[str, float]] = {}
    for step, name, _, percent, _ in of_phases:
        phases.setdefault(step, {})[name] = percent
    shares = _product_shares(inputs.lights[0], _profiled(inputs))
    axes = layout(axis(""), axis("time in a step", "ms"))
    title = f"From the parts to the step: {step_text(found.step)}"
    page.figures += [
        Figure("waterfall_plot", title, [waterfall], axes, SUM_NOTE),
        _shares_figure("phases_plot", "Forward, backward, optimizer and other", phases, {}),
        _shares_figure(
            *("products_plot", "GEMMs against everything else"),
            *(shares, PRODUCT_SHARES, PRODUCTS_NOTE),
        ),
    ]
    bar_columns = ("part", "time in a step [ms]", "share [%]", "measured as")
    columns = ("part", "lost [ms]", "of the step [%]", "measured [ms]", "speed of light [ms]")
    lost = [
        [
            *(part.name, MILLI * (part.lost_seconds or 0.0)),
            100 * (part.lost_seconds or 0.0) / whole,
            *_milliseconds(part.measured_seconds, part.light_seconds),
        ]
        for part in (light.most_lost if light is not None else ())
    ]
    most = "The five parts that lose most time against the speed of light"
    page.tables += [
        Table("most_lost", most, columns, lost, is_key=True),
        Table("sum_of_parts", title, bar_columns, [row(b, whole) for b in found.bars], SUM_NOTE),
        Table("phases", "Phases of each step", ("step", *bar_columns), of_phases),
    ]
