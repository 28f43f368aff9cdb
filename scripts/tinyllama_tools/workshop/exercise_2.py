"""Exercise 2: memory analysis, its worksheet."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path

from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.data.programs import TrainingProgram
from tinyllama_tools.models.size_predictions import Predictor, predict
from tinyllama_tools.profile.tables import PAGE
from tinyllama_tools.workshop.exercise_1_figures import peak_place, small_operations, spike_text
from tinyllama_tools.workshop.exercise_2_figures import (
    Limit,
    MemoryRuns,
    baseline_verdict,
    batch_section,
    batch_verdicts,
    collect,
    confirming_run,
    deallocation,
    drop_verdict,
    increment_ratio,
    increments_verdict,
    intensity_class,
    limit_section,
    missing_parts,
    place_verdicts,
    planned_runs,
    predict_limit,
    sequence_section,
    sequence_verdicts,
    target_verdicts,
    usage_pattern,
)
from tinyllama_tools.workshop.memory_optimizations import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    OPTIMIZATIONS,
    Effect,
    known_effects,
    target_shares,
)
from tinyllama_tools.workshop.rules import (
    Sheet,
    above,
    all_hold,
    below,
    exact_figures,
    expected,
    failure_lines,
    head,
    say,
    transfers_verdict,
)
from tinyllama_tools.workshop.runs import MeasuredRun, has_summary, measure_all, was_interrupted
from tinyllama_tools.workshop.worksheet import (
    NOT_MEASURED,
    Figure,
    Verdict,
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


IMPACTS = {
    FLASH: "attention memory from O(S^2) to O(S)",
    CHECKPOINTING: "recomputes activations instead of keeping them",
    MIXED: "halves what is kept of the forward pass",
    FUSION: "fewer intermediate tensors",
}
TARGETS = {
    "attention": "Reduce attention memory (Flash Attention)",
    "activations": "Reduce activation memory (checkpointing)",
    "parameters": "Reduce parameter memory (mixed precision)",
    "fragmentation": "Reduce fragmentation (kernel fusion)",
}
ANSWER_PLACES = {
    "forward": "Forward pass (activations)",
    "backward": "Backward pass (gradients)",
    "optimizer": "Optimizer step (parameter updates)",
    "attention": "Attention computation (attention matrices)",
}


def ranking_section(runs: MemoryRuns, effects: list[Effect], origin: str) -> list[str]:
    """5.5: the rank of each of the four."""
    peak = runs.memory["peak_bytes"]
    rows = [
        (
            str(rank),
            effect.name,
            IMPACTS[effect.name],
            f"{megabytes(effect.saved_bytes)} ({percent(100 * effect.saved_bytes / peak)})",
            "not measured" if effect.time_ratio is None else f"{effect.time_ratio:.2f}x",
            effect.basis,
        )
        for rank, effect in enumerate(effects, start=1)
    ]
    header = ("Rank", "optimization", "impact", "saves of the peak", "step time", "known from")
    return [
        "## Optimization opportunities, ranked (1-4)",
        "",
        "Ranked by the memory saved at the worksheet's size; of equals, the faster one first.",
        "",
        *table(header, rows, origin),
    ]


def signs_section(runs: MemoryRuns) -> list[str]:
    """5.4: the signs of either kind of workload."""
    run, profile = runs.bandwidth, runs.hotspots
    operators = (profile.summary or {})["operators"]
    prefix = "flops.computational_intensity"
    busy = run.figure("device_sampling.readings.utilization_percent.mean")
    share = run.figure(f"{prefix}.memory_bandwidth_utilization_percent")
    intensity = run.figure(f"{prefix}.arithmetic_intensity_flops_per_byte")
    transfers = profile.figure("operators.transfers_per_step")
    products = profile.figure("operators.matrix_product_percent")
    small = small_operations(operators)
    return [
        "## Signs",
        "",
        *boxes(
            "Signs of a memory-bound workload",
            [
                tick("Low GPU compute utilization (<70%)", below(busy.value, 70), busy),
                tick("High memory bandwidth utilization (>60%)", above(share.value, 60), share),
                tick("Many small operations", small, profile.source("operators.table")),
                tick(
                    "Frequent memory transfers",
                    transfers_verdict(profile, 10),
                    transfers,
                ),
            ],
        ),
        *boxes(
            "Signs of a compute-bound workload",
            [
                tick("High GPU compute utilization (>80%)", above(busy.value, 80), busy),
                tick("Low memory bandwidth utilization (<50%)", below(share.value, 50), share),
                tick("Large matrix multiplications dominate", above(products.value, 50), products),
                tick(
                    "Good arithmetic intensity",
                    above(intensity.value, 100, "FLOPS/byte"),
                    intensity,
                ),
            ],
        ),
    ]


def expected_section(runs: MemoryRuns) -> list[str]:
    """5.6: each expected range, and the exact figures."""
    prefix = "flops.computational_intensity"
    peak = runs.base.figure("memory.peak_bytes")
    spread = runs.base.figure("memory.peak_to_average")
    share = runs.bandwidth.figure(f"{prefix}.memory_bandwidth_utilization_percent")
    intensity = runs.bandwidth.figure(f"{prefix}.arithmetic_intensity_flops_per_byte")
    gib = Figure(peak.value / 2**30 if peak.is_measured else None, peak.source)
    ranges = (
        ("Peak memory", gib, 2, 4, "GiB"),
        ("Peak-to-average ratio", spread, 1.2, 1.5, "x"),
        ("Bandwidth utilization", share, 30, 60, "%"),
        ("Arithmetic intensity (5.4)", intensity, 20, 50, "FLOPS/byte"),
    )
    rows = [
        (
            name,
            f"{low}-{high} {unit}",
            number(found.value, unit),
            expected(found.value, low, high, unit),
            found.source,
        )
        for name, found, low, high, unit in ranges
    ]
    header = ("what", "expected", "measured", "in range?", "from (file: key)")
    return ["## Expected results", "", *table(header, rows), *exact_figures(runs.base, runs.base)]


def scaling_ticks(runs: MemoryRuns) -> list[str]:
    """5.8's first question."""
    by_batch = [run.figure("memory.peak_bytes") for run in runs.by_batch.values()]
    by_seq = [
        run.figure("memory.peak_bytes")
        for (_, batch), run in runs.by_seq.items()
        if batch == runs.batch
    ]
    batch = batch_verdicts(increment_ratio(runs.batch_peaks))
    seq = sequence_verdicts(increment_ratio(runs.seq_peaks))
    return [
        *(tick(f"Batch size scaling: {n}", v, *by_batch) for n, v in batch.items()),
        *(tick(f"Sequence length scaling: {n}", v, *by_seq) for n, v in seq.items()),
    ]


