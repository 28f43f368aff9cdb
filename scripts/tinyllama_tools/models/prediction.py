"""Predicts the time of training steps that were not run, with rates calibrated on steps that were.

The time of each part of a step is described as

    seconds = launch x operators + FLOPs / rate + elementwise FLOPs / rate + factor x traffic time

with four coefficients, fitted by least squares of relative errors, so that a small cell counts as
much as a large one, and none below 0:

- FLOPs are those of GEMMs. Their rate is a property of the device and at most its measured peak.
- Elementwise FLOPs stand for what runs operator by operator: norms, rotary, activations and the
  softmax over S^2 scores. `bytes`, the fewest that any implementation must move, leave that out.
- Traffic time is `bytes` over the bandwidth that this much traffic can reach, as measured for every
  level of cache. So a size that outgrows a cache is predicted to be slower than smaller ones.

No term grows faster than its amount: no exponent is fitted, so none is extrapolated.

The range of a prediction is meant to hold the measured time in 95 of 100 predictions. Its width
comes from predicting what was measured: each size is left out in turn, the rates are calibrated on
the others, and its large steps (at least half of its largest B S) are predicted, which resemble
most the steps of sizes that were not run. The error of a prediction is the logarithm of predicted
over measured time. Its variance is modelled as

    base^2 + (growth x distance)^2

- base: the scatter at the large steps that were calibrated on: of fitted over measured times, or of
  measured step over sum of parts, whichever is larger;
- distance: the logarithm of how far the step's FLOPs lie beyond those of these large steps;
- growth: what the errors of the sizes left out show beyond the base, per unit of distance; at least
  as much as adds the base once more for a factor of 10 in FLOPs.

The degrees of freedom are the number of sizes less one: two sizes, each predicted from the other,
are one comparison, whose error may be small by chance. Student's quantile for one degree is 12.7,
which makes every range useless. So an assumed growth is pooled with the measured one, as if
ASSUMED_DEGREES further sizes had shown it, and the quantile has the degrees of both. With one size
there is only the assumption, and the range is called assumed.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear
from scipy.special import stdtrit

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import CaseName, full_step, parts_of
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE

Array = np.ndarray
OPTIMIZER = "optimizer"


def is_own_shape(name: CaseName) -> bool:
    """Whether a case has the batch and sequence of its problem size."""
    size = problem_sizes().get(name.size)
    return size is not None and (size["batch"], size["seq"]) == (name.batch, name.seq)


def _weights(size: str) -> int:
    """Number of weight tensors: a layer has four projections of attention, three of the
    feed-forward network and two norms; beside them embedding, final norm and LM head (model/)."""
    return 9 * problem_sizes()[size]["n_layers"] + 3


# places in Work.amounts and in the coefficients, which are the cost of one unit of each
LAUNCH, TRAFFIC = 0, 3
AMOUNTS = ("operators", "hardware_flops", "elementwise_flops", "bytes")


class Work(NamedTuple):
    """One iteration of a part. `flops`: the model's; `amounts`: operators, FLOPs of the GEMMs that
    really run, elementwise FLOPs, and traffic time in seconds. `seconds`: 0 where it was not
    measured, and the operators are not known then."""

    name: CaseName
    flops: float
    amounts: Array
    seconds: float


def work_of(
    name: CaseName, figures: Mapping[str, Any], machine: Machine, seconds: float = 0.0
) -> Work:
    """BadInputError for a row without one of the counters, as older programs wrote."""
    for key in ("model_flops", *AMOUNTS):
        if key not in figures:
            what = f"{name}: the row has no counter {key}"
            raise BadInputError(f"{what}; measure again with this version")
    *amounts, moved = (figures[key] for key in AMOUNTS)
    found = np.array([*amounts, machine.traffic_seconds(moved)], dtype=float)
    return Work(name, figures["model_flops"], found, seconds)


@dataclass(frozen=True)
class Step:
    """`parts`: each with how often the step has it. `seconds`: the step's own time, 0 where it was
    not measured."""

    name: CaseName
    parts: Sequence[tuple[Work, int]]
    seconds: float = 0.0

    @cached_property
    def flops(self) -> float:
        """The model's."""
        return sum(count * part.flops for part, count in self.parts)


