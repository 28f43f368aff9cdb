"""Exercise 1, baseline performance: its runs, and the numbers that its template answers with."""

from argparse import Namespace

from tinyllama_tools.commands.profile import Plan, measure_all
from tinyllama_tools.commands.worksheet import make_sheet, missing_of
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.profiles import Runs, component_percent, group_shares
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.bottlenecks import (
    CHECKPOINTING,
    COPIES,
    FLASH,
    FUSION,
    MIXED,
    PRODUCTS,
    memory_bound,
    memory_effects,
    small_calls_percent,
)
from tinyllama_tools.models.roofline import roofline_point

STEPS = 20
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"
WANTED = {PLAIN: (), PROFILED: ("operators",), MEMORY: ("memory", "flops")}


def planned_runs(options: Namespace) -> Plan:
    """The worksheet's two commands, and one for the memory timeline and the FLOPS."""
    shape = (f"--batch-size={options.batch_size}", f"--seq-len={options.seq_len}")
    base = (*shape, f"--num-steps={STEPS}", f"--size={options.size}")
    return {
        PLAIN: base,
        PROFILED: (*base, "--enable-pytorch-profiler", "--profile-steps=5"),
        MEMORY: (*base, "--profile-memory", "--enable-deepspeed-flops"),
    }


def lost_shares(runs: Runs) -> dict[str, float | None]:
    """What each of the four suspects costs, in percent; None where it was not measured.

    Memory bandwidth: work in components that the roofline calls bound by memory. Compute: what
    the others miss of their attainable rate. The shares may overlap.
    """
    operators, points = runs[PROFILED]("operators"), runs[MEMORY]("flops.roofline_data.points")
    bound = memory_bound(operators["components"], points)
    missed = 0.0
    for component in operators["components"]:
        point = roofline_point(points, component["name"])
        if point and component not in bound:
            attained = (point["percent_of_attainable"] or 0) / 100
            missed += component["percent"] * max(0.0, 1 - attained)
    return {
        "Memory bandwidth (many small operations)": sum(c["percent"] for c in bound),
        "Compute utilization (device not fully utilized)": missed,
        "Kernel launch overhead (too many launches)": operators["launch_overhead_percent"],
        "Data loading (CPU bottleneck)": runs[PLAIN]("summary.breakdown.data_loading.percent"),
    }


def addressable_shares(operators: Json) -> dict[str, float]:
    """The part of the recorded work, in percent, that each optimization acts upon."""
    components, products = operators["components"], operators["matrix_product_percent"]
    attention = component_percent(components, "attention/core")
    copies = [r["share_percent"] for r in operators["table"] if COPIES.search(r["name"])]
    return {
        "Kernel fusion (reduce number of operations)": 100 - products,
        "Fused QKV projection in attention": component_percent(components, "attention/qkv_proj"),
        "Flash Attention implementation (reduce memory)": attention,
        "Memory layout optimization": sum(copies),
        "Mixed precision training (FP16)": products,
        "Batch size scaling": operators["launch_overhead_percent"] or 0.0,
    }


# Effect of bottlenecks.py: the worksheet's choice.
CHOICES = {
    CHECKPOINTING: "Gradient checkpointing (reduce activation memory)",
    FLASH: "Flash Attention (reduce attention memory from O(S^2) to O(S))",
    MIXED: "Mixed precision (reduce memory footprint by 2x)",
    FUSION: "Tensor fusion (reduce intermediate tensor allocations)",
}


def worksheet_values(runs: Runs) -> Json:
    """What the template needs beside the runs."""
    operators = runs[PROFILED]("operators")
    effects = {CHOICES[row["name"]]: row for row in memory_effects(runs[MEMORY].summary or {})}
    opportunities, components = addressable_shares(operators), operators["components"]
    rows = operators["table"]
    others = [row["share_percent"] for row in rows if not PRODUCTS.search(row["name"])]
    swiglu = component_percent(components, "ffn/gate_up_proj", "ffn/swiglu")
    return {
        "shares": group_shares(components),
        "small_calls": small_calls_percent(rows),
        "other_operator": max(others, default=0.0),
        "fusable": {
            "QKV projections in attention": opportunities["Fused QKV projection in attention"],
            "Gate/Up projections in SwiGLU": swiglu,
            "Layer normalization operations": component_percent(components, "rms_norm"),
        },
        "opportunities": opportunities,
        "ranked_opportunities": sorted(opportunities.items(), key=lambda entry: -entry[1]),
        "suspects": lost_shares(runs),
        "saved": {label: row["saved_percent"] for label, row in effects.items()},
        "saved_basis": {label: row["basis"] for label, row in effects.items()},
    }


def run_exercise(options: Namespace, program: TrainingProgram) -> tuple[str, int]:
    """Carries the runs out, their files below `options.profile_dir`. The page, and the status."""
    runs = measure_all(planned_runs(options), program, options.profile_dir, options.output.parent)
    missing = missing_of(runs, WANTED)
    return make_sheet(
        "exercise_1.md.j2", runs, missing, **({} if missing else worksheet_values(runs))
    )
