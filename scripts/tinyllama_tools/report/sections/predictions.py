"""What sizes that were not run would cost, marked as predictions, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.report.analysis import CALIBRATED, CHECKED, PredictedStep
from tinyllama_tools.report.document import (
    MEASURED,
    PREDICTED,
    Cell,
    Column,
    Figure,
    Section,
    Table,
    axis,
    error_bars,
    layout,
    markers,
    shape_text,
    text_column,
)
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs

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
    text_column("from and to"),
    Column("measured time", "s"),
    Column("off by", "%", digits=3),
    text_column("inside the range"),
    Column("peak memory", "GiB"),
    Column("memory from", "GiB"),
    Column("memory to", "GiB"),
    Column("memory off by", "%", digits=3),
    text_column("fits"),
    text_column("kind"),
)
METHOD = (
    "Predictions, not measurements: the sum over a step's parts of FLOPs over the rates attained "
    "here, bytes over bandwidth and starts of operators. The range of a time is a 95 % interval "
    "where at least two sizes were measured, each of which is predicted from the others, and an "
    "assumption where one was; that of memory is the largest misfit of a measured step."
)


def _rounded(percent: float | None) -> float | None:
    """Formulas that are right to the byte are off by what the counter in MiB rounds."""
    return None if percent is None else round(percent, 3)


def _row(step: PredictedStep) -> list[Cell]:
    prediction, cost, check = step.prediction, step.cost, step.check
    return [
        cost.name.size,
        shape_text(cost.name),
        cost.parameters / MEGA,
        prediction.seconds,
        prediction.low,
        prediction.high,
        prediction.range_words,
        step.measured_seconds,
        check.percent_off if check else None,
        ("yes" if check.is_inside else "no") if check else "",
        prediction.memory_bytes / GIB,
        prediction.memory_low / GIB,
        prediction.memory_high / GIB,
        _rounded(check.memory_percent_off if check else None),
        "yes" if cost.fits else cost.reason or "no",
        step.kind,
    ]


def _check_text(step: PredictedStep) -> str:
    """Of a step that was run and did not serve the rates."""
    check, name = step.check, step.cost.name
    if check is None:
        return ""
    place = "inside" if check.is_inside else "outside"
    text = (
        f"{name.size} ({shape_text(name)}) was run too, which the rates do not know of: the "
        f"predicted time is off by {check.percent_off:+.1f} %, {place} the "
        f"{step.prediction.range_words}"
    )
    if check.memory_percent_off is None:
        return f"{text}."
    place = "inside" if check.is_memory_inside else "outside"
    return f"{text}; the predicted memory by {check.memory_percent_off:+.2f} %, {place} its range."


def _basis(steps: Sequence[PredictedStep]) -> Table:
    """What each prediction rests on, in words."""
    rows = [
        [of.cost.name.size, shape_text(of.cost.name), of.prediction.basis]
        for of in steps
        if of.kind != CALIBRATED
    ]
    columns = (text_column("size"), text_column("batch x sequence"), text_column("rests on"))
    return Table("prediction_basis", "What the predictions rest on", columns, rows)


def _label(step: PredictedStep) -> str:
    """`medium, 16 x 512`: a size may be there at two shapes."""
    return f"{step.cost.name.size}, {shape_text(step.cost.name)}"


def _figure(steps: Sequence[PredictedStep]) -> Figure:
    found = [step.prediction for step in steps]
    values = [one.seconds for one in found]
    errors = error_bars(values, [one.low for one in found], [one.high for one in found])
    labels = [_label(step) for step in steps]
    traces = [
        markers("predicted", labels, values, role=PREDICTED, symbol="diamond", error_y=errors)
    ]
    measured = [(_label(step), step.measured_seconds) for step in steps]
    shown = [(size, seconds) for size, seconds in measured if seconds is not None]
    if shown:
        xs, ys = [size for size, _ in shown], [seconds for _, seconds in shown]
        traces.append(markers("measured", xs, ys, role=MEASURED))
    axes = layout(
        axis("size and batch x sequence", automargin=True, type="category"),
        axis("time of a step", "s", log=True),
    )
    return Figure(
        "predictions_plot", "Time of a step at each size's batch x sequence", traces, axes, METHOD
    )


def build(inputs: ReportInputs) -> Section:
    """Of every problem size at its own batch and sequence, and of steps that check one."""
    found = inputs.predictions
    if found.refusal:
        return Section(ID, TITLE, missing=f"{found.refusal}; {MAKE}", omissions=found.omissions)
    of = found.steps[0].cost.name
    title = f"Training steps, {of.variant}, {of.dtype}"
    rows = [_row(step) for step in found.steps]
    table = Table("predicted_steps", title, COLUMNS, rows, METHOD, is_key=True)
    checks = [_check_text(one) for one in found.steps if one.kind == CHECKED]
    return Section(
        ID,
        TITLE,
        [METHOD, *checks],
        figures=[_figure(found.steps)],
        tables=[one for one in (table, _basis(found.steps)) if one.rows],
        omissions=found.omissions,
    )
