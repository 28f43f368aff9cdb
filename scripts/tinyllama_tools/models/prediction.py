"""Predicts training steps that were not run, with rates calibrated on what was run.

Of each part of a step, with coefficients by non-negative least squares of relative errors, so that
a small cell counts as much as a large one:

    seconds = launch x operators + FLOPs / rate + elementwise work / rate + traffic / efficiency

- Products grow with tokens x width^2. Their rate is a property of the device, and no product beats
  its measured peak, so their coefficient is never below what that allows.
- Elementwise FLOPs stand for what goes operator by operator: norms, rotary, activations and the
  softmax over S^2 scores, which `bytes` (the least that any implementation must move) leave out.
- Traffic is `bytes` in seconds of the bandwidth that they see: the last-level cache's for as many
  as fit into it twice (read and written), the memory's for the rest. So a size beyond the cache
  comes out slower than the rates of cached sizes say.
- Elementwise work and traffic grow with tokens x width; beside the products they also describe
  products that reach a higher rate at a larger width.
No term grows faster than its figure: nothing is extrapolated with an exponent that was fitted.

At one size, products, elementwise work and traffic all grow with the tokens, so the cells of one
part cannot tell them apart. Two things decide then: the peak, and a weak pull of the split of time
among the terms towards that of all parts together, which differ in what they are made of.

The range of a prediction is meant to hold the measured time in 95 of 100 predictions. It comes from
predicting what was measured: each size is left out in turn, the rates are calibrated on the others,
and its steps of at least half its largest B S are predicted, since these resemble the steps of
sizes that were not run. The error of a prediction is the logarithm of predicted over measured time.
Its variance is described as

    base^2 + (growth x distance)^2

- base: the scatter at the large calibrated steps themselves, of fitted against measured times or
  of step over sum of parts, whichever is larger;
- distance: the logarithm of how far the step's FLOPs lie beyond the calibrated ones, those a token
  (the size of the model) and the tokens (B S) each by itself, and both added;
- growth: what the errors of the sizes left out show beyond the base, per unit of distance, and no
  less than lets a factor of 10 in FLOPs add once more the base.

How many degrees of freedom that has is the number of sizes less one: two sizes, each predicted from
the other, are one comparison, whose error may be small by chance. Student's quantile for that alone
is 12.7, which makes every range useless. So an assumed growth is pooled with what was seen, as if
ASSUMED_DEGREES further sizes had shown it, and the quantile has those degrees and the measured
ones. With one size there is only the assumption, and the range is called assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear, nnls
from scipy.special import stdtrit

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import STEP, TRAIN, CaseName, LeftOut, parts_of

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import MeasuredCase, ResultSet

Array = np.ndarray
MIB = 2**20
OPTIMIZER = "optimizer"


class RatesRefusedError(ValueError):
    """What was measured does not support it; the message names what is missing and what to do."""


# what a part does in one iteration, and what each of it costs
LAUNCH, PRODUCTS, ELEMENTWISE, TRAFFIC = range(4)


@dataclass(frozen=True)
class Work:
    """Of one iteration of a part. `flops`: by the model's formulas; `amounts`: operators, FLOPs of
    the products that really run, elementwise FLOPs, and seconds of the least traffic. `seconds`:
    None where it was not measured, and operators are 0 then."""

    name: CaseName
    flops: float
    amounts: Array
    seconds: float | None = None

    @classmethod
    def of_row(cls, case: MeasuredCase, machine: Machine) -> Work:
        """RatesRefusedError for a row of another program, which counts less."""
        keys = ("model_flops", "operators", "hardware_flops", "elementwise_flops", "bytes")
        lacking = next((key for key in keys if key not in case.counters), None)
        if lacking:
            raise RatesRefusedError(
                f"{case.name}: the row has no counter {lacking}; measure again with this version"
            )
        flops, *amounts, moved = (case.counters[key] for key in keys)
        amounts = np.array([*amounts, machine.traffic_seconds(moved)])
        return cls(case.name, flops, amounts, case.median_seconds)

    @classmethod
    def of_cost(cls, cost: CaseCost, machine: Machine) -> Work:
        """Of a case that was not run."""
        traffic = machine.traffic_seconds(cost.bytes)
        amounts = (0.0, cost.hardware_flops, cost.elementwise_flops, traffic)
        return cls(cost.name, cost.model_flops, np.array(amounts))

    @property
    def tokens(self) -> int:
        """B S."""
        return self.name.batch * self.name.seq


@dataclass(frozen=True)
class Step:
    """All parts, and how often it has each. `seconds`: of the step itself, None where only its
    parts were measured. RatesRefusedError where `model_flops`, as counted for the step itself, are
    not those of its parts."""

    name: CaseName
    parts: Sequence[tuple[Work, int]]
    seconds: float | None = None
    model_flops: InitVar[float | None] = None

    def __post_init__(self, model_flops: float | None) -> None:
        if model_flops not in (None, self.flops):
            raise RatesRefusedError(
                f"{self.name}: its model_flops are {model_flops:.0f}, those of its parts "
                f"{self.flops:.0f}; two different models under one name cannot be predicted from"
            )

    @cached_property
    def flops(self) -> float:
        """Of the model."""
        return sum(count * part.flops for part, count in self.parts)

    @property
    def tokens(self) -> int:
        """B S."""
        return self.name.batch * self.name.seq

    @property
    def flops_a_token(self) -> float:
        """The size of the model."""
        return self.flops / self.tokens

    @property
    def parts_seconds(self) -> float:
        """Of its measured parts together."""
        return sum(count * (part.seconds or 0.0) for part, count in self.parts)


Cells = Mapping[str, Sequence[Work]]


def large_steps(steps: Iterable[Step]) -> dict[str, list[Step]]:
    """By size: those of at least half its largest B S."""
    by_size: dict[str, list[Step]] = {}
    for step in steps:
        by_size.setdefault(step.name.size, []).append(step)
    return {
        size: [step for step in found if 2 * step.tokens >= max(one.tokens for one in found)]
        for size, found in by_size.items()
    }


@cache
def _layers() -> Mapping[str, int]:
    return {size: of["n_layers"] for size, of in problem_sizes().items()}


def _part_names(
    step: CaseName, known: Mapping[str, CaseName]
) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """The step's parts among the known cases with how often it has each, and those that are not
    known. An optimizer does the same at every batch and sequence, so any of its size's will do."""
    if step.size not in _layers():
        raise RatesRefusedError(f"{step}: its size is none of fixtures/problem_sizes.json")
    updates = {
        str(replace(known[text], batch=step.batch, seq=step.seq)): text
        for text in sorted(known, reverse=True)
        if known[text].component == OPTIMIZER
    }
    parts = parts_of(step, _layers()[step.size], known.keys() | updates.keys())
    found = [(p.case if p.case in known else updates[p.case], p.count) for p in parts.measured]
    return found, parts.missing


