"""Data-parallel runs: what each added rank gives, where the rest went, and projections. The page of
scripts/scaling shows the same tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinyllama_tools.data.names import ALL_REDUCE, STRONG, WEAK
from tinyllama_tools.data.studies import SCALING_FILE
from tinyllama_tools.models.data_parallel import RANKS, Estimate
from tinyllama_tools.report.document import (
    COLOURS,
    DASHES,
    LIGHT,
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
    error_bars,
    layout,
    line,
    markers,
    nth,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.ranks import Failure
    from tinyllama_tools.models.data_parallel import Analysis
    from tinyllama_tools.report.inputs import ReportInputs

GIGA = 1e9
# numbers of devices that are shown where there is no room for all
SHOWN_DEVICES = (8, 64, 512, 4096)
COMMIT_DIGITS = 8
# of what is in s and bytes/s, by the unit of its column
SCALES = {"ms": 1e3, "us": 1e6, "GB/s": 1 / GIGA}
# by a table's identity: its title; its columns, each with its heading, its unit in brackets and,
# where that is not its heading, what it shows of a row; and what to know before reading it
TABLES: Mapping[str, tuple[str, str, str]] = {
    "parallel_efficiency": (
        "Parallel efficiency",
        "ranks | mode | batch of a rank = batch | step [ms] = seconds.median | "
        "samples/s = samples_per_second | efficiency [%] | speed-up = speedup | "
        "of step without communication [%] = communication_free | "
        "overlap hides [%] = overlap | processor of all-reduce [%] = busy",
        "Medians over rounds; in brackets the exact interval of the median, of 95 % confidence "
        "unless another one is named.",
    ),
    "scaling_losses": (
        "Where the rest of an ideal step went",
        "ranks | part = name | of the step [%] = percent | from [%] = low | to [%] = high",
        "Means over rounds with 95 % intervals; those of one number of ranks add up to 100 %.",
    ),
    "collective_fits": (
        "Latency and bandwidth of collectives",
        "operation | ranks | latency [us] = alpha | latency from [us] = alpha_range.low | "
        "latency to [us] = alpha_range.high | bandwidth [GB/s] | "
        "bandwidth from [GB/s] = bandwidth_range.low | "
        "bandwidth to [GB/s] = bandwidth_range.high | sizes | "
        "largest misfit [%] = scatter | held out, median [%] = median_held_out | "
        "held out, worst [%] = worst_held_out",
        "time = latency + bytes / bandwidth; held out: each size predicted from the others. From "
        "and to are 95 % intervals that take the misfit for chance: they say little where it is "
        "large. Gloo makes a reduce-scatter as an all-reduce of which each rank keeps its share: "
        "its bandwidth says nothing of the link.",
    ),
    "collective_rates": (
        "Collectives",
        "operation | ranks | size [bytes] = bytes | time [us] = seconds | algorithm [GB/s] | "
        "bus [GB/s]",
        "Medians over rounds; bandwidths as nccl-tests counts them.",
    ),
    "projection_checks": (
        "The model against what was run",
        "ranks | link measured at [ranks] = fitted_at | what | model from [ms] = low | "
        "model to [ms] = high | measured [ms] | off by [%] = percent_off",
        "With latency and bandwidth of the same ranks, and with those of fewer ranks, carried on "
        "by the formulas of a projection. What the model does not know (slower local work, "
        "imbalance) is part of what it is off by; 0 between from and to.",
    ),
    "local_steps": (
        "Local steps",
        "step = name | kind | local step [ms] = seconds | from [ms] = low | to [ms] = high | "
        "range = range_words | source",
        "One device's step, without communication; measured ones are taken as they are.",
    ),
    "projection_links": (
        "Links of the projections",
        "interconnect | link = name | bandwidth [GB/s] = link.bandwidth | "
        "latency [us] = link.latency | bandwidth from = bandwidth_source | "
        "latency from = latency_source",
        "",
    ),
    "projected_efficiency": (
        "Projections of efficiency",
        "scaling | size | local step = local_kind | interconnect | 8 devices [%] | "
        "64 devices [%] | 512 devices [%] | 4096 devices [%] | kind",
        "Projections, not measurements: from nothing hidden behind the backward to as much as can "
        "be.",
    ),
    "projections": (
        "Projections",
        "size | local step = local_kind | scaling | interconnect | devices = ranks | "
        "batch of a device = batch | local [ms] = local_seconds | "
        "communication [ms] = communication_seconds | all-reduce = algorithm | "
        "step from [ms] = seconds_low | step to [ms] = seconds_high | "
        "efficiency from [%] = efficiency_low | efficiency to [%] = efficiency_high | kind",
        "Projections, not measurements. A step's time is from all communication hidden that can be "
        "to nothing hidden, its efficiency the other way round. The range of a predicted local "
        "step is not in them: Local steps has it.",
    ),
}
KEY_TABLES = ("parallel_efficiency", "projections")


def _cell(row: Any, path: str, unit: str) -> Cell:  # noqa: ANN401
    """Of an object or a mapping."""
    value = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    if isinstance(value, Estimate):
        return value.text(1 if unit == "%" else 2)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return SCALES[unit] * value if unit in SCALES and value is not None else value


def _table(identity: str, rows: Iterable[Any]) -> Table:
    title, columns, note = TABLES[identity]
    found, headings, cells = list(rows), [], []
    for heading, _, path in (column.partition(" = ") for column in columns.split(" | ")):
        name, _, unit = heading.removesuffix("]").partition(" [")
        headings.append(heading)
        cells.append([_cell(row, path or name, unit) for row in found])
    rows = list(zip(*cells, strict=True))
    return Table(identity, title, headings, rows, note, is_key=identity in KEY_TABLES)


def _rates(analysis: Analysis) -> Iterator[Json]:
    for row in analysis.collectives:
        seconds, rate = row.median_seconds, row.name.bytes / row.median_seconds
        on_bus = (2 if row.name.operation == ALL_REDUCE else 1) * (1 - 1 / row.name.ranks)
        yield row.name._asdict() | {"seconds": seconds, "algorithm": rate, "bus": on_bus * rate}


def _overview(projection: Json) -> Iterable[Json]:
    """Efficiencies of a size, scaling and interconnect in a row; weak scaling first."""
    found: dict[tuple[str, ...], Json] = {}
    for step in sorted(projection["steps"], key=lambda of: of["scaling"] != WEAK):
        ends = (f"{step['efficiency_low']:.0f}", f"{step['efficiency_high']:.0f}")
        row = found.setdefault((step["size"], step["scaling"], step["interconnect"]), dict(step))
        row[f"{step['ranks']} devices"] = " to ".join(dict.fromkeys(ends))
    return found.values()


def tables_of(
    analysis: Analysis, projection: Json | None, devices: Collection[int] = RANKS
) -> list[Table]:
    """Those with rows. `projection`: of scaling.json. `devices`: numbers of them to show."""
    rows: dict[str, Iterable[Any]] = {
        "parallel_efficiency": analysis.points,
        "scaling_losses": analysis.losses,
        "collective_fits": analysis.fits,
        "collective_rates": _rates(analysis),
        "projection_checks": analysis.checks,
    }
    if projection is not None:
        links = [
            {"interconnect": one["name"], **link}
            for one in projection["interconnects"]
            for link in (one["device"], one["network"])
            if link
        ]
        steps = [step for step in projection["steps"] if step["ranks"] in devices]
        rows |= {"local_steps": projection["local_steps"], "projection_links": links}
        rows |= {"projected_efficiency": _overview(projection), "projections": steps}
    tables = (_table(identity, of) for identity, of in rows.items())
    return [table for table in tables if table.rows]


def facts(analysis: Analysis, projection: Json | None) -> Iterator[str]:
    """What the figures belong to, and what to know before reading any."""
    context, of, name = analysis.results[0].context, analysis.results[-1].distributed, analysis.name
    changed = " with changes" if context.get("git_dirty") else ""
    yield (
        f"{analysis.device or 'unknown device'}, commit "
        f"{str(context.get('git_commit', 'unknown'))[:COMMIT_DIGITS]}{changed}, libtorch "
        f"{context.get('torch_version')}, {of['backend']}, threads a rank: {context.get('threads')}"
    )
    what = f"{name.size}, {name.variant}, {name.dtype}, sequence {name.seq}" if name else "no step"
    batch = {WEAK: "a batch a rank", STRONG: "one batch for all ranks"}[of["scaling"]]
    yield (
        f"{what}; {of['scaling']}: {batch}; buckets of {of['bucket_MiB']:g} MiB "
        f"({len(of['bucket_bytes'])} of them, {of['gradient_bytes']:,} bytes)"
    )
    yield from (f"not alike: {text}" for text in analysis.warnings)
    if missing := (projection or {}).get("missing"):
        # all for the same reason
        yield f"no projection of {', '.join(missing)}: {next(iter(missing.values()))}"


def omissions_of(analysis: Analysis, failures: Sequence[Failure], title: str) -> Iterator[Omission]:
    """What a run has not, and why. `title`: of the run."""
    for failure in failures:
        # a program's last words may be several lines
        words = " ".join(failure.words.split())
        name = f"{title}, {failure.ranks} ranks"
        yield Omission("ranks", name, f"ended with {failure.status}: {words}", is_error=True)
    for name, reason in analysis.failed.items():
        yield Omission("case", name, reason, is_error=True)
    for refusal in analysis.refused:
        what, _, reason = refusal.partition(": ")
        yield Omission("latency and bandwidth", what, reason)


def _lines(points: Iterable[tuple[str, float, float, float, float]]) -> list[Json]:
    """A line with error bars for each name, of points (name, x, y, low, high)."""
    traces, found = [], list(points)
    for number, name in enumerate(dict.fromkeys(point[0] for point in found)):
        xs, ys, lows, highs = zip(*(of[1:] for of in found if of[0] == name), strict=True)
        more = {"mode": "lines+markers", "error_y": error_bars(ys, lows, highs)}
        traces.append(line(name, xs, ys, dash=nth(DASHES, number), **more))
    return traces


def _speedups(analysis: Analysis) -> Iterator[tuple[str, float, float, float, float]]:
    for point in analysis.points:
        if of := point.speedup:
            ends = (of.interval.low, of.interval.high) if of.interval else (of.median,) * 2
            yield (point.mode.replace("_", " "), point.ranks, of.median, *ends)


def speedup_figure(identity: str, analysis: Analysis) -> Figure:
    """How many times one rank's throughput, against as many times as there are ranks."""
    ranks = sorted({point.ranks for point in analysis.points})
    if traces := _lines(_speedups(analysis)):
        traces.insert(0, line("ideal", ranks, ranks, colour=ROOF))
    axes = layout(
        axis("ranks", log=True, ticks=ranks), axis("speed-up over one rank alone", log=True)
    )
    note = "Medians over rounds with their intervals; within a round, ways of a step take turns."
    return Figure(identity, "Speed-up against ideal", traces, axes, note)


