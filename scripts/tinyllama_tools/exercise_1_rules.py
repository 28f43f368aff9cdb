"""Numbers of exercise 1 that follow from an operator profile, and what they decide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tinyllama_tools.core.app import Json
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.working_operators import working_rows
from tinyllama_tools.worksheet import Verdict, megabytes, number, percent
from tinyllama_tools.worksheet_rules import is_largest

# A kernel or operator that runs shorter than this costs about as much to start as to run.
SMALL_CALL_SECONDS = 20e-6
HIGH_PERCENT = 20.0
MEDIUM_PERCENT = 5.0
GROUPS = ("attention", "ffn", "other")
PRODUCTS = re.compile(
    r"(^|::)(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|mv|addmv|_linear_pointwise)$"
    r"|gemm|Cijk|linear_pointwise",
    re.IGNORECASE,
)
COPIES = re.compile(r"::(copy_|clone|contiguous|_to_copy|cat|_reshape_copy)$|memcpy", re.IGNORECASE)

MEMORY_BANDWIDTH = "Memory bandwidth (many small operations)"
COMPUTE = "Compute utilization (device not fully utilized)"
LAUNCHES = "Kernel launch overhead (too many launches)"
DATA_LOADING = "Data loading (CPU bottleneck)"

KERNEL_FUSION = "Kernel fusion (reduce number of operations)"
QKV_FUSION = "Fused QKV projection in attention"
FLASH_ATTENTION = "Flash Attention implementation (reduce memory)"
MEMORY_LAYOUT = "Memory layout optimization"
MIXED_PRECISION = "Mixed precision training (FP16)"
BATCH_SCALING = "Batch size scaling"


def component_percent(components: Sequence[Json], name: str) -> float:
    """Share of a component path and all below it; 0 where the profile has none of that name."""
    below = f"{name}/"
    return sum(c["percent"] for c in components if c["name"] == name or c["name"].startswith(below))


def group_shares(components: Sequence[Json]) -> dict[str, float]:
    """Attention, FFN and everything else, in percent of the recorded work."""
    whole = sum(c["percent"] for c in components)
    attention, ffn = (component_percent(components, name) for name in GROUPS[:2])
    return {"attention": attention, "ffn": ffn, "other": whole - attention - ffn}


def self_seconds(row: Json) -> float:
    """On the clock that the shares are of: the device's where there is one."""
    device = row.get("device_self_seconds")
    return row["cpu_self_seconds"] if device is None else device


def small_calls_percent(table: Sequence[Json]) -> float | None:
    """Share of the calls that work on values and take less than SMALL_CALL_SECONDS each."""
    rows = working_rows(table)
    calls = sum(row["calls"] for row in rows)
    small = sum(
        row["calls"] for row in rows if self_seconds(row) < row["calls"] * SMALL_CALL_SECONDS
    )
    return 100 * small / calls if calls else None


def largest_other_operator(table: Sequence[Json]) -> tuple[str, float]:
    """Name and share of the largest operator that is no matrix product; `none`, 0 without one."""
    others = [row for row in table if not PRODUCTS.search(row["name"])]
    best = max(others, key=lambda row: row["share_percent"], default=None)
    return (best["name"], best["share_percent"]) if best else ("none", 0.0)


def copies_percent(table: Sequence[Json]) -> float:
    """Share of operators that only move or rearrange values."""
    return sum(row["share_percent"] for row in table if COPIES.search(row["name"]))


def addressable_shares(operators: Json) -> dict[str, float]:
    """The part of the recorded work, in percent, that each optimization acts upon."""
    components, products = operators["components"], operators["matrix_product_percent"]
    return {
        KERNEL_FUSION: 100 - products,
        QKV_FUSION: component_percent(components, "attention/qkv_proj"),
        FLASH_ATTENTION: component_percent(components, "attention/core"),
        MEMORY_LAYOUT: copies_percent(operators["table"]),
        MIXED_PRECISION: products,
        BATCH_SCALING: operators["launch_overhead_percent"] or 0.0,
    }


def level(share: float) -> str:
    """High, Medium or Low by the share that an optimization acts upon."""
    if share >= HIGH_PERCENT:
        return "High"
    return "Medium" if share >= MEDIUM_PERCENT else "Low"