def _collect(
    results: ResultSet, dtype: str, variant: str, machine: Machine
) -> tuple[Cells, list[Step]]:
    """Of one dtype and variant: measured parts by component, those that steps are made of, and the
    steps all of whose parts were measured, in the order of FLOPs.

    Layers are described by attention, ffn and norms, or by block where that was measured at more
    sizes. RatesRefusedError naming a part that no step can do without and nobody measured.
    """
    known = {
        text: case
        for text, case in results.cases.items()
        if case.name.dtype == dtype and case.name.size in _layers()
    }
    shapes = sorted({(c.name.size, c.name.batch, c.name.seq) for c in known.values()})
    steps = [CaseName(STEP, TRAIN, variant, size, dtype, batch, seq) for size, batch, seq in shapes]

    @cache
    def work(text: str) -> Work:
        return Work.of_row(known[text], machine)

    def collect(hidden: Collection[str]) -> tuple[Cells, list[Step]]:
        names = {t: case.name for t, case in known.items() if case.name.component not in hidden}
        parts: dict[str, dict[str, Work]] = {}
        complete = []
        for name in steps:
            found, missing = _part_names(name, names)
            for text, _ in found:
                parts.setdefault(names[text].component, {})[text] = work(text)
            if not missing:
                case = known.get(str(name))
                whole = (case.median_seconds, case.counters.get("model_flops")) if case else ()
                complete.append(Step(name, [(work(text), count) for text, count in found], *whole))
        complete.sort(key=lambda step: step.flops)
        return {component: [*of.values()] for component, of in parts.items()}, complete

    layers = (("block",), ("attention", "ffn"))
    best = max(map(collect, layers), key=lambda of: len({step.name.size for step in of[1]}))
    if not best[1]:
        # the fewest parts that would have to be measured too
        names = {text: case.name for text, case in known.items()}
        lacking = [_part_names(step, names)[1] for step in steps]
        words = f"no part of a {variant} step of a named size was measured in {dtype}"
        if lacking:
            words = f"not measured: {', '.join(min(lacking, key=len))}"
        raise RatesRefusedError(
            f"{words}; measure embedding, attention, ffn, rms_norm, loss, optimizer and full_step "
            "of one size"
        )
    return best


