"""The speed of light of a training step, and where its time goes beyond that.

The speed of light of each part of a step: what its products and its bytes take at least.

It belongs to the size, type and shape of the step and to no variant. Bytes are the least that any
implementation moves (model/cost.hpp), so any variant's case tells them; and a layer that was
measured as a block has the light of attention, network, norms and residual additions wherever the
bytes of those are known, so that it is the same as that of a step measured by its layers' parts.

The speed of light of a training step: what each of its parts could reach at best here.

A part takes at least as long as its matrix products at the best rate measured at their own shapes,
and at least as long as its bytes at the roofline's bandwidth. Both may overlap, so the larger of
the two is its light; their sum would be no bound. Every occurrence of a part is taken to find in
the last-level cache what fits there, as the roofline does. Parts follow one another, so the step's
light is the sum of theirs. It is the same for every variant of a size, type and shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import Machine, product_type
from tinyllama_tools.data.names import STEP, TRAIN, CaseName, parse_case_name
from tinyllama_tools.data.parts import BASELINE, parts_of
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.roofline import (
    LeastTime,
    ProductRates,
    ProductTimes,
    product_times,
    step_products,
    switches_of,
    time_text,
)

# What is left of the step when its parts are taken away.
REST = "rest"


@dataclass(frozen=True)
class StepPart:
    """`count` times in a step. `case`: None where it was not measured."""

    name: CaseName
    count: int
    case: MeasuredCase | None

    @property
    def component(self) -> str:
        """The part's name in a picture."""
        return self.name.component

    @property
    def seconds(self) -> float | None:
        """Of all `count` together."""
        return None if self.case is None else self.count * self.case.median_seconds


