"""One model of a training step on a device, and the time of steps that were not run.

    seconds of a part = launch x operators + factor x GEMM time + elementwise FLOPs x cost
                        + factor x traffic time
    seconds of a step = sum of its parts + more launch x operators + cost x residual stream

- GEMM time is that of every GEMM of the part at the rate measured for its shape and type by the
  library that the variant calls, between shapes interpolated (Machine.gemm_rate). On AMD processors
  the default library has half of the best one's rate, by another factor at every shape.
- Elementwise FLOPs stand for what runs operator by operator: norms, rotary, activations and the
  softmax over S^2 scores. `bytes`, the fewest that any implementation must move, leave that out.
  Their cost is the only one that each component has for itself.
- Traffic time is `bytes` over the bandwidth that this much traffic can reach, by the curve over the
  size of the working set. So a size that outgrows a cache is predicted to be slower than smaller
  ones.
- What a step does beyond its parts: operators of autograd, and additions to the residual stream of
  B S D numbers in each layer.

No term grows faster than its amount: no exponent is fitted, so none is extrapolated. All costs are
fitted together, to parts and steps, by least squares of relative errors, so that a small cell
counts as much as a large one; none is below 0; and cells that a disturbance made slow count less.

The range of a prediction is meant to hold the measured time in 95 of 100 predictions. Its width
comes from predicting what was measured: each size, batch and sequence is left out in turn, the
model is fitted to the others, and its steps are predicted. The error of a prediction is the
logarithm of predicted over measured time. Its variance is modelled as

    base^2 + (growth x distance)^2

- base: the errors at the batches and sequences that were left out;
- distance: how far a step lies beyond those that were fitted, in the logarithm of its FLOPs or of
  its FLOPs a token, whichever is further;
- growth: what the errors of the sizes left out show beyond the base, per unit of distance; at least
  as much as adds the base once more for a factor of 10.

Each of the two has a half-width of its own, by Student's quantile for its own degrees of freedom:
as many as values were left out, less one. Two sizes, each predicted from the other, are one
comparison, whose error may be small by chance, and the quantile for one degree is 12.7, which makes
every range useless. So an assumed growth is pooled with the measured one, as if ASSUMED_DEGREES
further sizes had shown it. With one size there is only the assumption, and the range is called
assumed.
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
from tinyllama_tools.models.roofline import ATTENTION, BLOCK, FFN, step_gemms
from tinyllama_tools.stats.laws import LARGEST_WIDTH
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


# places in Work.amounts
OPERATORS, GEMMS, ELEMENTWISE, TRAFFIC = range(4)
COUNTERS = ("operators", "hardware_flops", "elementwise_flops", "bytes")
# a block's GEMMs are those of both
COMPONENTS_OF = {BLOCK: (ATTENTION, FFN)}


class Work(NamedTuple):
    """One iteration of a part. `flops`: the model's; `amounts`: operators, GEMM time in seconds,
    elementwise FLOPs, and traffic time in seconds. `seconds`: 0 where it was not measured, and the
    operators are not known then."""

    name: CaseName
    flops: float
    amounts: Array
    seconds: float


def _gemm_seconds(name: CaseName, flops: float, machine: Machine) -> float:
    """Of the FLOPs that a part really executes, at the mean rate of its GEMMs in the baseline; of
    one that has none there, of the step's."""
    if not flops:
        return 0.0
    type_name, among = (
        product_type(name.dtype),
        COMPONENTS_OF.get(name.component, (name.component,)),
    )
    every = step_gemms(problem_sizes()[name.size], name.batch, name.seq)
    own = [gemm for gemm in every if gemm.component in among] or every
    total = sum(gemm.flops for gemm in own)
    # these switches multiply by kernels of ours; all others by the library that is the default
    by_default = not {"optimized", "tiled_gemm", "wide_gemm"} & set(name.variant.split("+"))
    seconds = sum(
        gemm.flops
        / machine.gemm_rate(type_name, (gemm.batch, gemm.m, gemm.n, gemm.k), by_default=by_default)
        for gemm in own
    )
    return flops * seconds / total


def work_of(
    name: CaseName, figures: Mapping[str, Any], machine: Machine, seconds: float = 0.0
) -> Work:
    """BadInputError for a row without one of the counters, as older programs wrote."""
    for key in ("model_flops", *COUNTERS):
        if key not in figures:
            what = f"{name}: the row has no counter {key}"
            raise BadInputError(f"{what}; measure again with this version")
    operators, flops, elementwise, moved = (figures[key] for key in COUNTERS)
    gemms, traffic = _gemm_seconds(name, flops, machine), machine.traffic_seconds(moved)
    amounts = np.array([operators, gemms, elementwise, traffic], dtype=float)
    return Work(name, figures["model_flops"], amounts, seconds)


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

    @property
    def flops_per_token(self) -> float:
        """The model's."""
        return self.flops / (self.name.batch * self.name.seq)

    @property
    def residual(self) -> float:
        """Numbers in the residual stream, over all layers."""
        size = problem_sizes()[self.name.size]
        return self.name.batch * self.name.seq * size["hidden_dim"] * size["n_layers"]


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