# Four projections of attention, three of the feed-forward network and two norms; the embedding, the
# final norm and the LM head (model/).
WEIGHTS_A_LAYER, WEIGHTS_BESIDE = 9, 3


def drivers_of(tokens: int | Array, layers: int | Array) -> Array:
    """What operators are proportional to: nothing, weight tensors, B S."""
    return np.stack([np.ones_like(tokens), WEIGHTS_A_LAYER * layers + WEIGHTS_BESIDE, tokens], -1)


def operator_rule(component: str, operators: Array, tokens: Array, layers: Array) -> Array:
    """Operators of an iteration for each of drivers_of, from the counts of a component's cells.

    A part is one layer's or stands alone, so its count is that of the measured sizes, but for parts
    that work in chunks of tokens; and for an optimizer that starts some operators for every weight
    tensor. At a single number of layers an optimizer with at least one operator a weight is taken
    to have so many for each, and one with fewer to serve all weights at once.
    """
    place = 1 if component == OPTIMIZER else 2
    driver = drivers_of(tokens, layers)[:, place].astype(float)
    rule, middle = np.zeros(3), float(np.median(operators))
    if np.ptp(driver) == 0 or (np.ptp(operators) == 0 and component != OPTIMIZER):
        is_a_weight = component == OPTIMIZER and middle >= driver[0]
        rule[place if is_a_weight else 0] = middle / driver[0] if is_a_weight else middle
        return rule
    columns = np.column_stack((np.ones_like(driver), driver / driver.max()))
    least = np.maximum(operators, 1.0)
    rule[[0, place]] = nnls(columns / least[:, None], operators / least)[0] / (1, driver.max())
    return rule


# Operator by operator, tensors are moved a few times as often as the least; but each by itself fits
# into the cache, so that only the first read and the last write of a chain of operators are the
# memory's. What goes beyond is elementwise work. Without this bound, cells in the cache put other
# costs that grow with tokens here, and a size beyond the cache would pay for those at the memory's
# bandwidth: the update of medium came out 2.4 times too slow with a bound of 5.
MOST_TRAFFIC = 2.0
# A relative error of 5 % in one cell weighs as much as a share of time 25 points from that of all
# parts together: enough to decide between terms that the cells cannot tell apart, and no more.
SPLIT_WEIGHT = 0.05 / 0.25


def _solve(rows: Array, targets: Array, least: Array, shares: Array, weight: float) -> Array:
    """Coefficients with rows x coefficients = targets and, with `weight`, coefficients x scale =
    `shares`, each at least `least`, that of traffic at most MOST_TRAFFIC."""
    scale = np.abs(rows).mean(axis=0)
    scale[scale == 0] = 1.0
    # the unknowns are shares of time
    system = np.vstack((rows / scale, weight * np.eye(len(scale))))
    most = np.array([math.inf, math.inf, math.inf, MOST_TRAFFIC])
    bounds = (least * scale, most * scale)
    wanted = np.concatenate((targets, weight * shares))
    return lsq_linear(system, wanted, bounds, method="bvls").x / scale