def level_verdict(share: float, wanted: str) -> Verdict:
    """Whether the measured level is the one that the workshop's text gives."""
    found = level(share)
    rule = f"High from {HIGH_PERCENT:.0f} %, Medium from {MEDIUM_PERCENT:.0f} %, else Low"
    return Verdict(found == wanted, f"acts on {percent(share)}, which is {found}; rule: {rule}")


def lost_shares(operators: Json, roofline: Json | None, data_percent: float | None) -> Json:
    """What each of the four suspects costs, in percent; None where it was not measured.

    Memory bandwidth: work in components that the roofline calls bound by memory. Compute: what
    components bound by compute miss of their attainable rate. The shares may overlap.
    """
    memory = compute = None
    if roofline is not None:
        drawn = [
            (c["percent"], point)
            for c in operators["components"]
            if (point := roofline_point(roofline["points"], c["name"]))
        ]
        memory = sum(share for share, point in drawn if point["bound"] == "memory")
        compute = sum(
            share * max(0.0, 1 - (point["percent_of_attainable"] or 0) / 100)
            for share, point in drawn
            if point["bound"] == "compute"
        )
    return {
        MEMORY_BANDWIDTH: memory,
        COMPUTE: compute,
        LAUNCHES: operators["launch_overhead_percent"],
        DATA_LOADING: data_percent,
    }


def bottleneck_verdicts(shares: Mapping[str, float | None]) -> dict[str, Verdict]:
    """One holds: the largest."""
    return {name: is_largest(shares, name, "share of the recorded work") for name in shares}


def fusion_verdicts(components: Sequence[Json]) -> dict[str, Verdict]:
    """Which of the three groups are worth fusing: those of at least half the largest share."""
    shares = {
        "QKV projections in attention": component_percent(components, "attention/qkv_proj"),
        "Gate/Up projections in SwiGLU": component_percent(components, "ffn/gate_up_proj")
        + component_percent(components, "ffn/swiglu"),
        "Layer normalization operations": component_percent(components, "rms_norm"),
    }
    most = max(shares.values())
    rule = f"rule: at least half of the largest of the three, {percent(most)}"
    found = {
        name: Verdict(share > 0 and share >= most / 2, f"{percent(share)}; {rule}")
        for name, share in shares.items()
    }
    count = sum(verdict.holds for verdict in found.values())
    all_three = Verdict(count == len(shares), f"{count} of {len(shares)} hold; rule: all three")
    return {**found, "All of the above": all_three}


def spike_text(spike: Json | None) -> str:
    """`2.0 MB in loss/lm_head, `aten::mm` in forward`, the largest rise within one operator."""
    if not spike:
        return "none recorded"
    where = f"{spike['component']}, `{spike['operator']}` in {spike['phase']}"
    return f"{megabytes(spike['bytes'])} in {where}"


def peak_place(memory: Json) -> str:
    """`backward, in attention/core (`aten::bmm`)`."""
    phase, component, operator = (
        memory[f"peak_{key}"] or "unknown" for key in ("phase", "component", "operator")
    )
    return f"{phase}, in {component} (`{operator}`)"


def spike_verdict(spike: Json | None, peak: float | None) -> Verdict:
    """Whether the largest rise within one operator is a spike."""
    rule = "rule: a rise within one operator above 10 % of the peak"
    if not spike or not peak:
        return Verdict(False, f"not measured; {rule}")
    share = 100 * spike["bytes"] / peak
    return Verdict(share > 10, f"the largest rise is {percent(share)} of the peak; {rule}")


def gradients_verdict(memory: Json) -> Verdict:
    """Whether gradients are allocated in the backward pass: alive at the peak, or raising it."""
    gradients = memory["breakdown_at_peak"]["gradients"]
    backward, forward = memory["backward_peak_bytes"], memory["forward_peak_bytes"]
    holds = gradients > 0 or (backward or 0) > (forward or 0)
    return Verdict(
        holds,
        f"{number(gradients)} bytes of gradients at the peak, backward peak {number(backward)} "
        f"against {number(forward)} bytes in forward; rule: gradients at the peak, or a higher "
        "peak in backward",
    )
