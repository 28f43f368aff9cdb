"""What sizes that were not run would cost, marked as predictions, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.report.document import Cell, Column, Figure, Section, Table, text_column
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import Kind
from tinyllama_tools.report.plots import MEASURED, PREDICTED, axis, error_bars, layout, markers
from tinyllama_tools.report.predicted import CALIBRATED, CHECKED, PredictedStep
from tinyllama_tools.report.wording import shape_text

ID, TITLE = "predictions", "Predictions"
MAKE = f"measure a grid: {Kind.STUDY.command}"
GIB = 2**30
MEGA = 1e6
COLUMNS = (
    text_column("size"),
    text_column("batch x sequence"),
    Column("parameters", "10⁶"),
    Column("predicted time", "s"),
    Column("from", "s"),
    Column("to", "s"),
    Column("measured time", "s"),
    Column("off by", "%", digits=3),
    Column("peak memory", "GiB"),
    text_column("fits"),
    text_column("kind"),
)
METHOD = (
    "Predictions, not measurements: the sum over a step's parts of FLOPs over the rates attained "
    "here, bytes over bandwidth and starts of operators. Intervals are 95 %."
)


def _off(step: PredictedStep) -> float | None:
    """Above 0 where too much was predicted."""
    if step.measured_seconds is None:
        return None
    return 100 * (step.prediction.seconds / step.measured_seconds - 1)


def _row(step: PredictedStep) -> list[Cell]:
    prediction, cost = step.prediction, step.cost
    return [
        cost.name.size,
        shape_text(cost.name),
        cost.parameters / MEGA,
        prediction.seconds,
        prediction.low,
        prediction.high,
        step.measured_seconds,
        _off(step),
        prediction.memory_bytes / GIB,
        "yes" if cost.fits else cost.reason or "no",
        step.kind,
    ]


def _basis(steps: Sequence[PredictedStep]) -> Table:
    """What each prediction rests on, in words."""
    rows = [[of.cost.name.size, of.prediction.basis] for of in steps if of.kind != CALIBRATED]
    columns = (text_column("size"), text_column("rests on"))
    return Table("prediction_basis", "What the predictions rest on", columns, rows)


def _figure(steps: Sequence[PredictedStep]) -> Figure:
    found = [step.prediction for step in steps]
    values = [one.seconds for one in found]
    errors = error_bars(values, [one.low for one in found], [one.high for one in found])
    labels = [step.cost.name.size for step in steps]
    traces = [
        markers("predicted", labels, values, role=PREDICTED, symbol="diamond", error_y=errors)
    ]
    measured = [(step.cost.name.size, step.measured_seconds) for step in steps]
    shown = [(size, seconds) for size, seconds in measured if seconds is not None]
    if shown:
        xs, ys = [size for size, _ in shown], [seconds for _, seconds in shown]
        traces.append(markers("measured", xs, ys, role=MEASURED))
    axes = layout(axis("size", type="category"), axis("time of a step", "s", log=True))
    return Figure(
        "predictions_plot", "Time of a step at each size's own shape", traces, axes, METHOD
    )


def build(inputs: ReportInputs) -> Section:
    """Of every problem size at its own batch and sequence."""
    found = inputs.predictions
    if found.refusal:
        return Section(ID, TITLE, missing=f"{found.refusal}; {MAKE}", omissions=found.omissions)
    of = found.steps[0].cost.name
    title = f"Training steps, {of.variant}, {of.dtype}"
    rows = [_row(step) for step in found.steps]
    table = Table("predicted_steps", title, COLUMNS, rows, METHOD, is_key=True)
    checks = [
        f"{one.cost.name.size} was run too, which the rates do not know of: the prediction is off "
        f"by {_off(one):+.1f} %."
        for one in found.steps
        if one.kind == CHECKED
    ]
    return Section(
        ID,
        TITLE,
        [METHOD, *checks],
        figures=[_figure(found.steps)],
        tables=[one for one in (table, _basis(found.steps)) if one.rows],
        omissions=found.omissions,
    )
