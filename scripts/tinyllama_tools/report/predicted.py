"""Steps that were not run: what they would cost, by rates calibrated on what was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.data.names import STEP, CaseName
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.prediction import (
    PredictionCheck,
    Rates,
    RatesRefusedError,
    StepPrediction,
    calibrate_rates,
    check_against,
    predict_steps,
)
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.selection import is_own_shape, main_step, rank, sizes_by_name

NO_STEP = "no training step (full_step/train) was measured to calibrate on"
NO_COSTS = "no costs of sizes that were not run were given: a grid study writes costs.json"
NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"


@dataclass(frozen=True)
class PredictedStep:
    """`kind`: NOT_RUN; CHECKED where the step was run, but did not serve the rates; CALIBRATED.
    `measured_seconds`, `check`: None where it was not run."""

    cost: CaseCost
    prediction: StepPrediction
    kind: str
    measured_seconds: float | None = None
    check: PredictionCheck | None = None


@dataclass(frozen=True)
class Predictions:
    """One a problem size at its own shape, smallest first, and steps of sizes without rates that
    were run at another shape. `refusal`: why there are none; `omissions`: single steps that cannot
    be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = field(default=())


def _asked_steps(
    costs: Sequence[CaseCost], of: CaseName, measured: Mapping[str, MeasuredCase]
) -> dict[str, CaseCost]:
    """Steps of the same dtype and variant, by name: at their problem size's own shape, and those
    that were run."""
    return {
        str(cost.name): cost
        for cost in costs
        if cost.name.component == STEP
        and (cost.name.dtype, cost.name.variant) == (of.dtype, of.variant)
        and (is_own_shape(cost.name) or str(cost.name) in measured)
    }


def _predicted(
    cost: CaseCost, one: StepPrediction, rates: Rates, case: MeasuredCase | None
) -> PredictedStep:
    check = check_against(one, case) if case is not None else None
    seconds = case.median_seconds if case is not None else None
    kind = CALIBRATED if one.name.size in rates.sizes else NOT_RUN if case is None else CHECKED
    return PredictedStep(cost, one, kind, seconds, check)


def predictions_of(
    results: ResultSet | None,
    costs: Sequence[CaseCost],
    known: Mapping[str, MeasuredCase],
) -> Predictions:
    """In the dtype and variant of the main step of `results`, which the rates come from.

    `known`: steps of the same machine by name, from wherever they were run.
    """
    step = main_step(results) if results is not None else None
    if results is None or step is None:
        return Predictions(refusal=NO_STEP)
    if not costs:
        return Predictions(refusal=NO_COSTS)
    of = step.name
    asked = _asked_steps(costs, of, known)
    if not asked:
        what = f"{of.variant} step in {of.dtype} at a size's own batch and sequence"
        return Predictions(refusal=f"costs.json has no {what}")
    try:
        rates = calibrate_rates(results, of.dtype, of.variant, costs)
        found, refused = predict_steps(rates, costs)
        steps = [
            _predicted(asked[name], one, rates, known.get(name))
            for one in found
            if (name := str(one.name)) in asked
            and (is_own_shape(one.name) or one.name.size not in rates.sizes)
        ]
    except RatesRefusedError as error:
        return Predictions(refusal=str(error))
    steps.sort(key=_order)
    omissions = [Omission("prediction", r.name, r.reason) for r in refused if r.name in asked]
    return Predictions(steps, "" if steps else "no step could be predicted", omissions)


def _order(one: PredictedStep) -> tuple[object, ...]:
    name = one.cost.name
    return (rank(name.size, tuple(sizes_by_name())), not is_own_shape(name), name.batch, name.seq)
