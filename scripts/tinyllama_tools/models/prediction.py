"""Predicts training steps that were not run, with rates calibrated on what was run.

How many operators a case of a size that nobody ran dispatches.

Operators depend on the layers and the variant, not on the width. A part is one layer's or stands
alone, so its count is that of the measured sizes. Two counts do change: the optimizer's, which
starts some operators for every weight tensor unless one operator serves them all, and that of parts
that work in chunks of tokens.

seconds = launch x operators + FLOPs / rate + elementwise work / rate + traffic / efficiency.

The four terms of a part, with coefficients by non-negative least squares of relative errors, so
that a small cell counts as much as a large one.

Why these regressors:
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

What the range of a prediction means, and how wide it is.

The range is meant to hold the measured time in 95 of 100 predictions. It comes from predicting
what was measured: each size is left out in turn, the rates are calibrated on the other sizes, and
the steps of the one left out are predicted, those of at least half its largest B S, since these
resemble the steps of sizes that were not run. The error of a prediction is the logarithm of
predicted over measured time. Its variance is described as

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

What a step's measured peak memory has beyond the cost formulas, and how well that is known.

Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.optimize import nnls
from scipy.stats import t as student

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import STEP, TRAIN, CaseName, parse_case_name
from tinyllama_tools.data.parts import parts_of
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import LeftOut, MeasuredCase, ResultSet


class RatesRefusedError(ValueError):
    """What was measured does not support it; the message names what is missing and what to do."""


# embedding + L x layer + final norm + LM head are all parameters of a size (model/cost.cpp)
ONCE = ("embedding", "loss", "rms_norm")
LAYERS: tuple[Mapping[str, int], ...] = ({"block": 1}, {"attention": 1, "ffn": 1, "rms_norm": 2})
WHOLES = ("optimizer", "full_step", "model")


def layers_of(size: str, parameters: Mapping[str, float]) -> int | None:
    """`parameters`: by component. None where too few components are there to tell.

    RatesRefusedError where they do not add up, which two different sizes under one name do not.
    """
    whole = next((parameters[name] for name in WHOLES if name in parameters), None)
    layer = next((c for c in LAYERS if all(name in parameters for name in c)), None)
    if whole is None or layer is None or any(name not in parameters for name in ONCE):
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
        nearest = min(
            self.ratios,
            key=lambda pair: abs(math.log(pair[0] / flops_a_token)),
            default=(flops_a_token, 1.0),
        )
        return nearest[1]


def _logarithms(steps: Sequence[StepCell]) -> list[float]:
    return [math.log(s.seconds / s.parts_seconds) for s in steps if s.seconds is not None]


def closure_of(steps: Sequence[StepCell]) -> Closure:
    """Of those steps that were measured themselves."""
    large = large_steps(step for step in steps if step.seconds is not None).values()
    if not large:
        return Closure((), ASSUMED_SCATTER, 0)
    medians = [statistics.median(_logarithms(found)) for found in large]
    around = [
        value - median
        for found, median in zip(large, medians, strict=True)
        for value in _logarithms(found)
    ]
    ratios = tuple(
        (statistics.median(s.flops / s.tokens for s in found), math.exp(median))
        for found, median in zip(large, medians, strict=True)
    )
    # what changes from size to size may go on changing
    trend = max(medians) - min(medians)
    scatter = max(statistics.stdev(around), trend) if len(around) > 1 else ASSUMED_SCATTER
    return Closure(ratios, scatter, len(around))


@dataclass(frozen=True)
class Figures:
    """Of one iteration, by the suite's formulas (model/cost.hpp). `hardware_flops`: the products
    that the variant really runs."""

    parameters: float
    model_flops: float
    hardware_flops: float
    elementwise_flops: float
    bytes: float


NAMES = tuple(field.name for field in fields(Figures))


def figures_of_cost(cost: CaseCost) -> Figures:
    """Of a case that nobody ran."""
    return Figures(*(float(getattr(cost, name)) for name in NAMES))


def checked(value: float, name: object, key: str) -> float:
    """The value; RatesRefusedError where it is no number to compute with."""
    if not math.isfinite(value) or value < 0:
        raise RatesRefusedError(
            f"{name}: {key} is {value}, must be a finite number of 0 or more; measure again"
        )
    return float(value)


def seconds_of(case: MeasuredCase) -> float:
    """Of an iteration; RatesRefusedError where that is no time."""
    seconds = checked(case.median_seconds, case.name, "time")
    if seconds == 0:
        raise RatesRefusedError(f"{case.name}: its time is 0 s; measure again")
    return seconds


def figures_of_case(case: MeasuredCase, cost: CaseCost | None) -> Figures:
    """Of a measured row; `cost` where the row lacks a counter.

    RatesRefusedError naming the counter that neither has, or that is not finite.
    """
    found = []
    for name in NAMES:
        value = case.counters.get(name)
        if value is None and cost is not None:
            value = getattr(cost, name)
        if value is None:
            raise RatesRefusedError(
                f"{case.name}: the row has no counter {name}; measure again with this version"
            )
        found.append(checked(value, case.name, name))
    return Figures(*found)


OPTIMIZER = "optimizer"
# Four projections of attention, three of the feed-forward network and two norms; the embedding, the
# final norm and the LM head (model/).
WEIGHTS_A_LAYER, WEIGHTS_BESIDE = 9, 3


def weight_tensors(layers: int) -> int:
    """Parameters of a model that are tensors of their own."""
    return WEIGHTS_A_LAYER * layers + WEIGHTS_BESIDE


@dataclass(frozen=True)
class CountedCell:
    """A measured count and what it may depend on."""

    operators: float
    tokens: int
    layers: int


@dataclass(frozen=True)
class OperatorRule:
    """operators = fixed + a_weight x weight tensors + a_token x B S."""

    fixed: float
    a_weight: float = 0.0
    a_token: float = 0.0

    def at(self, tokens: int, layers: int) -> float:
        """Of one iteration."""
        return self.fixed + self.a_weight * weight_tensors(layers) + self.a_token * tokens


def _line(drivers: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Fixed part and slope, neither below 0, by least squares of relative errors."""
    columns = np.column_stack((np.ones_like(drivers), drivers / drivers.max()))
    relative = columns / np.maximum(counts, 1.0)[:, None]
    (fixed, slope), _ = nnls(relative, counts / np.maximum(counts, 1.0))
    return float(fixed), float(slope / drivers.max())


