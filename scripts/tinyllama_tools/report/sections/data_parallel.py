"""Data-parallel runs: what each added rank gives, where the rest went, and projections. The page of
scripts/scaling shows the same tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinyllama_tools.data.names import ALL_REDUCE, STRONG, WEAK
from tinyllama_tools.models.data_parallel import Estimate
from tinyllama_tools.report.document import (
    GREY,
    Cell,
    Figure,
    Kind,
    Missing,
    Omission,
    Section,
    Table,
    axis,
    bars,
    trace,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.ranks import Failure
    from tinyllama_tools.models.data_parallel import Analysis
    from tinyllama_tools.report.inputs import ReportInputs

# of what is in s and bytes/s, by the unit of its column
SCALES = {"ms": 1e3, "us": 1e6, "GB/s": 1e-9}
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
KEY_TABLES = ("parallel_efficiency", "projected_efficiency")


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
    paths = {}
    for heading, _, path in (column.partition(" = ") for column in columns.split(" | ")):
        name, _, unit = heading.removesuffix("]").partition(" [")
        paths[heading] = (path or name, unit)
    records = [{heading: _cell(row, *of) for heading, of in paths.items()} for row in rows]
    return Table(identity, title, records, note, is_key=identity in KEY_TABLES)


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


def tables_of(analysis: Analysis, projection: Json | None) -> list[Table]:
    """Those with rows. `projection`: of scaling.json."""
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
        rows |= {"local_steps": projection["local_steps"], "projection_links": links}
        rows |= {"projected_efficiency": _overview(projection), "projections": projection["steps"]}
    tables = (_table(identity, of) for identity, of in rows.items())
    return [table for table in tables if table.records]


def facts(analysis: Analysis, projection: Json | None) -> Iterator[str]:
    """What the figures belong to, and what to know before reading any."""
    context, of, name = analysis.results[0].context, analysis.results[-1].distributed, analysis.name
    changed = " with changes" if context.get("git_dirty") else ""
    yield (
        f"{analysis.device or 'unknown device'}, commit "
        f"{str(context.get('git_commit', 'unknown'))[:8]}{changed}, libtorch "
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


def _speedup_figure(identity: str, analysis: Analysis) -> Figure:
    """How many times one rank's throughput, against as many times as there are ranks."""
    points = [(point.mode, point.ranks, point.speedup) for point in analysis.points]
    ranks, traces = sorted({ranks for _, ranks, speedup in points if speedup}), []
    for mode in dict.fromkeys(mode for mode, _, speedup in points if speedup):
        own = {ranks: speedup for of, ranks, speedup in points if of == mode and speedup}
        values = [of.median for of in own.values()]
        lows = [of.interval.low if of.interval else of.median for of in own.values()]
        highs = [of.interval.high if of.interval else of.median for of in own.values()]
        more = {"mode": "lines+markers", "ends": (lows, highs)}
        traces.append(trace(mode.replace("_", " "), own, values, **more))
    traces.append(trace("ideal", ranks, ranks, mode="lines", colour=GREY))
    x = axis("ranks", log=True, ticks=ranks)
    y = axis("speed-up over one rank alone", log=True)
    note = "Medians over rounds with their intervals; within a round, ways of a step take turns."
    return Figure(identity, "Speed-up against ideal", traces, x, y, note)


def _loss_figure(identity: str, analysis: Analysis) -> Figure:
    """Efficiency and losses as parts of a step, which make up 100 %."""
    traces = []
    for name in dict.fromkeys(row.name for row in analysis.losses):
        of = [row for row in analysis.losses if row.name == name]
        labels, shares = [f"{row.ranks} ranks" for row in of], [row.percent for row in of]
        traces.append(bars(name, labels, shares))
    x, y = axis("ranks", type="category"), axis("share of the step [%]")
    note = "Means over rounds. A part below 0 is a gain, such as a cache that holds more."
    title = "Where the rest of an ideal step went"
    return Figure(identity, title, traces, x, y, note, barmode="relative")


METHOD = (
    "Efficiency is one rank's time alone over that of the data-parallel step, in the same round; "
    "the communication's share is what the step takes longer than the same ranks without it."
)


def build(page: Section, inputs: ReportInputs) -> None:
    """Of every data-parallel run that was given."""
    if not inputs.scalings:
        raise Missing(f"no data-parallel run was given; {Kind.SCALING.command} makes one")
    page.text.append(METHOD)
    for number, run in enumerate(inputs.scalings):
        mark = f"_{number + 1}" if number else ""
        page.text += [f"{run.title}: {text}." for text in facts(run.analysis, run.projection)]
        page.figures.append(_speedup_figure(f"speedup{mark}", run.analysis))
        page.figures.append(_loss_figure(f"scaling_loss{mark}", run.analysis))
        for table in tables_of(run.analysis, run.projection):
            # scaling.md has the hundreds of rows of the last
            if table.id != "projections":
                page.tables.append(replace(table, id=table.id + mark))
        page.omissions += omissions_of(run.analysis, run.failures, run.title)
        if run.projection is None:
            why = "no projection in scaling.json: scripts/scaling --from FOLDER makes it"
            page.omissions.append(Omission("projection", run.title, why))
