"""Exercise 2, 5.4 to 5.9: signs, ranked optimizations, expected results, questions and criteria."""

from __future__ import annotations

from tinyllama_tools.exercise_1_patterns import small_operations
from tinyllama_tools.exercise_2_rules import (
    batch_verdicts,
    increment_ratio,
    intensity_class,
    place_verdicts,
    sequence_verdicts,
    target_verdicts,
)
from tinyllama_tools.exercise_2_runs import MemoryRuns
from tinyllama_tools.exercise_2_scaling import increments_verdict
from tinyllama_tools.memory_optimizations import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    OPTIMIZATIONS,
    Effect,
    target_shares,
)
from tinyllama_tools.worksheet import (
    Figure,
    Verdict,
    boxes,
    megabytes,
    number,
    percent,
    table,
    tick,
)
from tinyllama_tools.worksheet_rules import (
    above,
    all_hold,
    below,
    expected,
    transfers_verdict,
)
from tinyllama_tools.workshop_notes import exact_figures

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
PLACES = {
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
            [tick(PLACES[name], places[name], *where) for name in PLACES],
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