def operator_rule(component: str, cells: Sequence[CountedCell]) -> OperatorRule:
    """Of one component's cells, at least one.

    At a single number of layers an optimizer with at least one operator a weight is taken to have
    so many for each, and one with fewer to serve all weights at once.
    """
    counts = np.array([cell.operators for cell in cells], dtype=float)
    if component != OPTIMIZER:
        tokens = np.array([cell.tokens for cell in cells], dtype=float)
        if np.ptp(counts) == 0 or np.ptp(tokens) == 0:
            return OperatorRule(float(np.median(counts)))
        fixed, slope = _line(tokens, counts)
        return OperatorRule(fixed, a_token=slope)
    weights = np.array([weight_tensors(cell.layers) for cell in cells], dtype=float)
    if np.ptp(weights) > 0:
        fixed, slope = _line(weights, counts)
        return OperatorRule(fixed, a_weight=slope)
    count = float(np.median(counts))
    if count < weights[0]:
        return OperatorRule(count)
    return OperatorRule(0.0, a_weight=count / float(weights[0]))


TERMS = ("launch", "products", "elementwise", "traffic")
LAUNCH, PRODUCTS, ELEMENTWISE, TRAFFIC = range(len(TERMS))
# Operator by operator, tensors are moved a few times as often as the least; but each by itself fits
# into the cache, so that only the first read and the last write of a chain of operators are the
# memory's. What goes beyond is elementwise work. Without this bound, cells in the cache put other
# costs that grow with tokens here, and a size beyond the cache would pay for those at the memory's
# bandwidth: the update of medium came out 2.4 times too slow with a bound of 5.
MOST_TRAFFIC = 2.0
# A relative error of 5 % in one cell weighs as much as a share of time 25 points from that of all
# parts together: enough to decide between terms that the cells cannot tell apart, and no more.
SPLIT_WEIGHT = 0.05 / 0.25
Array = np.ndarray