class Operators(NamedTuple):
    """Of an iteration of a part, which has as many at every size, being one layer's or alone in the
    step; or for each weight tensor, where an optimizer launches some for each."""

    count: float
    is_for_each_weight: bool

    def at(self, size: str) -> float:
        return self.count * (_weights(size) if self.is_for_each_weight else 1)


def _operators(component: str, cells: Iterable[Work]) -> Operators:
    pairs = [(cell.amounts[OPERATORS], _weights(cell.name.size)) for cell in cells]
    is_each = component == OPTIMIZER and all(count >= weights for count, weights in pairs)
    middle = statistics.median(count / (weights if is_each else 1) for count, weights in pairs)
    return Operators(float(middle), is_each)


# What a factor may be. GEMMs of a shape measured alone may have been a little slow. Run operator by
# operator, tensors are moved several times; but each of them fits into the cache, so only the first
# read and the last write of a chain of operators reach memory, and the rest counts as elementwise
# work. Without this limit, cells that fit into the cache put other costs that grow with tokens into
# this factor, and a size that outgrows the cache pays for those at memory's bandwidth: medium's
# step was predicted 6 % too slow, with it 1 %.
LEAST_GEMMS, MOST_TRAFFIC = 0.8, 2.0


@dataclass(frozen=True)
class Costs:
    """What fit_costs() finds: seconds of an operator, and of one more in a step; factors on GEMM
    time and traffic time; seconds of a number in the residual stream; and by component, seconds of
    an elementwise FLOP."""

    launch: float
    step_launch: float
    gemms: float
    traffic: float
    residual: float
    elementwise: Mapping[str, float]

    def part_seconds(self, part: Work) -> float:
        """Of one iteration, never less than its traffic time."""
        each = (self.launch, self.gemms, self.elementwise[part.name.component], self.traffic)
        return float(max(np.dot(each, part.amounts), part.amounts[TRAFFIC]))

    def step_seconds(self, step: Step) -> float:
        """Whether it was measured or not."""
        parts = sum(count * self.part_seconds(part) for part, count in step.parts)
        operators = sum(count * float(part.amounts[OPERATORS]) for part, count in step.parts)
        return parts + self.step_launch * operators + self.residual * step.residual


# A step counts as much as so many parts. Beyond a few times the median of the errors, a cell counts
# as far as one at that error; so often the weights are found anew.
STEP_WEIGHT, ROBUST_AT, ROBUST_ROUNDS = 2.0, 1.5, 6


def fit_costs(steps: Sequence[Step]) -> Costs:
    """By steps and all of their parts, which were measured."""
    components = sorted({part.name.component for step in steps for part, _ in step.parts})
    # unknowns: launch, GEMMs, traffic, more launch, residual, and elementwise of each component
    count = 5 + len(components)

    def row_of(part: Work) -> Array:
        row = np.zeros(count)
        row[:3] = part.amounts[[OPERATORS, GEMMS, TRAFFIC]]
        row[5 + components.index(part.name.component)] = part.amounts[ELEMENTWISE]
        return row

    parts = {str(part.name): part for step in steps for part, _ in step.parts}
    rows = [row_of(part) / part.seconds for part in parts.values()]
    for step in steps:
        whole = sum(often * row_of(part) for part, often in step.parts)
        whole[3:5] = whole[0], step.residual
        rows.append(whole / step.seconds)
    every, weights = np.array(rows), np.array([1.0] * len(parts) + [STEP_WEIGHT] * len(steps))
    scale = np.abs(every).mean(axis=0)
    scale[scale == 0] = 1.0
    least, most = np.zeros(count), np.full(count, math.inf)
    least[1], most[2] = LEAST_GEMMS, MOST_TRAFFIC
    bounds, robust, found = (least * scale, most * scale), np.ones(len(rows)), np.zeros(count)
    for _ in range(ROBUST_ROUNDS):
        weighted = weights * robust
        # the unknowns are shares of time
        solved = lsq_linear(every / scale * weighted[:, None], weighted, bounds, method="bvls")
        found = solved.x / scale
        errors = np.maximum(np.abs(every @ found - 1), 1e-9)
        robust = np.sqrt(np.minimum(1.0, ROBUST_AT * np.median(errors) / errors))
    launch, gemms, traffic, step_launch, residual, *own = map(float, found)
    by_component = dict(zip(components, own, strict=True))
    return Costs(launch, step_launch, gemms, traffic, residual, by_component)