def large_steps(steps: Iterable[Step]) -> dict[str, list[Step]]:
    """By size: those of at least half of its largest B S."""
    by_size: dict[str, list[tuple[int, Step]]] = {}
    for step in steps:
        by_size.setdefault(step.name.size, []).append((step.name.batch * step.name.seq, step))
    largest = {size: max(tokens for tokens, _ in found) for size, found in by_size.items()}
    return {
        size: [step for tokens, step in found if 2 * tokens >= largest[size]]
        for size, found in by_size.items()
    }


def _collect(results: ResultSet, dtype: str, variant: str, machine: Machine) -> list[Step]:
    """The steps of one dtype and variant that were measured with all of their parts, in the order
    of FLOPs. BadInputError naming what is missing where there is none."""
    names = {
        text: case.name
        for text, case in results.cases.items()
        if case.name.dtype == dtype and case.name.size in problem_sizes()
    }

    def work(text: str) -> Work:
        case = results.cases[text]
        return work_of(case.name, case.counters, machine, case.median_seconds)

    complete, lacking = [], []
    for size, batch, seq in sorted({(n.size, n.batch, n.seq) for n in names.values()}):
        name = full_step(size, dtype, batch, seq, variant)
        found = parts_of(name, problem_sizes()[size]["n_layers"], names)
        if missing := [*found.missing, *{str(name)} - names.keys()]:
            lacking.append(missing)
        else:
            own = [(work(text), count) for text, count in found.measured]
            complete.append(Step(name, own, results.cases[str(name)].median_seconds))
    if not complete:
        words = f"no part of a {variant} step of a named size was measured in {dtype}"
        if lacking:
            words = f"not measured: {', '.join(min(lacking, key=len))}"
        raise BadInputError(
            f"{words}; measure embedding, attention, ffn, rms_norm, loss, optimizer and full_step "
            "of one size"
        )
    return sorted(complete, key=lambda step: step.flops)


# Largest coefficient of traffic. Run operator by operator, tensors are moved several times. Each of
# them fits into the cache, so only the first read and the last write of a chain of operators
# reach memory; the rest counts as elementwise work. Without this limit, cells that fit into the
# cache put other costs that grow with tokens into this coefficient, and a size that outgrows the
# cache pays for those at memory's bandwidth: medium's step was predicted 6 % too slow, with it 1 %.
MOST_TRAFFIC = 2.0


def fit_terms(amounts: Array, seconds: Array, peak: float | None) -> Array:
    """The four coefficients: seconds per operator, per FLOP and per elementwise FLOP, and the
    factor on the traffic time. `amounts` [cells, terms] and `seconds` [cells], all above 0, are
    those of a part's cells.

    `peak`: FLOP/s that no GEMM exceeds, None where it was not measured.
    """
    rows = amounts / seconds[:, None]
    scale = np.abs(rows).mean(axis=0)
    scale[scale == 0] = 1.0
    least = np.array([0.0, 1.0 / peak if peak else 0.0, 0.0, 0.0])
    most = np.array([math.inf, math.inf, math.inf, MOST_TRAFFIC])
    bounds = (least * scale, most * scale)
    # the unknowns are shares of time
    return lsq_linear(rows / scale, np.ones(len(rows)), bounds, method="bvls").x / scale


@dataclass(frozen=True)
class PartRate:
    """`coefficients`: those of fit_terms. `operators`: of an iteration, or for each weight tensor
    where an optimizer launches some for each. `cells`: how many they were fitted to."""

    coefficients: Array
    operators: float
    is_for_each_weight: bool
    cells: int

    def seconds(self, work: Work) -> float:
        """Of one iteration, never less than its traffic time."""
        amounts = work.amounts.copy()
        weights = _weights(work.name.size) if self.is_for_each_weight else 1
        amounts[LAUNCH] = self.operators * weights
        return max(float(self.coefficients @ amounts), float(amounts[TRAFFIC]))


def part_rate(component: str, cells: Sequence[Work], peak: float | None) -> PartRate:
    """A part has as many operators at every size, being one layer's or alone in the step; but an
    optimizer that launches at least one for each weight tensor has more with every layer."""
    amounts = np.array([cell.amounts for cell in cells])
    seconds = np.array([cell.seconds for cell in cells])
    weights = np.array([_weights(cell.name.size) for cell in cells])
    operators = amounts[:, LAUNCH]
    is_each = component == OPTIMIZER and bool((operators >= weights).all())
    middle = float(np.median(operators / weights if is_each else operators))
    return PartRate(fit_terms(amounts, seconds, peak), middle, is_each, len(cells))


# of StepOverParts, where fewer than two steps were measured
ASSUMED_SCATTER = 0.1