@dataclass(frozen=True)
class _System:
    """rows x coefficients = targets, with each coefficient at least `least`; and, with `weight`,
    coefficients x scale = `shares`."""

    rows: Array
    targets: Array
    least: Array
    shares: Array
    weight: float = 0.0

    def _unbounded(self) -> Array:
        """Coefficients without an upper bound."""
        scale = np.abs(self.rows).mean(axis=0)
        scale[scale == 0] = 1.0
        # the unknowns are what goes beyond the least, as shares of time
        system = np.vstack((self.rows / scale, self.weight * np.eye(len(scale))))
        wanted = self.weight * (self.shares - self.least * scale)
        solution, _ = nnls(system, np.concatenate((self.targets - self.rows @ self.least, wanted)))
        return self.least + solution / scale

    def _without_traffic(self) -> _System:
        rest = self.targets - MOST_TRAFFIC * self.rows[:, TRAFFIC]
        return _System(
            self.rows[:, :TRAFFIC],
            rest,
            self.least[:TRAFFIC],
            self.shares[:TRAFFIC],
            self.weight,
        )

    def solve(self) -> Array:
        """Coefficients, that of traffic at most MOST_TRAFFIC."""
        free = self._unbounded()
        if free[TRAFFIC] <= MOST_TRAFFIC:
            return free
        # least squares are convex: the best within a bound that the free best breaks is on it
        return np.append(self._without_traffic()._unbounded(), MOST_TRAFFIC)


def _together(relative: Mapping[str, Array]) -> Array:
    """Coefficients that all parts share; each part counts the same, however many cells it has."""
    weights = {part: 1.0 / np.sqrt(len(rows)) for part, rows in relative.items()}
    rows = np.vstack([weights[part] * rows for part, rows in relative.items()])
    targets = np.concatenate([np.full(len(r), weights[part]) for part, r in relative.items()])
    nothing = np.zeros(len(TERMS))
    return _System(rows, targets, nothing, nothing).solve()


def fit_terms(cells: Mapping[str, tuple[Array, Array]], peak: float | None) -> dict[str, Array]:
    """Seconds per unit of each of TERMS, by part.

    `cells`: of each part the amounts [cells, terms] and the seconds [cells], all of the latter
    above 0. `peak`: FLOP/s that no product beats, None where it was not measured.
    """
    least = np.zeros(len(TERMS))
    if peak:
        least[PRODUCTS] = 1.0 / peak
    relative = {part: amounts / seconds[:, None] for part, (amounts, seconds) in cells.items()}
    together = np.maximum(_together(relative), least)
    found = {}
    for part, rows in relative.items():
        shares = together * rows.mean(axis=0)
        shares = shares / (shares.sum() or 1.0)
        found[part] = _System(rows, np.ones(len(rows)), least, shares, SPLIT_WEIGHT).solve()
    return found


@dataclass(frozen=True)
class PartRate:
    """`coefficients`: seconds per unit of each of TERMS. `cells`: how many it was fitted to, of
    `sizes`."""

    component: str
    coefficients: tuple[float, ...]
    operators: OperatorRule
    has_products: bool
    cells: int
    sizes: tuple[str, ...]

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
        return max(fitted, machine.traffic_seconds(figures.bytes))


def _amounts(figures: Figures, operators: float, machine: Machine) -> tuple[float, ...]:
    """Of TERMS."""
    return (
        operators,
        figures.hardware_flops,
        figures.elementwise_flops,
        machine.traffic_seconds(figures.bytes),
    )


def fit_part_rates(
    parts: Mapping[str, Sequence[Cell]], machine: Machine, peak: float | None
) -> dict[str, PartRate]:
    """By component, each with at least one cell. `peak`: of the products' type, in FLOP/s."""
    systems = {
        component: (
            np.array([_amounts(c.figures, c.operators, machine) for c in cells]),
            np.array([c.seconds for c in cells]),
        )
        for component, cells in parts.items()
    }
    return {
        component: PartRate(
            component,
            tuple(float(value) for value in coefficients),
            operator_rule(
                component,
                [CountedCell(c.operators, c.tokens, c.layers) for c in parts[component]],
            ),
            any(c.figures.hardware_flops > 0 for c in parts[component]),
            len(parts[component]),
            tuple(dict.fromkeys(c.name.size for c in parts[component])),
        )
        for component, coefficients in fit_terms(systems, peak).items()
    }


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


