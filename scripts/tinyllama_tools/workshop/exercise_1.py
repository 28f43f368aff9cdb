"""Exercise 1: baseline performance analysis, its runs and its worksheet."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.profile.tables import PAGE
from tinyllama_tools.workshop.exercise_1_figures import (
    COMPUTE,
    DATA_LOADING,
    LAUNCHES,
    MEMORY_BANDWIDTH,
    BaselineRuns,
    bottleneck_section,
    bottleneck_verdicts,
    fusion_verdicts,
    group_shares,
    lost_shares,
    opportunities,
    patterns_section,
    peak_place,
    spike_text,
    spike_verdict,
)
from tinyllama_tools.workshop.memory_optimizations import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    Effect,
    known_effects,
)
from tinyllama_tools.workshop.rules import (
    NO_TRANSFERS,
    Sheet,
    all_hold,
    exact_figures,
    expected,
    failure_lines,
    head,
    is_largest,
    say,
    within,
)
from tinyllama_tools.workshop.runs import (
    UTILIZATION,
    MeasuredRun,
    PlannedRun,
    has_summary,
    measure_all,
    median_step_seconds,
    missing_of,
    samples_per_second,
    was_interrupted,
)
from tinyllama_tools.workshop.worksheet import (
    Verdict,
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

TOP_OPERATORS = 10
PLAIN, PROFILED, MEMORY = "plain", "profiled", "memory_and_flops"


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


MFU_CLASSES = (
    ("< 20% (memory bound)", 0, 20),
    ("20-40% (mixed workload)", 20, 40),
    ("40-60% (compute bound)", 40, 60),
    ("> 60% (highly optimized)", 60, math.inf),
)
MEMORY_CHOICES = {
    CHECKPOINTING: "Gradient checkpointing (reduce activation memory)",
    FLASH: "Flash Attention (reduce attention memory from O(S^2) to O(S))",
    MIXED: "Mixed precision (reduce memory footprint by 2x)",
    FUSION: "Tensor fusion (reduce intermediate tensor allocations)",
}
# What step 1 asks to write down.
RECORDED = (
    "summary.samples_per_second",
    "summary.peak_memory_bytes",
    "summary.final_loss",
    "summary.average_step_seconds",
    "context.device.name",
)
PROFILE_FILES = (
    ("events.out.tfevents.*", "profiled"),
    ("trace_step_*.json", "profiled"),
    ("performance_summary.json", "profiled"),
    ("memory_timeline.json", "memory"),
)


def range_rows(runs: BaselineRuns) -> list[tuple[float | None, tuple]]:
    """Measured value, and (name, low, high, unit, source) of each expected range."""
    plain, profiled, memory = runs.plain, runs.profiled, runs.memory
    speed, speed_source = samples_per_second(plain)
    operators = (profiled.summary or {})["operators"]
    shares = group_shares(operators["components"])
    busy = plain.figure("device_sampling.readings.utilization_percent.mean")
    peak = plain.figure("summary.peak_memory_bytes")
    gib = peak.value / 2**30 if peak.is_measured else None
    on_gpu = profiled.figure("operators.distinct_kernels")
    kinds = on_gpu if on_gpu.is_measured else profiled.figure("operators.distinct_operators")
    what = "Kernel count" if on_gpu.is_measured else "Kernel count (operators: no GPU)"
    mfu, components = memory.figure(UTILIZATION), profiled.source("operators.components")
    products = profiled.figure("operators.matrix_product_percent")
    return [
        (speed, ("Training speed (sheet)", 50, 100, "samples/sec", speed_source)),
        (speed, ("Training speed (walkthrough)", 50, 200, "samples/sec", speed_source)),
        (busy.value, ("GPU utilization", 60, 75, "%", busy.source)),
        (gib, ("Memory usage", 2, 4, "GiB", peak.source)),
        (kinds.value, (f"{what}, sheet", 40, 50, "kinds", kinds.source)),
        (kinds.value, (f"{what}, walkthrough", 60, 80, "kinds", kinds.source)),
        (mfu.value, ("MFU", 20, 35, "%", mfu.source)),
        (shares["attention"], ("Attention's share", 35, 45, "%", components)),
        (shares["ffn"], ("FFN's share", 30, 40, "%", components)),
        (products.value, ("Matrix multiplications dominant", 50, 100, "%", products.source)),
    ]


def expected_section(runs: BaselineRuns) -> list[str]:
    """Every expected range against what was measured, and the files."""
    rows = [
        (
            name,
            f"{low}-{high} {unit}",
            number(value, unit),
            expected(value, low, high, unit),
            source,
        )
        for value, (name, low, high, unit, source) in range_rows(runs)
    ]
    header = ("what", "expected", "measured", "in range?", "from (file: key)")
    return [
        "## Expected results",
        "",
        *table(header, rows),
        "The range of 2-4 GB is not what a model of this size takes: see the exact figures above.",
        "",
        *boxes("Profiling data generated", file_ticks(runs)),
    ]


def file_ticks(runs: BaselineRuns) -> list[str]:
    """A box for each file that the text lists."""
    ticks = []
    for pattern, where in PROFILE_FILES:
        run = runs.profiled if where == "profiled" else runs.memory
        names = [*(run.value("files") or []), "performance_summary.json"]
        count = sum(fnmatch(name, pattern) for name in dict.fromkeys(names))
        found = Verdict(count > 0, f"{count} in {run.name}/; rule: at least 1")
        ticks.append(tick(f"`{pattern}`", found, run.source("files")))
    return ticks


def mfu_ticks(run: MeasuredRun) -> list[str]:
    """The four classes."""
    mfu = run.figure(UTILIZATION)
    return [tick(label, within(mfu.value, low, high), mfu) for label, low, high in MFU_CLASSES]


def memory_verdicts(effects: Sequence[Effect], peak: float) -> dict[str, Verdict]:
    """One holds: the optimization that saves most of the peak."""
    saved = {e.name: 100 * e.saved_bytes / peak for e in effects}
    found = {}
    for effect in effects:
        verdict = is_largest(saved, effect.name, "saving of the peak")
        label = MEMORY_CHOICES[effect.name]
        found[label] = Verdict(verdict.holds, f"{verdict.reason}; {effect.basis}")
    return {label: found[label] for label in MEMORY_CHOICES.values()}


def memory_question(run: MeasuredRun, references: Path) -> list[str]:
    """The fourth analysis question, from what exercise 2 ranks by."""
    effects, origin = known_effects(run, references)
    verdicts = memory_verdicts(effects, run.value("memory.peak_bytes"))
    return boxes(
        "4. Based on memory usage patterns, what optimization would help most?",
        [tick(label, verdict, origin) for label, verdict in verdicts.items()],
    )


def measured_losses(runs: BaselineRuns) -> dict[str, float | None]:
    """What each suspect of question 1 costs, in percent."""
    profile = (runs.profiled.summary or {})["operators"]
    waiting = runs.plain.value("summary.breakdown.data_loading.percent")
    return lost_shares(profile, runs.memory.value("flops.roofline_data"), waiting)


def bottleneck_question(runs: BaselineRuns) -> list[str]:
    """The first analysis question."""
    operators, memory = runs.profiled, runs.memory
    waiting = runs.plain.figure("summary.breakdown.data_loading.percent")
    lost = measured_losses(runs)
    roofline = (
        operators.source("operators.components"),
        memory.source("flops.roofline_data.points"),
    )
    lost_from = {
        MEMORY_BANDWIDTH: roofline,
        COMPUTE: roofline,
        LAUNCHES: (operators.source("operators.launch_overhead_percent"),),
        DATA_LOADING: (waiting,),
    }
    return boxes(
        "1. What is the primary bottleneck in the baseline model?",
        [tick(n, v, *lost_from[n]) for n, v in bottleneck_verdicts(lost).items()],
    )


def questions_section(runs: BaselineRuns, references: Path) -> list[str]:
    """The analysis questions of both documents; `references`: where ablations are looked for."""
    operators, memory = runs.profiled, runs.memory
    profile = (operators.summary or {})["operators"]
    components = operators.source("operators.components")
    shares = group_shares(profile["components"])
    return [
        "## Analysis questions",
        "",
        *bottleneck_question(runs),
        *boxes(
            "2. Which operations would benefit most from fusion?",
            [
                tick(label, verdict, components)
                for label, verdict in fusion_verdicts(profile["components"]).items()
            ],
        ),
        *boxes("3. What is the Model FLOPS Utilization?", mfu_ticks(memory)),
        *question(
            "3b. What percentage of time is spent in attention vs FFN?",
            f"attention {percent(shares['attention'])}, FFN {percent(shares['ffn'])}, other "
            f"(norms, residuals, loss, optimizer) {percent(shares['other'])}.",
            components,
        ),
        *memory_question(memory, references),
    ]


def criteria(runs: BaselineRuns) -> list[tuple[str, Verdict, str]]:
    """The success criteria of both documents, each with its source."""
    plain = runs.plain
    done, wanted = (plain.value(k) for k in ("summary.steps_completed", "configuration.num_steps"))
    loss = plain.value("summary.final_loss")
    finite = loss is not None and math.isfinite(loss)
    ran = Verdict(
        plain.is_complete and finite,
        f"{done} of {wanted} steps, last loss {loss}, exit status {plain.exit_status}; rule: all "
        "steps, a finite loss, status 0",
    )
    files = file_ticks(runs)
    written = sum(line.startswith("- [x]") for line in files)
    profiled = Verdict(
        written == len(files), f"{written} of {len(files)} kinds of files; rule: all of them"
    )
    unknown = sum(not plain.figure(key).is_measured for key in RECORDED)
    recorded = Verdict(
        not unknown, f"{len(RECORDED) - unknown} of {len(RECORDED)} figures; rule: all of step 1's"
    )
    operators = (runs.profiled.summary or {})["operators"]["table"]
    top = Verdict(len(operators) >= 3, f"{len(operators)} operators; rule: at least 3")
    suspects = measured_losses(runs)
    known = sum(share is not None for share in suspects.values())
    bottlenecks = Verdict(
        known == len(suspects), f"{known} of {len(suspects)} suspects measured; rule: all of them"
    )
    found = [
        ("Baseline training runs successfully", ran, plain.source("summary")),
        ("Profiling data generated and analyzed", profiled, runs.profiled.source("files")),
        ("Performance metrics documented", recorded, plain.source("summary")),
        ("Top operations identified", top, runs.profiled.source("operators.table")),
        ("Bottlenecks identified", bottlenecks, runs.profiled.source("operators")),
    ]
    ready = all_hold([verdict for _, verdict, _ in found], "criteria above hold")
    return [*found, ("Ready to proceed to memory analysis", ready, "")]


def closing_section(runs: BaselineRuns) -> list[str]:
    """Takeaways, next steps and success criteria."""
    speed, source = samples_per_second(runs.plain)
    busy = runs.plain.figure("device_sampling.readings.utilization_percent.mean")
    peak = runs.plain.figure("summary.peak_memory_bytes")
    share_of_device = runs.plain.value("context.device.memory_bytes")
    part = 100 * peak.value / share_of_device if share_of_device and peak.is_measured else None
    targets = opportunities((runs.profiled.summary or {})["operators"])[:3]
    return [
        "## Key takeaways",
        "",
        *record(
            [
                ("training speed", number(speed, "samples/sec"), source),
                ("GPU utilization", percent(busy.value), busy),
                ("memory usage, of the device's", percent(part), peak),
            ]
        ),
        *question(
            "Top 3 optimization targets for Version 2?",
            ", ".join(
                f"{i}. {name} ({percent(s)})" for i, (name, s) in enumerate(targets, start=1)
            ),
            runs.profiled.source("operators"),
        ),
        "## Success criteria",
        "",
        *(tick(label, verdict, origin) for label, verdict, origin in criteria(runs)),
        "",
    ]


STEPS = 20


def planned_runs(options: Namespace) -> list[PlannedRun]:
    """The worksheet's two commands, and one for the memory timeline and the FLOPS."""
    base = (
        f"--batch-size={options.batch_size}",
        f"--seq-len={options.seq_len}",
        f"--num-steps={STEPS}",
        *options.model,
    )
    operators = ("--enable-pytorch-profiler", "--profile-steps=5")
    return [
        PlannedRun(PLAIN, base),
        PlannedRun(PROFILED, (*base, *operators)),
        PlannedRun(MEMORY, (*base, "--profile-memory", "--enable-deepspeed-flops")),
    ]


