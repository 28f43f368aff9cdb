"""The speed of light of a training step: what each of its parts could reach at best here.

A part takes at least as long as its matrix products at the best rate measured at their own shapes,
and at least as long as its bytes at the roofline's bandwidth. Both may overlap, so the larger of
the two is its light; their sum would be no bound. Every occurrence of a part is taken to find in
the last-level cache what fits there, as the roofline does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.result_set import ResultSet
from tinyllama_tools.roofline.case_work import useful_product_flops
from tinyllama_tools.roofline.machine import Machine, product_type
from tinyllama_tools.roofline.product_times import ProductTimes, Rates, product_times
from tinyllama_tools.roofline.products import SCORES, VALUES, step_products
from tinyllama_tools.roofline.step_parts import REST, MeasuredStep, StepPart, read_step
from tinyllama_tools.roofline.variant_switches import switches_of
from tinyllama_tools.roofline.wording import time_text
from tinyllama_tools.suite_run import problem_sizes

# Components whose products a part runs, where they are not its own.
PRODUCTS_OF = {"block": ("attention", "ffn")}
RESIDUALS_A_LAYER = 2
MOST_LOST = 5


@dataclass(frozen=True)
class LightPart:
    """All `count` of a part together. `measured_seconds`: None where the part was not measured.
    `lost_seconds`: measured less light; None without a measurement, and where light is the longer
    of the two, which `error` tells. `products_seconds`, `traffic_seconds`: what light is the larger
    of. `case`: the case measured; empty for the rest and the step."""

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
    the sum of the parts'. `share_percent`: light over measured; None where that is above 100.
    `errors`: what cannot be, in words. `missing`: what was not measured, and what stands in."""

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
    def other_seconds(self) -> float | None:
        """The step without those: everything else, and what products lose against their best.
        None where products at their best would take longer than the step."""
        if self.total.measured_seconds is None or self.total.error:
            return None
        return self.total.measured_seconds - self.products_seconds

    @property
    def most_lost(self) -> tuple[LightPart, ...]:
        """The five parts that lose most time, of those that lose any."""
        losing = [part for part in self.parts if part.lost_seconds and part.lost_seconds > 0]
        losing.sort(key=lambda part: part.lost_seconds or 0.0, reverse=True)
        return tuple(losing[:MOST_LOST])


def _error(name: str, measured: float, light: float) -> str:
    return (
        f"{name}: {time_text(measured)} is faster than its speed of light, {time_text(light)}: a "
        "rate was measured too low, or the time is wrong; measure both again"
    )


def _light_part(
    name: str,
    count: int,
    measured: float | None,
    products: float,
    traffic: float,
    case: str = "",
) -> LightPart:
    light = max(products, traffic)
    error = _error(name, measured, light) if measured is not None and light > measured else ""
    lost = None if error or measured is None else measured - light
    return LightPart(name, count, measured, light, lost, products, traffic, case, error)


def _bytes(part: StepPart) -> float:
    """Of one of it; 0 where they are not known."""
    return part.case.counters.get("bytes", 0.0) if part.case else 0.0


def _part(part: StepPart, times: ProductTimes, machine: Machine) -> LightPart:
    components = PRODUCTS_OF.get(part.component, (part.component,))
    products = sum(times.seconds.get(component, 0.0) for component in components)
    traffic = part.count * machine.traffic_seconds(_bytes(part))
    return _light_part(part.component, part.count, part.seconds, products, traffic, str(part.name))


def _rest(step: MeasuredStep, machine: Machine) -> LightPart:
    """The step without its parts: residual additions where layers are taken apart, autograd's own
    work, and less than nothing where parts alone do what the step shares."""
    traffic = 0.0
    if all(_bytes(part) for part in step.parts):
        additions = RESIDUALS_A_LAYER * step.size["n_layers"]
        known = sum(part.count * _bytes(part) for part in step.parts)
        left = step.case.counters.get("bytes", 0.0) - known
        traffic = additions * machine.traffic_seconds(left / additions)
    # no error: being faster than light only says that parts alone do more than in the step
    lost = step.rest_seconds - traffic
    return LightPart(REST, 1, step.rest_seconds, traffic, lost, 0.0, traffic)


def _score_share(step: MeasuredStep) -> float:
    """Of the scores' FLOPs, those that the variant computes at least.

    BadInputError where the file's model_flops are not those of the size.
    """
    name = step.case.name
    products = step_products(step.size, name.batch, name.seq)
    expected = sum(product.flops for product in products)
    counted = step.case.counters.get("model_flops")
    if counted != expected:
        raise BadInputError(
            f"{name}: model_flops is {counted}, by the dimensions of "
            f"size '{name.size}' they are {expected}; name the problem sizes that were measured"
        )
    scores = sum(product.flops for product in products if product.layer in (SCORES, VALUES))
    return 1.0 - (expected - useful_product_flops(step.case)) / scores


def _product_times(step: MeasuredStep, result_set: ResultSet, machine: Machine) -> ProductTimes:
    name = step.case.name
    type_name = product_type(name.dtype)
    peak = machine.peak_flops.get(type_name)
    if peak is None:
        raise BadInputError(
            f"{name}: no peak of {type_name} products was measured, the file has those of "
            f"{', '.join(machine.peak_flops) or 'no type'}; measure the step together with its peak"
        )
    rates = Rates.among(result_set.products, type_name, peak)
    times = product_times(
        step.size, name.batch, name.seq, switches_of(step.case), rates, _score_share(step)
    )
    if not rates.by_shape:
        remark = f"every {type_name} product (measure --components peak at this size)"
        return ProductTimes(times.seconds, (remark,))
    return times


def _missing(step: MeasuredStep, times: ProductTimes) -> tuple[str, ...]:
    parts = [f"{name}: not measured, its light is that of its products" for name in step.missing]
    no_bytes = [
        f"{part.name}: its counters lack bytes, its light is that of its products"
        for part in step.parts
        if part.case and not _bytes(part)
    ]
    type_name = product_type(step.case.name.dtype)
    stand_in = f"no rate at their own shape, the measured {type_name} peak stands in: "
    rates = [stand_in + ", ".join(times.at_peak)] if times.at_peak else []
    return (*parts, *no_bytes, *rates)


def speed_of_light(
    result_set: ResultSet, step: CaseName, sizes: Mapping[str, Mapping[str, int]] | None = None
) -> SpeedOfLight:
    """Of a measured case full_step/train. `sizes`: fixtures/problem_sizes.json unless given.

    BadInputError for a step that is none or was not measured, for a size that is not known or not
    the file's, and for a file without the peaks that its step needs.
    """
    measured = read_step(result_set, step, problem_sizes() if sizes is None else sizes)
    machine = Machine.from_context(result_set.context)
    times = _product_times(measured, result_set, machine)
    parts = [_part(part, times, machine) for part in measured.parts]
    parts.append(_rest(measured, machine))
    seconds = measured.case.median_seconds
    light = sum(part.light_seconds for part in parts)
    error = _error("step", seconds, light) if light > seconds else ""
    total = LightPart(
        "step",
        1,
        seconds,
        light,
        None if error else seconds - light,
        sum(part.products_seconds for part in parts),
        sum(part.traffic_seconds for part in parts),
        str(step),
        error,
    )
    errors = tuple(part.error for part in (*parts, total) if part.error)
    share = None if error else 100.0 * light / seconds
    return SpeedOfLight(step, tuple(parts), total, share, errors, _missing(measured, times))