def fit_terms(cells: Mapping[str, tuple[Array, Array]], peak: float | None) -> dict[str, Array]:
    """Seconds per operator, FLOP, elementwise FLOP and second of least traffic, by part.

    `cells`: of each part the amounts [cells, terms] and the seconds [cells], all of the latter
    above 0. `peak`: FLOP/s that no product beats, None where it was not measured.
    """
    nothing = np.zeros(4)
    least = np.array([0.0, 1.0 / peak if peak else 0.0, 0.0, 0.0])
    relative = {part: amounts / seconds[:, None] for part, (amounts, seconds) in cells.items()}
    # each part counts the same, however many cells it has
    weights = [np.full(len(rows), 1.0 / np.sqrt(len(rows))) for rows in relative.values()]
    targets = np.concatenate(weights)
    rows = np.vstack([*relative.values()]) * targets[:, None]
    together = np.maximum(_solve(rows, targets, nothing, nothing, 0.0), least)
    found = {}
    for part, rows in relative.items():
        shares = together * rows.mean(axis=0)
        shares = shares / (shares.sum() or 1.0)
        found[part] = _solve(rows, np.ones(len(rows)), least, shares, SPLIT_WEIGHT)
    return found


@dataclass(frozen=True)
class PartRate:
    """`coefficients`: as of fit_terms; `operators`: as of operator_rule. `cells`: how many they
    were fitted to. `flops_per_second`: that products attain without what goes beside them; None for
    a part without products."""

    coefficients: Array
    operators: Array
    cells: int
    flops_per_second: float | None

    def seconds(self, work: Work) -> float:
        """Of one iteration, never less than the roofline allows for the traffic."""
        amounts = work.amounts.copy()
        amounts[LAUNCH] = self.operators @ drivers_of(work.tokens, _layers()[work.name.size])
        return max(float(self.coefficients @ amounts), float(amounts[TRAFFIC]))


def _part_rates(cells: Cells, machine: Machine, dtype: str) -> dict[str, PartRate]:
    systems = {
        component: (np.array([c.amounts for c in of]), np.array([c.seconds for c in of]))
        for component, of in cells.items()
    }
    rates = {}
    peak = machine.peak_flops.get(product_type(dtype))
    for component, coefficients in fit_terms(systems, peak).items():
        amounts, of = systems[component][0], cells[component]
        tokens, layers = np.array([(c.tokens, _layers()[c.name.size]) for c in of]).T
        rule = operator_rule(component, amounts[:, LAUNCH], tokens, layers)
        cost = float(coefficients[PRODUCTS])
        attained = 1 / cost if cost > 0 and amounts[:, PRODUCTS].any() else None
        rates[component] = PartRate(coefficients, rule, len(of), attained)
    return rates


# Of the logarithm, where fewer than two steps were measured.
ASSUMED_SCATTER = 0.1


class Closure(NamedTuple):
    """Measured step over the sum of its measured parts, of the large steps of each size: small
    ones wait for launches, which parts measured by themselves do as well or do not.

    `ratios`: FLOPs a token and the median ratio of each size, empty where it is assumed to be 1;
    `scatter`: standard deviation of the logarithm around these, and no less than what lies between
    the sizes.
    """

    ratios: Sequence[tuple[float, float]]
    scatter: float

    def ratio_at(self, flops_a_token: float) -> float:
        """Of the size that is nearest in FLOPs a token."""
        by_distance = ((abs(math.log(a / flops_a_token)), ratio) for a, ratio in self.ratios)
        return min(by_distance, default=(0.0, 1.0))[1]


def closure_of(steps: Iterable[Step]) -> Closure:
    """Of those steps that were measured themselves."""
    ratios, medians, around = [], [], []
    for found in large_steps(step for step in steps if step.seconds is not None).values():
        logarithms = [math.log(step.seconds / step.parts_seconds) for step in found]
        medians.append(statistics.median(logarithms))
        around += [value - medians[-1] for value in logarithms]
        a_token = statistics.median(step.flops_a_token for step in found)
        ratios.append((a_token, math.exp(medians[-1])))
    if len(around) < 2:
        return Closure(ratios, ASSUMED_SCATTER)
    # what changes from size to size may go on changing
    return Closure(ratios, max(statistics.stdev(around), max(medians) - min(medians)))


