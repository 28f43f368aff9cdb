"""Predicts the training steps of sizes that were not run, and checks a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.prediction.basis import basis_of
from tinyllama_tools.prediction.cells import part_names
from tinyllama_tools.prediction.figures import checked, figures_of_cost, seconds_of
from tinyllama_tools.prediction.layers import layer_counts
from tinyllama_tools.prediction.memory_overhead import MEASURED, MIB
from tinyllama_tools.prediction.rates import Rates
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.result_set import LeftOut, MeasuredCase


@dataclass(frozen=True)
class StepPrediction:
    """`low` to `high`: the range of `seconds`, which `range_words` names: `95 % interval`, or
    `assumed range` (spread.py says what they mean). `memory_bytes`: the peak, within `memory_low`
    to `memory_high` by the largest misfits that were measured. `parts`: seconds of each component,
    all its occurrences together; their sum times `step_over_parts` is `seconds`. `basis`: what it
    rests on. `fits`, `reason`: whether the step fits into memory by the formulas, and why not."""

    name: CaseName
    seconds: float
    low: float
    high: float
    memory_bytes: float
    memory_low: float
    memory_high: float
    parts: Mapping[str, float]
    basis: str
    step_over_parts: float = 1.0
    range_words: str = ""
    fits: bool = True
    reason: str = ""


@dataclass(frozen=True)
class PredictionCheck:
    """A prediction against what was measured later: percent of the measured value, above 0 where
    too much was predicted. `memory_percent_off`: None where memory was not measured, and so is
    `is_memory_inside`."""

    percent_off: float
    is_inside: bool
    memory_percent_off: float | None = None
    is_memory_inside: bool | None = None


class _Predictor:
    def __init__(self, rates: Rates, costs: Sequence[CaseCost]) -> None:
        self._rates = rates
        self._costs = {str(cost.name): cost for cost in costs}
        # only parts with rates can make up a step
        self._parts = {n for n, c in self._costs.items() if c.name.component in rates.parts}
        self._layers = layer_counts(
            {(c.name.size, c.name.component): float(c.parameters) for c in costs}
        )

    def steps(self) -> list[CaseCost]:
        """Those of the rates' dtype and variant."""
        wanted = (self._rates.dtype, self._rates.variant)
        steps = (cost for cost in self._costs.values() if cost.name.is_training_step)
        return [cost for cost in steps if (cost.name.dtype, cost.name.variant) == wanted]

    def _part_seconds(self, step: CaseCost) -> dict[str, float]:
        name, rates = step.name, self._rates
        layers = self._layers.get(name.size)
        if layers is None:
            raise RatesRefusedError(
                f"{name}: the costs of its parts are not known; ask --dry-run for all components"
            )
        found, missing = part_names(name, layers, self._parts)
        if missing:
            raise RatesRefusedError(
                f"{name}: no cost or no rate of {', '.join(missing)}; ask --dry-run for all "
                "components, and measure those parts at a size that fits"
            )
        return {
            component: count
            * rates.parts[component].seconds(
                figures_of_cost(self._costs[part]), name.batch * name.seq, layers, rates.machine
            )
            for component, (part, count) in found.items()
        }

    def predict(self, step: CaseCost) -> StepPrediction:
        name, rates = step.name, self._rates
        parts = self._part_seconds(step)
        flops, tokens = float(step.model_flops), name.batch * name.seq
        ratio = rates.closure.ratio_at(flops / tokens)
        seconds = checked(ratio * sum(parts.values()), name, "predicted time")
        factor = rates.spread.factor(rates.range.distance(flops, tokens))
        return StepPrediction(
            name,
            seconds,
            seconds / factor,
            seconds * factor,
            rates.memory.peak_bytes(step.predicted_memory_bytes),
            *rates.memory.interval(step.predicted_memory_bytes),
            parts,
            basis_of(rates, flops, tokens),
            ratio,
            rates.spread.words,
            step.fits,
            step.reason,
        )


def predict_steps(
    rates: Rates, costs: Sequence[CaseCost]
) -> tuple[list[StepPrediction], list[LeftOut]]:
    """Of every training step of the rates' dtype and variant among the costs, as far as the costs
    of its parts are there too; and the other steps, with the reason."""
    predictor = _Predictor(rates, costs)
    found, refused = [], []
    for step in predictor.steps():
        try:
            found.append(predictor.predict(step))
        except RatesRefusedError as error:
            refused.append(LeftOut(str(step.name), str(error), is_failure=False))
    return found, refused


def check_against(prediction: StepPrediction, measured: MeasuredCase) -> PredictionCheck:
    """RatesRefusedError where the case is another one or its time is no number above 0."""
    if measured.name != prediction.name:
        raise RatesRefusedError(
            f"{measured.name}: the prediction is of {prediction.name}; check it against that case"
        )
    seconds = seconds_of(measured)
    percent = 100 * (prediction.seconds / seconds - 1)
    is_inside = prediction.low <= seconds <= prediction.high
    memory = MIB * measured.counters.get(MEASURED, 0.0)
    if memory <= 0:
        return PredictionCheck(percent, is_inside)
    return PredictionCheck(
        percent,
        is_inside,
        100 * (prediction.memory_bytes / memory - 1),
        prediction.memory_low <= memory <= prediction.memory_high,
    )
