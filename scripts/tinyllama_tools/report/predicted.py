"""Steps that were not run: what they would cost, by rates calibrated on what was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.prediction.rates import Rates, calibrate_rates
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.prediction.steps import StepPrediction, predict_steps, refused_steps
from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.result_set import ResultSet
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.selection import STEP, is_own_shape, main_step, rank, sizes_by_name

NO_STEP = "no training step (full_step/train) was measured to calibrate on"
NO_COSTS = "no costs of sizes that were not run were given: a grid study writes costs.json"
NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"


@dataclass(frozen=True)
class PredictedStep:
    """`kind`: NOT_RUN; CHECKED where the step was run, but did not serve the rates; CALIBRATED.
    `measured_seconds`: None where it was not run."""

    cost: CaseCost
    prediction: StepPrediction
    kind: str
    measured_seconds: float | None = None


@dataclass(frozen=True)
class Predictions:
    """One a problem size, at its own shape, smallest first. `refusal`: why there are none;
    `omissions`: single steps that cannot be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = field(default=())


def _own_steps(costs: Sequence[CaseCost], of: CaseName) -> dict[str, CaseCost]:
    """Steps of the same dtype and variant at their problem size's own shape, by name."""
    return {
        str(cost.name): cost
        for cost in costs
        if cost.name.component == STEP
        and (cost.name.dtype, cost.name.variant) == (of.dtype, of.variant)
        and is_own_shape(cost.name)
    }


def _predicted(
    cost: CaseCost, one: StepPrediction, rates: Rates, measured: Mapping[str, float]
) -> PredictedStep:
    seconds = measured.get(str(one.name))
    if one.name.size in rates.sizes:
        return PredictedStep(cost, one, CALIBRATED, seconds)
    return PredictedStep(cost, one, NOT_RUN if seconds is None else CHECKED, seconds)


def predictions_of(
    results: ResultSet | None, costs: Sequence[CaseCost], measured: Mapping[str, float]
) -> Predictions:
    """In the dtype and variant of the main step of `results`, which the rates come from.

    `measured`: seconds of steps of the same machine by name, from wherever they were run.
    """
    step = main_step(results) if results is not None else None
    if results is None or step is None:
        return Predictions(refusal=NO_STEP)
    if not costs:
        return Predictions(refusal=NO_COSTS)
    of = step.name
    own = _own_steps(costs, of)
    if not own:
        what = f"{of.variant} step in {of.dtype} at a size's own batch and sequence"
        return Predictions(refusal=f"costs.json has no {what}")
    try:
        rates = calibrate_rates(results, of.dtype, of.variant, costs)
        found = predict_steps(rates, costs)
        refused = refused_steps(rates, costs)
    except RatesRefusedError as error:
        return Predictions(refusal=str(error))
    steps = [
        _predicted(own[name], one, rates, measured)
        for one in found
        if (name := str(one.name)) in own
    ]
    steps.sort(key=lambda one: rank(one.cost.name.size, tuple(sizes_by_name())))
    omissions = [Omission("prediction", r.name, r.reason) for r in refused if r.name in own]
    return Predictions(steps, "" if steps else "no step could be predicted", omissions)