def distance(step: Step, calibrated: Sequence[Step]) -> float:
    """How far a step lies beyond these, 0 inside: in FLOPs a token of all, in tokens of the large.

    Few tokens of a large model make no small step, so they count only as far as the step has
    less to do than any large calibrated one.
    """

    def beyond(value: float, end: float) -> float:
        return max(math.log(value / end), 0.0)

    large = [one for found in large_steps(calibrated).values() for one in found]
    a_token, tokens = [one.flops_a_token for one in calibrated], [one.tokens for one in large]
    least = min(one.flops for one in large)
    return (
        beyond(step.flops_a_token, max(a_token))
        + beyond(min(a_token), step.flops_a_token)
        + beyond(step.tokens, max(tokens))
        + min(beyond(min(tokens), step.tokens), beyond(least, step.flops))
    )


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


@dataclass(frozen=True)
class Spread:
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
    errors = float(np.mean([h.error**2 for h in held_out])) if held_out else 0.0
    distances = float(np.mean([h.distance**2 for h in held_out])) if held_out else 0.0
    squares, degrees = ASSUMED_DEGREES * ASSUMED_GROWTH**2, ASSUMED_DEGREES
    if distances < LEAST_DISTANCE**2:
        base, held_out = max(base, math.sqrt(errors)), ()
    else:
        others = len({held.size for held in held_out}) - 1
        squares += others * max(errors - base**2, 0.0) / distances
        degrees += others
    growth = max(math.sqrt(squares / degrees), base / math.log(10.0))
    return Spread(base, growth, float(stdtrit(degrees, (1 + COVERAGE) / 2)), held_out)


# Blocks are rounded, so that even a formula which met every step is no better than this.
LEAST_MISFIT = 0.001
MEASURED, PREDICTED = "peak_memory_MiB", "predicted_memory_MiB"


@dataclass(frozen=True)
class MemoryOverhead:
    """What a step's measured peak memory has beyond the cost formulas: fixed_bytes + share x what
    they say, neither below 0: scratch memory of libraries, and an allocator's rounding.

    `least`, `most`: measured memory over what this says, the largest misfits (LEAST_MISFIT or
    beyond). With several sizes each is predicted from the others. `steps`: how many it was
    measured on; with none nothing is assumed.
    """

    fixed_bytes: float = 0.0
    share: float = 0.0
    least: float = 1.0
    most: float = 1.0
    steps: int = 0

    def range(self, predicted_bytes: float) -> tuple[float, float, float]:
        """The peak of a step from what the formulas say, and as far off as the worst measured step
        was: no statement of probability."""
        peak = self.fixed_bytes + (1.0 + self.share) * predicted_bytes
        return peak, self.least * peak, self.most * peak


def _fit_overhead(predicted: Array, measured: Array) -> tuple[float, float]:
    """Fixed bytes and share by least squares of relative errors, neither below 0."""
    inverse = predicted.min() / predicted
    columns = np.column_stack((np.ones_like(inverse), inverse))
    # a single size of step, or sizes that are alike, cannot tell the two apart
    if np.ptp(inverse) < 1e-6:
        columns = columns[:, :1]
    share, *fixed = nnls(columns, measured / predicted - 1.0)[0]
    return float(sum(fixed) * predicted.min()), float(share)


