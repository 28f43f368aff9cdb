"""Exercise 2, steps 2, 4 and 5: memory over time, hotspots, and bandwidth."""

from __future__ import annotations

from tinyllama_tools.exercise_1_rules import peak_place, spike_text
from tinyllama_tools.exercise_2_rules import (
    baseline_verdict,
    deallocation,
    drop_verdict,
    intensity_class,
    place_verdicts,
    usage_pattern,
)
from tinyllama_tools.exercise_2_runs import MemoryRuns
from tinyllama_tools.exercise_runs import MeasuredRun
from tinyllama_tools.memory_timeline import PAGE
from tinyllama_tools.worksheet import (
    NOT_MEASURED,
    boxes,
    megabytes,
    number,
    percent,
    question,
    record,
    table,
    tick,
)

TOP_HOTSPOTS = 5
PLACES = {
    "forward": "During forward pass (activations)",
    "attention": "During attention computation (attention matrices)",
    "backward": "During backward pass (gradients)",
    "optimizer": "During optimizer step (momentum buffers)",
}


def timeline_section(runs: MemoryRuns) -> list[str]:
    """Step 2: the picture, the boxes, and what to record."""
    run, memory = runs.base, runs.memory
    places = place_verdicts(memory)
    origin = [run.source(f"memory.peak_{key}") for key in ("phase", "component")]
    after = run.source("memory.live_bytes_after_steps")
    before = run.source("memory.baseline_bytes")
    drops = [
        tick(
            "clear drops in memory usage",
            drop_verdict(memory),
            after,
            run.source("memory.peak_bytes"),
        ),
        tick("memory returns to baseline after each step", baseline_verdict(memory), after, before),
    ]
    cause = spike_text(memory["largest_spike"])
    where = peak_place(memory)
    return [
        "## Step 2: memory timeline",
        "",
        f"[live memory over the recorded steps]({run.link}/{PAGE})",
        "",
        *phase_table(run),
        *boxes(
            "When does peak memory occur?", [tick(PLACES[n], places[n], *origin) for n in PLACES]
        ),
        *boxes("Is memory deallocated?", drops),
        *record(
            [
                ("Peak memory occurs at", where, run.source("memory.peak_component")),
                ("Largest memory spike caused by", cause, run.source("memory.largest_spike")),
                ("Memory is deallocated", deallocation(memory), after),
                (
                    "Memory usage pattern",
                    usage_pattern(memory["peak_to_average"]),
                    run.source("memory.peak_to_average"),
                ),
            ]
        ),
    ]


def phase_table(run: MeasuredRun) -> list[str]:
    """The summary that the text expects of a memory run."""
    keys = {
        "Peak Memory Usage": "peak_bytes",
        "Average Memory Usage": "average_bytes",
        "Memory at Forward Pass": "forward_peak_bytes",
        "Memory at Backward Pass": "backward_peak_bytes",
        "Memory at Optimizer Step": "optimizer_peak_bytes",
    }
    rows = []
    for name, key in keys.items():
        found = run.figure(f"memory.{key}")
        rows.append((name, megabytes(found.value), found))
    count = run.figure("memory.allocations_per_step")
    largest = (run.value("memory.largest_tensors") or [{}])[0]
    tensor = (
        f"{megabytes(largest.get('bytes'))} ({largest.get('name')}, {largest.get('component')})"
    )
    return record(
        [
            *rows,
            ("Number of Allocations a step", number(count.value), count),
            ("Largest Tensor", tensor, run.source("memory.largest_tensors")),
        ]
    )


def hotspot_section(run: MeasuredRun) -> list[str]:
    """Step 4: operators and tensors that take most memory."""
    operators, memory = (run.summary or {})["operators"], (run.summary or {})["memory"]
    by_name: dict[str, float] = {}
    for row in operators["table"]:
        by_name[row["name"]] = by_name.get(row["name"], 0) + (row["self_memory_bytes"] or 0)
    top = sorted(by_name.items(), key=lambda entry: -entry[1])[:TOP_HOTSPOTS]
    rows = [
        (str(rank), f"`{name}`", megabytes(size / operators["steps"]))
        for rank, (name, size) in enumerate(top, start=1)
    ]
    tensors = [
        (
            str(tensor["name"]),
            megabytes(tensor["bytes"]),
            str(tensor["count"]),
            str(tensor["component"]),
            f"`{tensor['operator']}` in {tensor['phase']}",
        )
        for tensor in memory["largest_tensors"]
    ]
    return [
        "## Step 4: memory hotspots",
        "",
        f"`{run.command}`",
        "",
        "Top memory-consuming operations (bytes that stay allocated after the operator, a step):",
        "",
        *table(("rank", "operation", "a step"), rows, run.source("operators.table")),
        "Largest tensors:",
        "",
        *table(
            ("tensor", "size", "count", "component", "made by"),
            tensors,
            run.source("memory.largest_tensors"),
        ),
    ]


def bandwidth_section(run: MeasuredRun) -> list[str]:
    """Step 5: every line of the bandwidth analysis."""
    prefix = "flops.computational_intensity"
    traffic = run.figure(f"{prefix}.memory_traffic_bytes_per_step")
    used = run.figure(f"{prefix}.memory_bandwidth_used_gb_per_sec")
    peak = run.figure(f"{prefix}.device_memory_bandwidth_gb_per_sec")
    share = run.figure(f"{prefix}.memory_bandwidth_utilization_percent")
    intensity = run.figure(f"{prefix}.arithmetic_intensity_flops_per_byte")
    named = run.figure(f"{prefix}.memory_bound_vs_compute_bound")
    origin = run.value(f"{prefix}.device_memory_bandwidth_source") or "unknown"
    gigabytes = traffic.value / 1e9 if traffic.is_measured else None
    return [
        "## Step 5: memory bandwidth",
        "",
        f"`{run.command}`",
        "",
        *record(
            [
                ("Memory Traffic per Step", number(gigabytes, "GB"), traffic),
                ("Memory Bandwidth Used", number(used.value, "GB/s"), used),
                (f"Theoretical Peak Bandwidth ({origin})", number(peak.value, "GB/s"), peak),
                ("Bandwidth Utilization", percent(share.value), share),
                ("Arithmetic Intensity", number(intensity.value, "FLOPS/byte"), intensity),
                ("Workload Classification", named.value or NOT_MEASURED, named),
            ]
        ),
        *boxes(
            "Is the workload memory-bound or compute-bound?",
            [tick(label, v, intensity) for label, v in intensity_class(intensity.value).items()],
        ),
        *question(
            "What is the bandwidth calculated from?",
            "the least traffic that any implementation needs (each input, weight and saved tensor "
            "once) over the mean time of the plain steps; what moves more than that uses more.",
            traffic,
            used,
        ),
    ]