class StepOverParts(NamedTuple):
    """Measured step over the sum of its measured parts, at the large steps of each size. Small
    steps would not do: their time is mostly launches, which take other times in a step than in
    parts alone.

    `ratios`: for each size the FLOPs of its largest step and the median ratio; `scatter`: standard
    deviation of the ratios' logarithms around these medians, at least the range of the medians.
    """

    ratios: Sequence[tuple[float, float]]
    scatter: float

    def ratio_at(self, flops: float) -> float:
        """That of the size whose step is nearest in FLOPs."""
        return min(self.ratios, key=lambda pair: abs(math.log(pair[0] / flops)))[1]


def step_over_parts(large: Iterable[Sequence[Step]]) -> StepOverParts:
    """`large`: the large steps of each size."""
    ratios, medians, around = [], [], []
    for steps in large:
        sums = (sum(count * part.seconds for part, count in step.parts) for step in steps)
        logarithms = [math.log(s.seconds / parts) for s, parts in zip(steps, sums, strict=True)]
        medians.append(statistics.median(logarithms))
        around += [value - medians[-1] for value in logarithms]
        ratios.append((max(step.flops for step in steps), math.exp(medians[-1])))
    if len(around) < 2:
        return StepOverParts(ratios, ASSUMED_SCATTER)
    # what changes from size to size may go on changing
    return StepOverParts(ratios, max(statistics.stdev(around), max(medians) - min(medians)))


# An error of 20 % for each factor of 10 in FLOPs: about twice what tiny and small, predicted from
# each other, show on the reference machine.
ASSUMED_GROWTH = math.log(1.2) / math.log(10.0)
ASSUMED_DEGREES = 3
# Sizes less than 10 % apart do not show how errors grow with size.
LEAST_DISTANCE = 0.1


class HeldOutStep(NamedTuple):
    """A step predicted from the other sizes. `error`: logarithm of predicted over measured;
    `distance`: beyond the steps of the others."""

    size: str
    error: float
    distance: float


class ErrorModel(NamedTuple):
    """Of the logarithm of predicted over true time. `held_out`: what `growth` comes from beside the
    assumption; empty where it is assumed alone."""

    base: float
    growth: float
    quantile: float
    held_out: Sequence[HeldOutStep] = ()

    @property
    def range_words(self) -> str:
        """What a range may be called."""
        return f"{100 * WANTED_CONFIDENCE:.0f} % interval" if self.held_out else "assumed range"

    def factor(self, distance: float) -> float:
        """The range reaches from the prediction over this factor to the prediction times it."""
        return math.exp(self.quantile * math.hypot(self.base, self.growth * distance))


def error_model(base: float, held_out: Sequence[HeldOutStep]) -> ErrorModel:
    """As at the top of this file. `held_out`: every large step of each size that was left out;
    empty where there is one size."""
    squares, degrees = ASSUMED_DEGREES * ASSUMED_GROWTH**2, ASSUMED_DEGREES
    if held_out:
        errors = statistics.fmean(held.error**2 for held in held_out)
        distances = statistics.fmean(held.distance**2 for held in held_out)
        others = len({held.size for held in held_out}) - 1
        squares += others * max(errors - base**2, 0.0) / max(distances, LEAST_DISTANCE**2)
        degrees += others
    growth = max(math.sqrt(squares / degrees), base / math.log(10.0))
    return ErrorModel(base, growth, float(stdtrit(degrees, (1 + WANTED_CONFIDENCE) / 2)), held_out)


@dataclass(frozen=True)
class Rates:
    """`parts`: by component. `large`: the large steps that were calibrated on, by size.
    `sum_of_parts`: what a step takes over the sum of its parts."""

    dtype: str
    variant: str
    machine: Machine
    parts: Mapping[str, PartRate]
    large: Mapping[str, Sequence[Step]]
    sum_of_parts: StepOverParts
    errors: ErrorModel | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """Those that were calibrated on."""
        return tuple(self.large)

    def distance(self, step: Step) -> float:
        """Logarithm of how far a step's FLOPs lie beyond those of the large steps; 0 between."""
        flops = [one.flops for steps in self.large.values() for one in steps]
        return max(math.log(step.flops / max(flops)), math.log(min(flops) / step.flops), 0.0)

    def step_seconds(self, step: Step) -> float:
        """By the rates, whether it was measured or not."""
        parts = sum(n * self.parts[part.name.component].seconds(part) for part, n in step.parts)
        return self.sum_of_parts.ratio_at(step.flops) * parts

    def error(self, step: Step) -> float:
        """Logarithm of step_seconds() over measured."""
        return math.log(self.step_seconds(step) / step.seconds)

    def held_out_percent(self) -> dict[str, float]:
        """By size: the median error of its steps, predicted from the other sizes."""
        by_size: dict[str, list[float]] = {}
        for held in self.errors.held_out:
            by_size.setdefault(held.size, []).append(held.error)
        return {
            size: 100 * math.expm1(statistics.median(errors)) for size, errors in by_size.items()
        }

    def basis(self) -> str:
        """What predictions rest on, in words."""
        cells = sum(part.cells for part in self.parts.values())
        sizes = ", ".join(self.sizes)
        return f"rates of {cells} cells of {sizes} ({self.dtype}, {self.variant})"