@dataclass(frozen=True)
class _Fit:
    """Rates of the parts and the closure, of some of the cells."""

    parts: Mapping[str, PartRate]
    closure: Closure
    machine: Machine

    def error(self, step: StepCell) -> float | None:
        """Logarithm of fitted over measured; None where a part has no rate."""
        if any(cell.name.component not in self.parts for cell, _ in step.parts):
            return None
        fitted = sum(
            count
            * self.parts[c.name.component].seconds(c.figures, c.tokens, c.layers, self.machine)
            for c, count in step.parts
        )
        if step.seconds is None:
            return math.log(fitted / step.parts_seconds)
        ratio = self.closure.ratio_at(step.flops / step.tokens)
        return math.log(ratio * fitted / step.seconds)


def _fit(cells: Cells, machine: Machine, dtype: str) -> _Fit:
    peak = machine.peak_flops.get(product_type(dtype))
    parts = fit_part_rates(cells.parts, machine, peak)
    return _Fit(parts, closure_of(cells.steps), machine)


def _held_out(cells: Cells, machine: Machine, dtype: str) -> Iterator[HeldOutStep]:
    """The steps of each size, from the other sizes alone."""
    if len(cells.sizes) < 2:
        return
    for size, large in large_steps(cells.steps).items():
        kept = cells.of_sizes([other for other in cells.sizes if other != size])
        fit, known = _fit(kept, machine, dtype), range_of(kept.steps)
        for step in large:
            error = fit.error(step)
            if error is not None:
                yield HeldOutStep(size, error, known.distance(step.flops, step.tokens))


def _base(fit: _Fit, cells: Cells) -> float:
    """Of large steps, as the closure is: what is predicted is no step that waits for launches."""
    large = [step for found in large_steps(cells.steps).values() for step in found]
    errors = [error for step in large if (error := fit.error(step)) is not None]
    scatter = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return max(scatter, fit.closure.scatter)


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
    cases = results.cases
    cells = collect_cells(cases, {str(cost.name): cost for cost in costs}, dtype, variant)
    fit = _fit(cells, machine, dtype)
    alike = (c for c in cases.values() if (c.name.dtype, c.name.variant) == (dtype, variant))
    return Rates(
        dtype,
        variant,
        machine,
        fit.parts,
        fit.closure,
        spread_of(_base(fit, cells), list(_held_out(cells, machine, dtype))),
        range_of(cells.steps),
        memory_overhead(alike),
        cells.sizes,
        len(cells.steps),
    )


# Less than this beyond the calibrated range is not worth a word.
WORTH_SAYING = 1.05


