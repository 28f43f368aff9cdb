"""Data-parallel runs: what each added rank gives, where the rest went, and projections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.data.names import STEPS, STRONG, WEAK
from tinyllama_tools.data.studies import SCALING_FILE
from tinyllama_tools.models.collectives import AlphaBeta, Estimate, ScalingPoint, interval_words
from tinyllama_tools.models.scaling_projection import Analysis, ProjectedStep, collective_notes
from tinyllama_tools.report.document import (
    DASHES,
    LIGHT,
    ROOF,
    Cell,
    Column,
    Figure,
    Omission,
    Section,
    Table,
    axis,
    bars,
    error_bars,
    layout,
    line,
    listed,
    markers,
    spaced,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.report.inputs import ReportInputs, ScalingRun, StatedLocalStep

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
    axes = layout(
        axis("ranks", log=True, ticks=ranks), axis("speed-up over one rank alone", log=True)
    )
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
    devices = axis("devices", log=True, ticks=[step.ranks for step in of])
    axes = layout(devices, axis("projected efficiency", "%", rangemode="tozero"))
    title = f"Projection: {scaling} scaling of {size}"
    return Figure(identity, title, traces, axes, PROJECTED)


MILLI, MICRO, TABLE_GIGA = 1e3, 1e6, 1e9
SHOWN_RANKS = (8, 64, 512, 4096)


def _median(found: Estimate | None) -> float | None:
    return found.median if found is not None else None


def _ends(found: Estimate | None) -> tuple[float | None, float | None]:
    if found is None or found.interval is None:
        return (None, None)
    return (found.interval.low, found.interval.high)


def efficiency_table(identity: str, analysis: Analysis) -> Table:
    """Every way of a step at every number of ranks."""
    rows: list[list[Cell]] = [
        [
            point.ranks,
            point.mode.replace("_", " "),
            point.batch,
            MILLI * point.seconds.median,
            point.samples_per_second,
            _median(point.efficiency),
            *_ends(point.efficiency),
            _median(point.communication),
            _median(point.communication_free),
            _median(point.overlap),
        ]
        for point in analysis.points
    ]
    columns = (
        Column("ranks", digits=6),
        text_column("mode"),
        Column("batch of a rank", digits=6),
        Column("step", "ms"),
        Column("samples/s"),
        Column("efficiency", "%"),
        Column("from", "%"),
        Column("to", "%"),
        Column("communication", "%", digits=3),
        Column("of step without it", "%"),
        Column("hidden by overlap", "%", digits=3),
    )
    sure = interval_words(point.efficiency for point in analysis.points)
    note = f"Medians over rounds; from and to, of the efficiency: {sure}."
    return Table(identity, "Parallel efficiency", columns, rows, note, is_key=True)


def loss_table(identity: str, analysis: Analysis) -> Table:
    """The parts that make up what is missing to an ideal step."""
    rows: list[list[Cell]] = []
    for one in analysis.waterfalls:
        if not one.refusal:
            rows.append([one.ranks, "efficiency", one.efficiency, None, None])
            rows += [[one.ranks, p.name, p.percent, p.low, p.high] for p in one.parts]
    columns = (
        Column("ranks", digits=6),
        text_column("part"),
        Column("of the step", "%"),
        Column("from", "%"),
        Column("to", "%"),
    )
    note = "Means over rounds with 95 % intervals; those of one number of ranks add up to 100 %."
    return Table(identity, "Where the rest of an ideal step went", columns, rows, note)


def fit_table(identity: str, analysis: Analysis) -> Table:
    """Latency and bandwidth of each operation."""
    rows: list[list[Cell]] = [
        [
            fit.operation,
            fit.ranks,
            MICRO * fit.alpha,
            MICRO * fit.alpha_range.low,
            MICRO * fit.alpha_range.high,
            fit.bandwidth / TABLE_GIGA,
            fit.bandwidth_range.low / TABLE_GIGA,
            fit.bandwidth_range.high / TABLE_GIGA,
            fit.sizes,
            fit.scatter,
            fit.median_held_out,
            fit.worst_held_out,
        ]
        for fit in analysis.fits
    ]
    columns = (
        text_column("operation"),
        Column("ranks", digits=6),
        Column("latency", "us"),
        Column("latency from", "us"),
        Column("latency to", "us"),
        Column("bandwidth", "GB/s"),
        Column("bandwidth from", "GB/s"),
        Column("bandwidth to", "GB/s"),
        Column("sizes", digits=6),
        Column("largest misfit", "%", digits=3),
        Column("held out, median", "%", digits=3),
        Column("held out, worst", "%", digits=3),
    )
    note = (
        "time = latency + bytes / bandwidth; held out: each size predicted from the others. From "
        "and to are 95 % intervals that take the misfit for chance: they say little where it is "
        "large."
    )
    return Table(identity, "Latency and bandwidth of collectives", columns, rows, note)


def check_table(identity: str, analysis: Analysis) -> Table:
    """The projection's model against what was run."""
    rows: list[list[Cell]] = [
        [
            check.ranks,
            check.fitted_at,
            check.what,
            MILLI * check.low,
            MILLI * check.high,
            MILLI * check.measured,
            check.percent_off,
        ]
        for check in analysis.checks
    ]
    columns = (
        Column("ranks", digits=6),
        Column("link measured at", "ranks", digits=6),
        text_column("what"),
        Column("model from", "ms"),
        Column("model to", "ms"),
        Column("measured", "ms"),
        Column("off by", "%", digits=3),
    )
    note = "The model knows neither slower local work nor imbalance. Off by: 0 between from and to."
    return Table(identity, "The model against what was run", columns, rows, note)