def questions_section(runs: MemoryRuns, effects: list[Effect], origin: str) -> list[str]:
    """5.8."""
    run = runs.base
    places = place_verdicts(runs.memory)
    targets = target_verdicts(target_shares(runs.memory))
    intensity = runs.bandwidth.figure(
        "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
    )
    where = [run.source(f"memory.peak_{key}") for key in ("phase", "component")]
    holds = [run.source(f"memory.{key}") for key in ("breakdown_at_peak", "fragmentation")]
    ranks = [
        (str(rank), effect.name, megabytes(effect.saved_bytes))
        for rank, effect in enumerate(effects, start=1)
    ]
    return [
        "## Analysis questions",
        "",
        *boxes(
            "1. What is the memory scaling behavior? (growth of the increase at the last doubling)",
            scaling_ticks(runs),
        ),
        *boxes(
            "2. Where is peak memory consumed?",
            [tick(ANSWER_PLACES[name], places[name], *where) for name in ANSWER_PLACES],
        ),
        *boxes(
            "3. What is the primary memory optimization target?",
            [tick(TARGETS[name], targets[name], *holds) for name in TARGETS],
        ),
        *boxes(
            "4. Is the workload memory-bound or compute-bound?",
            [tick(label, v, intensity) for label, v in intensity_class(intensity.value).items()],
        ),
        "**5. What memory optimization would provide the biggest benefit?**",
        "",
        *table(("rank", "optimization", "saves of the peak"), ranks, origin),
    ]


