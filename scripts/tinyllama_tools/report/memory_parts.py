"""What a step's peak memory consists of, as far as counting parameters tells it exactly.

Weights and AdamW's two moments are alive throughout. A step's peak is in its backward pass or in
its update. In the update all gradients are alive and no activation is, so that every part is known.
In the backward pass gradients are made while activations go, and how many there are at the peak
does not follow from any count: then they are one part with the activations. A training run's memory
profile counts them, allocation by allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.data.names import STEP, CaseName
from tinyllama_tools.data.parts import BASELINE, OPTIMIZED
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import MeasuredCase
from tinyllama_tools.report.scaling_fits import MIB, PEAK_MEMORY
from tinyllama_tools.report.selection import F32, is_own_shape, rank, sizes_by_name
from tinyllama_tools.report.wording import shape_text

# amp_* keeps parameters and moments in float32
NARROW = ("bf16", "f16")
TOKEN_BYTES = 8
# of the allocator's rounding, and less than anything that has a part of its own
SLACK = 0.001
NOTE = (
    "Weights and AdamW's two moments are alive throughout. Where the update is the peak, all "
    "gradients are; where the backward pass is, the gradients made by then are one part with the "
    "activations."
)
WEIGHTS, MOMENTS, GRADIENTS = "weights", "AdamW moments", "gradients"
SCRATCH = "inputs and scratch of the update"
REST = "activations, gradients made by then, scratch"


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of each part; together they are the peak."""

    label: str
    bytes_by_part: Mapping[str, float]


def _update_scratch(name: CaseName, element: int) -> float | None:
    """Bytes beside weights, moments and gradients in the baseline's update: the denominators of
    its largest weight, and the step's inputs: tokens and targets, rotary
    tables and the mask. None where the update may be another one, or the size has no name."""
    of = sizes_by_name().get(name.size)
    if of is None or name.variant != BASELINE or name.dtype != F32:
        return None
    hidden, heads = of["hidden_dim"], of["n_heads"]
    largest = hidden * max(of["vocab_size"], of["intermediate_dim"], hidden)
    tables = 2 * name.seq * (hidden // heads)
    mask = heads // of["n_kv_heads"] * name.seq**2
    return element * (largest + tables + mask) + 2 * TOKEN_BYTES * name.batch * name.seq


def _parts(label: str, name: CaseName, parameters: float, peak: float) -> MemoryParts | None:
    """None where the peak is smaller than what is alive throughout: then something is wrong."""
    element = 2 if name.dtype in NARROW else 4
    weights = parameters * element
    rest = peak - 3 * weights
    if parameters <= 0 or rest < 0:
        return None
    found = {WEIGHTS: weights, MOMENTS: 2 * weights}
    scratch = _update_scratch(name, element)
    if scratch is not None and 0 <= rest - weights <= scratch + SLACK * peak:
        return MemoryParts(label, found | {GRADIENTS: weights, SCRATCH: rest - weights})
    return MemoryParts(label, found | {REST: rest})


def measured_parts(case: MeasuredCase) -> MemoryParts | None:
    """Of a measured step; None without its counters."""
    parameters, peak = case.counters.get("parameters"), case.counters.get(PEAK_MEMORY)
    if not parameters or not peak:
        return None
    return _parts(shape_text(case.name), case.name, parameters, peak * MIB)


def predicted_parts(costs: Sequence[CaseCost]) -> list[MemoryParts]:
    """Of every problem size's step at its own shape, smallest size first; one variant and type.
    All have the same parts, 0 bytes where a size has none of one."""
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
        _parts(size, of.name, of.parameters, of.predicted_memory_bytes)
        for size in ordered
        if (of := found[size])
    ]
    known = [parts for parts in every if parts is not None]
    names = dict.fromkeys(name for parts in known for name in parts.bytes_by_part)
    return [
        MemoryParts(parts.label, {name: parts.bytes_by_part.get(name, 0.0) for name in names})
        for parts in known
    ]