def local_table(identity: str, steps: Sequence[StatedLocalStep]) -> Table:
    """What the projections start from."""
    rows: list[list[Cell]] = [
        [
            step.name,
            step.kind,
            MILLI * step.seconds,
            *((MILLI * step.low, MILLI * step.high) if step.range_words else (None, None)),
            step.range_words,
            step.source,
        ]
        for step in steps
    ]
    columns = (
        text_column("step"),
        text_column("kind"),
        Column("local step", "ms"),
        Column("from", "ms"),
        Column("to", "ms"),
        text_column("range"),
        text_column("source"),
    )
    note = "One device's step, without communication; measured ones are taken as they are."
    return Table(identity, "Local steps", columns, rows, note)


def projection_table(identity: str, steps: Sequence[ProjectedStep]) -> Table:
    """Some numbers of devices; scaling.json has them all."""
    rows: list[list[Cell]] = [
        [
            step.size,
            step.local_kind,
            step.scaling,
            step.interconnect,
            step.ranks,
            step.batch,
            MILLI * step.seconds_low,
            MILLI * step.seconds_high,
            step.efficiency_low,
            step.efficiency_high,
            step.algorithm,
            step.kind,
        ]
        for step in steps
        if step.ranks in SHOWN_RANKS
    ]
    columns = (
        text_column("size"),
        text_column("local step"),
        text_column("scaling"),
        text_column("interconnect"),
        Column("devices", digits=6),
        Column("batch of a device"),
        Column("step from", "ms"),
        Column("step to", "ms"),
        Column("efficiency from", "%", digits=3),
        Column("efficiency to", "%", digits=3),
        text_column("all-reduce"),
        text_column("kind"),
    )
    note = (
        "Projections, not measurements. A step's time is from all communication hidden that can be "
        "to nothing hidden, its efficiency the other way round. The range of a predicted local "
        "step is not in them: Local steps has it."
    )
    return Table(identity, "Projections", columns, rows, note, is_key=True)


def _link_row(name: str, link: Mapping[str, object]) -> list[Cell]:
    of = link.get("link") or {}
    rate, latency = (of.get(key) for key in ("bandwidth", "latency"))  # type: ignore[union-attr]
    return [
        name,
        str(link.get("name", "")),
        rate / TABLE_GIGA if isinstance(rate, (int, float)) else None,
        MICRO * latency if isinstance(latency, (int, float)) else None,
        str(link.get("bandwidth_source", "")),
        str(link.get("latency_source", "")),
    ]


def link_table(identity: str, run: ScalingRun) -> Table:
    """The links of the projections with their sources."""
    rows: list[list[Cell]] = []
    for one in (run.projection or {}).get("interconnects", ()):
        for key in ("device", "network"):
            if isinstance(one, dict) and isinstance(one.get(key), dict):
                rows.append(_link_row(str(one.get("name", "")), one[key]))
    columns = (
        text_column("interconnect"),
        text_column("link"),
        Column("bandwidth", "GB/s"),
        Column("latency", "us"),
        text_column("bandwidth from"),
        text_column("latency from"),
    )
    return Table(identity, "Links of the projections", columns, rows)


ID, TITLE = "data_parallel", "Data-parallel scaling"
MISSING = f"no data-parallel run was given; {Kind.SCALING.command} makes one"
NO_PROJECTION = "no scaling.json is beside the results; scripts/scaling --from FOLDER makes it"
SAME_NAMES = "an earlier run has steps of the same names: --format fom prints its figures only"
METHOD = (
    "Efficiency is one rank's time alone over that of the data-parallel step, in the same round; "
    "the communication's share is what the step takes longer than the same ranks without it."
)