def criteria(
    runs: MemoryRuns, effects: list[Effect], origin: str
) -> list[tuple[str, Verdict, str]]:
    """5.9's criteria, each with its source."""
    batches = sum(run.figure("memory").is_measured for run in runs.by_batch.values())
    lengths = sum(run.figure("memory").is_measured for run in runs.by_seq.values())
    rows = (runs.hotspots.summary or {})["operators"]["table"]
    share = runs.bandwidth.figure(
        "flops.computational_intensity.memory_bandwidth_utilization_percent"
    )
    return [
        (
            "Memory profiling completed for multiple batch sizes",
            Verdict(
                batches == len(runs.by_batch),
                f"{batches} of {len(runs.by_batch)} batch sizes; rule: all of them",
            ),
            runs.base.source("memory"),
        ),
        (
            "Sequence length scaling analyzed",
            Verdict(
                lengths == len(runs.by_seq) and increments_verdict(runs).holds,
                f"{lengths} of {len(runs.by_seq)} lengths; rule: all of them",
            ),
            next(iter(runs.by_seq.values())).source("memory"),
        ),
        (
            "Memory hotspots identified",
            Verdict(len(rows) >= 5, f"{len(rows)} operators; rule: at least 5"),
            runs.hotspots.source("operators.table"),
        ),
        (
            "Bandwidth utilization calculated",
            Verdict(share.is_measured, f"{percent(share.value)}; rule: 1 figure is there"),
            share.source,
        ),
        (
            "Optimization priorities ranked",
            Verdict(
                len(effects) == len(OPTIMIZATIONS),
                f"{len(effects)} of {len(OPTIMIZATIONS)}; rule: all of them",
            ),
            origin,
        ),
    ]


def closing_section(runs: MemoryRuns, effects: list[Effect], origin: str) -> list[str]:
    """5.9: takeaways, and whether the criteria are met."""
    found = criteria(runs, effects, origin)
    ready = all_hold([verdict for _, verdict, _ in found], "criteria above hold")
    top = ", ".join(f"{i}. {e.name}" for i, e in enumerate(effects[:3], start=1))
    return [
        "## Takeaways",
        "",
        f"Top 3 memory optimization targets: {top}.",
        "",
        "## Success criteria",
        "",
        *(tick(label, verdict, source) for label, verdict, source in found),
        tick("Ready to proceed to bottleneck identification", ready),
        "",
    ]


def worksheet(runs: MemoryRuns, limit: Limit, references: Path) -> list[str]:
    """The filled-in page."""
    effects, origin = known_effects(runs.base, references)
    return [
        *batch_section(runs),
        *timeline_section(runs),
        *sequence_section(runs, limit_section(limit)),
        *hotspot_section(runs.hotspots),
        *bandwidth_section(runs.bandwidth),
        *signs_section(runs),
        *ranking_section(runs, effects, origin),
        *expected_section(runs),
        *questions_section(runs, effects, origin),
        *closing_section(runs, effects, origin),
    ]


def exit_status(measured: dict[str, MeasuredRun]) -> int:
    """1 where a run failed, be it that its size did not fit; the page answers with the rest."""
    if was_interrupted(measured):
        return 130
    return 0 if all(run.is_complete for run in measured.values()) else 1


def make_sheet(
    measured: dict[str, MeasuredRun],
    options: Namespace,
    limit: Limit,
    references: Path = RESULTS / "reference",
) -> Sheet:
    """The page of whatever was measured, and the command's exit status."""
    runs = collect(measured, options)
    title = head("Exercise 2: memory analysis", list(measured.values()))
    missing = missing_parts(runs)
    if missing:
        status = exit_status(measured) or 1
        page = "\n".join([*title, *failure_lines(missing)])
        return Sheet(page, status, has_summary(measured))
    page = "\n".join([*title, *worksheet(runs, limit, references)])
    return Sheet(page, exit_status(measured))


def measure_limit(
    runs: MemoryRuns, options: Namespace, program: TrainingProgram, predictor: Predictor
) -> Limit:
    """Predicts the longest sequence and confirms it by a step."""
    say("longest sequence: asking tiny_llama_bench --dry-run")
    limit = predict_limit(runs, options, predictor)
    planned = confirming_run(limit, options)
    if planned is None:
        return limit
    folder, page_folder = options.profile_dir, options.output.parent
    measured = measure_all([planned], program, folder, page_folder, say, has_measured=True)
    return replace(limit, run=measured[planned.name])


def run_exercise_2(
    options: Namespace, program: TrainingProgram, predictor: Predictor | None = None
) -> Sheet:
    """Carries the runs out, their files below `options.profile_dir`, and makes the worksheet.

    `predictor`: in the place of tiny_llama_bench --dry-run, for tests.
    """
    folder, page_folder = options.profile_dir, options.output.parent
    measured = measure_all(planned_runs(options), program, folder, page_folder, say)
    runs = collect(measured, options)
    limit = Limit(runs.batch, None, "interrupted before")
    if not was_interrupted(measured) and not missing_parts(runs):
        asked = predictor or partial(predict, program=options.suite_program)
        limit = measure_limit(runs, options, program, asked)
        if limit.run is not None:
            measured[limit.run.name] = limit.run
    return make_sheet(measured, options, limit)