# of a batch or sequence that was not run, where fewer than two of each were
ASSUMED_BASE = 0.1
# An error of 20 % for each factor of 10 in FLOPs: about twice what tiny and small, predicted from
# each other, show on the reference machine.
ASSUMED_GROWTH = math.log(1.2) / math.log(10.0)
ASSUMED_DEGREES = 3
# Sizes less than 10 % apart do not show how errors grow with size.
LEAST_DISTANCE = 0.1
# what is left out in turn
SIZE, BATCH, SEQ, RANKS, WAY = "size", "batch", "seq", "ranks", "way"


@dataclass(frozen=True)
class HeldOut:
    """A step predicted from a model that knows none with its size, batch, sequence, number of ranks
    or way to share it: `axis` says which, `value` is the one left out. In seconds; `low` to `high`:
    the range that was predicted. `distance`: beyond what was fitted."""

    axis: str
    value: str
    case: str
    predicted: float
    measured: float
    distance: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def error(self) -> float:
        """Logarithm of predicted over measured."""
        return math.log(self.predicted / self.measured)


class ErrorModel(NamedTuple):
    """Of the logarithm of predicted over true time. `sizes`: how many were left out in turn; 0
    where growth is assumed alone."""

    base: float
    base_degrees: int
    growth: float
    growth_degrees: int
    sizes: int = 0

    @property
    def range_words(self) -> str:
        """What a range may be called."""
        return f"{100 * WANTED_CONFIDENCE:.0f} % interval" if self.sizes else "assumed range"

    def factor(self, distance: float) -> float:
        """The range reaches from the prediction over this factor to the prediction times it."""
        pairs = ((self.base, self.base_degrees), (self.growth * distance, self.growth_degrees))
        halves = [
            deviation * float(stdtrit(degrees, (1 + WANTED_CONFIDENCE) / 2))
            for deviation, degrees in pairs
        ]
        return math.exp(min(math.hypot(*halves), LARGEST_WIDTH))


def error_model(held_out: Iterable[HeldOut]) -> ErrorModel:
    """As at the top of this file."""
    by_value: dict[tuple[str, str], list[HeldOut]] = {}
    for held in held_out:
        by_value.setdefault((held.axis, held.value), []).append(held)
    errors = {key: statistics.fmean(held.error**2 for held in own) for key, own in by_value.items()}
    shapes = [error for (axis, _), error in errors.items() if axis in (BATCH, SEQ)]
    base, base_degrees = ASSUMED_BASE, ASSUMED_DEGREES
    if shapes:
        base, base_degrees = math.sqrt(statistics.fmean(shapes)), max(len(shapes) - 1, 1)
    squares, degrees = ASSUMED_DEGREES * ASSUMED_GROWTH**2, ASSUMED_DEGREES
    sizes = [key for key in errors if key[0] == SIZE]
    if sizes:
        seen = statistics.fmean(errors[key] for key in sizes)
        distances = statistics.fmean(held.distance**2 for key in sizes for held in by_value[key])
        others = len(sizes) - 1
        squares += others * max(seen - base**2, 0.0) / max(distances, LEAST_DISTANCE**2)
        degrees += others
    growth = max(math.sqrt(squares / degrees), base / math.log(10.0))
    return ErrorModel(base, base_degrees, growth, degrees, len(sizes))


def _beyond(value: float, ends: tuple[float, float]) -> float:
    return max(math.log(value / ends[1]), math.log(ends[0] / value), 0.0)


@dataclass(frozen=True)
class StepModel:
    """The model of steps of a dtype and variant. `operators`: by component. `sizes`: those that it
    was fitted to, `cells` parts and steps; `flops` and `flops_per_token`: the least and the most of
    their steps. `held_out`: where each size, batch and sequence was left out."""

    dtype: str
    variant: str
    machine: Machine
    costs: Costs
    operators: Mapping[str, Operators]
    sizes: tuple[str, ...]
    cells: int
    flops: tuple[float, float]
    flops_per_token: tuple[float, float]
    errors: ErrorModel
    held_out: tuple[HeldOut, ...] = ()

    def distance(self, step: Step) -> float:
        """How far a step lies beyond those that were fitted; 0 among them."""
        a_token = _beyond(step.flops_per_token, self.flops_per_token)
        return max(_beyond(step.flops, self.flops), a_token)

    def part_of(self, cost: CaseCost) -> Work:
        """The part with these costs, whose operators are known from smaller ones."""
        operators = self.operators[cost.name.component].at(cost.name.size)
        return work_of(cost.name, {"operators": operators, **vars(cost)}, self.machine)

    def range_of(self, step: Step) -> tuple[float, float, float]:
        """Predicted seconds, and the ends of their range."""
        seconds, factor = self.costs.step_seconds(step), self.errors.factor(self.distance(step))
        return seconds, seconds / factor, seconds * factor

    def basis(self) -> str:
        """What predictions rest on, in words."""
        return f"{self.cells} cells of {', '.join(self.sizes)} ({self.dtype}, {self.variant})"


