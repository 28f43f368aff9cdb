"""Exercise 1, baseline performance: its runs, and the numbers that its template answers with."""

from __future__ import annotations

from argparse import Namespace

from tinyllama_tools.commands.worksheet import (
    Plan,
    Runs,
    Sheet,
    make_sheet,
    measure_all,
    missing_of,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.profiles import component_percent, group_shares, median, step_times
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.ablations import Evidence, find_evidence
from tinyllama_tools.models.bottlenecks import (
    PRODUCTS,
    addressable_shares,
    known_effects,
    rank_bottlenecks,
    recommended,
    small_calls_percent,
)
from tinyllama_tools.models.roofline import roofline_point

STEPS = 20
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"
WANTED = {PLAIN: (), PROFILED: ("operators",), MEMORY: ("memory", "flops")}


def planned_runs(options: Namespace) -> Plan:
    """The worksheet's two commands, and one for the memory timeline and the FLOPS."""
    shape = (f"--batch-size={options.batch_size}", f"--seq-len={options.seq_len}")
    base = (*shape, f"--num-steps={STEPS}", *options.model)
    return {
        PLAIN: base,
        PROFILED: (*base, "--enable-pytorch-profiler", "--profile-steps=5"),
        MEMORY: (*base, "--profile-memory", "--enable-deepspeed-flops"),
    }


def lost_shares(runs: Runs) -> dict[str, float | None]:
    """What each of the four suspects costs, in percent; None where it was not measured.

    Memory bandwidth: work in components that the roofline calls bound by memory. Compute: what
    components bound by compute miss of their attainable rate. The shares may overlap.
    """
    operators, points = runs[PROFILED]("operators"), runs[MEMORY]("flops.roofline_data.points")
    lost = {"memory": 0.0, "compute": 0.0}
    for component in operators["components"]:
        if point := roofline_point(points, component["name"]):
            attained = (point["percent_of_attainable"] or 0) / 100
            part = 1.0 if point["bound"] == "memory" else max(0.0, 1 - attained)
            lost[point["bound"]] += component["percent"] * part
    return {
        "Memory bandwidth (many small operations)": lost["memory"],
        "Compute utilization (device not fully utilized)": lost["compute"],
        "Kernel launch overhead (too many launches)": operators["launch_overhead_percent"],
        "Data loading (CPU bottleneck)": runs[PLAIN]("summary.breakdown.data_loading.percent"),
    }


# Effect of bottlenecks.py: the worksheet's choice.
CHOICES = {
    "Gradient Checkpointing": "Gradient checkpointing (reduce activation memory)",
    "Flash Attention": "Flash Attention (reduce attention memory from O(S^2) to O(S))",
    "Mixed Precision (FP16/BF16)": "Mixed precision (reduce memory footprint by 2x)",
    "Kernel Fusion": "Tensor fusion (reduce intermediate tensor allocations)",
}


def worksheet_values(runs: Runs, evidence: Evidence | None) -> Json:
    """What the template needs beside the runs."""
    operators, memory = runs[PROFILED]("operators"), runs[MEMORY]("memory")
    # one summary with every profiler's part; the profilers ran in two processes
    joined = {**(runs[PROFILED].summary or {}), "memory": memory, "flops": runs[MEMORY]("flops")}
    bottlenecks = rank_bottlenecks(joined, evidence)
    effects = {effect.name: effect for effect in known_effects(joined, evidence)}
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
        "profiled_seconds": median(step_times(runs[PROFILED].summary, profiled=True)),
        "bottlenecks": bottlenecks,
        "best": recommended(bottlenecks),
        "saved": {label: effects[name].saved_percent for name, label in CHOICES.items()},
        "saved_basis": {label: effects[name].basis for name, label in CHOICES.items()},
    }


def sheet_of(runs: Runs, evidence: Evidence | None = None) -> Sheet:
    """The page of whatever was measured."""
    missing = missing_of(runs, WANTED)
    values = {} if missing else worksheet_values(runs, evidence)
    return make_sheet("exercise_1.md.j2", runs, missing, **values)


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    runs = measure_all(planned_runs(options), program, options)
    summary = runs[PLAIN].summary
    return sheet_of(runs, find_evidence(summary) if summary else None)
