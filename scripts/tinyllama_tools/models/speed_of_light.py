"""The speed of light of a training step, and where its time goes beyond that.

A part takes at least as long as its matrix products at the best rate measured at their own shapes,
and at least as long as its bytes at the roofline's bandwidth. Both may overlap, so the larger of
the two is its light; their sum would be no bound. Every occurrence of a part is taken to find in
the last-level cache what fits there, as the roofline does. Parts follow one another, so the step's
light is the sum of theirs.

It is the same for every variant of a size, type and shape. Bytes are the least that any
implementation moves (model/cost.hpp), so any variant's case tells them; and a layer that was
measured as a block has the light of attention, network, norms and residual additions wherever the
bytes of those are known, so that it is the same as that of a step measured by its layers' parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import BASELINE, STEP, CaseName, parse_case_name, parts_of
from tinyllama_tools.models.roofline import (
    LeastTime,
    ProductRates,
    ProductTimes,
    product_times,
    step_products,
    switches_of,
    time_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase, ResultSet

Sizes = Mapping[str, Mapping[str, int]]
# What is left of the step when its parts are taken away.
REST = "rest"
ATTENTION, FFN, NORM, BLOCK = LAYERS = ("attention", "ffn", "rms_norm", "block")
OPTIMIZER = "optimizer"
# Per layer.
NORMS, RESIDUALS = 2, 2
MOST_LOST = 5


@dataclass(frozen=True)
class StepPart:
    """`count` times in a step. `case`: None where it was not measured."""

    name: CaseName
    count: int
    case: MeasuredCase | None

    @property
    def seconds(self) -> float | None:
        """Of all `count` together."""
        return None if self.case is None else self.count * self.case.median_seconds


@dataclass(frozen=True)
class MeasuredStep:
    """`size`: as in fixtures/problem_sizes.json. `parts`: in the step's order."""

    case: MeasuredCase
    size: Mapping[str, int]
    parts: tuple[StepPart, ...]

    @property
    def rest_seconds(self) -> float:
        """The step less its measured parts; below 0 where they do work that the step shares."""
        return self.case.median_seconds - sum(part.seconds or 0.0 for part in self.parts)


def measured_steps(result_set: ResultSet) -> list[CaseName]:
    """Every training step that was measured."""
    names = (case.name for case in result_set.cases.values())
    return [name for name in names if name.is_training_step]


def _read_step(result_set: ResultSet, step: CaseName, sizes: Sizes | None) -> MeasuredStep:
    cases, sizes = result_set.cases, problem_sizes() if sizes is None else sizes
    if not step.is_training_step:
        raise BadInputError(f"{step}: is no training step; name a case of {STEP}/train")
    if str(step) not in cases:
        known = ", ".join(map(str, measured_steps(result_set))) or "none"
        raise BadInputError(f"{step}: was not measured; the measured steps are: {known}")
    size = sizes.get(step.size)
    if size is None:
        raise BadInputError(
            f"{step}: the dimensions of size '{step.size}' are not known; known are "
            f"{', '.join(sizes)}: measure a size of fixtures/problem_sizes.json"
        )
    missing = parts_of(step, size["n_layers"], cases).missing
    # asked again as if they were there, which says how often the step has them and where
    every = parts_of(step, size["n_layers"], {*cases, *missing}).measured
    named = ((parse_case_name(part.case), part.count) for part in every)
    parts = tuple(StepPart(n, count, cases.get(str(n))) for n, count in named if n is not None)
    return MeasuredStep(cases[str(step)], size, parts)


@dataclass(frozen=True)
class LightPart:
    """All `count` of a part together. `measured_seconds`: None where the part was not measured.
    `lost_seconds`: measured less light; None without a measurement, and where light is the longer
    of the two, which `error` tells. `products_seconds`, `traffic_seconds`: what light is the larger
    of, for each component of the part. `case`: the case measured; empty for the rest and the
    step."""

    name: str
    count: int
    measured_seconds: float | None
    light_seconds: float
    lost_seconds: float | None
    products_seconds: float
    traffic_seconds: float
    case: str = ""
    error: str = ""


