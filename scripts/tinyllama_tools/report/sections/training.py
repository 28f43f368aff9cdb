"""Training runs: phases of a step and the curve of the loss, from performance_summary.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.report.document import (
    Cell,
    Column,
    Figure,
    Section,
    Table,
    axis,
    layout,
    line,
    lying_bars,
    markers,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs, TrainingRun

ID, TITLE = "training", "Training runs"
MISSING = f"no training run was given; make one: {Kind.TRAINING.command}"
PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")
MIB = 2**20
COLUMNS = (
    text_column("run"),
    Column("steps", digits=6),
    Column("step", "ms"),
    Column("throughput", "samples/s"),
    Column("tokens", "1/s", digits=5),
    Column("peak memory", "MiB"),
    Column("MFU", "%", digits=3),
    Column("final loss"),
)
# a longer curve shows no more
MOST_STEPS = 400


def _mfu(run: TrainingRun) -> float | None:
    profile = ((run.summary.get("flops") or {}).get("flops_profile")) or {}
    return (profile.get("efficiency_metrics") or {}).get("mfu_percent")


def _row(run: TrainingRun) -> list[Cell]:
    of = run.summary["summary"]
    seconds = of["median_step_seconds"]
    return [
        run.name,
        of["steps_completed"],
        seconds * 1e3 if seconds else None,
        of["samples_per_second"],
        of["tokens_per_second"],
        of["peak_memory_bytes"] / MIB if of["peak_memory_bytes"] else None,
        _mfu(run),
        of["final_loss"],
    ]


def _phases(runs: Sequence[TrainingRun]) -> Figure | None:
    shares = {run.name: run.summary["summary"]["breakdown"] for run in runs}
    traces = []
    for phase in PHASES:
        values = {n: of[phase]["seconds"] for n, of in shares.items() if of[phase]["seconds"]}
        if values:
            milliseconds = [1e3 * seconds for seconds in values.values()]
            traces.append(lying_bars(phase.replace("_", " "), list(values), milliseconds))
    if not traces:
        return None
    axes = layout(axis("time of a step", "ms"), axis("", automargin=True), barmode="stack")
    return Figure("training_phases", "Phases of a training step", traces, axes)


def _thinned(steps: Sequence[dict[str, float | None]]) -> Sequence[dict[str, float | None]]:
    stride = -(-len(steps) // MOST_STEPS)
    return steps[::stride] if stride > 1 else steps


def _losses(runs: Sequence[TrainingRun]) -> Figure | None:
    traces = []
    for run in runs:
        steps = [step for step in run.summary["steps"] if step["loss"] is not None]
        shown = _thinned(steps)
        if shown:
            traces.append(line(run.name, [s["step"] for s in shown], [s["loss"] for s in shown]))
        evaluated = [s for s in run.summary["steps"] if s["evaluation_loss"] is not None]
        if evaluated:
            values = [step["evaluation_loss"] for step in evaluated]
            name = f"{run.name}, evaluation"
            traces.append(markers(name, [step["step"] for step in evaluated], values))
    if not traces:
        return None
    axes = layout(axis("step"), axis("loss"))
    note = "Synthetic tokens are the same batch in every step, so their loss falls."
    return Figure("training_loss", "Loss over steps", traces, axes, note)


def build(inputs: ReportInputs) -> Section:
    """All runs beside each other."""
    runs = inputs.trainings
    if not runs:
        return Section(ID, TITLE, missing=MISSING)
    table = Table("training_runs", "Runs", COLUMNS, [_row(run) for run in runs])
    found = (_phases(runs), _losses(runs))
    interrupted = [run.name for run in runs if run.summary["summary"]["interrupted"]]
    text = [f"Interrupted before its end: {name}." for name in interrupted]
    without = [] if found[0] else ["No phases: a step of these runs is one launch."]
    figures = [figure for figure in found if figure is not None]
    return Section(ID, TITLE, [*text, *without], figures=figures, tables=[table])
