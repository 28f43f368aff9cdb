"""Tables of data-parallel runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinyllama_tools.report.document import Cell, Column, Table, text_column
from tinyllama_tools.report.scaling_file import ScalingRun, StatedLocalStep
from tinyllama_tools.scaling.analysis import Analysis
from tinyllama_tools.scaling.estimate import Estimate, interval_words
from tinyllama_tools.scaling.projection import ProjectedStep

MILLI, MICRO, GIGA = 1e3, 1e6, 1e9
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
            fit.bandwidth / GIGA,
            fit.bandwidth_range.low / GIGA,
            fit.bandwidth_range.high / GIGA,
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
        rate / GIGA if isinstance(rate, (int, float)) else None,
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
