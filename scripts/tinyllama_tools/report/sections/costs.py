"""What fits into memory, and what sizes that were not run would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyllama_tools.data.studies import BY_SEQ
from tinyllama_tools.report.analysis import CALIBRATED, Frontier, PredictedStep, chosen
from tinyllama_tools.report.document import (
    DASHES,
    MEASURED,
    PREDICTED,
    SYMBOLS,
    Cell,
    Figure,
    Kind,
    Missing,
    Section,
    Table,
    axis,
    error_bars,
    layout,
    line,
    markers,
    shape_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.report.inputs import ReportInputs

MIB, GIB, MEGA = 2**20, 2**30, 1e6


def _frontier_table(shown: Frontier, note: str) -> Table:
    of = shown.axis
    rows: list[list[Cell]] = []
    for point in shown.points:
        largest = int(point[of.largest_key])
        nothing = "" if largest else "not even 1 fits"
        remarks = filter(None, [nothing, point.get("confirmed", ""), point.get("remark", "")])
        rows.append(
            [
                *(point[key] for key in ("size", "variant", "dtype", of.given)),
                *(largest, point["predicted_bytes"] / MIB),
                *(point.get(of.confirmed_key), point.get("apart_percent"), "; ".join(remarks)),
            ]
        )
    given = "sequence" if of is BY_SEQ else "batch"
    columns = (
        *("size", "variant", "dtype", given, of.title, "it needs [MiB]", "confirmed"),
        *("apart [%]", "remark"),
    )
    return Table(shown.id, shown.title, columns, rows, note, is_key=True)


def _frontier_figure(shown: Frontier, dtype: str, note: str) -> list[Figure]:
    """What does not fit at all has no place on a logarithmic axis."""
    of = shown.axis
    every: dict[str, list[Json]] = {}
    for point in shown.points:
        if point["dtype"] == dtype and point[of.largest_key]:
            every.setdefault(f"{point['size']}, {point['variant']}", []).append(point)
    traces = []
    for number, (name, points) in enumerate(every.items()):
        dash, symbol = DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)]
        xs, ys = [p[of.given] for p in points], [p[of.largest_key] for p in points]
        trace = line(name, xs, ys, dash=dash)
        traces.append(trace | {"mode": "lines+markers", "marker": {"symbol": symbol}})
    tried = [p for points in every.values() for p in points if p.get(of.confirmed_key)]
    if tried:
        xs, ys = [p[of.given] for p in tried], [p[of.confirmed_key] for p in tried]
        traces.append(markers("confirmed by trying", xs, ys, role=MEASURED, symbol="cross"))
    names = ("sequence", "tokens") if of is BY_SEQ else ("batch",)
    given = axis(*names, log=True, ticks=[x for trace in traces for x in trace["x"]])
    axes = layout(given, axis(of.title, log=True))
    figure = Figure(f"{shown.id}_{dtype}", f"{shown.title}, {dtype}", traces, axes, note)
    return [figure] if traces else []


def frontier(page: Section, inputs: ReportInputs) -> None:
    """Over sequences, and over batches; and what was tried of them."""
    every = chosen(inputs)
    if not every:
        raise Missing(f"no frontier was given; {Kind.FRONTIER.command} writes one with its grid")
    for shown in every:
        file = shown.file
        commit = f"commit {file['git_commit'][:8]}" if file.get("git_commit") else ""
        made = filter(None, (file.get("device"), commit, file.get("date", "")[:10]))
        tried = sum(bool(point.get("confirmed")) for point in shown.points)
        note = (
            f"Limit: {file['limit_source']}. Beyond the predicted memory: "
            f"{file['overhead']['source']}. Tried (`{Kind.FRONTIER.command} --confirm`): {tried} of"
            f" {len(shown.points)}. Made on {', '.join(made)}. Needs: predicted with the largest "
            "measured misfit, of the smallest step where none fits. Apart: prediction over "
            "confirmed."
        )
        for dtype in dict.fromkeys(point["dtype"] for point in shown.points):
            page.figures += _frontier_figure(shown, dtype, note)
        page.tables.append(_frontier_table(shown, note))


METHOD = (
    "Predictions, not measurements: the sum over a step's parts of FLOPs over the rates attained "
    "here, bytes over bandwidth and starts of operators. The range of a time is a 95 % interval "
    "where at least two sizes were measured, each of which is predicted from the others, and an "
    "assumption where one was; that of memory is the largest misfit of a measured step. A step that"
    " was run and is called a prediction checks it: the rates do not know of it."
)
COLUMNS = (
    *("size", "batch x sequence", "parameters [10⁶]", "predicted time [s]", "from [s]", "to [s]"),
    *("from and to", "measured time [s]", "off by [%]", "inside the range", "peak memory [GiB]"),
    *("memory from [GiB]", "memory to [GiB]", "memory off by [%]", "inside its range", "fits"),
    "kind",
)


def _yes(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def _prediction_row(step: PredictedStep) -> list[Cell]:
    prediction, cost, check = step.prediction, step.cost, step.check
    memory_off = check.memory_percent_off if check else None
    memory = (prediction.memory_bytes, prediction.memory_low, prediction.memory_high)
    return [
        *(cost.name.size, shape_text(cost.name), cost.parameters / MEGA),
        *(prediction.seconds, prediction.low, prediction.high, prediction.range_words),
        *(step.measured_seconds, check.percent_off if check else None),
        _yes(check.is_inside if check else None),
        *(size / GIB for size in memory),
        # formulas that are right to the byte are off by what the counter in MiB rounds
        None if memory_off is None else round(memory_off, 3),
        "" if check is None or memory_off is None else _yes(check.is_memory_inside),
        "yes" if cost.fits else cost.reason or "no",
        step.kind,
    ]


def predictions(page: Section, inputs: ReportInputs) -> None:
    """Of every problem size at its own batch and sequence, and of steps that check one."""
    found = inputs.predictions
    page.omissions += found.omissions
    if found.refusal:
        raise Missing(f"{found.refusal}; measure a grid: {Kind.STUDY.command}")
    # a size may be there at two shapes
    labels = [f"{s.cost.name.size}, {shape_text(s.cost.name)}" for s in found.steps]
    every = [step.prediction for step in found.steps]
    values = [one.seconds for one in every]
    errors = error_bars(values, [one.low for one in every], [one.high for one in every])
    more = {"symbol": "diamond", "error_y": errors}
    traces = [markers("predicted", labels, values, role=PREDICTED, **more)]
    measured = [(n, s.measured_seconds) for n, s in zip(labels, found.steps, strict=True)]
    known = [pair for pair in measured if pair[1] is not None]
    traces += [markers("measured", *zip(*known, strict=True), role=MEASURED)] if known else []
    x = axis("size and batch x sequence", type="category")
    axes = layout(x, axis("time of a step", "s", log=True))
    title = "Time of a step at each size's batch x sequence"
    page.figures.append(Figure("predictions_plot", title, traces, axes, METHOD))
    of = found.steps[0].cost.name
    title = f"Training steps, {of.variant}, {of.dtype}"
    rows = [_prediction_row(step) for step in found.steps]
    basis = [
        [s.cost.name.size, shape_text(s.cost.name), s.prediction.basis]
        for s in found.steps
        if s.kind != CALIBRATED
    ]
    rests = ("size", "batch x sequence", "rests on")
    page.tables += [
        Table("predicted_steps", title, COLUMNS, rows, METHOD, is_key=True),
        Table("prediction_basis", "What the predictions rest on", rests, basis),
    ]
