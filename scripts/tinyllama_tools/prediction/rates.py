"""Rates calibrated on what was run, of one dtype and variant on one device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.prediction.cells import Cells, StepCell, collect_cells, large_steps
from tinyllama_tools.prediction.closure import Closure, closure_of
from tinyllama_tools.prediction.memory_overhead import MemoryOverhead, memory_overhead
from tinyllama_tools.prediction.part_rates import PartRate, fit_part_rates
from tinyllama_tools.prediction.refusal import RatesRefusedError
from tinyllama_tools.prediction.spread import (
    CalibratedRange,
    HeldOutStep,
    Spread,
    range_of,
    spread_of,
)
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.machine import Machine, product_type
from tinyllama_tools.reading.result_set import ResultSet


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