def loss_figure(identity: str, analysis: Analysis) -> Figure:
    """Efficiency and losses as parts of a step, which make up 100 %."""
    traces = []
    for name in dict.fromkeys(row.name for row in analysis.losses):
        of = [row for row in analysis.losses if row.name == name]
        labels, shares = [f"{row.ranks} ranks" for row in of], [row.percent for row in of]
        traces.append(bars(name, labels, shares, colour=None if traces else LIGHT))
    axes = layout(axis("", type="category"), axis("share of the step", "%"), barmode="relative")
    note = "Means over rounds. A part below 0 is a gain, such as a cache that holds more."
    return Figure(identity, "Where the rest of an ideal step went", traces, axes, note)


def bandwidth_figure(identity: str, analysis: Analysis, ranks: int) -> Figure:
    """Algorithm bandwidth over size, measured and as latency and bandwidth say."""
    traces = []
    rates: dict[str, dict[int, float]] = {}
    for row in _rates(analysis):
        if row["ranks"] == ranks:
            rates.setdefault(row["operation"], {})[row["bytes"]] = row["algorithm"] / GIGA
    fits = {fit.operation: fit for fit in analysis.fits if fit.ranks == ranks}
    for number, (operation, of) in enumerate(rates.items()):
        own = {"legendgroup": operation, "colour": nth(COLOURS, number)}
        sizes = sorted(of)
        traces.append(markers(operation, sizes, [of[size] for size in sizes], **own))
        if fit := fits.get(operation):
            fitted = [size / fit.seconds(size) / GIGA for size in sizes]
            traces.append(line(f"{operation}, fit", sizes, fitted, dash=nth(DASHES, number), **own))
    axes = layout(
        axis("size", "bytes", log=True, tickformat="~s"),
        axis("algorithm bandwidth", "GB/s", log=True),
    )
    note = (
        "Bytes over time, as nccl-tests counts them; fits: bytes / (latency + bytes / bandwidth)."
    )
    return Figure(identity, f"Collectives of {ranks} ranks", traces, axes, note)


