"""Exercise 1: what follows from an operator profile: rules, patterns, ranked bottlenecks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.ablation.evidence import find_evidence
from tinyllama_tools.core.app import Json
from tinyllama_tools.models.bottlenecks import (
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    rank_bottlenecks,
    recommended,
    working_rows,
)
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.workshop.rules import above, is_largest, share_of, transfers_verdict, within
from tinyllama_tools.workshop.runs import MeasuredRun
from tinyllama_tools.workshop.worksheet import (
    NOT_MEASURED,
    Verdict,
    boxes,
    megabytes,
    number,
    percent,
    question,
    table,
    tick,
)


@dataclass(frozen=True)
class BaselineRuns:
    """The exercise's runs: without a profiler, with the operator profiler, with the two others."""

    plain: MeasuredRun
    profiled: MeasuredRun
    memory: MeasuredRun


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


def joined_summary(runs: BaselineRuns) -> Json:
    """One summary with every profiler's part; the profilers ran in two processes."""
    parts = {key: (runs.memory.summary or {})[key] for key in ("memory", "flops")}
    return {**(runs.profiled.summary or {}), **parts}


def speedup_text(speedup: float | None) -> str:
    """`1.23x`."""
    return NOT_MEASURED if speedup is None else f"{speedup:.2f}x"


def key_source(runs: BaselineRuns, key: str) -> str:
    """The run that a key of the joined summary is from."""
    run = runs.memory if key.startswith(("memory.", "flops.")) else runs.profiled
    return run.source(key)


def bottleneck_row(found: Bottleneck) -> tuple[str, ...]:
    """Of the table."""
    return (
        str(found.priority),
        found.category,
        percent(found.share_percent),
        found.difficulty,
        speedup_text(found.expected_speedup),
        speedup_text(found.upper_bound),
        found.measured.text() if found.measured else NOT_MEASURED,
    )


def recommendation(ranked: Sequence[Bottleneck]) -> str:
    """The category with the best known speedup, and what is known of it."""
    best = recommended(ranked)
    if best is None:
        return (
            f"None is worth it: of none is {WORTHWHILE_SPEEDUP}x or more of the step measured as a "
            "difference, or else expected."
        )
    known = (
        f"{best.measured.text()}, measured"
        if best.measured
        else f"{speedup_text(best.expected_speedup)} expected"
    )
    return (
        f"{best.category} first, the largest speedup known: {known}; {percent(best.share_percent)} "
        f"of the work ({best.share_definition}), difficulty {best.difficulty}."
    )


def bottleneck_section(runs: BaselineRuns, results: Path) -> list[str]:
    """Ranked by impact and effort; the speedups are Amdahl's, and the ablation's where one fits."""
    summary = joined_summary(runs)
    ranked = rank_bottlenecks(summary, find_evidence(summary, results))
    origin = [key_source(runs, key) for found in ranked for key in found.keys]
    best = recommended(ranked)
    header = ("rank", "bottleneck", "share", "difficulty", "expected", "at most", "measured")
    return [
        "### Bottlenecks ranked",
        "",
        "Expected speedup of the whole step by Amdahl's law; measured by scripts/ablation where it",
        "has run on this device and size. Categories overlap, so nothing here may be added up.",
        "",
        *table(header, map(bottleneck_row, ranked), *origin),
        *question(
            "What would the profiler recommend (overview page)?",
            recommendation(ranked),
            *(key_source(runs, key) for key in (best.keys if best else ())),
        ),
    ]


# What the walkthrough's list says of each, in its order.
TEXT_LEVELS = {
    KERNEL_FUSION: "High",
    QKV_FUSION: "High",
    FLASH_ATTENTION: "High",
    MEMORY_LAYOUT: "Medium",
    MIXED_PRECISION: "Medium",
    BATCH_SCALING: "Low",
}
KEYS = {
    KERNEL_FUSION: "operators.matrix_product_percent",
    QKV_FUSION: "operators.components",
    FLASH_ATTENTION: "operators.components",
    MEMORY_LAYOUT: "operators.table",
    MIXED_PRECISION: "operators.matrix_product_percent",
    BATCH_SCALING: "operators.launch_overhead_percent",
}
ACTS_ON = {
    KERNEL_FUSION: "work outside matrix products",
    QKV_FUSION: "attention/qkv_proj",
    FLASH_ATTENTION: "attention/core",
    MEMORY_LAYOUT: "operators that copy",
    MIXED_PRECISION: "matrix products",
    BATCH_SCALING: "launch overhead",
}


def primary_kernels(operators: Json) -> Verdict:
    """Whether matrix products together outweigh every other operator."""
    share = operators["matrix_product_percent"]
    name, other = largest_other_operator(operators["table"])
    return Verdict(
        share > other,
        f"{percent(share)} against {percent(other)} of {name}; rule: more than any other operator",
    )


def small_operations(operators: Json) -> Verdict:
    """Whether more than half of all calls are too short to use the device well."""
    found = above(small_calls_percent(operators["table"]), 50)
    return Verdict(
        found.holds,
        f"{found.reason} of the calls that compute (no views, allocations or "
        "autograd nodes) shorter than 20 microseconds each",
    )