@dataclass(frozen=True)
class SpeedOfLight:
    """`parts`: the step's in order, the rest of the step last; `total`: the step itself, its light
    the sum of the parts' where all of them are known. `share_percent`: light over measured; None
    where the step or any of its parts was faster than its light, which is then no bound. `errors`:
    what cannot be, in words. `missing`: what was not measured, and what stands in."""

    step: CaseName
    parts: tuple[LightPart, ...]
    total: LightPart
    share_percent: float | None
    errors: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def products_seconds(self) -> float:
        """Of matrix products at their best, so the step's spend at least that."""
        return self.total.products_seconds

    @property
    def other_light_seconds(self) -> float:
        """What light has beyond those: of parts whose traffic takes longer than their products."""
        return self.total.light_seconds - self.products_seconds

    @property
    def lost_seconds(self) -> float | None:
        """The step without both; None where the light is no bound."""
        return self.total.lost_seconds

    @property
    def most_lost(self) -> tuple[LightPart, ...]:
        """The five parts that lose most time, of those that lose any."""
        losing = [part for part in self.parts if (part.lost_seconds or 0.0) > 0]
        losing.sort(key=lambda part: part.lost_seconds or 0.0, reverse=True)
        return tuple(losing[:MOST_LOST])


def _light_part(
    name: str, count: int, measured: float | None, least: Sequence[LeastTime], case: str
) -> LightPart:
    """Of the least times of everything in it, one after another."""
    light = sum(one.seconds for one in least)
    error = ""
    if measured is not None and light > measured:
        error = (
            f"{name}: {time_text(measured)} is faster than its speed of light, {time_text(light)}: "
            "a rate was measured too low, or the time is wrong; measure both again"
        )
    lost = None if error or measured is None else measured - light
    products, traffic = sum(one.products for one in least), sum(one.traffic for one in least)
    return LightPart(name, count, measured, light, lost, products, traffic, case, error)


def _known_bytes(step: MeasuredStep, result_set: ResultSet) -> dict[str, float]:
    """Of one of a component, from any variant of the step's size, type and shape."""

    def alike(name: CaseName) -> CaseName:
        return replace(name, variant=BASELINE)

    first = step.parts[0].name
    wanted = {alike(part.name) for part in step.parts}
    wanted |= {alike(replace(first, component=component)) for component in LAYERS}
    found: dict[str, float] = {}
    for case in result_set.cases.values():
        component, moved = case.name.component, case.counters.get("bytes", 0.0)
        if moved > 0 and alike(case.name) in wanted:
            found[component] = min(moved, found.get(component, moved))
    return found


def _product_times(step: MeasuredStep, result_set: ResultSet, machine: Machine) -> ProductTimes:
    name = step.case.name
    expected = sum(p.flops for p in step_products(step.size, name.batch, name.seq))
    counted = step.case.counters.get("model_flops")
    if counted != expected:
        raise BadInputError(
            f"{name}: model_flops is {counted}, by the dimensions of "
            f"size '{name.size}' they are {expected}; name the problem sizes that were measured"
        )
    type_name = product_type(name.dtype)
    peak = machine.peak_flops.get(type_name)
    if peak is None:
        raise BadInputError(
            f"{name}: no peak of {type_name} products was measured, the file has those of "
            f"{', '.join(machine.peak_flops) or 'no type'}; measure the step together with its peak"
        )
    rates = ProductRates.among(result_set.products, type_name, peak)
    times = product_times(step.size, name.batch, name.seq, rates)
    if not rates.by_shape:
        remark = f"every {type_name} product (measure --components peak at this size)"
        return ProductTimes(times.seconds, (remark,))
    return times


