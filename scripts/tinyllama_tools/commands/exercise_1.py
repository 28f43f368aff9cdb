"""Exercise 1, baseline performance: its runs, and the numbers that its template answers with."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.commands.worksheet import (
    MeasuredRun,
    Plan,
    Sheet,
    make_sheet,
    measure_all,
    missing_of,
)
from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.profiles import component_percent, group_shares
from tinyllama_tools.models.ablation_evidence import find_evidence
from tinyllama_tools.models.bottlenecks import (
    PRODUCTS,
    addressable_shares,
    known_effects,
    rank_bottlenecks,
    recommended,
    small_calls_percent,
)
from tinyllama_tools.models.roofline import roofline_point

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import TrainingProgram

TITLE = "Exercise 1: baseline performance analysis"
STEPS = 20
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"
WANTED = {PLAIN: (), PROFILED: ("operators",), MEMORY: ("memory", "flops")}
Runs = Mapping[str, MeasuredRun]


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
    operators = runs[PROFILED]("operators")
    lost = {"memory": 0.0, "compute": 0.0}
    for component in operators["components"]:
        points = runs[MEMORY]("flops.roofline_data.points")
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


def profiled_step_seconds(run: MeasuredRun) -> float | None:
    """Median of the steps that the profiler touched."""
    steps = run("steps") or []
    times = [s["time_seconds"] for s in steps if s["profiled"] and s["step"] > 1]
    return statistics.median(times) if times else None


# Effect of bottlenecks.py: the worksheet's choice.
CHOICES = {
    "Gradient Checkpointing": "Gradient checkpointing (reduce activation memory)",
    "Flash Attention": "Flash Attention (reduce attention memory from O(S^2) to O(S))",
    "Mixed Precision (FP16/BF16)": "Mixed precision (reduce memory footprint by 2x)",
    "Kernel Fusion": "Tensor fusion (reduce intermediate tensor allocations)",
}


def worksheet_values(runs: Runs, results: Path) -> Json:
    """What the template needs beside the runs."""
    operators, memory = runs[PROFILED]("operators"), runs[MEMORY]("memory")
    # one summary with every profiler's part; the profilers ran in two processes
    joined = {**(runs[PROFILED].summary or {}), "memory": memory, "flops": runs[MEMORY]("flops")}
    evidence = find_evidence(joined, results)
    bottlenecks = rank_bottlenecks(joined, evidence)
    effects = {CHOICES[e.name]: e for e in known_effects(joined, evidence)}
    opportunities, components = addressable_shares(operators), operators["components"]
    others = [
        row["share_percent"] for row in operators["table"] if not PRODUCTS.search(row["name"])
    ]
    return {
        "shares": group_shares(components),
        "small_calls": small_calls_percent(operators["table"]),
        "other_operator": max(others, default=0.0),
        "fusable": {
            "QKV projections in attention": opportunities["Fused QKV projection in attention"],
            "Gate/Up projections in SwiGLU": component_percent(
                components, "ffn/gate_up_proj", "ffn/swiglu"
            ),
            "Layer normalization operations": component_percent(components, "rms_norm"),
        },
        "opportunities": opportunities,
        "ranked_opportunities": sorted(opportunities.items(), key=lambda entry: -entry[1]),
        "suspects": lost_shares(runs),
        "profiled_seconds": profiled_step_seconds(runs[PROFILED]),
        "bottlenecks": bottlenecks,
        "best": recommended(bottlenecks),
        "saved": {
            label: 100 * effects[label].saved_bytes / memory["peak_bytes"]
            for label in CHOICES.values()
        },
        "saved_basis": {label: effect.basis for label, effect in effects.items()},
    }


def sheet_of(runs: Runs, results: Path = RESULTS) -> Sheet:
    """The page of whatever was measured; `results`: where an ablation of this device is found."""
    missing = missing_of(runs, WANTED)
    values = {} if missing else worksheet_values(runs, results)
    return make_sheet("exercise_1.md.j2", runs, missing, title=TITLE, **values)


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    folder, page_folder = options.profile_dir, options.output.parent
    return sheet_of(measure_all(planned_runs(options), program, folder, page_folder))
