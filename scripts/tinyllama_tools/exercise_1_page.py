"""Exercise 1, steps 1 to 4: baseline metrics, profiling and what the profiler's views show."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_1_rules import group_shares, peak_place, spike_text, spike_verdict
from tinyllama_tools.exercise_runs import MeasuredRun, median_step_seconds, samples_per_second
from tinyllama_tools.memory_timeline import PAGE
from tinyllama_tools.worksheet import (
    boxes,
    megabytes,
    milliseconds,
    number,
    percent,
    question,
    record,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import NO_TRANSFERS, expected
from tinyllama_tools.workshop_notes import exact_figures

TOP_OPERATORS = 10
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"


@dataclass(frozen=True)
class BaselineRuns:
    """The exercise's runs: without a profiler, with the operator profiler, with the two others."""

    plain: MeasuredRun
    profiled: MeasuredRun
    memory: MeasuredRun


def device_text(run: MeasuredRun) -> str:
    """Name and memory of the device."""
    name, size = run.value("context.device.name"), run.value("context.device.memory_bytes")
    memory = f", {size / 2**30:.1f} GiB" if size else ""
    return f"{name or 'unknown device'}{memory}"


def baseline_section(run: MeasuredRun) -> list[str]:
    """Step 1: the metrics to record."""
    seconds, seconds_source = median_step_seconds(run)
    speed, speed_source = samples_per_second(run)
    peak, loss = run.figure("summary.peak_memory_bytes"), run.figure("summary.final_loss")
    average = run.figure("summary.average_step_seconds")
    parts = [
        (f"Time per {name}", run.figure(f"summary.average_{name}_seconds"))
        for name in ("forward", "backward", "optimizer")
    ]
    rows = [
        ("Training speed", number(speed, "samples/sec"), speed_source),
        ("Peak memory usage", megabytes(peak.value), peak),
        ("Final loss", number(loss.value), loss),
        ("Time per step, median", milliseconds(seconds), seconds_source),
        ("Average time per step (batch time)", milliseconds(average.value), average),
        *((name, milliseconds(found.value), found) for name, found in parts),
        ("GPU name and memory", device_text(run), run.source("context.device")),
    ]
    return ["## Step 1: baseline training", "", f"`{run.command}`", "", *record(rows)]


def observations_section(run: MeasuredRun, memory: MeasuredRun) -> list[str]:
    """Key observations of step 1, from this run's own numbers."""
    first = run.figure("summary.first_step_seconds")
    median = run.figure("summary.median_step_seconds")
    spread = run.figure("summary.stddev_step_seconds")
    average = run.figure("summary.average_step_seconds")
    slower = (first.value or 0) / median.value if median.value else 0
    varies = 100 * (spread.value or 0) / average.value if average.value else 0
    steady = "stable" if varies < 10 else "not stable"
    weights = run.figure("model.model_size_bytes")
    states = memory.figure("memory.breakdown_at_peak.optimizer_states")
    kept = memory.figure("memory.breakdown_at_peak.activations")
    lines = [
        *question(
            "Is the first iteration slower?",
            f"It took {milliseconds(first.value)}, {slower:.2f} times the median of "
            f"{milliseconds(median.value)}; all averages here leave it out.",
            first,
            median,
        ),
        *question(
            "Is the timing consistent?",
            f"The standard deviation is {percent(varies)} of the average: {steady} (rule: stable "
            "below 10 %).",
            spread,
            average,
        ),
        *question(
            "What is the memory used for?",
            f"Of {megabytes(run.value('summary.peak_memory_bytes'))}: weights "
            f"{megabytes(weights.value)}, optimizer states {megabytes(states.value)}, activations "
            f"{megabytes(kept.value)} at the peak; the rest is in the memory timeline below.",
            run.figure("summary.peak_memory_bytes"),
            weights,
            states,
            kept,
        ),
    ]
    return ["### Key observations", "", *lines, *exact_figures(run, memory)]


def profiled_median_seconds(run: MeasuredRun) -> float | None:
    """Median of the steps that a profiler recorded."""
    steps = (run.summary or {}).get("steps") or []
    times = [s["time_seconds"] for s in steps if s["profiled"] and s["step"] > 1]
    return statistics.median(times) if times else None


def overhead_answer(runs: BaselineRuns) -> tuple[str, float | None]:
    """In words, and the percentage that stands: of the same run, else against the plain run."""
    within = runs.profiled.value("summary.operator_profiling_overhead_percent")
    plain, _ = median_step_seconds(runs.plain)
    profiled = profiled_median_seconds(runs.profiled)
    against = 100 * (profiled / plain - 1) if profiled and plain else None
    text = (
        f"{percent(within)} against the unprofiled steps of the same run; against the run without "
        f"profiler {percent(against)} ({milliseconds(profiled)} for {milliseconds(plain)}). The "
        "workshop expects 6 to 15 %: "
    )
    standing = against if within is None else within
    return text + expected(standing, 6, 15, "%") + ".", standing


def files_answer(runs: BaselineRuns) -> str:
    """Names and sizes of what each profiled run wrote."""
    texts = []
    for run in (runs.profiled, runs.memory):
        names = run.value("files") or []
        sized = [f"`{name}`{_size(run, name)}" for name in names]
        texts.append(f"{run.name}/: {', '.join(sized) or 'none'}")
    return "; ".join(texts) + "."


def _size(run: MeasuredRun, name: str) -> str:
    path = run.folder / name
    return f" ({path.stat().st_size:,} bytes)" if path.is_file() else ""


