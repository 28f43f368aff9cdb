"""Predicts training steps that were not run, with rates calibrated on what was run.

Of each part of a step, with coefficients by least squares of relative errors, so that a small cell
counts as much as a large one, and none below 0:

    seconds = launch x operators + FLOPs / rate + elementwise work / rate + traffic / efficiency

- Products grow with tokens x width^2. Their rate is a property of the device, and no product beats
  its measured peak, so their coefficient is never below what that allows.
- Elementwise FLOPs stand for what goes operator by operator: norms, rotary, activations and the
  softmax over S^2 scores, which `bytes` (the least that any implementation must move) leave out.
- Traffic is `bytes` in seconds of the bandwidth that so much traffic can see, as measured level by
  level. So a size beyond a cache comes out slower than the rates of cached sizes say.
No term grows faster than its figure: nothing is extrapolated with an exponent that was fitted.

The range of a prediction is meant to hold the measured time in 95 of 100 predictions. It comes from
predicting what was measured: each size is left out in turn, the rates are calibrated on the others,
and its steps of at least half its largest B S are predicted, since these resemble the steps of
sizes that were not run. The error of a prediction is the logarithm of predicted over measured time.
Its variance is described as

    base^2 + (growth x distance)^2

- base: the scatter at the large calibrated steps themselves, of fitted against measured times or
  of step over sum of parts, whichever is larger;
- distance: the logarithm of how far the step's FLOPs lie beyond those of the large calibrated ones;
- growth: what the errors of the sizes left out show beyond the base, per unit of distance, and no
  less than lets a factor of 10 in FLOPs add once more the base.

How many degrees of freedom that has is the number of sizes less one: two sizes, each predicted from
the other, are one comparison, whose error may be small by chance. Student's quantile for that alone
is 12.7, which makes every range useless. So an assumed growth is pooled with what was seen, as if
ASSUMED_DEGREES further sizes had shown it, and the quantile has those degrees and the measured
ones. With one size there is only the assumption, and the range is called assumed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear
from scipy.special import stdtrit

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import CaseName, full_step, parts_of

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import ResultSet

Array = np.ndarray
OPTIMIZER = "optimizer"


def is_own_shape(name: CaseName) -> bool:
    """Whether a case has the batch and sequence of its problem size."""
    of = problem_sizes().get(name.size)
    return of is not None and (of["batch"], of["seq"]) == (name.batch, name.seq)


def _weights(size: str) -> int:
    """How many weight tensors: four projections of attention, three of the feed-forward network and
    two norms a layer; the embedding, the final norm and the LM head (model/)."""
    return 9 * problem_sizes()[size]["n_layers"] + 3


# what a part does in one iteration, and what each of it costs
LAUNCH, PRODUCTS, _, TRAFFIC = range(4)
AMOUNTS = ("operators", "hardware_flops", "elementwise_flops", "bytes")


class Work(NamedTuple):
    """Of one iteration of a part. `flops`: by the model's formulas; `amounts`: operators, FLOPs of
    the products that really run, elementwise FLOPs, and seconds of the least traffic. `seconds`: 0
    where it was not measured, and operators are not known then."""

    name: CaseName
    flops: float
    amounts: Array
    seconds: float


def work_of(
    name: CaseName, figures: Mapping[str, Any], machine: Machine, seconds: float = 0.0
) -> Work:
    """BadInputError for a row of another program, which counts less."""
    for key in ("model_flops", *AMOUNTS):
        if key not in figures:
            what = f"{name}: the row has no counter {key}"
            raise BadInputError(f"{what}; measure again with this version")
    *amounts, moved = (figures[key] for key in AMOUNTS)
    found = np.array([*amounts, machine.traffic_seconds(moved)], dtype=float)
    return Work(name, figures["model_flops"], found, seconds)


@dataclass(frozen=True)
class Step:
    """All parts, and how often it has each. `seconds`: of the step itself, 0 where it was not
    measured."""

    name: CaseName
    parts: Sequence[tuple[Work, int]]
    seconds: float = 0.0

    @cached_property
    def flops(self) -> float:
        """Of the model."""
        return sum(count * part.flops for part, count in self.parts)


def large_steps(steps: Iterable[Step]) -> dict[str, list[Step]]:
    """By size: those of at least half its largest B S."""
    by_size: dict[str, list[tuple[int, Step]]] = {}
    for step in steps:
        by_size.setdefault(step.name.size, []).append((step.name.batch * step.name.seq, step))
    return {
        size: [step for tokens, step in found if 2 * tokens >= max(most for most, _ in found)]
        for size, found in by_size.items()
    }


def _collect(results: ResultSet, dtype: str, variant: str, machine: Machine) -> list[Step]:
    """Of one dtype and variant: the steps that were measured with all of their parts, in the order
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
    for size, batch, seq in sorted({(of.size, of.batch, of.seq) for of in names.values()}):
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