def memory_overhead(cases: Iterable[MeasuredCase]) -> MemoryOverhead:
    """Of the training steps among them that have both figures."""
    steps = [
        (case.counters[PREDICTED] * MIB, case.counters[MEASURED] * MIB, case.name.size)
        for case in cases
        if case.name.is_training_step
        and all(case.counters.get(key, 0.0) > 0 for key in (PREDICTED, MEASURED))
    ]
    if not steps:
        return MemoryOverhead()
    predicted, measured = np.array([step[:2] for step in steps]).T
    of_size = np.array([step[2] for step in steps])
    fixed, share = _fit_overhead(predicted, measured)
    misfits = [1 - LEAST_MISFIT, 1 + LEAST_MISFIT, *measured / (fixed + (1 + share) * predicted)]
    for size in set(of_size) if len(set(of_size)) > 1 else ():
        own = of_size == size
        by_fixed, by_share = _fit_overhead(predicted[~own], measured[~own])
        misfits += [*measured[own] / (by_fixed + (1 + by_share) * predicted[own])]
    return MemoryOverhead(fixed, share, float(min(misfits)), float(max(misfits)), len(steps))


@dataclass(frozen=True)
class Rates:
    """`parts`: by component. `steps`: the complete ones, in the order of FLOPs."""

    dtype: str
    variant: str
    machine: Machine
    parts: Mapping[str, PartRate]
    steps: Sequence[Step]
    closure: Closure
    spread: Spread = Spread(0.0, 0.0, 0.0)
    memory: MemoryOverhead = MemoryOverhead()

    @property
    def sizes(self) -> tuple[str, ...]:
        """Of the steps."""
        return tuple(dict.fromkeys(step.name.size for step in self.steps))

    def part_seconds(self, step: Step) -> dict[str, float]:
        """Of each component, all its occurrences together."""
        return {
            part.name.component: count * self.parts[part.name.component].seconds(part)
            for part, count in step.parts
        }

    def error(self, step: Step) -> float:
        """Logarithm of fitted over measured, of the step or else of its parts together."""
        fitted = sum(self.part_seconds(step).values())
        if step.seconds is None:
            return math.log(fitted / step.parts_seconds)
        return math.log(fitted * self.closure.ratio_at(step.flops_a_token) / step.seconds)

    def basis(self) -> str:
        """What predictions rest on, in words."""
        attained = ", ".join(
            f"{component} {part.flops_per_second / 1e9:.3g} GFLOP/s"
            for component, part in self.parts.items()
            if part.flops_per_second is not None
        )
        launch = statistics.median(float(p.coefficients[LAUNCH]) for p in self.parts.values())
        by_size: dict[str, list[float]] = {}
        for held in self.spread.held_out:
            by_size.setdefault(held.size, []).append(held.error)
        held = [
            f"{size} from the others {100 * math.expm1(statistics.median(errors)):+.1f} %"
            for size, errors in by_size.items()
        ]
        memory = self.memory
        return (
            f"rates of {sum(part.cells for part in self.parts.values())} cells of "
            f"{', '.join(self.sizes)} ({self.dtype}, {self.variant}): {attained}, "
            f"{1e6 * launch:.2g} us an operator; {self.spread.words} from "
            f"{', '.join(held) or 'one size alone'} and an assumed 20 % a factor of 10 in FLOPs; "
            f"memory of {memory.steps} steps: {memory.fixed_bytes / MIB:.1f} MiB + "
            f"{100 * memory.share:.2f} % beyond the formulas, misfits "
            f"{100 * (memory.least - 1):+.2f} % to {100 * (memory.most - 1):+.2f} %"
        )


def calibrate_rates(results: ResultSet, dtype: str, variant: str) -> Rates:
    """Rates of every part of a training step. RatesRefusedError where a part or a bandwidth was not
    measured."""
    try:
        machine = Machine.from_context(results.context)
        cells, steps = _collect(results, dtype, variant, machine)
    except BadInputError as error:
        raise RatesRefusedError(str(error)) from error

    def rates_of(cells: Cells, steps: Sequence[Step]) -> Rates:
        parts = _part_rates(cells, machine, dtype)
        return Rates(dtype, variant, machine, parts, steps, closure_of(steps))

    rates, by_size, held_out = rates_of(cells, steps), large_steps(steps), []
    # the steps of each size, from the other sizes alone
    for size, large in by_size.items() if len(by_size) > 1 else ():
        kept = {name: [c for c in of if c.name.size != size] for name, of in cells.items()}
        rest = [step for step in steps if step.name.size != size]
        others = rates_of({name: of for name, of in kept.items() if of}, rest)
        for step in large:
            if all(part.name.component in others.parts for part, _ in step.parts):
                held_out.append(HeldOutStep(size, others.error(step), distance(step, rest)))
    # of large steps, as the closure is: what is predicted is no step that waits for launches
    errors = [rates.error(step) for large in by_size.values() for step in large]
    scatter = math.sqrt(statistics.fmean(error**2 for error in errors))
    spread = spread_of(max(scatter, rates.closure.scatter), held_out)
    alike = (
        c for c in results.cases.values() if (c.name.dtype, c.name.variant) == (dtype, variant)
    )
    return replace(rates, spread=spread, memory=memory_overhead(alike))