def _what(run: ScalingRun) -> str:
    context, of = run.analysis.context, run.analysis.results[-1].distributed
    device = (context.get("device") or {}).get("name") or "unknown device"
    return f"{run.title}, on {device} over {of['backend']}, buckets of {of['bucket_MiB']:g} MiB."


def _texts(run: ScalingRun) -> Iterator[str]:
    analysis = run.analysis
    yield _what(run)
    for warning in analysis.warnings:
        yield f"Not alike: {warning}."
    yield from collective_notes(analysis)
    # the main way of a step comes first among those of as many ranks
    main = {p.ranks: p for p in reversed(analysis.points) if p.ranks > 1}
    for ranks, point in sorted(main.items()):
        if point.efficiency is not None:
            mode = point.mode.replace("_", " ")
            yield f"{ranks} ranks reach an efficiency of {point.efficiency.text()} % ({mode})."
    missing = (run.projection or {}).get("missing") or {}
    if missing:
        reasons = listed(list(dict.fromkeys(str(reason) for reason in missing.values())))
        yield f"Without a projection: {listed(list(missing))}: {reasons}."


def _figures(run: ScalingRun, mark: str) -> list[Figure]:
    analysis = run.analysis
    figures = []
    if any(point.speedup is not None for point in analysis.points):
        figures.append(speedup_figure(f"speedup{mark}", analysis))
    if any(not one.refusal for one in analysis.waterfalls):
        figures.append(loss_figure(f"scaling_loss{mark}", analysis))
    for ranks in sorted({row.name.ranks for row in analysis.collectives}):
        figures.append(bandwidth_figure(f"collectives_{ranks}{mark}", analysis, ranks))
    name = next((one.name for one in analysis.results if one.name is not None), None)
    for scaling in (WEAK, STRONG):
        if name is not None and any(
            (step.size, step.scaling) == (name.size, scaling) for step in run.projections
        ):
            identity = f"projection_{scaling}{mark}"
            figures.append(projection_figure(identity, run.projections, name.size, scaling))
    return figures


def _tables(run: ScalingRun, mark: str) -> list[Table]:
    analysis = run.analysis
    tables = [
        efficiency_table(f"parallel_efficiency{mark}", analysis),
        loss_table(f"scaling_losses{mark}", analysis),
        fit_table(f"collective_fits{mark}", analysis),
        check_table(f"projection_checks{mark}", analysis),
        local_table(f"local_steps{mark}", run.local_steps),
        projection_table(f"projections{mark}", run.projections),
        link_table(f"projection_links{mark}", run),
    ]
    return [table for table in tables if table.rows]


def _omissions(run: ScalingRun) -> Iterator[Omission]:
    for failure in run.failures:
        # a program's last words may be several lines
        words = " ".join(failure.words.split())
        yield Omission("ranks", f"{run.title}, {failure.ranks} ranks", words, is_error=True)
    for name, reason in run.analysis.failed.items():
        yield Omission("case", name, reason, is_error=True)
    for refusal in run.analysis.refused:
        what, _, reason = refusal.partition(": ")
        yield Omission("latency and bandwidth", what, reason)
    for one in run.analysis.waterfalls:
        if one.refusal:
            yield Omission("loss of a step", f"{run.title}, {one.ranks} ranks", one.refusal)
    if run.refusal:
        yield Omission("projection", f"{run.title}, {SCALING_FILE}", run.refusal, is_error=True)
    elif run.projection is None:
        yield Omission("projection", run.title, NO_PROJECTION)


def build(inputs: ReportInputs) -> Section:
    """Of every data-parallel run that was given."""
    if not inputs.scalings:
        return Section(ID, TITLE, missing=MISSING)
    texts, figures, tables, omissions = [METHOD], [], [], []
    named: set[str] = set()
    for number, run in enumerate(inputs.scalings):
        names = {str(row.name) for result in run.analysis.results for row in result.steps.values()}
        if names & named:
            omissions.append(Omission("figures of merit", run.title, SAME_NAMES))
        named |= names
        mark = f"_{number + 1}" if number else ""
        texts += list(_texts(run))
        figures += _figures(run, mark)
        tables += _tables(run, mark)
        omissions += list(_omissions(run))
    return Section(ID, TITLE, texts, figures=figures, tables=tables, omissions=omissions)
