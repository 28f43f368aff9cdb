"""Runs of scripts/ablation and of the training program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import shown_path
from tinyllama_tools.data.names import BASELINE
from tinyllama_tools.models.ablations import Cell as AblationCell
from tinyllama_tools.models.ablations import Study
from tinyllama_tools.report.document import (
    MEASURED,
    Cell,
    Figure,
    Kind,
    Missing,
    Section,
    Table,
    axis,
    bars,
    error_bars,
    layout,
    line,
    markers,
)

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs, TrainingRun

MIB = 2**20
ABLATION_COLUMNS = (
    *("row", "time [ms]", "ratio [x]", "from [x]", "to [x]", "memory [x]", "MFU [%]", "why not"),
)
ABLATION_NOTE = (
    "Ratio: the baseline's time over the row's; of `optimized without X`, its time over that of "
    "`optimized`: above 1, the switch was worth having. Median over turns with its interval. "
    "Memory: peak over the baseline's, or over that of `optimized`."
)


def _ablation_row(study: Study, cell: AblationCell) -> list[Cell]:
    seconds, ratio = cell.seconds, study.ratio(cell)
    interval = ratio.interval if ratio else None
    ends = (interval.low, interval.high) if interval else (None, None)
    return [
        *(cell.row, seconds * 1e3 if seconds else None, ratio.median if ratio else None),
        *(*ends, study.memory_ratio(cell), cell.mfu_percent, cell.note),
    ]


def ablation(page: Section, inputs: ReportInputs) -> None:
    """A figure and a table for each test point of the first ablation."""
    missing = f"no ablation was given; make one: {Kind.ABLATION.command}"
    if not inputs.ablations:
        raise Missing(missing)
    path, study = inputs.ablations[0]
    device = (study.context.get("device") or {}).get("name") or "unknown device"
    commit = str(study.context.get("git_commit") or "unknown")[:8]
    date = study.meta.get("date", "unknown date")
    page.text.append(f"Measured on {device}, commit {commit}, {date}: {shown_path(path)}.")
    page.text += [f"Not shown: {shown_path(other.path)}." for other in inputs.ablations[1:]]
    for number, point in enumerate(study.points(), start=1):
        title = f"Optimisations at {point.title}"
        rows = [_ablation_row(study, cell) for cell in study.cells_at(point)]
        drawn = [
            (name, median, low or median, high or median)
            for name, _, median, low, high, *_ in rows
            if median is not None and name != BASELINE
        ]
        if drawn:
            names, medians, lows, highs = zip(*drawn[::-1], strict=True)
            errors = error_bars(medians, lows, highs)
            more = {"orientation": "h", "error_x": errors}
            trace = bars("speed-up", medians, names, colour=MEASURED, **more)
            axes = layout(axis("ratio of times", "x"), axis(""))
            page.figures.append(Figure(f"ablation_plot_{number}", title, [trace], axes))
        identity, is_key = f"ablation_{number}", number == 1
        table = Table(identity, title, ABLATION_COLUMNS, rows, ABLATION_NOTE, is_key=is_key)
        page.tables.append(table)
    if not page.tables:
        raise Missing(f"{shown_path(path)} has no measured point; {missing}")


PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")
TRAINING_COLUMNS = (
    *("run", "steps", "step [ms]", "throughput [samples/s]", "tokens [1/s]", "peak memory [MiB]"),
    *("MFU [%]", "final loss", "interrupted"),
)
# a longer curve shows no more
MOST_STEPS = 400


def _training_row(run: TrainingRun) -> list[Cell]:
    of = run.summary["summary"]
    seconds, peak = of["median_step_seconds"], of["peak_memory_bytes"]
    profile = ((run.summary.get("flops") or {}).get("flops_profile")) or {}
    return [
        *(run.name, of["steps_completed"], seconds * 1e3 if seconds else None),
        *(of["samples_per_second"], of["tokens_per_second"], peak / MIB if peak else None),
        (profile.get("efficiency_metrics") or {}).get("mfu_percent"),
        *(of["final_loss"], "yes" if of["interrupted"] else ""),
    ]


def _phases(runs: Sequence[TrainingRun]) -> list[Figure]:
    shares = {run.name: run.summary["summary"]["breakdown"] for run in runs}
    traces = []
    for phase in PHASES:
        values = {n: 1e3 * of[phase]["seconds"] for n, of in shares.items() if of[phase]["seconds"]}
        if values:
            names, lengths = list(values), list(values.values())
            traces.append(bars(phase.replace("_", " "), lengths, names, orientation="h"))
    axes = layout(axis("time of a step", "ms"), axis(""), barmode="stack")
    title = "Phases of a training step"
    return [Figure("training_phases", title, traces, axes)] if traces else []


def _losses(runs: Sequence[TrainingRun]) -> list[Figure]:
    traces = []
    for run in runs:
        for key, draw, end in (("loss", line, ""), ("evaluation_loss", markers, ", evaluation")):
            steps = [step for step in run.summary["steps"] if step[key] is not None]
            shown = steps[:: max(1, -(-len(steps) // MOST_STEPS))]
            if shown:
                xs, ys = [step["step"] for step in shown], [step[key] for step in shown]
                traces.append(draw(f"{run.name}{end}", xs, ys))
    note = "Synthetic tokens are the same batch in every step, so their loss falls."
    axes = layout(axis("step"), axis("loss"))
    return [Figure("training_loss", "Loss over steps", traces, axes, note)] if traces else []


def training(page: Section, inputs: ReportInputs) -> None:
    """All runs beside each other."""
    runs = inputs.trainings
    if not runs:
        raise Missing(f"no training run was given; make one: {Kind.TRAINING.command}")
    page.figures += [*_phases(runs), *_losses(runs)]
    rows = [_training_row(run) for run in runs]
    page.tables.append(Table("training_runs", "Runs", TRAINING_COLUMNS, rows))