def _lights(
    step: MeasuredStep, times: ProductTimes, machine: Machine, moved: Mapping[str, float]
) -> tuple[tuple[LightPart, ...], LightPart]:
    """The parts with the rest of the step, and the step. `moved`: bytes of one of a component."""
    case, layers = step.case, step.size["n_layers"]
    outside = {p.name.component: p.count for p in step.parts if p.name.component not in LAYERS}
    is_fine = {ATTENTION, FFN} <= moved.keys()

    def least(name: str, count: int) -> LeastTime:
        traffic = count * machine.traffic_seconds(moved.get(name, 0.0))
        return LeastTime(times.seconds.get(name, 0.0), traffic)

    # the additions of the residual stream: the step's bytes without those of its parts
    residuals = LeastTime(0.0, 0.0)
    every = {ATTENTION: layers, FFN: layers, NORM: NORMS * layers + 1, **outside}
    if every.keys() <= moved.keys():
        known = sum(count * moved[name] for name, count in every.items())
        left, additions = max(0.0, case.counters.get("bytes", 0.0) - known), RESIDUALS * layers
        residuals = LeastTime(0.0, additions * machine.traffic_seconds(left / additions))
    if is_fine:
        in_layers = {ATTENTION: layers, FFN: layers, NORM: NORMS * layers}
        block = [*(least(name, count) for name, count in in_layers.items()), residuals]
    else:
        products = sum(times.seconds.get(name, 0.0) for name in (ATTENTION, FFN))
        block = [LeastTime(products, least(BLOCK, layers).traffic)]

    parts = []
    for part in step.parts:
        name = part.name.component
        of_part = block if name == BLOCK else [least(name, part.count)]
        parts.append(_light_part(name, part.count, part.seconds, of_part, str(part.name)))
    # What parts do not have: autograd's own work, and residual additions where layers are taken
    # apart. No error where it is faster than light: then parts alone do more than in the step.
    light = 0.0 if any(part.name == BLOCK for part in parts) else residuals.seconds
    rest = step.rest_seconds
    parts.append(LightPart(REST, 1, rest, light, rest - light, 0.0, light))

    # whichever parts of it this variant was measured by
    whole = [*(least(name, count) for name, count in outside.items()), *block, least(NORM, 1)]
    total = _light_part("step", 1, case.median_seconds, whole, str(case.name))
    # a part's light that is no bound leaves the step's without meaning, too
    if any(part.error for part in parts):
        total = replace(total, lost_seconds=None)
    return tuple(parts), total


def _what_is_missing(
    step: MeasuredStep, times: ProductTimes, moved: Mapping[str, float]
) -> list[str]:
    found = []
    for part in step.parts:
        name = part.name.component
        words = ["not measured"] if part.case is None else []
        if name not in moved and not (name == BLOCK and {ATTENTION, FFN} <= moved.keys()):
            words += ["its counters lack bytes"] if part.case else []
            words.append("its light is that of its products")
        if words:
            found.append(f"{part.name}: {', '.join(words)}")
    if times.at_peak:
        found.append(
            f"no rate at their own shape, the measured {product_type(step.case.name.dtype)} peak "
            f"stands in: {', '.join(times.at_peak)}"
        )
    return found


def speed_of_light(
    result_set: ResultSet, step: CaseName, sizes: Sizes | None = None
) -> SpeedOfLight:
    """Of a measured case full_step/train. `sizes`: fixtures/problem_sizes.json unless given.

    BadInputError for a step that is none or was not measured, for a size that is not known or not
    the file's, and for a file without the peaks that its step needs.
    """
    measured = _read_step(result_set, step, sizes)
    machine = Machine.from_context(result_set.context)
    times, moved = (
        _product_times(measured, result_set, machine),
        _known_bytes(measured, result_set),
    )
    parts, total = _lights(measured, times, machine, moved)
    share = None
    if total.lost_seconds is not None:
        share = 100.0 * total.light_seconds / measured.case.median_seconds
    errors = tuple(part.error for part in (*parts, total) if part.error)
    missing = tuple(_what_is_missing(measured, times, moved))
    return SpeedOfLight(step, parts, total, share, errors, missing)