def _fitted(steps: Sequence[Step], machine: Machine) -> StepModel:
    """Without errors."""
    cells: dict[str, dict[str, Work]] = {}
    for part, _ in itertools.chain(*(step.parts for step in steps)):
        cells.setdefault(part.name.component, {})[str(part.name)] = part
    ends = [
        (min(values), max(values))
        for values in ([s.flops for s in steps], [s.flops_per_token for s in steps])
    ]
    return StepModel(
        *(steps[0].name.dtype, steps[0].name.variant, machine, fit_costs(steps)),
        {name: _operators(name, own.values()) for name, own in cells.items()},
        tuple(dict.fromkeys(step.name.size for step in steps)),
        len(steps) + sum(map(len, cells.values())),
        *ends,
        error_model([]),
    )


def _held_out(steps: Sequence[Step], machine: Machine, *, is_inner: bool = False) -> list[HeldOut]:
    """Every step as often as there are axes with two values or more, with its range by what a model
    without it knows of its own errors, for which steps are left out once more: `is_inner`."""
    found = []
    for axis in (SIZE, BATCH, SEQ):
        values = sorted({getattr(step.name, axis) for step in steps})
        for value in values if len(values) > 1 else ():
            others = [step for step in steps if getattr(step.name, axis) != value]
            model = _fitted(others, machine)
            if not is_inner:
                own = _held_out(others, machine, is_inner=True)
                model = replace(model, errors=error_model(own))
            for step in (step for step in steps if getattr(step.name, axis) == value):
                if all(part.name.component in model.operators for part, _ in step.parts):
                    predicted, *ends = model.range_of(step)
                    what = (axis, str(value), str(step.name), predicted, step.seconds)
                    found.append(HeldOut(*what, model.distance(step), *ends))
    return found


def fit_step_model(results: ResultSet, dtype: str, variant: str) -> StepModel:
    """BadInputError naming what was not measured, and what to do, where a part or a bandwidth is
    missing."""
    machine = replace(Machine.from_context(results.context), products=results.products)
    steps = _collect(results, dtype, variant, machine)
    held_out = tuple(_held_out(steps, machine))
    return replace(_fitted(steps, machine), errors=error_model(held_out), held_out=held_out)


class HeldOutError(NamedTuple):
    """How good predictions are on an axis, of which `values` were left out. In percent: of the
    measured, and of the steps that lie inside their ranges; widths over the prediction."""

    axis: str
    values: str
    steps: int
    median_percent: float
    largest_percent: float
    inside_percent: float
    median_width_percent: float


def errors_by_axis(held_out: Sequence[HeldOut]) -> list[HeldOutError]:
    """One for each axis that something was left out of."""
    found = []
    for axis in dict.fromkeys(held.axis for held in held_out):
        own = [held for held in held_out if held.axis == axis]
        percents = [100 * math.expm1(held.error) for held in own]
        found.append(
            HeldOutError(
                axis,
                ", ".join(dict.fromkeys(held.value for held in own)),
                len(own),
                statistics.median(map(abs, percents)),
                max(percents, key=abs),
                100 * statistics.fmean(held.low <= held.measured <= held.high for held in own),
                statistics.median(100 * (held.high - held.low) / held.predicted for held in own),
            )
        )
    return found


class StepPrediction(NamedTuple):
    """`low` to `high`: the range of `seconds`, which `range_words` names: `95 % interval`, or
    `assumed range`. `update_seconds`: what the optimizer takes of them."""

    cost: CaseCost
    seconds: float
    low: float
    high: float
    range_words: str
    update_seconds: float


def predict_steps(
    model: StepModel, costs: Sequence[CaseCost]
) -> tuple[list[StepPrediction], list[tuple[CaseCost, str]]]:
    """Every training step among the costs that has the model's dtype and variant, and whose parts
    have costs too; and the others of that dtype and variant, with the reason."""
    by_name = {str(cost.name): cost for cost in costs}
    # only parts that were measured can make up a step
    names = {t: cost.name for t, cost in by_name.items() if cost.name.component in model.operators}

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
        step = Step(name, [(model.part_of(by_name[t]), count) for t, count in found.measured])
        update = sum(
            count * model.costs.part_seconds(part)
            for part, count in step.parts
            if part.name.component == OPTIMIZER
        )
        return StepPrediction(cost, *model.range_of(step), model.errors.range_words, update)

    predicted, refused = [], []
    for name, cost in ((cost.name, cost) for cost in by_name.values()):
        if name.is_training_step and (name.dtype, name.variant) == (model.dtype, model.variant):
            try:
                predicted.append(predict(cost))
            except BadInputError as error:
                refused.append((cost, str(error)))
    return predicted, refused
