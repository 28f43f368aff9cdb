"""Exercise 1, step 5: patterns, and the optimizations ranked by the work that they act upon."""

from __future__ import annotations

from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_1_page import BaselineRuns
from tinyllama_tools.exercise_1_rules import (
    BATCH_SCALING,
    FLASH_ATTENTION,
    HIGH_PERCENT,
    KERNEL_FUSION,
    MEMORY_LAYOUT,
    MIXED_PRECISION,
    QKV_FUSION,
    addressable_shares,
    gradients_verdict,
    group_shares,
    largest_other_operator,
    level,
    level_verdict,
    small_calls_percent,
)
from tinyllama_tools.exercise_runs import MeasuredRun
from tinyllama_tools.worksheet import Verdict, boxes, megabytes, number, percent, table, tick
from tinyllama_tools.worksheet_rules import (
    above,
    is_largest,
    share_of,
    transfers_verdict,
    within,
)

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
