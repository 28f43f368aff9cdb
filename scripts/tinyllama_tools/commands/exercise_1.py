"""Exercise 1, baseline performance: its runs, and the numbers that its template answers with."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Mapping
from fnmatch import fnmatch
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
from tinyllama_tools.models.ablation_evidence import find_evidence
from tinyllama_tools.models.bottlenecks import rank_bottlenecks, recommended
from tinyllama_tools.models.optimization_effects import (
    PRODUCTS,
    addressable_shares,
    component_percent,
    group_shares,
    known_effects,
    small_calls_percent,
)
from tinyllama_tools.models.roofline import roofline_point

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import TrainingProgram

TITLE = "Exercise 1: baseline performance analysis"
STEPS = 20
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"


def lost_shares(runs: Mapping[str, MeasuredRun]) -> dict[str, float | None]:
    """What each of the four suspects costs, in percent; None where it was not measured.

    Memory bandwidth: work in components that the roofline calls bound by memory. Compute: what
    components bound by compute miss of their attainable rate. The shares may overlap.
    """
    operators, roofline = runs[PROFILED]("operators"), runs[MEMORY]("flops.roofline_data")
    lost: dict[str, float | None] = {"memory": None, "compute": None}
    if roofline is not None:
        lost = {"memory": 0.0, "compute": 0.0}
        for component in operators["components"]:
            if point := roofline_point(roofline["points"], component["name"]):
                attained = (point["percent_of_attainable"] or 0) / 100
                part = 1.0 if point["bound"] == "memory" else max(0.0, 1 - attained)
                lost[point["bound"]] = (lost[point["bound"]] or 0) + component["percent"] * part
    return {
        "Memory bandwidth (many small operations)": lost["memory"],
        "Compute utilization (device not fully utilized)": lost["compute"],
        "Kernel launch overhead (too many launches)": operators["launch_overhead_percent"],
        "Data loading (CPU bottleneck)": runs[PLAIN]("summary.breakdown.data_loading.percent"),
    }


def planned_runs(options: Namespace) -> Plan:
    """The worksheet's two commands, and one for the memory timeline and the FLOPS."""
    shape = (f"--batch-size={options.batch_size}", f"--seq-len={options.seq_len}")
    base = (*shape, f"--num-steps={STEPS}", *options.model)
    return {
        PLAIN: base,
        PROFILED: (*base, "--enable-pytorch-profiler", "--profile-steps=5"),
        MEMORY: (*base, "--profile-memory", "--enable-deepspeed-flops"),
    }


def overhead(runs: Mapping[str, MeasuredRun]) -> Json:
    """What profiling costs: within the profiled run, and against the plain run, in percent."""
    steps = runs[PROFILED]("steps") or []
    times = [s["time_seconds"] for s in steps if s["profiled"] and s["step"] > 1]
    profiled, plain = statistics.median(times) if times else None, runs[PLAIN].step_seconds
    return {
        "within": runs[PROFILED]("summary.operator_profiling_overhead_percent"),
        "profiled": profiled,
        "against": 100 * (profiled / plain - 1) if profiled and plain else None,
    }


def written_files(run: MeasuredRun) -> list[str]:
    """Name and size of each file of a profiled run."""
    files = [(name, run.folder / name) for name in run("files") or []]
    return [
        f"`{name}`" + (f" ({path.stat().st_size:,} bytes)" if path.is_file() else "")
        for name, path in files
    ]


FILES = {
    "events.out.tfevents.*": PROFILED,
    "trace_step_*.json": PROFILED,
    "performance_summary.json": PROFILED,
    "memory_timeline.json": MEMORY,
}


def worksheet_values(runs: Mapping[str, MeasuredRun], results: Path) -> Json:
    """What the template needs beside the runs."""
    operators, memory = runs[PROFILED]("operators"), runs[MEMORY]("memory")
    # one summary with every profiler's part; the profilers ran in two processes
    joined = {**(runs[PROFILED].summary or {}), "memory": memory, "flops": runs[MEMORY]("flops")}
    bottlenecks = rank_bottlenecks(joined, find_evidence(joined, results))
    effects, effects_from = known_effects(runs[MEMORY].name, runs[MEMORY], results / "reference")
    others = [row for row in operators["table"] if not PRODUCTS.search(row["name"])]
    none = {"name": "none", "share_percent": 0.0}
    opportunities = addressable_shares(operators)
    return {
        "shares": group_shares(operators["components"]),
        "small_calls": small_calls_percent(operators["table"]),
        "other_operator": max(others, key=lambda row: row["share_percent"], default=none),
        "fusable": {
            "QKV projections in attention": opportunities["Fused QKV projection in attention"],
            "Gate/Up projections in SwiGLU": component_percent(
                operators["components"], "ffn/gate_up_proj", "ffn/swiglu"
            ),
            "Layer normalization operations": component_percent(
                operators["components"], "rms_norm"
            ),
        },
        "opportunities": opportunities,
        "ranked_opportunities": sorted(opportunities.items(), key=lambda entry: -entry[1]),
        "suspects": lost_shares(runs),
        "overhead": overhead(runs),
        "files": {name: written_files(runs[name]) for name in (PROFILED, MEMORY)},
        "file_counts": {
            pattern: sum(
                fnmatch(file, pattern)
                for file in {*(runs[name]("files") or []), "performance_summary.json"}
            )
            for pattern, name in FILES.items()
        },
        "file_runs": FILES,
        "bottlenecks": bottlenecks,
        "best": recommended(bottlenecks),
        "saved": {e.name: 100 * e.saved_bytes / memory["peak_bytes"] for e in effects},
        "saved_basis": {effect.name: effect.basis for effect in effects},
        "effects_from": effects_from,
    }


WANTED = {PLAIN: (), PROFILED: ("operators",), MEMORY: ("memory", "flops")}


def sheet_of(runs: Mapping[str, MeasuredRun], results: Path = RESULTS) -> Sheet:
    """The page of whatever was measured; `results`: where an ablation of this device is found."""
    missing = missing_of(runs, WANTED)
    values = {} if missing else worksheet_values(runs, results)
    return make_sheet("exercise_1.md.j2", runs, missing, title=TITLE, **values)


def run_exercise(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    folder, page_folder = options.profile_dir, options.output.parent
    return sheet_of(measure_all(planned_runs(options), program, folder, page_folder))