def calibrate_rates(results: ResultSet, dtype: str, variant: str) -> Rates:
    """Rates of every part of a training step. BadInputError naming what was not measured, and what
    to do, where a part or a bandwidth is missing."""
    machine = Machine.from_context(results.context)
    steps = _collect(results, dtype, variant, machine)
    peak, by_size = machine.peak_flops.get(product_type(dtype)), large_steps(steps)

    def rates_without(size: str) -> Rates:
        cells: dict[str, list[Work]] = {}
        for part, _ in itertools.chain(*(s.parts for s in steps if s.name.size != size)):
            cells.setdefault(part.name.component, []).append(part)
        parts = {name: part_rate(name, own, peak) for name, own in cells.items()}
        large = {name: own for name, own in by_size.items() if name != size}
        return Rates(dtype, variant, machine, parts, large, step_over_parts(large.values()))

    rates, held_out = rates_without(""), []
    # the steps of each size, predicted from the other sizes alone
    for size, large in by_size.items() if len(by_size) > 1 else ():
        others = rates_without(size)
        for step in large:
            if all(part.name.component in others.parts for part, _ in step.parts):
                held_out.append(HeldOutStep(size, others.error(step), others.distance(step)))
    # large steps alone, as in step_over_parts(): what is predicted is not mostly launches
    errors = [rates.error(step) for large in by_size.values() for step in large]
    scatter = math.sqrt(statistics.fmean(error**2 for error in errors))
    base = max(scatter, rates.sum_of_parts.scatter)
    return replace(rates, errors=error_model(base, held_out))


class StepPrediction(NamedTuple):
    """`low` to `high`: the range of `seconds`, which `range_words` names: `95 % interval`, or
    `assumed range`."""

    cost: CaseCost
    seconds: float
    low: float
    high: float
    range_words: str


def predict_steps(
    rates: Rates, costs: Sequence[CaseCost]
) -> tuple[list[StepPrediction], list[tuple[CaseCost, str]]]:
    """Every training step among the costs that has the rates' dtype and variant, and whose parts
    have costs too; and the others of that dtype and variant, with the reason."""
    by_name = {str(cost.name): cost for cost in costs}
    # only parts with rates can make up a step
    names = {t: cost.name for t, cost in by_name.items() if cost.name.component in rates.parts}

    def work(text: str) -> Work:
        # how many operators it has, its rate says
        return work_of(names[text], {"operators": 0.0, **vars(by_name[text])}, rates.machine)

    def predict(cost: CaseCost) -> StepPrediction:
        name = cost.name
        if name.size not in problem_sizes():
            raise BadInputError(f"{name}: its size is none of fixtures/problem_sizes.json")
        found = parts_of(name, problem_sizes()[name.size]["n_layers"], names)
        if found.missing:
            raise BadInputError(
                f"{name}: no cost or no rate of {', '.join(found.missing)}; ask --dry-run for "
                "all components, and measure those parts at a size that fits"
            )
        step = Step(name, [(work(text), count) for text, count in found.measured])
        seconds = rates.step_seconds(step)
        factor = rates.errors.factor(rates.distance(step))
        ends = (seconds / factor, seconds * factor)
        return StepPrediction(cost, seconds, *ends, rates.errors.range_words)

    predicted, refused = [], []
    for name, cost in ((cost.name, cost) for cost in by_name.values()):
        if name.is_training_step and (name.dtype, name.variant) == (rates.dtype, rates.variant):
            try:
                predicted.append(predict(cost))
            except BadInputError as error:
                refused.append((cost, str(error)))
    return predicted, refused