def _joined(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _rates(rates: Rates) -> str:
    found = [
        f"{part.component} {rate / 1e9:.3g} GFLOP/s"
        for part in rates.parts.values()
        if (rate := part.flops_per_second) is not None
    ]
    launch = statistics.median(part.launch_seconds for part in rates.parts.values())
    return ", ".join([*found, f"{1e6 * launch:.2g} us an operator"])


def _closure(rates: Rates, flops_a_token: float) -> str:
    closure = rates.closure
    if not closure.steps:
        return "no step was measured, so the parts are taken to add up"
    scatter = 100 * math.expm1(closure.scatter)
    steps = f"{closure.steps} step" + ("s" if closure.steps > 1 else "")
    return (
        f"a step takes {closure.ratio_at(flops_a_token):.3f} times its parts, as the large steps "
        f"of the nearest size did ({steps} of all sizes, scatter {scatter:.1f} %)"
    )


def _beyond(rates: Rates, flops: float, tokens: int) -> str:
    (_, most_a_token), (_, most_tokens) = rates.range.flops_a_token, rates.range.tokens
    ratios = (flops / tokens / most_a_token, "FLOPs a token"), (tokens / most_tokens, "tokens")
    words = [f"{ratio:.3g} times the {what}" for ratio, what in ratios if ratio > WORTH_SAYING]
    return f"{_joined(words)} of the largest calibrated step" if words else ""


def _range(rates: Rates) -> str:
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


def _memory(rates: Rates) -> str:
    return f"memory: {rates.memory.in_words()}"


def basis_of(rates: Rates, flops: float, tokens: int) -> str:
    """Of the prediction of a step of these model_flops and tokens."""
    cells = sum(part.cells for part in rates.parts.values())
    where = f"{cells} cells of {_joined(list(rates.sizes))} ({rates.dtype}, {rates.variant})"
    facts = (
        f"predicted, not run: rates of {where}: {_rates(rates)}",
        _closure(rates, flops / tokens),
        _beyond(rates, flops, tokens),
        _range(rates),
        _memory(rates),
    )
    return "; ".join(fact for fact in facts if fact)


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
    def is_assumed(self) -> bool:
        """Whether no measurement shows how errors grow with size."""
        return not self.held_out

    @property
    def words(self) -> str:
        """What the range may be called."""
        return "assumed range" if self.is_assumed else f"{100 * COVERAGE:.0f} % interval"

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
        smaller = min(_beyond_range(self.tokens[0], tokens), _beyond_range(self.least_flops, flops))
        a_token, (least, most) = flops / tokens, self.flops_a_token
        larger = (
            _beyond_range(a_token, most)
            + _beyond_range(least, a_token)
            + _beyond_range(tokens, self.tokens[1])
        )
        return larger + smaller


def _beyond_range(value: float, end: float) -> float:
    return max(math.log(value / end), 0.0)


def range_of(steps: Sequence[StepCell]) -> CalibratedRange:
    """Of at least one step."""
    a_token = [step.flops / step.tokens for step in steps]
    large = [step for found in large_steps(steps).values() for step in found]
    tokens = [step.tokens for step in large]
    return CalibratedRange(
        (min(a_token), max(a_token)),
        (min(tokens), max(tokens)),
        min(step.flops for step in large),
    )


def _growth_seen(base: float, held_out: Sequence[HeldOutStep]) -> float | None:
    """Per unit of distance; None where the sizes left out are too near to show it."""
    squares = np.mean([held.error**2 for held in held_out]) if held_out else 0.0
    distances = np.mean([held.distance**2 for held in held_out]) if held_out else 0.0
    if distances < LEAST_DISTANCE**2:
        return None
    return math.sqrt(max(float(squares) - base**2, 0.0) / float(distances))


def spread_of(base: float, held_out: Sequence[HeldOutStep]) -> Spread:
    """`base`: as above; `held_out`: every step of a size left out, empty with one size."""
    seen, degrees = _growth_seen(base, held_out), ASSUMED_DEGREES
    squares = ASSUMED_DEGREES * ASSUMED_GROWTH**2
    if seen is None:
        base = max(base, math.sqrt(np.mean([h.error**2 for h in held_out])) if held_out else 0.0)
        held_out = ()
    else:
        sizes = len({held.size for held in held_out})
        squares += (sizes - 1) * seen**2
        degrees += sizes - 1
    growth = max(math.sqrt(squares / degrees), base / math.log(10.0))
    quantile = float(student.ppf((1 + COVERAGE) / 2, degrees))
    return Spread(base, growth, quantile, tuple(held_out))


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


BLOCK, FINE = "block", ("attention", "ffn")


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
    def parts_seconds(self) -> float:
        """Measured, of all parts together."""
        return sum(count * cell.seconds for cell, count in self.parts)


@dataclass(frozen=True)
class Cells:
    """`parts`: by component, those that the steps are made of; `steps` in the order of FLOPs."""

    parts: Mapping[str, tuple[Cell, ...]]
    steps: tuple[StepCell, ...]

    @property
    def sizes(self) -> tuple[str, ...]:
        """Of the complete steps, in the order of FLOPs."""
        return tuple(dict.fromkeys(step.name.size for step in self.steps))

    def of_sizes(self, sizes: Collection[str]) -> Cells:
        """As if only these had been measured."""
        kept = {
            component: tuple(cell for cell in cells if cell.name.size in sizes)
            for component, cells in self.parts.items()
        }
        steps = tuple(step for step in self.steps if step.name.size in sizes)
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


def step_name(variant: str, size: str, dtype: str, batch: int, seq: int) -> CaseName:
    """Of a training step."""
    return CaseName(STEP, TRAIN, variant, size, dtype, batch, seq)


def part_names(
    step: CaseName, layers: int, known: Collection[str]
) -> tuple[dict[str, tuple[str, int]], tuple[str, ...]]:
    """By component: the case's name among the known ones and how often the step contains it; and
    the names that are not known.

    An optimizer does the same at every batch and sequence, so any of its size's will do.
    """
    parts = parts_of(step, layers, known)
    found = {part.case.split("/", 1)[0]: (part.case, part.count) for part in parts.measured}
    missing = []
    for text in parts.missing:
        other = _other_optimizer(text, known)
        if other is None:
            missing.append(text)
        else:
            found[OPTIMIZER] = (other, 1)
    return found, tuple(missing)


def _other_optimizer(text: str, known: Collection[str]) -> str | None:
    """A known case of the same optimizer elsewhere."""
    wanted = parse_case_name(text)
    if wanted is None or wanted.component != OPTIMIZER:
        return None
    alike = (parse_case_name(name) for name in sorted(known) if name.startswith(OPTIMIZER))
    for name in alike:
        if name and replace(name, batch=wanted.batch, seq=wanted.seq) == wanted:
            return str(name)
    return None


def _without(names: Iterable[str], components: Collection[str]) -> set[str]:
    return {name for name in names if name.split("/", 1)[0] not in components}


class _Collector:
    """Makes cells of cases once each."""

    def __init__(
        self,
        cases: Mapping[str, MeasuredCase],
        costs: Mapping[str, CaseCost],
        layers: Mapping[str, int],
    ) -> None:
        self._cases, self._costs, self._layers = cases, costs, layers
        self._cells: dict[str, Cell] = {}

    def cell(self, name: str) -> Cell:
        if name not in self._cells:
            case = self._cases[name]
            seconds = seconds_of(case)
            if "operators" not in case.counters:
                raise RatesRefusedError(
                    f"{name}: the row has no counter operators; measure again with this version"
                )
            self._cells[name] = Cell(
                case.name,
                seconds,
                figures_of_case(case, self._costs.get(name)),
                checked(case.counters["operators"], name, "operators"),
                self._layers[case.name.size],
            )
        return self._cells[name]

    def collect(self, steps: Sequence[CaseName], names: Collection[str]) -> Cells:
        parts: dict[str, dict[str, Cell]] = {}
        complete = []
        for step in steps:
            found, missing = part_names(step, self._layers[step.size], names)
            for component, (name, _) in found.items():
                parts.setdefault(component, {})[name] = self.cell(name)
            if missing:
                continue
            case = self._cases.get(str(step))
            pairs = tuple((self.cell(name), count) for name, count in found.values())
            complete.append(StepCell(step, seconds_of(case) if case else None, pairs))
        kept = {component: tuple(cells.values()) for component, cells in parts.items()}
        return Cells(kept, tuple(sorted(complete, key=lambda step: step.flops)))


def _parameters(
    cases: Mapping[str, MeasuredCase], costs: Mapping[str, CaseCost]
) -> dict[tuple[str, str], float]:
    found = {(c.name.size, c.name.component): float(c.parameters) for c in costs.values()}
    for case in cases.values():
        if (value := case.counters.get("parameters")) is not None:
            found[case.name.size, case.name.component] = value
    return found


def collect_cells(
    cases: Mapping[str, MeasuredCase],
    costs: Mapping[str, CaseCost],
    dtype: str,
    variant: str,
) -> Cells:
    """Of one dtype and variant. `cases`, `costs`: by name.

    Layers are described by attention, ffn and norms, or by block where that was measured at more
    sizes. RatesRefusedError naming a part that no step can do without and nobody measured, and a
    figure that is not finite.
    """
    layers = layer_counts(_parameters(cases, costs))
    of_dtype = {text: case for text, case in cases.items() if case.name.dtype == dtype}
    # where a size's layers cannot be told, some part was neither measured nor asked for
    circumstances = sorted(
        {
            (name.size, name.batch, name.seq)
            for name in (case.name for case in of_dtype.values())
            if name.size in layers
        }
    )
    steps = [step_name(variant, size, dtype, batch, seq) for size, batch, seq in circumstances]
    collector = _Collector(of_dtype, costs, layers)
    schemes = [collector.collect(steps, _without(of_dtype, hidden)) for hidden in ((BLOCK,), FINE)]
    best = max(schemes, key=lambda cells: len(cells.sizes))
    if not best.steps:
        raise RatesRefusedError(_what_is_missing(steps, of_dtype, layers, dtype, variant))
    return best


def _what_is_missing(
    steps: Sequence[CaseName],
    names: Collection[str],
    layers: Mapping[str, int],
    dtype: str,
    variant: str,
) -> str:
    """The fewest parts that would have to be measured too."""
    remedy = (
        "measure embedding, attention, ffn, rms_norm, loss, optimizer and full_step of one size"
    )
    lacking = [part_names(step, layers[step.size], names)[1] for step in steps]
    if not lacking:
        return f"no part of a {variant} step was measured in {dtype}; {remedy}"
    return f"not measured: {', '.join(min(lacking, key=len))}; {remedy}"


MIB = 2**20
# Blocks are rounded, so that even a formula which met every step is no better than this.
LEAST_MISFIT = 0.001
MEASURED, PREDICTED = "peak_memory_MiB", "predicted_memory_MiB"


@dataclass(frozen=True)
class MemoryOverhead:
    """overhead = fixed_bytes + share x what the formulas say, neither below 0: scratch memory of
    libraries, and an allocator's rounding.

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

    def most_bytes(self, predicted_bytes: float) -> float:
        """What a step may take; one that is said to fit has to fit with it."""
        return self.interval(predicted_bytes)[1]

    def formula_bytes(self, limit_bytes: float) -> float:
        """What the formulas may say of a step that is to fit the limit; below 0 where none does."""
        return (limit_bytes / self.most - self.fixed_bytes) / (1.0 + self.share)

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


@dataclass(frozen=True)
class _Step:
    size: str
    predicted: float
    measured: float


def _of_sizes(steps: Sequence[_Step], keep: Callable[[str], bool]) -> list[_Step]:
    return [step for step in steps if keep(step.size)]


def _squares(steps: Sequence[_Step], fixed: float, share: float) -> float:
    """Of relative errors."""
    return math.fsum(
        ((step.measured - fixed) / step.predicted - 1.0 - share) ** 2 for step in steps
    )


def _fit_overhead(steps: Sequence[_Step]) -> tuple[float, float]:
    """Fixed bytes and share by least squares of relative errors, neither below 0.

    With beyond = (measured - predicted) / predicted, this is the line beyond = fixed / predicted
    + share; where the best line has a coefficient below 0, the best of those on the bounds is it.
    """
    inverse = [1.0 / step.predicted for step in steps]
    beyond = [step.measured / step.predicted - 1.0 for step in steps]
    count = len(steps)
    mean_x, mean_y = math.fsum(inverse) / count, math.fsum(beyond) / count
    spread = math.fsum((x - mean_x) ** 2 for x in inverse)
    # a single size of step, or sizes that are alike, cannot tell the two apart
    if spread > (1e-6 * mean_x) ** 2:
        products = zip(inverse, beyond, strict=True)
        fixed = math.fsum((x - mean_x) * (y - mean_y) for x, y in products) / spread
        share = mean_y - fixed * mean_x
        if fixed >= 0 and share >= 0:
            return fixed, share
    alone = math.fsum(x * y for x, y in zip(inverse, beyond, strict=True))
    only_fixed = max(alone / math.fsum(x * x for x in inverse), 0.0) if spread else 0.0
    bounds = [(0.0, max(mean_y, 0.0)), (only_fixed, 0.0)]
    return min(bounds, key=lambda pair: _squares(steps, *pair))


def _misfits(steps: Sequence[_Step], sizes: Sequence[str]) -> list[float]:
    """Measured over fitted, each size's from the other sizes where there are others."""
    found = []
    for size in sizes:
        others = _of_sizes(steps, lambda name, of=size: name != of) or steps
        fixed, share = _fit_overhead(others)
        own = _of_sizes(steps, lambda name, of=size: name == of)
        found += [step.measured / (fixed + (1.0 + share) * step.predicted) for step in own]
    return found


def _steps_of(cases: Iterable[MeasuredCase]) -> list[_Step]:
    """Training steps with both figures."""
    found = []
    for case in cases:
        if not case.name.is_training_step:
            continue
        predicted, measured = (case.counters.get(key, math.nan) for key in (PREDICTED, MEASURED))
        if math.isfinite(predicted) and math.isfinite(measured) and predicted > 0 < measured:
            found.append(_Step(case.name.size, predicted * MIB, measured * MIB))
    return found


def memory_overhead(cases: Iterable[MeasuredCase]) -> MemoryOverhead:
    """Of the training steps among them."""
    steps = _steps_of(cases)
    if not steps:
        return MemoryOverhead()
    ordered = sorted(steps, key=lambda step: step.predicted)
    sizes = tuple(dict.fromkeys(step.size for step in ordered))
    fixed, share = _fit_overhead(steps)
    within = [step.measured / (fixed + (1.0 + share) * step.predicted) for step in steps]
    every = [*within, *_misfits(steps, sizes)]
    least, most = min(1 - LEAST_MISFIT, *every), max(1 + LEAST_MISFIT, *every)
    return MemoryOverhead(fixed, share, least, most, len(steps), sizes)
