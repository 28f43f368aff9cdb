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
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import STEP, TRAIN, CaseName, LeftOut, parse_case_name, parts_of

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import MeasuredCase, ResultSet

Array = np.ndarray
MIB = 2**20
OPTIMIZER = "optimizer"


class RatesRefusedError(ValueError):
    """What was measured does not support it; the message names what is missing and what to do."""


class Figures(NamedTuple):
    """Of one iteration, by the suite's formulas (model/cost.hpp). `hardware_flops`: the products
    that the variant really runs."""

    parameters: float
    model_flops: float
    hardware_flops: float
    elementwise_flops: float
    bytes: float


@dataclass(frozen=True)
class Cell:
    """A measured case of a part: seconds and operators of an iteration."""

    name: CaseName
    seconds: float
    figures: Figures
    operators: float
    layers: int

    @property
    def tokens(self) -> int:
        """B S."""
        return self.name.batch * self.name.seq


@dataclass(frozen=True)
class StepCell:
    """A step all of whose parts were measured; `seconds`: of the step itself, None where only its
    parts were."""

    name: CaseName
    seconds: float | None
    parts: tuple[tuple[Cell, int], ...]

    @property
    def flops(self) -> float:
        """model_flops of the step, which are those of its parts."""
        return sum(count * cell.figures.model_flops for cell, count in self.parts)

    @property
    def tokens(self) -> int:
        """B S."""
        return self.name.batch * self.name.seq

    @property
    def log_ratio(self) -> float:
        """Logarithm of the measured step over the sum of its measured parts."""
        return math.log((self.seconds or 0.0) / sum(n * cell.seconds for cell, n in self.parts))


@dataclass(frozen=True)
class Cells:
    """`parts`: by component, those that the steps are made of; `steps` in the order of FLOPs."""

    parts: Mapping[str, Sequence[Cell]]
    steps: Sequence[StepCell]

    @property
    def sizes(self) -> tuple[str, ...]:
        """Of the complete steps, in the order of FLOPs."""
        return tuple(dict.fromkeys(step.name.size for step in self.steps))

    def without(self, size: str) -> Cells:
        """As if that had not been measured."""
        kept = {n: [c for c in cells if c.name.size != size] for n, cells in self.parts.items()}
        steps = [step for step in self.steps if step.name.size != size]
        return Cells({name: cells for name, cells in kept.items() if cells}, steps)


def large_steps(steps: Iterable[StepCell]) -> dict[str, list[StepCell]]:
    """By size: those of at least half its largest B S."""
    by_size: dict[str, list[StepCell]] = {}
    for step in steps:
        by_size.setdefault(step.name.size, []).append(step)
    most = {size: max(step.tokens for step in found) for size, found in by_size.items()}
    return {
        size: [step for step in found if 2 * step.tokens >= most[size]]
        for size, found in by_size.items()
    }


# embedding + L x layer + final norm + LM head are all parameters of a size (model/cost.cpp)
ONCE = ("embedding", "loss", "rms_norm")
LAYERS: tuple[Mapping[str, int], ...] = ({"block": 1}, {"attention": 1, "ffn": 1, "rms_norm": 2})
WHOLES = (OPTIMIZER, STEP, "model")


def layers_of(size: str, parameters: Mapping[str, float]) -> int | None:
    """`parameters`: by component. None where too few components are there to tell.

    RatesRefusedError where they do not add up, which two different sizes under one name do not.
    """
    whole = next((parameters[name] for name in WHOLES if name in parameters), None)
    layer = next((counts for counts in LAYERS if counts.keys() <= parameters.keys()), None)
    if whole is None or layer is None or not parameters.keys() >= set(ONCE):
        return None
    rest = whole - sum(parameters[name] for name in ONCE)
    one = sum(count * parameters[name] for name, count in layer.items())
    layers = round(rest / one)
    if layers < 1 or layers * one != rest:
        raise RatesRefusedError(
            f"size '{size}': {whole:.0f} parameters are no whole number of layers of {one:.0f}; "
            "two different models under one name cannot be predicted from"
        )
    return layers


