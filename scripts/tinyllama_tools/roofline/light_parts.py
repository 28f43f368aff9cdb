"""The speed of light of each part of a step: what its products and its bytes take at least.

It belongs to the size, type and shape of the step and to no variant. Bytes are the least that any
implementation moves (model/cost.hpp), so any variant's case tells them; and a layer that was
measured as a block has the light of attention, network, norms and residual additions wherever the
bytes of those are known, so that it is the same as that of a step measured by its layers' parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.machine import Machine
from tinyllama_tools.reading.result_set import ResultSet
from tinyllama_tools.roofline.case_work import LeastTime
from tinyllama_tools.roofline.product_times import ProductTimes
from tinyllama_tools.roofline.step_parts import REST, MeasuredStep, StepPart
from tinyllama_tools.roofline.wording import time_text

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