# Operator by operator, tensors are moved a few times as often as the least; but each by itself fits
# into the cache, so that only the first read and the last write of a chain of operators are the
# memory's. What goes beyond is elementwise work. Without this bound, cells in the cache put other
# costs that grow with tokens here, and a size beyond the cache would pay for those at the memory's
# bandwidth: medium's step came out 6 % too slow without it, with it 1 %.
MOST_TRAFFIC = 2.0


def fit_terms(amounts: Array, seconds: Array, peak: float | None) -> Array:
    """Seconds per operator, FLOP, elementwise FLOP and second of least traffic, of the amounts
    [cells, terms] and the seconds [cells] of a part's cells, all of the latter above 0.

    `peak`: FLOP/s that no product beats, None where it was not measured.
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
    """`coefficients`: as of fit_terms. `operators`: of an iteration, or of a weight tensor where an
    optimizer starts some for each. `cells`: how many they were fitted to."""

    coefficients: Array
    operators: float
    is_for_each_weight: bool
    cells: int

    def seconds(self, work: Work) -> float:
        """Of one iteration, never less than the roofline allows for the traffic."""
        amounts = work.amounts.copy()
        weights = _weights(work.name.size) if self.is_for_each_weight else 1
        amounts[LAUNCH] = self.operators * weights
        return max(float(self.coefficients @ amounts), float(amounts[TRAFFIC]))


def part_rate(component: str, cells: Sequence[Work], peak: float | None) -> PartRate:
    """A part is one layer's or stands alone, so its operators are those of the measured sizes, but
    for an optimizer that has at least one for each weight tensor."""
    amounts = np.array([cell.amounts for cell in cells])
    seconds = np.array([cell.seconds for cell in cells])
    weights = np.array([_weights(cell.name.size) for cell in cells])
    operators = amounts[:, LAUNCH]
    is_each = component == OPTIMIZER and bool((operators >= weights).all())
    middle = float(np.median(operators / weights if is_each else operators))
    return PartRate(fit_terms(amounts, seconds, peak), middle, is_each, len(cells))


# Of the logarithm, where fewer than two steps were measured.
ASSUMED_SCATTER = 0.1


class Closure(NamedTuple):
    """Measured step over the sum of its measured parts, of the large steps of each size: small
    ones wait for launches, which parts measured by themselves do as well or do not.

    `ratios`: FLOPs of the largest step and the median ratio of each size; `scatter`: standard
    deviation of the logarithm around these, and no less than what lies between the sizes.
    """

    ratios: Sequence[tuple[float, float]]
    scatter: float

    def ratio_at(self, flops: float) -> float:
        """Of the size that is nearest in FLOPs of a step."""
        return min(self.ratios, key=lambda of: abs(math.log(of[0] / flops)))[1]


def closure_of(large: Iterable[Sequence[Step]]) -> Closure:
    """Of the large steps of each size."""
    ratios, medians, around = [], [], []
    for found in large:
        parts = (sum(count * part.seconds for part, count in step.parts) for step in found)
        logarithms = [math.log(s.seconds / of) for s, of in zip(found, parts, strict=True)]
        medians.append(statistics.median(logarithms))
        around += [value - medians[-1] for value in logarithms]
        ratios.append((max(step.flops for step in found), math.exp(medians[-1])))
    if len(around) < 2:
        return Closure(ratios, ASSUMED_SCATTER)
    # what changes from size to size may go on changing
    return Closure(ratios, max(statistics.stdev(around), max(medians) - min(medians)))


COVERAGE = 0.95
# Off by 20 % for each factor of 10 in FLOPs: about twice what tiny and small, predicted from each
# other, show on the reference machine.
ASSUMED_GROWTH = math.log(1.2) / math.log(10.0)
ASSUMED_DEGREES = 3
# Sizes less than 10 % apart do not show how errors grow with size.
LEAST_DISTANCE = 0.1


class HeldOutStep(NamedTuple):
    """`error`: logarithm of predicted over measured; `distance`: beyond the steps of the others."""

    size: str
    error: float
    distance: float


class Spread(NamedTuple):
    """Of the logarithm of predicted over true time; `held_out`: what `growth` comes from beside
    the assumption, empty where it is assumed alone."""

    base: float
    growth: float
    quantile: float
    held_out: Sequence[HeldOutStep] = ()

    @property
    def words(self) -> str:
        """What the range may be called."""
        return f"{100 * COVERAGE:.0f} % interval" if self.held_out else "assumed range"

    def factor(self, distance: float) -> float:
        """The range goes from the prediction over this to the prediction times this."""
        return math.exp(self.quantile * math.hypot(self.base, self.growth * distance))


def spread_of(base: float, held_out: Sequence[HeldOutStep]) -> Spread:
    """`base`: as above; `held_out`: every step of a size left out, empty with one size."""
    squares, degrees = ASSUMED_DEGREES * ASSUMED_GROWTH**2, ASSUMED_DEGREES
    if held_out:
        errors = statistics.fmean(held.error**2 for held in held_out)
        distances = statistics.fmean(held.distance**2 for held in held_out)
        others = len({held.size for held in held_out}) - 1
        squares += others * max(errors - base**2, 0.0) / max(distances, LEAST_DISTANCE**2)
        degrees += others
    growth = max(math.sqrt(squares / degrees), base / math.log(10.0))
    return Spread(base, growth, float(stdtrit(degrees, (1 + COVERAGE) / 2)), held_out)


@dataclass(frozen=True)
class Rates:
    """`parts`: by component. `large`: the large steps that it was calibrated on, by size."""

    dtype: str
    variant: str
    machine: Machine
    parts: Mapping[str, PartRate]
    large: Mapping[str, Sequence[Step]]
    closure: Closure
    spread: Spread | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """That it was calibrated on."""
        return tuple(self.large)

    def distance(self, step: Step) -> float:
        """How far a step's FLOPs lie beyond those of the large ones, 0 between them."""
        flops = [one.flops for found in self.large.values() for one in found]
        return max(math.log(step.flops / max(flops)), math.log(min(flops) / step.flops), 0.0)

    def step_seconds(self, step: Step) -> float:
        """Fitted."""
        parts = sum(n * self.parts[part.name.component].seconds(part) for part, n in step.parts)
        return self.closure.ratio_at(step.flops) * parts

    def error(self, step: Step) -> float:
        """Logarithm of fitted over measured."""
        return math.log(self.step_seconds(step) / step.seconds)

    def held_out_percent(self) -> dict[str, float]:
        """By size: the median of what its steps, predicted from the other sizes, are off by."""
        by_size: dict[str, list[float]] = {}
        for held in self.spread.held_out:
            by_size.setdefault(held.size, []).append(held.error)
        return {of: 100 * math.expm1(statistics.median(each)) for of, each in by_size.items()}

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
        parts = {name: part_rate(name, of, peak) for name, of in cells.items()}
        large = {name: of for name, of in by_size.items() if name != size}
        return Rates(dtype, variant, machine, parts, large, closure_of(large.values()))

    rates, held_out = rates_without(""), []
    # the steps of each size, from the other sizes alone
    for size, large in by_size.items() if len(by_size) > 1 else ():
        others = rates_without(size)
        for step in large:
            if all(part.name.component in others.parts for part, _ in step.parts):
                held_out.append(HeldOutStep(size, others.error(step), others.distance(step)))
    # of large steps, as the closure is: what is predicted is no step that waits for launches
    errors = [rates.error(step) for large in by_size.values() for step in large]
    scatter = math.sqrt(statistics.fmean(error**2 for error in errors))
    return replace(rates, spread=spread_of(max(scatter, rates.closure.scatter), held_out))


