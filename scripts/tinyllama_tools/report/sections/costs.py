"""What fits into memory, and what sizes that were not run would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.data.studies import AXES, BY_SEQ, Axis
from tinyllama_tools.models.prediction import LAUNCH, TRAFFIC
from tinyllama_tools.report.analysis import PEAK_MEMORY, PredictedStep
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
    bytes_text,
    error_bars,
    layout,
    line,
    markers,
    nth,
    shape_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.models.prediction import Rates
    from tinyllama_tools.report.inputs import ReportInputs

MIB, GIB, GIGA, MEGA, MICRO = 2**20, 2**30, 1e9, 1e6, 1e-6


class Frontier(NamedTuple):
    """The points of one axis of a frontier.json. `id`: of its table, and the beginning of its
    figures'."""

    file: Json
    axis: Axis
    id: str

    @property
    def points(self) -> list[Json]:
        return self.file[self.axis.key]

    @property
    def title(self) -> str:
        return f"{self.axis.title.capitalize()} within {bytes_text(self.file['limit_bytes'])}"


def frontiers_of(inputs: ReportInputs) -> list[Frontier]:
    """Of every file that was given, over sequences and over batches."""
    found: list[Frontier] = []
    for file in inputs.frontiers:
        for given, of in AXES.items():
            if file.get(of.key):
                earlier = sum(one.axis is of for one in found)
                mark = f"_{earlier + 1}" if earlier else ""
                found.append(Frontier(file, of, f"frontier_{given}{mark}"))
    return found


def _frontier_table(shown: Frontier, note: str) -> Table:
    of = shown.axis
    rows: list[list[Cell]] = []
    for point in shown.points:
        largest = int(point[of.largest_key])
        nothing = "" if largest else "not even 1 fits"
        given = (point[key] for key in ("size", "variant", "dtype", of.given))
        remark = nothing or point.get("remark", "")
        rows.append([*given, largest, point["predicted_bytes"] / MIB, remark])
    given = "sequence" if of is BY_SEQ else "batch"
    columns = ("size", "variant", "dtype", given, of.title, "it needs [MiB]", "remark")
    return Table(shown.id, shown.title, columns, rows, note, is_key=True)


def _frontier_figure(shown: Frontier, dtype: str, note: str) -> Figure:
    """What does not fit at all has no place on a logarithmic axis."""
    of = shown.axis
    every: dict[str, list[Json]] = {}
    for point in shown.points:
        if point["dtype"] == dtype and point[of.largest_key]:
            every.setdefault(f"{point['size']}, {point['variant']}", []).append(point)
    traces = []
    for number, (name, points) in enumerate(every.items()):
        xs, ys = [p[of.given] for p in points], [p[of.largest_key] for p in points]
        more = {"mode": "lines+markers", "marker": {"symbol": nth(SYMBOLS, number)}}
        traces.append(line(name, xs, ys, dash=nth(DASHES, number), **more))
    names = ("sequence", "tokens") if of is BY_SEQ else ("batch",)
    given = axis(*names, log=True, ticks=[x for trace in traces for x in trace["x"]])
    axes = layout(given, axis(of.title, log=True))
    return Figure(f"{shown.id}_{dtype}", f"{shown.title}, {dtype}", traces, axes, note)


def frontier(page: Section, inputs: ReportInputs) -> None:
    """Over sequences, and over batches."""
    every = frontiers_of(inputs)
    if not every:
        raise Missing(f"no frontier was given; {Kind.FRONTIER.command} writes one with its grid")
    for shown in every:
        file = shown.file
        commit = f"commit {file['git_commit'][:8]}" if file.get("git_commit") else ""
        made = filter(None, (file.get("device"), commit, file.get("date", "")[:10]))
        note = (
            "Predicted; `scripts/bench --components full_step --find-limit "
            f"{shown.axis.searched} --confirm` tries it. Limit: {file['limit_source']}. Beyond the "
            f"predicted memory: {file['overhead']['source']}. Made on {', '.join(made)}. Needs: of "
            "the smallest step where none fits."
        )
        for dtype in dict.fromkeys(point["dtype"] for point in shown.points):
            page.figures.append(_frontier_figure(shown, dtype, note))
        page.tables.append(_frontier_table(shown, note))


