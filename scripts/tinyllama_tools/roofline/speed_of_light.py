"""The speed of light of a training step: what each of its parts could reach at best here.

A part takes at least as long as its matrix products at the best rate measured at their own shapes,
and at least as long as its bytes at the roofline's bandwidth. Both may overlap, so the larger of
the two is its light; their sum would be no bound. Every occurrence of a part is taken to find in
the last-level cache what fits there, as the roofline does. Parts follow one another, so the step's
light is the sum of theirs. It is the same for every variant of a size, type and shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.machine import Machine, product_type
from tinyllama_tools.reading.result_set import ResultSet
from tinyllama_tools.roofline.light_parts import LightPart, StepWork, light_part
from tinyllama_tools.roofline.product_times import ProductRates, ProductTimes, product_times
from tinyllama_tools.roofline.products import step_products
from tinyllama_tools.roofline.step_parts import MeasuredStep, read_step
from tinyllama_tools.suite_run import problem_sizes

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
        stand_in = f"no rate at their own shape, the measured {type_name} peak stands in: "
        missing.append(stand_in + ", ".join(times.at_peak))
    return SpeedOfLight(step, parts, total, share, errors, tuple(missing))