def projection_figure(identity: str, steps: Sequence[Json], title: str) -> Figure:
    """Efficiency over devices, a line for each interconnect."""
    ends = ("efficiency_low", "efficiency_low", "efficiency_high")
    points = [(of["interconnect"], of["ranks"], *(of[end] for end in ends)) for of in steps]
    devices = axis("devices", log=True, ticks=[step["ranks"] for step in steps])
    axes = layout(devices, axis("projected efficiency", "%", rangemode="tozero"))
    note = (
        "Projections, not measurements. The line is with nothing hidden behind the backward, the "
        "bar reaches to as much hidden as can be."
    )
    return Figure(identity, f"Projection: {title}", _lines(points), axes, note)


def figures_of(analysis: Analysis, projection: Json | None, mark: str) -> list[Figure]:
    """Those with points. `mark`: what tells them from another run's."""
    figures = [
        speedup_figure(f"speedup{mark}", analysis),
        loss_figure(f"scaling_loss{mark}", analysis),
    ]
    for ranks in sorted({row.name.ranks for row in analysis.collectives}):
        figures.append(bandwidth_figure(f"collectives_{ranks}{mark}", analysis, ranks))
    size = analysis.name.size if analysis.name is not None else ""
    for scaling in (WEAK, STRONG):
        every = (projection or {}).get("steps", ())
        steps = [of for of in every if (of["size"], of["scaling"]) == (size, scaling)]
        title = f"{scaling} scaling of {size}"
        figures.append(projection_figure(f"projection_{scaling}{mark}", steps, title))
    return [figure for figure in figures if figure.points]