METHOD = (
    "Predictions, not measurements: the sum over a step's parts of FLOPs over the rates attained "
    "here, bytes over bandwidth and starts of operators. The range of a time is a 95 % interval "
    "where at least two sizes were measured, each of which is predicted from the others, and an "
    "assumption where one was. A step that was run and is called a prediction checks it: the rates "
    "do not know of it."
)
COLUMNS = (
    *("size", "batch x sequence", "parameters [10⁶]", "predicted time [s]", "from [s]", "to [s]"),
    *("from and to", "measured time [s]", "off by [%]", "inside the range", "peak memory [GiB]"),
    *("memory off by [%]", "fits", "kind"),
)
RATE_COLUMNS = (
    *("part", "cells", "GEMMs [GFLOP/s]", "start of an operator [us]", "operators"),
    "traffic over the least [x]",
)


def _off(value: float, measured: float | None) -> Cell:
    """Percent of the measured, above 0 where too much was predicted."""
    # memory that is right to the byte is off by what the counter in MiB rounds
    return round(100 * (value / measured - 1), 3) if measured else None


def _prediction_row(step: PredictedStep) -> list[Cell]:
    of, cost, case = step.prediction, step.cost, step.measured
    seconds = case.median_seconds if case else None
    peak = MIB * case.counters.get(PEAK_MEMORY, 0.0) if case else None
    inside = ("yes" if of.low <= seconds <= of.high else "no") if case else ""
    return [
        *(cost.name.size, shape_text(cost.name), cost.parameters / MEGA),
        *(of.seconds, of.low, of.high, of.range_words),
        *(seconds, _off(of.seconds, seconds), inside),
        *(cost.predicted_memory_bytes / GIB, _off(cost.predicted_memory_bytes, peak)),
        "yes" if cost.fits else cost.reason or "no",
        step.kind,
    ]


def _rates_table(rates: Rates) -> Table:
    rows: list[list[Cell]] = []
    for name, part in rates.parts.items():
        rate, launch = part.flops_per_second, float(part.coefficients[LAUNCH]) / MICRO
        traffic = float(part.coefficients[TRAFFIC])
        attained = rate / GIGA if rate else None
        rows.append([name, part.cells, attained, launch, part.operators, traffic])
    held = "; ".join(
        f"{size} from the others {percent:+.1f} %"
        for size, percent in rates.held_out_percent().items()
    )
    note = (
        f"Of {rates.basis()}. An optimizer's operators may be those of a weight tensor. Steps of "
        f"each size predicted from the others, median: {held or 'one size alone'}. An assumed 20 % "
        "a factor of 10 in FLOPs is pooled with that."
    )
    return Table("prediction_rates", "What the predictions rest on", RATE_COLUMNS, rows, note)


def predictions(page: Section, inputs: ReportInputs) -> None:
    """Of every problem size at its own batch and sequence, and of steps that check one."""
    found = inputs.predictions
    page.omissions += found.omissions
    if found.refusal or found.rates is None:
        raise Missing(f"{found.refusal}; measure a grid: {Kind.STUDY.command}")
    # a size may be there at two shapes
    labels = [f"{s.cost.name.size}, {shape_text(s.cost.name)}" for s in found.steps]
    every = [step.prediction for step in found.steps]
    values = [one.seconds for one in every]
    errors = error_bars(values, [one.low for one in every], [one.high for one in every])
    more = {"symbol": "diamond", "error_y": errors}
    traces = [markers("predicted", labels, values, colour=PREDICTED, **more)]
    known = [(label, s) for label, s in zip(labels, found.steps, strict=True) if s.measured]
    times = [step.measured.median_seconds for _, step in known]
    traces.append(markers("measured", [label for label, _ in known], times, colour=MEASURED))
    x = axis("size and batch x sequence", type="category")
    axes = layout(x, axis("time of a step", "s", log=True))
    title = "Time of a step at each size's batch x sequence"
    page.figures.append(Figure("predictions_plot", title, traces, axes, METHOD))
    of = found.steps[0].cost.name
    title = f"Training steps, {of.variant}, {of.dtype}"
    rows = [_prediction_row(step) for step in found.steps]
    page.tables += [
        Table("predicted_steps", title, COLUMNS, rows, METHOD, is_key=True),
        _rates_table(found.rates),
    ]
