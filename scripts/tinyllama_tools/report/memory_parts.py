"""What a step's peak memory consists of, as far as counting parameters tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.case_costs import CaseCost
from tinyllama_tools.reading.result_set import MeasuredCase
from tinyllama_tools.reading.whole_and_parts import BASELINE, OPTIMIZED
from tinyllama_tools.report.scaling_fits import MIB, PEAK_MEMORY
from tinyllama_tools.report.selection import F32, STEP, is_own_shape, rank, sizes_by_name
from tinyllama_tools.report.wording import shape_text

# amp_* keeps parameters and moments in float32
NARROW = ("bf16", "f16")
WEIGHTS, MOMENTS, REST = "weights", "AdamW moments", "gradients, activations and scratch"


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of each part; together they are the peak."""

    label: str
    bytes_by_part: Mapping[str, float]


def _parts(label: str, parameters: float, dtype: str, peak: float) -> MemoryParts | None:
    """None where the peak is smaller than what is alive throughout: then something is wrong."""
    weights = parameters * (2 if dtype in NARROW else 4)
    rest = peak - 3 * weights
    if parameters <= 0 or rest < 0:
        return None
    return MemoryParts(label, {WEIGHTS: weights, MOMENTS: 2 * weights, REST: rest})


def measured_parts(case: MeasuredCase) -> MemoryParts | None:
    """Of a measured step; None without its counters."""
    parameters, peak = case.counters.get("parameters"), case.counters.get(PEAK_MEMORY)
    if not parameters or not peak:
        return None
    return _parts(shape_text(case.name), parameters, case.name.dtype, peak * MIB)


def predicted_parts(costs: Sequence[CaseCost]) -> list[MemoryParts]:
    """Of every problem size's step at its own shape, smallest size first; one variant and type."""
    of_steps = [c for c in costs if c.name.component == STEP and is_own_shape(c.name)]
    found: dict[str, CaseCost] = {}

    def preference(cost: CaseCost) -> tuple[object, ...]:
        return (rank(cost.name.variant, (OPTIMIZED, BASELINE)), rank(cost.name.dtype, (F32,)))

    for cost in of_steps:
        size = cost.name.size
        if size not in found or preference(cost) < preference(found[size]):
            found[size] = cost
    ordered = sorted(found, key=lambda size: rank(size, tuple(sizes_by_name())))
    every = [
        _parts(size, of.parameters, of.name.dtype, of.predicted_memory_bytes)
        for size in ordered
        if (of := found[size])
    ]
    return [parts for parts in every if parts is not None]
