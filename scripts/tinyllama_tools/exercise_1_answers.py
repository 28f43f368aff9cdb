"""Exercise 1: expected results, analysis questions, takeaways and success criteria."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tinyllama_tools.exercise_1_page import BaselineRuns
from tinyllama_tools.exercise_1_patterns import opportunities
from tinyllama_tools.exercise_1_rules import (
    COMPUTE,
    DATA_LOADING,
    LAUNCHES,
    MEMORY_BANDWIDTH,
    bottleneck_verdicts,
    fusion_verdicts,
    group_shares,
    lost_shares,
)
from tinyllama_tools.exercise_runs import UTILIZATION, MeasuredRun, samples_per_second
from tinyllama_tools.memory_optimizations import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    Effect,
    known_effects,
)
from tinyllama_tools.worksheet import (
    Verdict,
    boxes,
    number,
    percent,
    question,
    record,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import all_hold, expected, is_largest, within

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
