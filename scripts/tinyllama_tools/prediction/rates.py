"""Rates calibrated on what was run, of one dtype and variant on one device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.prediction.cells import Cells, StepCell, collect_cells
from tinyllama_tools.prediction.closure import Closure, closure_of
from tinyllama_tools.prediction.memory_overhead import MemoryOverhead, memory_overhead
from tinyllama_tools.prediction.part_rates import PartRate, fit_part_rates
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.prediction.spread import (
    CalibratedRange,
    HeldOutStep,
    Spread,
    large_steps,
    range_of,
    spread_of,
)
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.result_set import MeasuredCase, ResultSet
from tinyllama_tools.roofline.machine import Machine, product_type

# What results have to share for one calibration, as the context has it.
ONE_MACHINE = (
    ("device", "name"),
    ("device", "architecture"),
    ("device", "backend"),
    ("torch_version",),
    ("threads",),
)


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
        return math.log(self.closure.ratio * fitted / step.seconds)


def _fit(cells: Cells, machine: Machine, dtype: str) -> _Fit:
    peak = machine.peak_flops.get(product_type(dtype))
    parts = fit_part_rates(cells.parts, machine, peak)
    return _Fit(parts, closure_of(cells.steps), machine)


def _held_out(cells: Cells, machine: Machine, dtype: str) -> Iterator[HeldOutStep]:
    """The steps of each size, from the other sizes alone."""
    for size in cells.sizes if len(cells.sizes) > 1 else ():
        kept = cells.of_sizes([other for other in cells.sizes if other != size])
        fit, known = _fit(kept, machine, dtype), range_of(kept.steps)
        for step in large_steps(cells.of_sizes([size]).steps):
            error = fit.error(step)
            if error is not None:
                yield HeldOutStep(size, error, known.distance(step.flops, step.tokens))


def _base(fit: _Fit, steps: Sequence[StepCell]) -> float:
    errors = [error for step in steps if (error := fit.error(step)) is not None]
    scatter = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return max(scatter, fit.closure.scatter)


def _at(context: Mapping[str, object], keys: Sequence[str]) -> object:
    found: object = context
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _refuse_other_machines(sets: Sequence[ResultSet]) -> None:
    for other in sets[1:]:
        for keys in ONE_MACHINE:
            here, there = _at(sets[0].context, keys), _at(other.context, keys)
            if here != there:
                raise RatesRefusedError(
                    f"{'.'.join(keys)} is {here!r} in {sets[0].title} and {there!r} in "
                    f"{other.title}: rates are of one machine; calibrate each by itself"
                )


def _merged(sets: Sequence[ResultSet]) -> dict[str, MeasuredCase]:
    found: dict[str, MeasuredCase] = {}
    for result_set in sets:
        for name, case in result_set.cases.items():
            known = found.get(name)
            seconds = (*known.seconds, *case.seconds) if known else case.seconds
            found[name] = replace(case, seconds=seconds)
    return found


def calibrate_rates(
    result_sets: ResultSet | Sequence[ResultSet],
    dtype: str,
    variant: str,
    costs: Sequence[CaseCost] = (),
) -> Rates:
    """Rates of every part of a training step.

    `result_sets`: one, or several of one machine. `costs`: for rows that lack a counter of the
    formulas. RatesRefusedError where a part was not measured, machines differ, a bandwidth was not
    measured or a figure is not finite.
    """
    sets = (result_sets,) if isinstance(result_sets, ResultSet) else tuple(result_sets)
    if not sets:
        raise RatesRefusedError("no result to calibrate rates on; measure with scripts/study")
    _refuse_other_machines(sets)
    try:
        machine = Machine.from_context(sets[0].context)
    except BadInputError as error:
        raise RatesRefusedError(str(error)) from error
    cases = _merged(sets)
    cells = collect_cells(cases, {str(cost.name): cost for cost in costs}, dtype, variant)
    fit = _fit(cells, machine, dtype)
    alike = (c for c in cases.values() if (c.name.dtype, c.name.variant) == (dtype, variant))
    return Rates(
        dtype,
        variant,
        machine,
        fit.parts,
        fit.closure,
        spread_of(_base(fit, cells.steps), list(_held_out(cells, machine, dtype))),
        range_of(cells.steps),
        memory_overhead(alike),
        cells.sizes,
        len(cells.steps),
    )
