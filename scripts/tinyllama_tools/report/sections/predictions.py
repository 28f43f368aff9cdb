"""What steps that were not run would take, alone and over several ranks; and how far steps that
were held out are off."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json, problem_sizes
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.machine import placed_device
from tinyllama_tools.models.collectives import read_interconnects, stands_for
from tinyllama_tools.models.over_ranks import (
    WAYS,
    Interconnect,
    Network,
    Range,
    over_ranks,
    rank_figures,
    why_other_ranks,
)
from tinyllama_tools.models.prediction import StepPrediction, errors_by_axis, is_own_shape
from tinyllama_tools.report.document import (
    Kind,
    Missing,
    Section,
    axis,
    shape_text,
    step_text,
    table_of,
    trace,
)
from tinyllama_tools.report.inputs import PredictedStep, ReportInputs


def _off(value: float, measured: float) -> float | None:
    """Percent of the measured, above 0 where too much was predicted."""
    # the counter in MiB is rounded: what is right to the byte is 0
    return round(100 * (value / measured - 1), 3) if measured else None


def _prediction_row(step: PredictedStep) -> Mapping[str, Any]:
    prediction, cost, case = step.prediction, step.prediction.cost, step.measured
    row = {
        **step._asdict(),
        "batch x sequence": shape_text(cost.name),
        "fits": "yes" if cost.fits else cost.reason or "no",
        "inside the range": "",
    }
    if case is not None:
        peak = MIB * case.counters.get("peak_memory_MiB", 0.0)
        is_inside = prediction.low <= case.median_seconds <= prediction.high
        row["off by"] = _off(prediction.seconds, case.median_seconds)
        row["inside the range"] = "yes" if is_inside else "no"
        row["memory off by"] = _off(cost.predicted_memory_bytes, peak)
    return row


# numbers of devices that steps are predicted for
RANKS = (8, 64, 512, 4096)


def rows_over_ranks(
    steps: Sequence[StepPrediction], ranks: Sequence[int], network: Network
) -> Iterator[Json]:
    """A row for each step, number of ranks and way. BadInputError where the network says nothing of
    so many."""
    for step in steps:
        local, name = Range(step.seconds, step.low, step.high), step.cost.name
        sent = network.sent(problem_sizes()[name.size], name.dtype)
        for number, way in itertools.product(ranks, WAYS):
            found = over_ranks(way, number, local, step.update_seconds, sent, network)
            row = {"what": step_text(name), "ranks": number, "way": way, **found._asdict()}
            yield row | {"efficiency": 100 * step.seconds / found.value}


def _over_ranks(page: Section, inputs: ReportInputs, steps: Sequence[StepPrediction]) -> None:
    """Over links that ranks on this device measured, and published ones between such devices."""
    device, networks = placed_device(inputs.main.context), []
    for run in inputs.scalings:
        try:
            if why := why_other_ranks(device, placed_device(run.context)):
                raise BadInputError(why)
            networks.append(rank_figures(run.analysis, inputs.main))
        except BadInputError as error:
            page.leave_out("steps over ranks", run.title, str(error))
    networks += [Interconnect(one) for one in read_interconnects() if stands_for(one, device)]
    for number, network in enumerate(networks):
        most = getattr(network, "most_ranks", None) or RANKS[-1]
        ranks = [n for n in RANKS if n <= most] or [most]
        try:
            rows = list(rows_over_ranks(steps, ranks, network))
        except BadInputError as error:
            page.leave_out("steps over ranks", network.title, str(error))
            continue
        table = table_of("predicted_ranks", rows, over=network.title)
        page.tables.append(replace(table, id=f"{table.id}_{number + 1}"))


def predictions(page: Section, inputs: ReportInputs) -> None:
    """Every problem size at its own batch and sequence, steps that were run to check them, and how
    far steps that were held out are off."""
    found = inputs.predictions
    page.omissions += found.omissions
    if found.model is not None:
        rows = [error._asdict() for error in errors_by_axis(found.model.held_out)]
        page.table("held_out_steps", rows, basis=found.model.basis())
    if found.refusal:
        raise Missing(f"{found.refusal}; measure a grid: {Kind.STUDY.command}")
    # a size may be there at two shapes
    steps = {f"{step.name.size}, {shape_text(step.name)}": step for step in found.steps}
    every = [step.prediction for step in steps.values()]
    known = {label: s.measured.median_seconds for label, s in steps.items() if s.measured}
    ends = ([one.low for one in every], [one.high for one in every])
    values = [one.seconds for one in every]
    traces = [
        trace("predicted", steps, values, symbol="diamond", ends=ends),
        trace("measured", known, list(known.values())),
    ]
    x = axis("size and batch x sequence", type="category")
    y = axis("time of a step [s]", log=True)
    title = "Time of a step at each size's batch x sequence"
    page.figure("predictions_plot", title, traces, x, y)
    first = found.steps[0].name
    about = {"what": f"{first.variant}, {first.dtype}", "basis": found.model.basis()}
    page.table("predicted_steps", map(_prediction_row, found.steps), **about)
    own = [step.prediction for step in found.steps if is_own_shape(step.name)]
    _over_ranks(page, inputs, own)