class StepPrediction(NamedTuple):
    """`low` to `high`: the range of `seconds`, which `range_words` names: `95 % interval`, or
    `assumed range` (as above)."""

    cost: CaseCost
    seconds: float
    low: float
    high: float
    range_words: str


def predict_steps(
    rates: Rates, costs: Sequence[CaseCost]
) -> tuple[list[StepPrediction], list[tuple[CaseCost, str]]]:
    """Of every training step of the rates' dtype and variant among the costs, as far as the costs
    of its parts are there too; and the other steps, with the reason."""
    by_name = {str(cost.name): cost for cost in costs}
    # only parts with rates can make up a step
    names = {t: cost.name for t, cost in by_name.items() if cost.name.component in rates.parts}

    def work(text: str) -> Work:
        """Its operators are the part's rate's."""
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
        factor = rates.spread.factor(rates.distance(step))
        return StepPrediction(cost, seconds, seconds / factor, seconds * factor, rates.spread.words)

    predicted, refused = [], []
    for name, cost in ((cost.name, cost) for cost in by_name.values()):
        if name.is_training_step and (name.dtype, name.variant) == (rates.dtype, rates.variant):
            try:
                predicted.append(predict(cost))
            except BadInputError as error:
                refused.append((cost, str(error)))
    return predicted, refused