def layer_counts(parameters: Mapping[tuple[str, str], float]) -> dict[str, int]:
    """Layers by size. `parameters`: by (size, component); sizes that cannot be told are left out.

    RatesRefusedError as layers_of.
    """
    by_size: dict[str, dict[str, float]] = {}
    for (size, component), value in parameters.items():
        by_size.setdefault(size, {})[component] = value
    found = {size: layers_of(size, known) for size, known in by_size.items()}
    return {size: layers for size, layers in found.items() if layers is not None}


def _checked(value: float, name: object, key: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise RatesRefusedError(
            f"{name}: {key} is {value}, must be a finite number of 0 or more; measure again"
        )
    return float(value)


def _seconds_of(case: MeasuredCase) -> float:
    seconds = _checked(case.median_seconds, case.name, "time")
    if seconds == 0:
        raise RatesRefusedError(f"{case.name}: its time is 0 s; measure again")
    return seconds


def _cell(case: MeasuredCase, cost: CaseCost | None, layers: int) -> Cell:
    """`cost` where the row lacks a counter of the formulas.

    RatesRefusedError naming the counter that neither has, or that is not finite.
    """

    def figure(key: str) -> float:
        value = case.counters.get(key, getattr(cost, key, None))
        if value is None:
            raise RatesRefusedError(
                f"{case.name}: the row has no counter {key}; measure again with this version"
            )
        return _checked(value, case.name, key)

    seconds, operators = _seconds_of(case), figure("operators")
    return Cell(case.name, seconds, Figures(*map(figure, Figures._fields)), operators, layers)


def part_names(
    step: CaseName, layers: int, known: Collection[str]
) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """By component: the case's name among the known ones and how often the step contains it; and
    the names that are not known.

    An optimizer does the same at every batch and sequence, so any of its size's will do.
    """
    parts = parts_of(step, layers, known)
    found = {part.case.split("/", 1)[0]: (part.case, part.count) for part in parts.measured}
    missing = []
    for text in parts.missing:
        wanted = parse_case_name(text)
        alike = (parse_case_name(n) for n in sorted(known) if n.startswith(OPTIMIZER))
        others = (n for n in alike if n and wanted and wanted.component == OPTIMIZER)
        shape = {"batch": step.batch, "seq": step.seq}
        other = next((n for n in others if replace(n, **shape) == replace(wanted, **shape)), None)
        if other is None:
            missing.append(text)
        else:
            found[OPTIMIZER] = (str(other), 1)
    return found, missing


def collect_cells(
    cases: Mapping[str, MeasuredCase], costs: Mapping[str, CaseCost], dtype: str, variant: str
) -> Cells:
    """Of one dtype and variant. `cases`, `costs`: by name.

    Layers are described by attention, ffn and norms, or by block where that was measured at more
    sizes. RatesRefusedError naming a part that no step can do without and nobody measured, and a
    figure that is not finite.
    """
    parameters = {(c.name.size, c.name.component): float(c.parameters) for c in costs.values()}
    for case in cases.values():
        if "parameters" in case.counters:
            parameters[case.name.size, case.name.component] = case.counters["parameters"]
    # where a size's layers cannot be told, some part was neither measured nor asked for
    layers = layer_counts(parameters)
    known = {text: case for text, case in cases.items() if case.name.dtype == dtype}
    names = [case.name for case in known.values() if case.name.size in layers]
    steps = [
        CaseName(STEP, TRAIN, variant, size, dtype, batch, seq)
        for size, batch, seq in sorted({(name.size, name.batch, name.seq) for name in names})
    ]

    @cache
    def cell(name: str) -> Cell:
        return _cell(known[name], costs.get(name), layers[known[name].name.size])

    def collect(hidden: Collection[str]) -> Cells:
        seen = {name for name in known if name.split("/", 1)[0] not in hidden}
        parts: dict[str, dict[str, Cell]] = {}
        complete = []
        for step in steps:
            found, missing = part_names(step, layers[step.size], seen)
            for component, (name, _) in found.items():
                parts.setdefault(component, {})[name] = cell(name)
            if not missing:
                case = known.get(str(step))
                pairs = tuple((cell(name), count) for name, count in found.values())
                complete.append(StepCell(step, _seconds_of(case) if case else None, pairs))
        complete.sort(key=lambda step: step.flops)
        return Cells({component: [*of.values()] for component, of in parts.items()}, complete)

    best = max(map(collect, (("block",), ("attention", "ffn"))), key=lambda of: len(of.sizes))
    if not best.steps:
        # the fewest parts that would have to be measured too
        lacking = [part_names(step, layers[step.size], known)[1] for step in steps]
        words = f"no part of a {variant} step was measured in {dtype}"
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


class OperatorRule(NamedTuple):
    """operators = fixed + a_weight x weight tensors + a_token x B S, of a size that was not run."""

    fixed: float
    a_weight: float = 0.0
    a_token: float = 0.0

    def at(self, tokens: int, layers: int) -> float:
        """Of one iteration."""
        weights = WEIGHTS_A_LAYER * layers + WEIGHTS_BESIDE
        return self.fixed + self.a_weight * weights + self.a_token * tokens


def operator_rule(
    component: str, operators: Sequence[float], tokens: Sequence[int], layers: Sequence[int]
) -> OperatorRule:
    """From the counts of a component's cells, at least one.

    A part is one layer's or stands alone, so its count is that of the measured sizes, but for parts
    that work in chunks of tokens; and for an optimizer that starts some operators for every weight
    tensor. At a single number of layers an optimizer with at least one operator a weight is taken
    to have so many for each, and one with fewer to serve all weights at once.
    """
    counts = np.array(operators, dtype=float)
    middle = float(np.median(counts))
    weights = WEIGHTS_A_LAYER * np.array(layers, dtype=float) + WEIGHTS_BESIDE
    drivers = weights if component == OPTIMIZER else np.array(tokens, dtype=float)
    if np.ptp(drivers) == 0 or (np.ptp(counts) == 0 and component != OPTIMIZER):
        if component == OPTIMIZER and middle >= weights[0]:
            return OperatorRule(0.0, a_weight=middle / float(weights[0]))
        return OperatorRule(middle)
    columns = np.column_stack((np.ones_like(drivers), drivers / drivers.max()))
    least = np.maximum(counts, 1.0)
    (fixed, slope), _ = nnls(columns / least[:, None], counts / least)
    slope = float(slope / drivers.max())
    return OperatorRule(float(fixed), **{"a_weight" if drivers is weights else "a_token": slope})


LAUNCH, PRODUCTS, ELEMENTWISE, TRAFFIC = range(4)
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
    # the unknowns are what goes beyond the least, as shares of time
    system = np.vstack((rows / scale, weight * np.eye(len(scale))))
    wanted = weight * (shares - least * scale)
    solution, _ = nnls(system, np.concatenate((targets - rows @ least, wanted)))
    found = least + solution / scale
    if len(found) <= TRAFFIC or found[TRAFFIC] <= MOST_TRAFFIC:
        return found
    # least squares are convex: the best within a bound that the free best breaks is on it
    rest, kept = targets - MOST_TRAFFIC * rows[:, TRAFFIC], slice(TRAFFIC)
    others = _solve(rows[:, kept], rest, least[kept], shares[kept], weight)
    return np.append(others, MOST_TRAFFIC)


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


def _amounts(figures: Figures, operators: float, machine: Machine) -> tuple[float, ...]:
    traffic = machine.traffic_seconds(figures.bytes)
    return operators, figures.hardware_flops, figures.elementwise_flops, traffic


@dataclass(frozen=True)
class PartRate:
    """`coefficients`: as of fit_terms. `cells`: how many it was fitted to."""

    coefficients: tuple[float, ...]
    operators: OperatorRule
    has_products: bool
    cells: int

    @property
    def launch_seconds(self) -> float:
        """Per operator."""
        return self.coefficients[LAUNCH]

    @property
    def flops_per_second(self) -> float | None:
        """That products attain without what goes beside them; None for a part without products."""
        cost = self.coefficients[PRODUCTS]
        return 1.0 / cost if self.has_products and cost > 0 else None

    def seconds(self, figures: Figures, tokens: int, layers: int, machine: Machine) -> float:
        """Of one iteration, never less than the roofline allows for the traffic."""
        amounts = _amounts(figures, self.operators.at(tokens, layers), machine)
        fitted = sum(c * amount for c, amount in zip(self.coefficients, amounts, strict=True))
        return max(fitted, amounts[TRAFFIC])


def _part_rates(cells: Cells, machine: Machine, dtype: str) -> dict[str, PartRate]:
    systems = {
        component: (
            np.array([_amounts(c.figures, c.operators, machine) for c in of]),
            np.array([c.seconds for c in of]),
        )
        for component, of in cells.parts.items()
    }
    rates = {}
    for component, coefficients in fit_terms(
        systems, machine.peak_flops.get(product_type(dtype))
    ).items():
        of = cells.parts[component]
        rule = operator_rule(
            component, [c.operators for c in of], [c.tokens for c in of], [c.layers for c in of]
        )
        has_products = any(c.figures.hardware_flops > 0 for c in of)
        rates[component] = PartRate(tuple(map(float, coefficients)), rule, has_products, len(of))
    return rates


# Of the logarithm, where fewer than two steps were measured.
ASSUMED_SCATTER = 0.1


@dataclass(frozen=True)
class Closure:
    """Measured step over the sum of its measured parts, of the large steps of each size: small
    ones wait for launches, which parts measured by themselves do as well or do not.

    `ratios`: FLOPs a token and the median ratio of each size, empty where it is assumed to be 1;
    `scatter`: standard deviation of the logarithm around these, and no less than what lies between
    the sizes; `steps`: how many say so.
    """

    ratios: tuple[tuple[float, float], ...]
    scatter: float
    steps: int

    def ratio_at(self, flops_a_token: float) -> float:
        """Of the size that is nearest in FLOPs a token."""
        assumed = (flops_a_token, 1.0)
        return min(
            self.ratios, key=lambda of: abs(math.log(of[0] / flops_a_token)), default=assumed
        )[1]


def closure_of(steps: Sequence[StepCell]) -> Closure:
    """Of those steps that were measured themselves."""
    ratios, medians, around = [], [], []
    for found in large_steps(step for step in steps if step.seconds is not None).values():
        logarithms = [step.log_ratio for step in found]
        medians.append(statistics.median(logarithms))
        around += [value - medians[-1] for value in logarithms]
        a_token = statistics.median(step.flops / step.tokens for step in found)
        ratios.append((a_token, math.exp(medians[-1])))
    if len(around) < 2:
        return Closure(tuple(ratios), ASSUMED_SCATTER, len(around))
    # what changes from size to size may go on changing
    scatter = max(statistics.stdev(around), max(medians) - min(medians))
    return Closure(tuple(ratios), scatter, len(around))


COVERAGE = 0.95
# Off by 20 % for each factor of 10 in FLOPs: about twice what tiny and small, predicted from each
# other, show on the reference machine.
ASSUMED_OFF = 1.2
ASSUMED_GROWTH = math.log(ASSUMED_OFF) / math.log(10.0)
ASSUMED_DEGREES = 3
# Sizes less than 10 % apart do not show how errors grow with size.
LEAST_DISTANCE = 0.1


@dataclass(frozen=True)
class HeldOutStep:
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
    held_out: tuple[HeldOutStep, ...] = ()

    @property
    def words(self) -> str:
        """What the range may be called."""
        return f"{100 * COVERAGE:.0f} % interval" if self.held_out else "assumed range"

    def factor(self, distance: float) -> float:
        """The range goes from the prediction over this to the prediction times this."""
        return math.exp(self.quantile * math.hypot(self.base, self.growth * distance))


@dataclass(frozen=True)
class CalibratedRange:
    """Smallest and largest of what the large calibrated steps have: FLOPs a token (of all steps),
    tokens, and `least_flops` of the whole step."""

    flops_a_token: tuple[float, float]
    tokens: tuple[float, float]
    least_flops: float

    def distance(self, flops: float, tokens: float) -> float:
        """Of a step, 0 inside; `flops` are model_flops.

        Few tokens of a large model make no small step, so they count only as far as the step has
        less to do than any large calibrated one.
        """

        def beyond(value: float, end: float) -> float:
            return max(math.log(value / end), 0.0)

        a_token, (least, most) = flops / tokens, self.flops_a_token
        smaller = min(beyond(self.tokens[0], tokens), beyond(self.least_flops, flops))
        larger = beyond(a_token, most) + beyond(least, a_token) + beyond(tokens, self.tokens[1])
        return larger + smaller


def _range_of(steps: Sequence[StepCell]) -> CalibratedRange:
    a_token = [step.flops / step.tokens for step in steps]
    large = [step for found in large_steps(steps).values() for step in found]
    tokens = [step.tokens for step in large]
    least = min(step.flops for step in large)
    return CalibratedRange((min(a_token), max(a_token)), (min(tokens), max(tokens)), least)


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
    quantile = float(student.ppf((1 + COVERAGE) / 2, degrees))
    return Spread(base, growth, quantile, tuple(held_out))


# Blocks are rounded, so that even a formula which met every step is no better than this.
LEAST_MISFIT = 0.001
MEASURED, PREDICTED = "peak_memory_MiB", "predicted_memory_MiB"


@dataclass(frozen=True)
class MemoryOverhead:
    """What a step's measured peak memory has beyond the cost formulas: fixed_bytes + share x what
    they say, neither below 0: scratch memory of libraries, and an allocator's rounding.

    `least`, `most`: measured memory over what this says, the largest misfits (LEAST_MISFIT or
    beyond). With several sizes each is predicted from the others. `steps`, `sizes`: what it was
    measured on; with no step nothing is known and none is assumed.
    """

    fixed_bytes: float = 0.0
    share: float = 0.0
    least: float = 1.0
    most: float = 1.0
    steps: int = 0
    sizes: tuple[str, ...] = ()

    def peak_bytes(self, predicted_bytes: float) -> float:
        """Of a step, from what the formulas say."""
        return self.fixed_bytes + (1.0 + self.share) * predicted_bytes

    def interval(self, predicted_bytes: float) -> tuple[float, float]:
        """As far off as the worst measured step was: no statement of probability."""
        peak = self.peak_bytes(predicted_bytes)
        return self.least * peak, self.most * peak

    def in_words(self) -> str:
        """`measured on 32 steps of tiny and small: 0.1 MiB + 0.02 % beyond the formulas, ...`."""
        if not self.steps:
            return "not measured, so none is assumed"
        steps = f"{self.steps} step{'s' if self.steps > 1 else ''} of {', '.join(self.sizes)}"
        return (
            f"measured on {steps}: {self.fixed_bytes / MIB:.1f} MiB + {100 * self.share:.2f} % "
            f"beyond the formulas, within {100 * (self.least - 1):+.2f} % to "
            f"{100 * (self.most - 1):+.2f} % of it by the largest misfits"
        )


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
    steps = []
    for case in cases:
        said, had = (case.counters.get(key, math.nan) for key in (PREDICTED, MEASURED))
        if case.name.is_training_step and 0 < said < math.inf and 0 < had < math.inf:
            steps.append((said * MIB, had * MIB, case.name.size))
    if not steps:
        return MemoryOverhead()
    steps.sort(key=lambda step: step[0])
    predicted, measured = np.array([step[:2] for step in steps]).T
    of_size = np.array([step[2] for step in steps])
    sizes = tuple(dict.fromkeys(step[2] for step in steps))
    fixed, share = _fit_overhead(predicted, measured)
    misfits = [1 - LEAST_MISFIT, 1 + LEAST_MISFIT, *measured / (fixed + (1 + share) * predicted)]
    for size in sizes if len(sizes) > 1 else ():
        own = of_size == size
        by_fixed, by_share = _fit_overhead(predicted[~own], measured[~own])
        misfits += [*measured[own] / (by_fixed + (1 + by_share) * predicted[own])]
    least, most = float(min(misfits)), float(max(misfits))
    return MemoryOverhead(fixed, share, least, most, len(steps), sizes)


@dataclass(frozen=True)
class Rates:
    """`parts`: by component. `steps`: how many complete steps of `sizes` the closure, the range
    and the spread come from."""

    dtype: str
    variant: str
    machine: Machine
    parts: Mapping[str, PartRate]
    closure: Closure
    spread: Spread
    range: CalibratedRange
    memory: MemoryOverhead
    sizes: tuple[str, ...]
    steps: int


def _errors(
    parts: Mapping[str, PartRate],
    closure: Closure,
    steps: Iterable[StepCell],
    machine: Machine,
) -> list[tuple[StepCell, float]]:
    """Logarithm of fitted over measured of each step all of whose parts have a rate."""
    found = []
    for step in steps:
        if any(cell.name.component not in parts for cell, _ in step.parts):
            continue
        fitted, alone = (
            sum(
                count * parts[c.name.component].seconds(c.figures, c.tokens, c.layers, machine)
                for c, count in step.parts
            ),
            sum(count * cell.seconds for cell, count in step.parts),
        )
        if step.seconds is not None:
            fitted *= closure.ratio_at(step.flops / step.tokens)
        found.append((step, math.log(fitted / (step.seconds or alone))))
    return found


def calibrate_rates(
    results: ResultSet, dtype: str, variant: str, costs: Sequence[CaseCost] = ()
) -> Rates:
    """Rates of every part of a training step.

    `costs`: for rows that lack a counter of the formulas. RatesRefusedError where a part was not
    measured, a bandwidth was not measured or a figure is not finite.
    """
    try:
        machine = Machine.from_context(results.context)
    except BadInputError as error:
        raise RatesRefusedError(str(error)) from error
    cells = collect_cells(results.cases, {str(cost.name): cost for cost in costs}, dtype, variant)
    parts, closure = _part_rates(cells, machine, dtype), closure_of(cells.steps)
    held_out = []
    by_size = large_steps(cells.steps)
    # the steps of each size, from the other sizes alone
    for size, large in by_size.items() if len(by_size) > 1 else ():
        others = cells.without(size)
        known, of_others = _range_of(others.steps), closure_of(others.steps)
        rates = _part_rates(others, machine, dtype)
        for step, error in _errors(rates, of_others, large, machine):
            held_out.append(HeldOutStep(size, error, known.distance(step.flops, step.tokens)))
    # of large steps, as the closure is: what is predicted is no step that waits for launches
    every = [step for large in by_size.values() for step in large]
    errors = [error for _, error in _errors(parts, closure, every, machine)]
    scatter = math.sqrt(statistics.fmean(error**2 for error in errors))
    alike = (c for c in results.cases.values() if c.name.dtype == dtype)
    return Rates(
        dtype,
        variant,
        machine,
        parts,
        closure,
        spread_of(max(scatter, closure.scatter), held_out),
        _range_of(cells.steps),
        memory_overhead(case for case in alike if case.name.variant == variant),
        cells.sizes,
        len(cells.steps),
    )


# Less than this beyond the calibrated range is not worth a word.
WORTH_SAYING = 1.05


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _range_words(rates: Rates) -> str:
    spread = rates.spread
    assumed = f"{100 * (ASSUMED_OFF - 1):.0f} % for each factor of 10 in FLOPs"
    by_size: dict[str, list[float]] = {}
    for step in spread.held_out:
        by_size.setdefault(step.size, []).append(step.error)
    if not by_size:
        known = "one size was" if len(rates.sizes) == 1 else "too few parts of other sizes were"
        return (
            f"{spread.words}: only {known} measured ({', '.join(rates.sizes)}), so how errors grow "
            f"is assumed: {assumed}"
        )
    words = [
        f"{size} from the others {100 * math.expm1(statistics.median(errors)):+.1f} %"
        for size, errors in by_size.items()
    ]
    return (
        f"{spread.words} from predicting measured sizes: {_joined(words)}, together with an "
        f"assumed {assumed}, which counts as {ASSUMED_DEGREES} sizes would"
    )


def basis_of(rates: Rates, flops: float, tokens: int) -> str:
    """What the prediction of a step of these model_flops and tokens rests on, in words."""
    closure, parts = rates.closure, rates.parts.values()
    attained = [
        f"{component} {rate / 1e9:.3g} GFLOP/s"
        for component, part in rates.parts.items()
        if (rate := part.flops_per_second) is not None
    ]
    launch = statistics.median(part.launch_seconds for part in parts)
    facts = [
        f"predicted, not run: rates of {sum(part.cells for part in parts)} cells of "
        f"{_joined(rates.sizes)} ({rates.dtype}, {rates.variant}): "
        + ", ".join([*attained, f"{1e6 * launch:.2g} us an operator"])
    ]
    if closure.steps:
        steps = f"{closure.steps} step" + ("s" if closure.steps > 1 else "")
        facts.append(
            f"a step takes {closure.ratio_at(flops / tokens):.3f} times its parts, as the large "
            f"steps of the nearest size did ({steps} of all sizes, scatter "
            f"{100 * math.expm1(closure.scatter):.1f} %)"
        )
    else:
        facts.append("no step was measured, so the parts are taken to add up")
    ratios = {
        "FLOPs a token": flops / tokens / rates.range.flops_a_token[1],
        "tokens": tokens / rates.range.tokens[1],
    }
    beyond = [f"{by:.3g} times the {what}" for what, by in ratios.items() if by > WORTH_SAYING]
    if beyond:
        facts.append(f"{_joined(beyond)} of the largest calibrated step")
    return "; ".join([*facts, _range_words(rates), f"memory: {rates.memory.in_words()}"])


@dataclass(frozen=True)
class StepPrediction:
    """`low` to `high`: the range of `seconds`, which `range_words` names: `95 % interval`, or
    `assumed range` (as above). `memory_bytes`: the peak, within `memory_low` to `memory_high` by
    the largest misfits that were measured. `parts`: seconds of each component, all its occurrences
    together; their sum times `step_over_parts` is `seconds`. `basis`: what it rests on. `fits`,
    `reason`: whether the step fits into memory by the formulas, and why not."""

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


def predict_steps(
    rates: Rates, costs: Sequence[CaseCost]
) -> tuple[list[StepPrediction], list[LeftOut]]:
    """Of every training step of the rates' dtype and variant among the costs, as far as the costs
    of its parts are there too; and the other steps, with the reason."""
    by_name = {str(cost.name): cost for cost in costs}
    # only parts with rates can make up a step
    with_rates = {n for n, cost in by_name.items() if cost.name.component in rates.parts}
    layers = layer_counts({(c.name.size, c.name.component): float(c.parameters) for c in costs})

    def predict(step: CaseCost) -> StepPrediction:
        name, flops, tokens = step.name, float(step.model_flops), step.name.batch * step.name.seq
        if name.size not in layers:
            raise RatesRefusedError(
                f"{name}: the costs of its parts are not known; ask --dry-run for all components"
            )
        found, missing = part_names(name, layers[name.size], with_rates)
        if missing:
            raise RatesRefusedError(
                f"{name}: no cost or no rate of {', '.join(missing)}; ask --dry-run for all "
                "components, and measure those parts at a size that fits"
            )
        parts = {}
        for component, (part, count) in found.items():
            figures = Figures(*(float(getattr(by_name[part], key)) for key in Figures._fields))
            one = rates.parts[component].seconds(figures, tokens, layers[name.size], rates.machine)
            parts[component] = count * one
        ratio = rates.closure.ratio_at(flops / tokens)
        seconds = _checked(ratio * sum(parts.values()), name, "predicted time")
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

    predicted, refused = [], []
    for text, step in by_name.items():
        wanted = (step.name.dtype, step.name.variant) == (rates.dtype, rates.variant)
        if step.name.is_training_step and wanted:
            try:
                predicted.append(predict(step))
            except RatesRefusedError as error:
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
    """RatesRefusedError where the case is another one or its time is no number above 0."""
    if measured.name != prediction.name:
        raise RatesRefusedError(
            f"{measured.name}: the prediction is of {prediction.name}; check it against that case"
        )
    seconds, memory = _seconds_of(measured), MIB * measured.counters.get(MEASURED, 0.0)
    percent = 100 * (prediction.seconds / seconds - 1)
    is_inside = prediction.low <= seconds <= prediction.high
    if memory <= 0:
        return PredictionCheck(percent, is_inside)
    off = 100 * (prediction.memory_bytes / memory - 1)
    fits = prediction.memory_low <= memory <= prediction.memory_high
    return PredictionCheck(percent, is_inside, off, fits)