def share_ticks(run: MeasuredRun) -> list[str]:
    """The compute patterns that are about shares of the work."""
    operators = (run.summary or {})["operators"]
    shares = group_shares(operators["components"])
    products = run.figure("operators.matrix_product_percent")
    components, rows = run.source("operators.components"), run.source("operators.table")
    return [
        tick(
            "Attention operations dominate compute time",
            is_largest(shares, "attention", "of attention, ffn and other"),
            components,
        ),
        tick(
            "Matrix multiplications (mm, addmm, bmm) dominate compute time",
            above(products.value, 50),
            products,
        ),
        tick(
            "Matrix multiplications are the primary kernels",
            primary_kernels(operators),
            products,
            rows,
        ),
        tick(
            "Attention operations consume ~35-45% of total time",
            within(shares["attention"], 35, 45),
            components,
        ),
        tick(
            "FFN operations consume ~30-40% of total time",
            within(shares["ffn"], 30, 40),
            components,
        ),
        tick(
            "Many small operations with low individual utilization",
            small_operations(operators),
            rows,
        ),
    ]


def compute_section(run: MeasuredRun) -> list[str]:
    """The compute patterns of both lists."""
    launch = run.figure("operators.launch_overhead_percent")
    transfers = run.figure("operators.transfers_per_step")
    return boxes(
        "Compute patterns",
        [
            *share_ticks(run),
            tick("Kernel launch overhead visible in timeline", above(launch.value, 10), launch),
            tick(
                "Memory transfers visible between operations",
                transfers_verdict(run, 0),
                transfers,
            ),
        ],
    )


def growth_verdict(memory: Json) -> Verdict:
    """Whether the forward pass ends well above what was alive before it."""
    before, peak = memory["baseline_bytes"], memory["forward_peak_bytes"]
    grown = None if peak is None or before is None else peak - before
    found = above(share_of(grown, before), 5)
    return Verdict(
        found.holds, f"{megabytes(before)} to {megabytes(peak)}, a growth of {found.reason}"
    )


def memory_section(run: MeasuredRun) -> list[str]:
    """The memory patterns of both lists."""
    memory = (run.summary or {})["memory"]
    where = memory["peak_component"] or "unknown"
    small = share_of(memory["small_allocations_per_step"], memory["allocations_per_step"])
    few = above(small, 50)
    frequent = Verdict(
        few.holds,
        f"{number(memory['small_allocations_per_step'])} of "
        f"{number(memory['allocations_per_step'])} a step are below 64 KiB, {few.reason}",
    )
    in_attention = Verdict(
        where.startswith("attention"), f"1 peak, in {where}; rule: in a component of attention"
    )
    fragmentation = run.figure("memory.fragmentation.percent")
    return boxes(
        "Memory patterns",
        [
            tick(
                "Memory usage grows during forward pass",
                growth_verdict(memory),
                run.source("memory.baseline_bytes"),
                run.source("memory.forward_peak_bytes"),
            ),
            tick(
                "Peak memory during attention computation",
                in_attention,
                run.source("memory.peak_component"),
            ),
            tick(
                "Gradient tensors allocated during backward pass",
                gradients_verdict(memory),
                run.source("memory.breakdown_at_peak.gradients"),
                run.source("memory.backward_peak_bytes"),
            ),
            tick(
                "Frequent small allocations for intermediate tensors",
                frequent,
                run.source("memory.small_allocations_per_step"),
                run.source("memory.allocations_per_step"),
            ),
            tick("Memory fragmentation visible", above(fragmentation.value, 10), fragmentation),
        ],
    )


def opportunities(operators: Json) -> list[tuple[str, float]]:
    """Optimizations with the share that they act upon, largest first."""
    shares = addressable_shares(operators)
    return sorted(shares.items(), key=lambda entry: -entry[1])


def opportunity_section(run: MeasuredRun) -> list[str]:
    """Both lists: which would bring most, and whether the text's ranks hold here."""
    operators = (run.summary or {})["operators"]
    found = opportunities(operators)
    rows = [
        (str(rank), name, ACTS_ON[name], percent(share), level(share), TEXT_LEVELS[name])
        for rank, (name, share) in enumerate(found, start=1)
    ]
    header = ("rank", "optimization", "acts on", "share", "level", "in the text")
    origin = {name: run.source(key) for name, key in KEYS.items()}
    big = [tick(name, above(share, HIGH_PERCENT), origin[name]) for name, share in found]
    levels = [
        tick(f"**{text}:** {name}", level_verdict(dict(found)[name], text), origin[name])
        for name, text in TEXT_LEVELS.items()
    ]
    return [
        "### Optimization opportunities",
        "",
        "The share is the most that an optimization can touch, not what it saves.",
        "",
        *table(header, rows, *origin.values()),
        *boxes("Which of these would likely provide the biggest benefit?", big),
        *boxes("Does the text's rank hold here?", levels),
    ]


def patterns_section(runs: BaselineRuns) -> list[str]:
    """Step 4 of the exercise sheet, step 5 of the walkthrough."""
    return [
        "## Step 4: patterns",
        "",
        *compute_section(runs.profiled),
        *memory_section(runs.memory),
        *opportunity_section(runs.profiled),
    ]
