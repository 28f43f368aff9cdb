"""Share and assumed speed-up of each of exercise 3's categories, read from one profile."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tinyllama_tools.core.app import Json

# Operators and runtime calls that get or return memory, and do nothing else.
ALLOCATION = re.compile(
    r"aten::(empty|empty_like|empty_strided|new_empty|new_empty_strided|resize_)"
    r"|(cuda|hip)(Malloc|Free)\w*|(cuda|hip)MemPool\w*"
)
MEASURED_BY_OPERATORS = "needs --enable-pytorch-profiler"
MEASURED_BY_MEMORY = "needs --profile-memory"
PROJECTIONS_OF_A_LAYER, FUSED_PROJECTIONS_OF_A_LAYER = 7, 4
# silu reads gate and writes; the product reads both and writes. In one pass: two reads, one write.
SWIGLU_PASSES, FUSED_SWIGLU_PASSES = 5, 3


@dataclass(frozen=True)
class Share:
    """Percent of the step, None where it is not known; the definition says of what."""

    percent: float | None
    definition: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assumption:
    """How many times as fast the share becomes; None where there is no ground to assume any."""

    factor: float | None
    reason: str
    keys: tuple[str, ...] = ()


def component_percent(summary: Json, *names: str) -> float | None:
    """Sum over components, all below a name that ends in `/`; None without operator profile."""
    operators = summary.get("operators")
    if not operators:
        return None
    prefixes = tuple(name for name in names if name.endswith("/"))
    return sum(
        found["percent"]
        for found in operators["components"]
        if found["name"] in names or (prefixes and found["name"].startswith(prefixes))
    )


def _components(summary: Json, definition: str, *names: str) -> Share:
    percent = component_percent(summary, *names)
    if percent is None:
        return Share(None, MEASURED_BY_OPERATORS)
    keys = tuple(f"operators.components[{n}].percent" for n in names)
    return _of_the_step(summary, Share(percent, definition, keys))


def _launch_part(summary: Json) -> float | None:
    """Launch overhead as a part of one; None where it was not measured."""
    percent = (summary.get("operators") or {}).get("launch_overhead_percent")
    return None if percent is None else min(percent, 100.0) / 100


def _fewer_launches(summary: Json, before: int, after: int, what: str) -> Assumption:
    """FLOPs stay, so only the launch part of the time shrinks."""
    part = _launch_part(summary)
    if part is None:
        return Assumption(None, f"{what}: the launch overhead was not measured")
    factor = 1 / (1 - part + part * after / before)
    reason = (
        f"{what}: {before} launches become {after}, with the same FLOPs, so of its time only the "
        f"launch part ({100 * part:.1f} % as in the whole step) shrinks"
    )
    return Assumption(factor, reason, ("operators.launch_overhead_percent",))


def recorded_part(summary: Json) -> float | None:
    """What components are shares of, as a part of the step; None where it was not measured.

    On a GPU they are shares of the kernels' time, which is the step's without launch overhead.
    """
    if (summary.get("operators") or {}).get("device_time") != "gpu":
        return 1.0
    launches = _launch_part(summary)
    return None if launches is None else 1 - launches


def _of_the_step(summary: Json, share: Share) -> Share:
    part = recorded_part(summary)
    if part == 1 or share.percent is None:
        return share
    keys = (*share.keys, "operators.launch_overhead_percent")
    if part is None:
        return Share(None, "needs the launch overhead, to be a share of the step", keys)
    definition = f"{share.definition}: share of the kernels' time x (1 - launch overhead)"
    return Share(share.percent * part, definition, keys)


def qkv_share(summary: Json) -> Share:
    """Three products of one input."""
    return _components(summary, "products of Q, K and V", "attention/qkv_proj")


def qkv_factor(summary: Json) -> Assumption:
    """One product instead of three."""
    return _fewer_launches(summary, 3, 1, "Q, K and V in one product")


def _causal_factor(summary: Json, what: str) -> Assumption:
    seq = summary["configuration"]["seq_len"]
    reason = (
        f"{what}: a causal kernel in tiles computes S(S+1)/2 of the S x S scores (S = {seq}) and "
        f"writes none to memory; the traffic saved is not counted"
    )
    return Assumption(2 * seq / (seq + 1), reason, ("configuration.seq_len",))


def attention_share(summary: Json) -> Share:
    """Scores, softmax, values."""
    return _components(summary, "scores, softmax and values", "attention/core")


def attention_factor(summary: Json) -> Assumption:
    """Only what the causal mask leaves."""
    return _causal_factor(summary, "attention without a score matrix")


def softmax_share(summary: Json) -> Share:
    """Of the softmax operators alone."""
    operators = summary.get("operators")
    if not operators:
        return Share(None, MEASURED_BY_OPERATORS)
    definition, key = "softmax operators, forward and backward", "softmax_percent"
    return _of_the_step(summary, Share(operators.get(key), definition, (f"operators.{key}",)))


def softmax_factor(summary: Json) -> Assumption:
    """Softmax within the tile."""
    return _causal_factor(summary, "softmax within the tile")


def swiglu_share(summary: Json) -> Share:
    """Gate, up, and the activation that joins them."""
    names = ("ffn/gate_up_proj", "ffn/swiglu")
    return _components(summary, "products of gate and up, and silu(gate) * up", *names)


def swiglu_factor(summary: Json) -> Assumption:
    """One product instead of two; one pass over memory instead of two."""
    products = _fewer_launches(summary, 2, 1, "gate and up in one product")
    first = component_percent(summary, "ffn/gate_up_proj")
    second = component_percent(summary, "ffn/swiglu")
    if products.factor is None or first is None or second is None:
        return products
    if first + second == 0:
        return Assumption(1.0, "neither takes any time in this profile", products.keys)
    passes = SWIGLU_PASSES / FUSED_SWIGLU_PASSES
    factor = (first + second) / (first / products.factor + second / passes)
    reason = (
        f"{products.reason}; silu(gate) * up in one pass moves {FUSED_SWIGLU_PASSES} tensors "
        f"instead of {SWIGLU_PASSES}"
    )
    return Assumption(factor, reason, products.keys)


def launch_share(summary: Json) -> Share:
    """As the profile defines it for its device."""
    operators = summary.get("operators")
    if not operators:
        return Share(None, MEASURED_BY_OPERATORS)
    definition = operators.get("launch_overhead_definition") or (
        "time of launches against computation"
    )
    key = "launch_overhead_percent"
    return Share(operators.get(key), definition, (f"operators.{key}",))


def launch_factor(summary: Json) -> Assumption:
    """On a GPU a captured step is one launch; elsewhere fusion makes fewer operators."""
    operators = summary.get("operators") or {}
    kernels = operators.get("kernels_per_step")
    if operators.get("device_time") == "gpu" and kernels:
        reason = f"a captured graph replays the step's {kernels:.0f} kernels by one launch"
        return Assumption(float(kernels), reason, ("operators.kernels_per_step",))
    layers = summary["configuration"]["n_layers"]
    before = PROJECTIONS_OF_A_LAYER * layers + 1
    after = FUSED_PROJECTIONS_OF_A_LAYER * layers + 1
    reason = (
        f"operators become fewer as the projections do: {before} products of a forward become "
        f"{after} where Q, K, V and gate, up are fused"
    )
    return Assumption(before / after, reason, ("configuration.n_layers",))


def fragmentation_share(summary: Json) -> Share:
    """Host time that goes into getting memory: all that fragmentation can cost in time."""
    operators = summary.get("operators")
    if not operators:
        return Share(None, MEASURED_BY_OPERATORS)
    table = operators["table"]
    total = sum(row["cpu_self_seconds"] for row in table)
    if total <= 0:
        return Share(None, "the profile has no host time")
    spent = sum(row["cpu_self_seconds"] for row in table if ALLOCATION.fullmatch(row["name"]))
    held = ((summary.get("memory") or {}).get("fragmentation") or {}).get("percent")
    unused = "" if held is None else f"; {held:.1f} % of the memory held was fragmented"
    definition = f"operators that get or return memory, of all operators' host time{unused}"
    keys = ("operators.table[].cpu_self_seconds",)
    return Share(
        100 * spent / total,
        definition,
        keys if held is None else (*keys, "memory.fragmentation.percent"),
    )


def fragmentation_factor(summary: Json) -> Assumption:
    """A pool makes the small allocations free of cost."""
    memory = summary.get("memory")
    if not memory or memory.get("small_allocations_per_step") is None:
        return Assumption(None, MEASURED_BY_MEMORY)
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    # one allocation is left where all were small
    factor = every / max(every - small, 1) if every else 1.0
    reason = (
        f"a pool serves the {small:.0f} of {every:.0f} allocations a step that are below 64 KiB"
    )
    keys = ("memory.allocations_per_step", "memory.small_allocations_per_step")
    return Assumption(max(factor, 1.0), reason, keys)