def missing_parts(runs: BaselineRuns) -> list[str]:
    """Why the page cannot be complete, a text a run; empty where it can."""
    wanted = ((runs.plain, ()), (runs.profiled, ("operators",)), (runs.memory, ("memory", "flops")))
    return missing_of(wanted)


def worksheet(runs: BaselineRuns, results: Path) -> list[str]:
    """The filled-in page of three complete runs."""
    return [
        *baseline_section(runs.plain),
        *observations_section(runs.plain, runs.memory),
        *profiling_section(runs),
        *operator_section(runs.profiled),
        *timeline_section(runs.memory),
        *patterns_section(runs),
        *bottleneck_section(runs, results),
        *expected_section(runs),
        *questions_section(runs, results / "reference"),
        *closing_section(runs),
    ]


def make_sheet(measured: dict[str, MeasuredRun], results: Path = RESULTS) -> Sheet:
    """The page of whatever was measured, and the command's exit status.

    `results`: where an ablation of this device is looked for.
    """
    runs = BaselineRuns(measured[PLAIN], measured[PROFILED], measured[MEMORY])
    title = head("Exercise 1: baseline performance analysis", list(measured.values()))
    missing = missing_parts(runs)
    if missing:
        step_1 = baseline_section(runs.plain) if runs.plain.summary else []
        page = [*title, *failure_lines(missing), *step_1]
        status = 130 if was_interrupted(measured) else 1
        return Sheet("\n".join(page), status, has_summary(measured))
    page = "\n".join([*title, *worksheet(runs, results)])
    return Sheet(page, 0 if all(run.is_complete for run in measured.values()) else 1)


def run_exercise_1(options: Namespace, program: TrainingProgram) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet."""
    folder, page_folder = options.profile_dir, options.output.parent
    return make_sheet(measure_all(planned_runs(options), program, folder, page_folder, say))
