"""A training step beside what the machine can do: its cases under the roofline, and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.models.roofline import RooflinePoint, roofline_of
from tinyllama_tools.report.analysis import (
    COMPONENTS,
    WHOLE_PASSES,
    is_same_device,
    name_rank,
    rank,
)
from tinyllama_tools.report.document import (
    COLOURS,
    DASHES,
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
    nth,
    rate_text,
    spaced,
    step_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.machine import Machine
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.models.speed_of_light import StepTimes, TimedPart
    from tinyllama_tools.report.inputs import ReportInputs

GIGA, MILLI = 1e9, 1e3
ROOF_POINTS = 25
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
        of = {"colour": ROOF, "dash": nth(DASHES, number)}
        traces.append(line(f"{name} GEMMs, {level}", xs, ys, **of))
    highest = max(machine.peak_flops.values(), default=0.0)
    ridge = highest / machine.cache_bandwidth
    if machine.cache_bandwidth > bandwidth and first < ridge:
        xs = spaced(first, ridge, ROOF_POINTS)
        ys = [x * machine.cache_bandwidth / GIGA for x in xs]
        traces.append(line("last-level cache", xs, ys, colour=ROOF, dash="dot"))
    return traces


def _short(point: RooflinePoint) -> str:
    """`optimized tiny f32 8x128`, without the component, which is the trace's name, and the pass
    that a step consists of."""
    of = point.case
    if of is None:
        return point.name.rpartition("/")[2]
    other_pass = [] if of.pass_name in WHOLE_PASSES else [of.pass_name]
    return " ".join([*other_pass, of.variant, of.size, of.dtype, f"{of.batch}x{of.seq}"])


def _scatter(name: str, points: Sequence[RooflinePoint], colour: str, opened: int = 0) -> Json:
    rates = [point.flops_per_second / GIGA for point in points]
    symbols = [opened + BOUND_SYMBOLS[point.bound] for point in points]
    texts, intensities = zip(*((_short(point), point.intensity) for point in points), strict=True)
    return markers(name, intensities, rates, colour=colour, symbol=symbols, text=texts)


def _roofline_figure(
    points: Sequence[RooflinePoint], products: Sequence[RooflinePoint], machine: Machine
) -> Figure:
    """Each component in a colour of its own; every second one has open marks."""
    every = sorted(point.intensity for point in (*points, *products))
    traces = _roofs(machine, every[0] / 2, every[-1] * 2)
    found: dict[str, list[RooflinePoint]] = {}
    for point in points:
        found.setdefault(point.case.component if point.case else "", []).append(point)
    for name in sorted(found, key=lambda name: rank(name, COMPONENTS)):
        place = rank(name, COMPONENTS)[0]
        traces.append(_scatter(name, found[name], nth(COLOURS, place), OPEN * (place % 2)))
    if products:
        traces.append(_scatter("GEMMs", products, OTHER))
    axes = layout(axis("intensity", "FLOP/byte", log=True), axis("rate", "GFLOP/s", log=True))
    return Figure("roofline_plot", "Roofline", traces, axes, MEANINGS)


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
    if launch is not None:
        page.text.append(
            f"Starting an operator takes at most {seconds_text(launch.seconds)}: inferred from this"
            f" data, not measured. It is what the fastest operators, those of {launch.source}, "
            "take beyond their roofline time."
        )
    page.figures.append(_roofline_figure(points, products, machine))
    columns, shapes = ("case", *POINT_COLUMNS), ("GEMM", *POINT_COLUMNS)
    shape_note = "Each at its own shape: m x n x k, or so many at once x m x n x k."
    page.tables += [
        Table("roofline_points", "Cases under the roofline", columns, _rows(points)),
        Table("product_points", "GEMMs", shapes, _rows(products), shape_note),
    ]


PARTS_NOTE = (
    "Each part was measured alone. A rest below 0: parts alone do work that the step shares, such "
    "as gradients of inputs. The speed of light of a part is the longer of its GEMMs, each at the "
    "best rate measured at its own shape in any form (one by one, fused, in chunks), and its bytes "
    "at the bandwidth that they can see. Attention's scores and values count at the peak, without "
    "what the mask hides. Lost is what was measured above it. What is over 5 % faster shows that "
    "it is no bound: then there is no share, and Left out names it."
)
STEPS_NOTE = (
    "Shares of the measured step: GEMMs at the best rate measured at their own shapes, and the time"
    " above the speed of light. What GEMMs themselves took is known only where an operator profile "
    "of the same step was given (profiled). The backward is the model's forward and backward less "
    "its forward with the loss."
)
PHASES = ("forward", "backward", "optimizer", "other")
PART_COLUMNS = (
    *("part", "count", "measured [ms]", "of the step [%]", "speed of light [ms]", "lost [ms]"),
    *("GEMMs [ms]", "traffic [ms]", "share [%]", "measured as"),
)
STEP_COLUMNS = (
    *("step", "measured [ms]", "speed of light [ms]", "share [%]", "GEMMs at best [%]"),
    *("lost [%]", "GEMMs, profiled [%]", *(f"{phase} [ms]" for phase in PHASES), "missing"),
)


def _part_row(part: TimedPart, whole: float, share: float | None) -> list[Cell]:
    of_step = None if part.seconds is None else 100 * part.seconds / whole
    light = part.light
    times = (
        (light.seconds, part.lost_seconds, light.products, light.traffic) if light else [None] * 4
    )
    measured, *of_light = _milliseconds(part.seconds, *times)
    return [part.name, part.count, measured, of_step, *of_light, share, part.case]


def _profiled(inputs: ReportInputs) -> dict[CaseName, float]:
    """Percents of a step's operators that GEMMs take, of training runs on the first result's
    device that were profiled."""
    main = inputs.main_result()
    runs = [run for run in inputs.trainings if run.is_case and run.summary.get("operators")]
    return {
        run.step_name: run.summary["operators"]["matrix_product_percent"]
        for run in runs
        if is_same_device(run.summary["context"], main.context)
    }


def _step_row(of: StepTimes, profiled: float | None) -> list[Cell]:
    whole, light = of.total.seconds or 0.0, of.total.light
    share = of.share_percent
    percents = (100 * light.products / whole, 100 - share) if light and share else (None, None)
    return [
        *(step_text(of.step), *_milliseconds(whole, light.seconds if light else None), share),
        *(*percents, profiled, *_milliseconds(*(of.phases.get(phase) for phase in PHASES))),
        of.refusal or listed(of.missing, 2),
    ]


def _phases_figure(every: Iterable[StepTimes]) -> Figure:
    found = {step_text(of.step): of for of in every if of.phases}
    traces = []
    for phase in PHASES:
        percents = [100 * of.phases[phase] / (of.total.seconds or 1.0) for of in found.values()]
        traces.append(bars(phase, percents, list(found), orientation="h"))
    axes = layout(axis("share of the step", "%"), axis(""), barmode="relative")
    return Figure("phases_plot", "Forward, backward, optimizer and other", traces, axes)


def time(page: Section, inputs: ReportInputs) -> None:
    """The main step's parts beside their speed of light; every step's whole and phases."""
    page.omissions += inputs.refused_steps
    if not inputs.steps:
        raise Missing(f"{inputs.no_step}; measure a step with its parts: {Kind.STUDY.command}")
    for of in inputs.steps:
        name = str(of.step)
        page.omissions += [Omission("speed of light", name, e, is_error=True) for e in of.errors]
        page.omissions += [Omission("speed of light", name, of.refusal)] if of.refusal else []
    main = inputs.steps[0]
    page.text += [f"Missing: {missing}." for missing in main.missing]
    shown = [part for part in main.parts if part.seconds is not None]
    names, measured = [part.name for part in shown], [part.seconds for part in shown]
    traces = [bars("measured", names, _milliseconds(*measured), colour=MEASURED)]
    lights = [MILLI * part.light.seconds for part in shown if part.light]
    traces += [bars("speed of light", names, lights, colour=LIGHT)] if lights else []
    axes = layout(axis(""), axis("time in a step", "ms"), barmode="group")
    title = f"Parts of {step_text(main.step)}"
    page.figures += [
        Figure("parts_plot", title, traces, axes, PARTS_NOTE),
        _phases_figure(inputs.steps),
    ]
    whole = main.total.seconds or 1.0
    rows = [_part_row(part, whole, part.share_percent) for part in main.parts]
    rows.append(_part_row(main.total, whole, main.share_percent))
    profiled = _profiled(inputs)
    steps = [_step_row(of, profiled.get(of.step)) for of in inputs.steps]
    page.tables += [
        Table("steps", "Steps", STEP_COLUMNS, steps, STEPS_NOTE, is_key=True),
        Table("parts", title, PART_COLUMNS, rows, PARTS_NOTE, is_key=True),
    ]