@dataclass(frozen=True)
class StepPrediction:
    """`low` to `high`: the range of `seconds`, which `range_words` names: `95 % interval`, or
    `assumed range` (as above). `memory_bytes`: the peak, within `memory_low` to `memory_high` by
    the largest misfits that were measured. `parts`: seconds of each component, all its occurrences
    together; their sum times `step_over_parts` is `seconds`. `basis`: what it rests on."""

    name: CaseName
    seconds: float
    low: float
    high: float
    memory_bytes: float
    memory_low: float
    memory_high: float
    parts: Mapping[str, float]
    step_over_parts: float
    range_words: str
    basis: str


def predict_steps(
    rates: Rates, costs: Sequence[CaseCost]
) -> tuple[list[StepPrediction], list[LeftOut]]:
    """Of every training step of the rates' dtype and variant among the costs, as far as the costs
    of its parts are there too; and the other steps, with the reason."""
    by_name = {str(cost.name): cost for cost in costs}
    # only parts with rates can make up a step
    names = {t: cost.name for t, cost in by_name.items() if cost.name.component in rates.parts}

    def predict(cost: CaseCost) -> StepPrediction:
        found, missing = _part_names(cost.name, names)
        if missing:
            raise RatesRefusedError(
                f"{cost.name}: no cost or no rate of {', '.join(missing)}; ask --dry-run for all "
                "components, and measure those parts at a size that fits"
            )
        parts = [(Work.of_cost(by_name[text], rates.machine), count) for text, count in found]
        step = Step(cost.name, parts, None, cost.model_flops)
        seconds, ratio = rates.part_seconds(step), rates.closure.ratio_at(step.flops_a_token)
        whole = ratio * sum(seconds.values())
        factor = rates.spread.factor(distance(step, rates.steps))
        ranges = (
            *(whole, whole / factor, whole * factor),
            *rates.memory.range(cost.predicted_memory_bytes),
        )
        return StepPrediction(cost.name, *ranges, seconds, ratio, rates.spread.words, basis)

    basis = rates.basis()
    predicted, refused = [], []
    for text, cost in by_name.items():
        of = cost.name
        if of.is_training_step and (of.dtype, of.variant) == (rates.dtype, rates.variant):
            try:
                predicted.append(predict(cost))
            except (RatesRefusedError, BadInputError) as error:
                refused.append(LeftOut(text, str(error), is_failure=False))
    return predicted, refused


@dataclass(frozen=True)
class PredictionCheck:
    """A prediction against what was measured later: percent of the measured value, above 0 where
    too much was predicted. `memory_percent_off`: None where memory was not measured, and so is
    `is_memory_inside`."""

    percent_off: float
    is_inside: bool
    memory_percent_off: float | None = None
    is_memory_inside: bool | None = None


def check_against(prediction: StepPrediction, measured: MeasuredCase) -> PredictionCheck:
    """`measured`: the same step."""
    seconds, memory = measured.median_seconds, MIB * measured.counters.get(MEASURED, 0.0)
    percent = 100 * (prediction.seconds / seconds - 1)
    is_inside = prediction.low <= seconds <= prediction.high
    if memory <= 0:
        return PredictionCheck(percent, is_inside)
    off = 100 * (prediction.memory_bytes / memory - 1)
    fits = prediction.memory_low <= memory <= prediction.memory_high
    return PredictionCheck(percent, is_inside, off, fits)