MISSING = f"no data-parallel run was given; {Kind.SCALING.command} makes one"
NO_PROJECTION = "no scaling.json is beside the results; scripts/scaling --from FOLDER makes it"
SAME_NAMES = "an earlier run has steps of the same names: --format fom prints its figures only"
METHOD = (
    "Efficiency is one rank's time alone over that of the data-parallel step, in the same round; "
    "the communication's share is what the step takes longer than the same ranks without it."
)


def build(page: Section, inputs: ReportInputs) -> None:
    """Of every data-parallel run that was given."""
    if not inputs.scalings:
        raise Missing(MISSING)
    page.text.append(METHOD)
    named: set[str] = set()
    for number, run in enumerate(inputs.scalings):
        names = {str(row.name) for result in run.analysis.results for row in result.steps.values()}
        if names & named:
            page.omissions.append(Omission("figures of merit", run.title, SAME_NAMES))
        named |= names
        mark = f"_{number + 1}" if number else ""
        page.text += [f"{run.title}: {text}." for text in facts(run.analysis, run.projection)]
        page.figures += figures_of(run.analysis, run.projection, mark)
        for table in tables_of(run.analysis, run.projection, SHOWN_DEVICES):
            page.tables.append(replace(table, id=table.id + mark))
        page.omissions += omissions_of(run.analysis, run.failures, run.title)
        if run.refusal:
            what = f"{run.title}, {SCALING_FILE}"
            page.omissions.append(Omission("projection", what, run.refusal, is_error=True))
        elif run.projection is None:
            page.omissions.append(Omission("projection", run.title, NO_PROJECTION))