# Switches of the update alone: the model runs as the baseline's.
UPDATE_SWITCHES = frozenset({"foreach_adamw", "fused_adamw", "library_adamw"})


@dataclass(frozen=True)
class Bar:
    """All `count` of a part together. `case`: the case that it comes from; empty for a remainder,
    whose `seconds` are below 0 where parts measured alone do work that the step shares."""

    name: str
    seconds: float
    count: int = 1
    case: str = ""


@dataclass(frozen=True)
class Waterfall:
    """`bars`: of the sum of parts, and `phases`: forward, backward, optimizer, other; both in
    order, the remainder last, and both add up to `step_seconds`. The missing: names of the cases
    without which a remainder holds more than it should."""

    step: CaseName
    step_seconds: float
    bars: tuple[Bar, ...]
    missing: tuple[str, ...]
    phases: tuple[Bar, ...]
    phases_missing: tuple[str, ...]


def _label(part: StepPart) -> str:
    component = part.name.component
    if component == NORM and part.count == 1:
        return "final norm"
    return component if part.count == 1 else f"{part.count} x {component}"


def _phases(step: MeasuredStep, cases: Mapping[str, MeasuredCase]) -> tuple[list[Bar], list[str]]:
    def model_bar(phase: str, pass_name: str) -> tuple[Bar | None, str]:
        """The model's case of the same kind as the step's model, and its name."""
        name = replace(step.case.name, component="model", pass_name=pass_name)
        if str(name) not in cases and switches_of(step.case) <= UPDATE_SWITCHES:
            name = replace(name, variant=BASELINE)
        case = cases.get(str(name))
        return (Bar(phase, case.median_seconds, case=str(name)) if case else None), str(name)

    (forward, forward_name), (backward, _) = (
        model_bar("forward", "forward_loss"),
        model_bar("backward", "backward"),
    )
    both, both_name = model_bar("forward and backward", "forward_backward")
    missing = [name for bar, name in ((forward, forward_name), (both, both_name)) if bar is None]
    # a difference that is not above 0 tells nothing
    if forward and both and both.seconds > forward.seconds:
        backward = Bar("backward", both.seconds - forward.seconds, case=both.case)
    elif backward and both and not forward and both.seconds > backward.seconds:
        forward = Bar("forward", both.seconds - backward.seconds, case=both.case)
    if forward and backward:
        bars, missing = [forward, backward], []
    else:
        bars = [both] if both else [bar for bar in (forward, backward) if bar]
    update = next(part for part in step.parts if part.name.component == OPTIMIZER)
    if update.seconds is None:
        missing.append(str(update.name))
    else:
        bars.append(Bar(OPTIMIZER, update.seconds, case=str(update.name)))
    shown = " ".join(bar.name for bar in bars)
    absent = [phase for phase in ("forward", "backward", OPTIMIZER) if phase not in shown]
    rest = step.case.median_seconds - sum(bar.seconds for bar in bars)
    return [*bars, Bar(", ".join([*absent, "other"]), rest)], missing


def waterfall(result_set: ResultSet, step: CaseName, sizes: Sizes | None = None) -> Waterfall:
    """Of a measured case full_step/train. `sizes`: fixtures/problem_sizes.json unless given.

    With fused_loss, the LM head's gradients are computed in the forward, which is then the longer.
    BadInputError as speed_of_light, less what concerns peaks.
    """
    measured = _read_step(result_set, step, sizes)
    phases, phases_missing = _phases(measured, result_set.cases)
    absent = [part for part in measured.parts if part.case is None]
    bars = [
        Bar(_label(part), part.seconds, part.count, str(part.name))
        for part in measured.parts
        if part.seconds is not None
    ]
    bars.append(Bar(", ".join([*map(_label, absent), REST]), measured.rest_seconds))
    return Waterfall(
        step,
        measured.case.median_seconds,
        tuple(bars),
        tuple(str(part.name) for part in absent),
        tuple(phases),
        tuple(phases_missing),
    )
