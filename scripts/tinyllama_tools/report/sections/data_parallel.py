"""Data-parallel runs: what each added rank brings, what the rest of the step is, and how far
predictions of their steps are off. The page of scripts/scaling shows the same tables.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.machine import plugin_texts
from tinyllama_tools.data.names import ALL_REDUCE, STRONG, WEAK
from tinyllama_tools.data.rank_results import Failure
from tinyllama_tools.data.results import ResultSet, commit_text
from tinyllama_tools.models.data_parallel import Analysis
from tinyllama_tools.models.over_ranks import rank_figures
from tinyllama_tools.models.prediction import errors_by_axis
from tinyllama_tools.report.document import (
    GREY,
    Kind,
    Missing,
    Omission,
    Section,
    Table,
    axis,
    bars,
    error_bars,
    table_of,
    trace,
)
from tinyllama_tools.report.inputs import ReportInputs


def _rates(analysis: Analysis) -> Iterator[Json]:
    for row in analysis.collectives:
        seconds, rate = row.median_seconds, row.name.bytes / row.median_seconds
        on_bus = (2 if row.name.operation == ALL_REDUCE else 1) * (1 - 1 / row.name.ranks)
        yield row.name._asdict() | {"seconds": seconds, "algorithm": rate, "bus": on_bus * rate}


def _held_out(analysis: Analysis, results: ResultSet | None) -> Iterator[Json]:
    with contextlib.suppress(BadInputError):
        yield from (e._asdict() for e in errors_by_axis(rank_figures(analysis, results).held_out))


def tables_of(analysis: Analysis, results: ResultSet | None = None) -> list[Table]:
    """Those that have rows. `results`: of the suite on the same device."""
    rows: dict[str, Iterable[Any]] = {
        "parallel_efficiency": analysis.points,
        "scaling_losses": analysis.losses,
        "collective_fits": analysis.fits,
        "collective_rates": _rates(analysis),
        "held_out_ranks": _held_out(analysis, results),
    }
    tables = (table_of(identity, own) for identity, own in rows.items())
    return [table for table in tables if table.records]


def facts(analysis: Analysis) -> Iterator[str]:
    """What the figures belong to, and what to know before reading any."""
    context, ranks = analysis.results[0].context, analysis.results[-1].distributed
    name = analysis.name
    yield (
        f"{analysis.device or 'unknown device'}, commit {commit_text(context)}, libtorch "
        f"{context.get('torch_version')}, {ranks['backend']}, "
        f"threads a rank: {context.get('threads')}"
    )
    if plugins := plugin_texts(context):
        yield f"plug-ins: {', '.join(plugins)}"
    what = f"{name.size}, {name.variant}, {name.dtype}, sequence {name.seq}" if name else "no step"
    batch = {WEAK: "a batch a rank", STRONG: "one batch for all ranks"}[ranks["scaling"]]
    yield (
        f"{what}; {ranks['scaling']}: {batch}; buckets of {ranks['bucket_MiB']:g} MiB "
        f"({len(ranks['bucket_bytes'])} of them, {ranks['gradient_bytes']:,} bytes)"
    )
    if (sent := ranks.get("compress", "none")) != "none":
        yield f"gradients are sent and summed as {sent}"
    yield from (f"not alike: {text}" for text in analysis.warnings)


def omissions_of(analysis: Analysis, failures: Sequence[Failure], title: str) -> Iterator[Omission]:
    """What a run lacks, and why. `title`: the run's."""
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


def _speedup_figure(page: Section, identity: str, analysis: Analysis) -> None:
    """Throughput over that of one rank, for each way of a step; ideal is the number of ranks."""
    points = [(point.mode, point.ranks, point.speedup) for point in analysis.points]
    ranks, traces = sorted({ranks for _, ranks, speedup in points if speedup}), []
    for mode in dict.fromkeys(mode for mode, _, speedup in points if speedup):
        own = {n: speedup for way, n, speedup in points if way == mode and speedup}
        more = {"mode": "lines+markers", "ends": error_bars(list(own.values()))}
        values = [speedup.median for speedup in own.values()]
        traces.append(trace(mode.replace("_", " "), own, values, **more))
    traces.append(trace("ideal", ranks, ranks, mode="lines", colour=GREY))
    x = axis("ranks", log=True, ticks=ranks)
    y = axis("speed-up over one rank alone", log=True)
    note = "Medians over rounds with their intervals; in a round, ways of a step are interleaved."
    page.figure(identity, "Speed-up against ideal", traces, x, y, note)


def _loss_figure(page: Section, identity: str, analysis: Analysis) -> None:
    """Efficiency and losses beside each other, not stacked: medians need not add up to 100 %."""
    shares: dict[str, dict[str, float]] = {}
    for row in analysis.losses:
        shares.setdefault(row["name"], {})[f"{row['ranks']} ranks"] = row["percent"]
    x, y = axis("ranks", type="category"), axis("of the step [%]")
    note = "Medians over rounds. A part below 0 is a gain, such as a cache that holds more."
    page.figure(identity, "Where the rest of an ideal step went", bars(shares), x, y, note)


METHOD = (
    "Efficiency is one rank's time alone over that of the data-parallel step, in the same round; "
    "the communication's share is what the step takes longer than the same ranks without it."
)


def build(page: Section, inputs: ReportInputs) -> None:
    """Every data-parallel run that was given."""
    if not inputs.scalings:
        what = "no data-parallel run of this device was given"
        raise Missing(f"{what}; {Kind.SCALING.command} makes one")
    page.text.append(METHOD)
    for number, run in enumerate(inputs.scalings):
        # not _2, which a second device has
        mark = f"_run_{number + 1}" if number else ""
        page.text += [f"{run.title}: {text}." for text in facts(run.analysis)]
        _speedup_figure(page, f"speedup{mark}", run.analysis)
        _loss_figure(page, f"scaling_loss{mark}", run.analysis)
        for table in tables_of(run.analysis, inputs.main):
            page.tables.append(replace(table, id=table.id + mark))
        page.omissions += omissions_of(run.analysis, run.failures, run.title)