@dataclass(frozen=True)
class MeasuredStep:
    """`size`: as in fixtures/problem_sizes.json."""

    case: MeasuredCase
    size: Mapping[str, int]
    parts: tuple[StepPart, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the parts that were not measured."""
        return tuple(str(part.name) for part in self.parts if part.case is None)

    @property
    def rest_seconds(self) -> float:
        """The step less its measured parts; below 0 where they do work that the step shares."""
        return self.case.median_seconds - sum(part.seconds or 0.0 for part in self.parts)


def _parts(result_set: ResultSet, step: CaseName, layers: int) -> tuple[StepPart, ...]:
    """In the step's order, those that were not measured among them."""
    missing = parts_of(step, layers, result_set.cases).missing
    # asked again as if they were there, which says how often the step has them and where
    every = parts_of(step, layers, {*result_set.cases, *missing}).measured
    named = ((parse_case_name(part.case), part.count) for part in every)
    return tuple(
        StepPart(name, count, result_set.cases.get(str(name)))
        for name, count in named
        if name is not None
    )


def measured_steps(result_set: ResultSet) -> list[CaseName]:
    """Every training step that was measured."""
    names = (case.name for case in result_set.cases.values())
    return [name for name in names if name.is_training_step]


def read_step(
    result_set: ResultSet, step: CaseName, sizes: Mapping[str, Mapping[str, int]]
) -> MeasuredStep:
    """BadInputError for a case that is no training step or was not measured, and for a size that
    is not among `sizes`."""
    if not step.is_training_step:
        raise BadInputError(f"{step}: is no training step; name a case of {STEP}/{TRAIN}")
    case = result_set.cases.get(str(step))
    if case is None:
        known = ", ".join(map(str, measured_steps(result_set))) or "none"
        raise BadInputError(f"{step}: was not measured; the measured steps are: {known}")
    size = sizes.get(step.size)
    if size is None:
        raise BadInputError(
            f"{step}: the dimensions of size '{step.size}' are not known; known are "
            f"{', '.join(sizes)}: measure a size of fixtures/problem_sizes.json"
        )
    return MeasuredStep(case, size, _parts(result_set, step, size["n_layers"]))


ATTENTION, FFN, NORM, BLOCK = "attention", "ffn", "rms_norm", "block"
# Per layer.
NORMS, RESIDUALS = 2, 2


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


def _faster_than_light(name: str, measured: float, light: float) -> str:
    return (
        f"{name}: {time_text(measured)} is faster than its speed of light, {time_text(light)}: a "
        "rate was measured too low, or the time is wrong; measure both again"
    )


def light_part(
    name: str, count: int, measured: float | None, least: Sequence[LeastTime], case: str = ""
) -> LightPart:
    """Of the least times of everything in it, one after another."""
    light = sum(one.seconds for one in least)
    error = ""
    if measured is not None and light > measured:
        error = _faster_than_light(name, measured, light)
    lost = None if error or measured is None else measured - light
    products, traffic = sum(one.products for one in least), sum(one.traffic for one in least)
    return LightPart(name, count, measured, light, lost, products, traffic, case, error)


def _alike(name: CaseName) -> tuple[object, ...]:
    """What cases of all variants have in common."""
    return (name.component, name.pass_name, name.size, name.dtype, name.batch, name.seq)


@dataclass(frozen=True)
class StepWork:
    """What the parts of a step have to do. `bytes`: of one of a component; those that no variant's
    case tells are not in it."""

    step: MeasuredStep
    times: ProductTimes
    machine: Machine
    bytes: Mapping[str, float]

    @classmethod
    def of(
        cls, step: MeasuredStep, times: ProductTimes, machine: Machine, result_set: ResultSet
    ) -> StepWork:
        """Looks the bytes up among all variants of the step's size, type and shape."""
        wanted = {_alike(part.name): part.component for part in step.parts}
        layers = (ATTENTION, FFN, NORM, BLOCK)
        names = (replace(step.parts[0].name, component=component) for component in layers)
        wanted |= {_alike(name): name.component for name in names}
        found: dict[str, float] = {}
        for case in result_set.cases.values():
            component, moved = wanted.get(_alike(case.name)), case.counters.get("bytes", 0.0)
            if component is not None and moved > 0:
                found[component] = min(moved, found.get(component, moved))
        return cls(step, times, machine, found)

    @property
    def _layers(self) -> int:
        return self.step.size["n_layers"]

    @property
    def _is_fine(self) -> bool:
        """Whether the layers' own parts are known."""
        return {ATTENTION, FFN} <= self.bytes.keys()

    def _component(self, name: str, count: int) -> LeastTime:
        traffic = count * self.machine.traffic_seconds(self.bytes.get(name, 0.0))
        return LeastTime(self.times.seconds.get(name, 0.0), traffic)

    def _residuals(self) -> LeastTime:
        """The additions of the residual stream: the step's bytes without those of its parts."""
        layers = self._layers
        counts = {ATTENTION: layers, FFN: layers, NORM: NORMS * layers + 1}
        inside = {BLOCK, *counts}
        counts |= {p.component: p.count for p in self.step.parts if p.component not in inside}
        if not self._is_fine or not counts.keys() <= self.bytes.keys():
            return LeastTime(0.0, 0.0)
        known = sum(count * self.bytes[name] for name, count in counts.items())
        left = max(0.0, self.step.case.counters.get("bytes", 0.0) - known)
        additions = RESIDUALS * layers
        return LeastTime(0.0, additions * self.machine.traffic_seconds(left / additions))

    def _block(self) -> list[LeastTime]:
        layers = self._layers
        if self._is_fine:
            counts = {ATTENTION: layers, FFN: layers, NORM: NORMS * layers}
            parts = [self._component(name, count) for name, count in counts.items()]
            return [*parts, self._residuals()]
        products = sum(self.times.seconds.get(name, 0.0) for name in (ATTENTION, FFN))
        return [LeastTime(products, self._component(BLOCK, layers).traffic)]

    def part(self, part: StepPart) -> LightPart:
        """Of a part of the step, measured or not."""
        name = part.component
        least = self._block() if name == BLOCK else [self._component(name, part.count)]
        return light_part(name, part.count, part.seconds, least, str(part.name))

    def whole(self) -> list[LeastTime]:
        """Of everything in the step, whichever parts of it this variant was measured by."""
        others = (p for p in self.step.parts if p.component not in (ATTENTION, FFN, NORM, BLOCK))
        outside = [self._component(part.component, part.count) for part in others]
        return [*outside, *self._block(), self._component(NORM, 1)]

    def rest(self) -> LightPart:
        """The step without its parts: residual additions where layers are taken apart, autograd's
        own work, and less than nothing where parts alone do what the step shares."""
        has_blocks = any(part.component == BLOCK for part in self.step.parts)
        least = LeastTime(0.0, 0.0) if has_blocks else self._residuals()
        seconds = self.step.rest_seconds
        # no error: being faster than light only says that parts alone do more than in the step
        lost = seconds - least.seconds
        return LightPart(REST, 1, seconds, least.seconds, lost, 0.0, least.traffic)

    def missing(self) -> list[str]:
        """What the parts' light lacks."""
        found = []
        for part in self.step.parts:
            is_known = part.component in self.bytes or (part.component == BLOCK and self._is_fine)
            words = ["not measured"] if part.case is None else []
            if not is_known:
                lacks = "" if part.case is None else "its counters lack bytes, "
                words.append(f"{lacks}its light is that of its products")
            if words:
                found.append(f"{part.name}: {', '.join(words)}")
        return found


MOST_LOST = 5


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
        losing = [part for part in self.parts if part.lost_seconds and part.lost_seconds > 0]
        losing.sort(key=lambda part: part.lost_seconds or 0.0, reverse=True)
        return tuple(losing[:MOST_LOST])


def _refuse_other_size(step: MeasuredStep) -> None:
    """BadInputError where the file's model_flops are not those of the size."""
    name = step.case.name
    expected = sum(p.flops for p in step_products(step.size, name.batch, name.seq))
    counted = step.case.counters.get("model_flops")
    if counted != expected:
        raise BadInputError(
            f"{name}: model_flops is {counted}, by the dimensions of "
            f"size '{name.size}' they are {expected}; name the problem sizes that were measured"
        )


def _product_times(step: MeasuredStep, result_set: ResultSet, machine: Machine) -> ProductTimes:
    name = step.case.name
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


def _total(work: StepWork, parts: Sequence[LightPart]) -> LightPart:
    case = work.step.case
    total = light_part("step", 1, case.median_seconds, work.whole(), str(case.name))
    # a part's light that is no bound leaves the step's without meaning, too
    return replace(total, lost_seconds=None) if any(part.error for part in parts) else total


def speed_of_light(
    result_set: ResultSet, step: CaseName, sizes: Mapping[str, Mapping[str, int]] | None = None
) -> SpeedOfLight:
    """Of a measured case full_step/train. `sizes`: fixtures/problem_sizes.json unless given.

    BadInputError for a step that is none or was not measured, for a size that is not known or not
    the file's, and for a file without the peaks that its step needs.
    """
    measured = read_step(result_set, step, problem_sizes() if sizes is None else sizes)
    machine = Machine.from_context(result_set.context)
    _refuse_other_size(measured)
    times = _product_times(measured, result_set, machine)
    work = StepWork.of(measured, times, machine, result_set)
    parts = (*(work.part(part) for part in measured.parts), work.rest())
    total = _total(work, parts)
    share = None
    if total.lost_seconds is not None:
        share = 100.0 * total.light_seconds / measured.case.median_seconds
    errors = tuple(part.error for part in (*parts, total) if part.error)
    missing = work.missing()
    if times.at_peak:
        type_name = product_type(step.dtype)
        instead = f"no rate at their own shape, the measured {type_name} peak stands in: "
        missing.append(instead + ", ".join(times.at_peak))
    return SpeedOfLight(step, parts, total, share, errors, tuple(missing))


# Switches of the update alone: the model runs as the baseline's.
UPDATE_SWITCHES = frozenset({"foreach_adamw", "fused_adamw"})
OPTIMIZER, MODEL = "optimizer", "model"
FINAL_NORM = "final norm"
OTHER = "other"


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
    """`bars`: of the closure, and `phases`: forward, backward, optimizer, other; both in order, the
    remainder last, and both add up to `step_seconds`. The missing: names of the cases without which
    a remainder holds more than it should."""

    step: CaseName
    step_seconds: float
    bars: tuple[Bar, ...]
    missing: tuple[str, ...]
    phases: tuple[Bar, ...]
    phases_missing: tuple[str, ...]


def _label(part: StepPart) -> str:
    if part.component == "rms_norm" and part.count == 1:
        return FINAL_NORM
    return part.component if part.count == 1 else f"{part.count} x {part.component}"


def _bars(step: MeasuredStep) -> tuple[Bar, ...]:
    bars = [
        Bar(_label(part), part.seconds, part.count, str(part.name))
        for part in step.parts
        if part.seconds is not None
    ]
    absent = [_label(part) for part in step.parts if part.case is None]
    bars.append(Bar(", ".join([*absent, REST]), step.rest_seconds))
    return tuple(bars)


def _model_case(step: MeasuredStep, pass_name: str, measured: Mapping[str, object]) -> str:
    """The name of the model's case of the same kind as the step's model."""
    name = replace(step.case.name, component=MODEL, pass_name=pass_name)
    baseline = replace(name, variant=BASELINE)
    if str(name) not in measured and switches_of(step.case) <= UPDATE_SWITCHES:
        return str(baseline)
    return str(name)


def _model_bars(forward: Bar | None, backward: Bar | None, both: Bar | None) -> list[Bar]:
    """Of the model's passes as far as those that were measured tell them apart; a difference that
    is not above 0 tells nothing."""
    if forward and both and both.seconds > forward.seconds:
        backward = Bar("backward", both.seconds - forward.seconds, case=both.case)
    elif backward and both and not forward and both.seconds > backward.seconds:
        forward = Bar("forward", both.seconds - backward.seconds, case=both.case)
    if forward and backward:
        return [forward, backward]
    if both:
        return [replace(both, name="forward and backward")]
    return [bar for bar in (forward, backward) if bar]


def _phases(step: MeasuredStep, result_set: ResultSet) -> tuple[tuple[Bar, ...], tuple[str, ...]]:
    cases = result_set.cases

    def measured(name: str, case: str) -> Bar | None:
        return Bar(name, cases[case].median_seconds, case=case) if case in cases else None

    names = {
        "forward": _model_case(step, "forward_loss", cases),
        "both": _model_case(step, "forward_backward", cases),
        "backward": _model_case(step, "backward", cases),
    }
    found = {phase: measured(phase, case) for phase, case in names.items()}
    bars = _model_bars(found["forward"], found["backward"], found["both"])
    update = next(part for part in step.parts if part.component == OPTIMIZER)
    missing = _missing_phases(bars, names, found)
    if update.seconds is None:
        missing.append(str(update.name))
    else:
        bars.append(Bar(OPTIMIZER, update.seconds, case=str(update.name)))
    rest = step.case.median_seconds - sum(bar.seconds for bar in bars)
    bars.append(Bar(", ".join([*_absent(bars), OTHER]), rest))
    return tuple(bars), tuple(missing)


def _absent(bars: Sequence[Bar]) -> list[str]:
    """The phases that only the remainder has."""
    shown = " ".join(bar.name for bar in bars)
    return [phase for phase in ("forward", "backward", OPTIMIZER) if phase not in shown]


def _missing_phases(
    bars: Sequence[Bar], names: Mapping[str, str], found: Mapping[str, Bar | None]
) -> list[str]:
    """Of the model's cases, those that would tell the phases apart; nothing where they do."""
    if {"forward", "backward"} <= {bar.name for bar in bars}:
        return []
    return [names[phase] for phase in ("forward", "both") if found[phase] is None]


def waterfall(
    result_set: ResultSet, step: CaseName, sizes: Mapping[str, Mapping[str, int]] | None = None
) -> Waterfall:
    """Of a measured case full_step/train. `sizes`: fixtures/problem_sizes.json unless given.

    With fused_loss, the LM head's gradients are computed in the forward, which is then the longer.
    BadInputError as speed_of_light, less what concerns peaks.
    """
    measured = read_step(result_set, step, problem_sizes() if sizes is None else sizes)
    phases, phases_missing = _phases(measured, result_set)
    return Waterfall(
        step,
        measured.case.median_seconds,
        _bars(measured),
        measured.missing,
        phases,
        phases_missing,
    )