def profiling_section(runs: BaselineRuns) -> list[str]:
    """Step 2: the three questions about profiling."""
    before = runs.plain.figure("summary.peak_memory_bytes")
    after = runs.profiled.figure("summary.peak_memory_bytes")
    difference = (after.value or 0) - (before.value or 0)
    overhead, _ = overhead_answer(runs)
    return [
        "## Step 2: profiling",
        "",
        f"`{runs.profiled.command}`",
        "",
        f"`{runs.memory.command}` (for the memory timeline, MFU and the roofline)",
        "",
        *question(
            "1. How much overhead did profiling add to training time?",
            overhead,
            runs.profiled.figure("summary.operator_profiling_overhead_percent"),
            runs.profiled.source("steps"),
            runs.plain.source("steps"),
        ),
        *question(
            "2. What files were generated?",
            files_answer(runs),
            runs.profiled.figure("files"),
            runs.memory.figure("files"),
        ),
        *question(
            "3. What's the difference in memory usage with profiling enabled?",
            f"{megabytes(difference)}: {megabytes(after.value)} with, {megabytes(before.value)} "
            "without. These are bytes of tensors; the profiler's own events are no tensors.",
            after,
            before,
        ),
    ]


def operator_row(row: Json) -> tuple[str, ...]:
    """As the operator view shows it, times summed over the recorded steps."""
    device = row.get("device_self_seconds")
    return (
        f"`{row['name']}`",
        number(row["calls"]),
        milliseconds(device) if device is not None else "no GPU",
        milliseconds(row["cpu_self_seconds"]),
        milliseconds(row["cpu_total_seconds"]),
        percent(row["share_percent"]),
    )


def operator_section(run: MeasuredRun) -> list[str]:
    """Step 3, trace and operator view: what a person would read off the two tabs."""
    operators = (run.summary or {})["operators"]
    rows = operators["table"]
    clock = "GPU" if operators["device_time"] == "gpu" else "CPU"
    first, last = operators["first_step"], operators["last_step"]
    top = ", ".join(f"{i}. `{row['name']}`" for i, row in enumerate(rows[:3], start=1))
    kernels = run.figure("operators.distinct_kernels")
    shares = group_shares(operators["components"])
    header = ("operation", "calls", "GPU time", "CPU time", "CPU total", "share")
    kind = "kernels" if kernels.is_measured else "operators (no GPU, so no kernels)"
    distinct = kernels if kernels.is_measured else run.figure("operators.distinct_operators")
    return [
        "## Step 3: the profiler's views",
        "",
        f"### Trace timeline and operator view (steps {first} to {last})",
        "",
        *table(header, map(operator_row, rows[:TOP_OPERATORS]), run.source("operators.table")),
        *question(
            "What are the top 3 longest-running operations?", top, run.source("operators.table")
        ),
        *question(
            "Which operation consumes the most GPU time?",
            f"`{rows[0]['name']}`, {percent(rows[0]['share_percent'])} of the {clock} time.",
            run.source("operators.table"),
        ),
        *question(
            "What percentage of time is spent in attention operations?",
            f"{percent(shares['attention'])}.",
            run.source("operators.components"),
        ),
        *question(
            "How many different kernel types are launched?",
            f"{number(distinct.value)} {kind}.",
            distinct,
        ),
        *trace_rows(run),
    ]


def trace_rows(run: MeasuredRun) -> list[str]:
    """What to look for in the trace viewer and on the overview page."""
    busy = run.figure("device_sampling.readings.utilization_percent.mean")
    launch = run.figure("operators.launch_overhead_percent")
    transfers = run.figure("operators.transfers_per_step")
    on_cpu = run.value("context.device.backend") == "cpu" and not transfers.is_measured
    copies = NO_TRANSFERS if on_cpu else number(transfers.value)
    parts = run.figure("summary.breakdown")
    step = "; ".join(f"{n} {percent(p['percent'])}" for n, p in (parts.value or {}).items())
    return record(
        [
            ("device busy (gaps are the rest)", percent(busy.value), busy),
            ("launch overhead (CPU as bottleneck)", percent(launch.value), launch),
            ("copies between host and device a step", copies, transfers),
            ("step breakdown (overview page)", step or "not measured", parts),
            ("run environment", environment(run), run.source("context")),
        ]
    )


def environment(run: MeasuredRun) -> str:
    """Device, runtime and library, as far as known."""
    device = run.value("context.device") or {}
    known = [device.get("name"), device.get("runtime_version"), device.get("driver_version")]
    torch = run.value("context.torch_version")
    return ", ".join([*(str(text) for text in known if text), f"libtorch {torch}"])


def timeline_section(run: MeasuredRun) -> list[str]:
    """Step 3, memory timeline: the picture, and what it shows."""
    memory = (run.summary or {})["memory"]
    phases = ("forward", "backward", "optimizer")
    by_phase = ", ".join(f"{p} {megabytes(memory[f'{p}_peak_bytes'])}" for p in phases)
    peak = run.figure("memory.peak_bytes")
    verdict = spike_verdict(memory["largest_spike"], peak.value)
    return [
        "### Memory timeline",
        "",
        f"[live memory over the recorded steps]({run.link}/{PAGE})",
        "",
        *question("What is the peak memory usage?", f"{megabytes(peak.value)}.", peak),
        *question(
            "When does peak memory occur (forward/backward pass)?",
            f"{peak_place(memory)}, "
            f"{milliseconds(memory['peak_seconds'])} after its step's start. Peaks by phase: "
            f"{by_phase}.",
            *(run.source(f"memory.peak_{key}") for key in ("phase", "component", "operator")),
        ),
        *boxes(
            "Are there any memory spikes or unusual patterns?",
            [
                tick(
                    f"memory spikes; the largest rise: {spike_text(memory['largest_spike'])}",
                    verdict,
                    run.source("memory.largest_spike"),
                    peak,
                )
            ],
        ),
    ]
