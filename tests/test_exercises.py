"""The workshop's worksheets: every box and answer follows from its measurement.

Tables of what is asked, the figures of a made-up run that are changed, and what the page says then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fake_exercise import (
    BATCHES,
    EVERY,
    LAUNCH,
    LENGTHS,
    LIVE_PEAK,
    MB,
    NAMES,
    POINTS,
    SPEED,
    WAIT,
    Changes,
    OfRuns,
    answer,
    box,
    findings,
    named,
    named_in,
    of,
    operator_table,
    peaks,
    roofline,
    sheet,
    unanswered,
)
from fake_training import step_cost
from tinyllama_tools.commands import exercise_3

MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
USED = "flops.computational_intensity.memory_bandwidth_utilization_percent"
POINT = f"{POINTS}.0"
SHARES, TABLE = "operators.components", "operators.table"
PRODUCTS = "operators.matrix_product_percent"
TRANSFERS, CALLS = "operators.transfers_per_step", "operators.operator_calls_per_step"
BUSY = "device_sampling.readings.utilization_percent.mean"
PEAK = "summary.peak_memory_bytes"
FIRST_STEP, LOSS = "summary.first_step_seconds", "summary.final_loss"
AT_PEAK = "memory.breakdown_at_peak"
SCORES, KEPT = f"{AT_PEAK}.attention_scores", f"{AT_PEAK}.activations"
AFTER, BEFORE = "memory.live_bytes_after_steps", "memory.baseline_bytes"
PHASE, WHERE = "memory.peak_phase", "memory.peak_component"
FORWARD, BACKWARD = "memory.forward_peak_bytes", "memory.backward_peak_bytes"
SMALL, ALL = "memory.small_allocations_per_step", "memory.allocations_per_step"
SPREAD, OVERHEAD = "memory.peak_to_average", "summary.operator_profiling_overhead_percent"
HELD, SPIKE = "memory.fragmentation.held_bytes", "memory.largest_spike.bytes"
HUGE = 10**9
NULLS: Changes = {
    **dict.fromkeys(("memory.largest_spike", "memory.fragmentation", "memory.average_bytes")),
    **dict.fromkeys((FORWARD, WHERE, SPREAD, MFU, INTENSITY, USED, LAUNCH, OVERHEAD)),
    **{"summary.average_forward_seconds": None, "device_sampling.readings": {}},
}


def test_no_place_is_left_to_fill_in() -> None:
    made = exercise_3.sheet_of(findings())
    assert made.exit_status == 0
    pages = [sheet(number, gpu=gpu) for number in (1, 2, 3) for gpu in (False, True)]
    pages += [sheet(number, {EVERY: NULLS}) for number in (1, 2)]
    pages += [sheet(3, {"analysis": NULLS, "tiny": {MFU: None, "memory": None}})]
    for page in pages:
        assert unanswered(page) == []
        assert str(Path.home()) not in page
    for step in range(1, 8):
        assert f"\n## Step {step}: " in made.page
    blanks = (
        "Peak: ___ MB\n- [ ] x\n| a | b |\n|---|---|\n| 1 | |\n**How much?**\n\n**And?**\n\n## End"
    )
    assert len(unanswered(blanks)) == 5


# Boxes: label, changes of every run (of the analysis in exercise 3) with which it is ticked, and
# with which it is not.


def mm_and(name: str, share: float) -> Changes:
    rest = 100 - share
    rows = [("aten::mm", 9, 1.0, rest), (name, 9, 1.0, share)]
    return {TABLE: operator_table(rows), PRODUCTS: rest}


LONG = {TABLE: operator_table([("aten::mm", 10, 1.0, 100.0)])}
SHORT = {TABLE: operator_table([("aten::mm", 10_000, 0.01, 100.0)])}
CORE, WIDE = of(attention__core=90.0, ffn__gate_up_proj=5.0), of(ffn__swiglu=80.0, rms_norm=10.0)
ROOF = {"ffn": ("memory", 90.0)}, {"ffn": ("compute", 10.0)}, {"ffn": ("compute", 99.0)}
BY_MEMORY, SLOW, FAST = ({**WIDE, POINTS: roofline(points)} for points in ROOF)
MANY_KEPT, MANY_SCORES = {KEPT: HUGE, SCORES: 1}, {KEPT: 0, SCORES: HUGE}
NORMS = {**MANY_SCORES, SCORES: 1, "memory.component_activation_bytes": {"rms_norm": HUGE}}
TARGETS = {KEPT: 0, SCORES: 0, HELD: 0}
NO_SWIGLU, NO_SOFTMAX = named(ffn__gate_up_proj=2, ffn__swiglu=0), "operators.softmax_percent"
BOXES: dict[int, list[tuple[str, Changes, Changes]]] = {
    1: [
        ("The first iteration is", {FIRST_STEP: 9.0}, {FIRST_STEP: 0}),
        ("The timing is", {}, {"summary.stddev_step_seconds": 1.0}),
        ("Attention operations dominate", CORE, WIDE),
        ("Matrix multiplications (mm", {PRODUCTS: 51.0}, {PRODUCTS: 49.0}),
        ("Matrix multiplications are the", mm_and("aten::mul", 30), mm_and("aten::mul", 70)),
        ("Attention operations consume", of(attention__core=35.0), of(attention__core=45.0)),
        ("FFN operations consume", of(ffn__down_proj=30.0), of(ffn__down_proj=40.0)),
        ("Many small", SHORT, LONG),
        ("Kernel launch overhead visible", {LAUNCH: 11.0}, {LAUNCH: 9.0}),
        ("Memory transfers", {TRANSFERS: 2}, {TRANSFERS: 0}),
        ("Memory usage grows", {FORWARD: 106, BEFORE: 100}, {FORWARD: 104, BEFORE: 100}),
        ("Peak memory during", {WHERE: "attention/core"}, {WHERE: "ffn/swiglu"}),
        ("Gradient tensors", {}, {f"{AT_PEAK}.gradients": 0, FORWARD: 9, BACKWARD: 9}),
        ("Frequent small", {SMALL: 51, ALL: 100}, {SMALL: 50, ALL: 100}),
        *(("Memory fragmentation", {"memory.fragmentation.percent": p}, NULLS) for p in (11.0, 26)),
        ("Kernel fusion", {PRODUCTS: 80.0}, {PRODUCTS: 81.0}),
        ("Mixed precision training", {PRODUCTS: 70.0}, {PRODUCTS: 10.0}),
        ("Flash Attention implementation", CORE, WIDE),
        ("Fused QKV", of(attention__qkv_proj=30.0), WIDE),
        ("Memory layout", mm_and("aten::copy_", 30), mm_and("aten::mul", 30)),
        ("Batch size scaling", {LAUNCH: 21.0}, {LAUNCH: 19.0}),
        ("**High:** Flash", CORE, WIDE),
        ("**High:** Fused QKV", of(attention__qkv_proj=20.0), WIDE),
        ("**Medium:** Memory layout", mm_and("aten::copy_", 5), mm_and("aten::copy_", 4)),
        ("**Low:** Batch", {LAUNCH: 4.0}, {LAUNCH: 5.0}),
        ("Memory bandwidth", BY_MEMORY, SLOW),
        ("Compute utilization", SLOW, FAST),
        ("Kernel launch overhead (too", {LAUNCH: 95.0}, {LAUNCH: 1.0}),
        ("Data loading", {WAIT: 96.0}, {WAIT: 1.0}),
        ("QKV projections", of(attention__qkv_proj=5.0, rms_norm=10.0), of(rms_norm=50.0)),
        ("Gate/Up", WIDE, of(rms_norm=50.0, ffn__swiglu=5.0)),
        ("Layer normalization", of(rms_norm=5.0, ffn__swiglu=10.0), WIDE),
        ("All of the above", of(rms_norm=9.0, ffn__swiglu=10.0, attention__qkv_proj=11.0), WIDE),
        ("< 20%", {MFU: 19.9}, {MFU: 20.0}),
        ("20-40%", {MFU: 20.0}, {MFU: 40.0}),
        ("40-60%", {MFU: 40.0}, {MFU: 60.0}),
        ("> 60%", {MFU: 60.0}, {MFU: 59.9}),
        ("Gradient checkpointing", MANY_KEPT, MANY_SCORES),
        ("Flash Attention (reduce", MANY_SCORES, MANY_KEPT),
        ("Mixed precision (reduce", {**MANY_KEPT, "configuration.n_layers": 1}, MANY_SCORES),
        ("Tensor fusion", NORMS, MANY_KEPT),
        ("memory spikes", {SPIKE: HUGE}, {SPIKE: 10}),
        ("Baseline training runs", {}, {LOSS: None}),
        ("Ready to proceed", {}, {"summary.steps_completed": 3}),
        ("`trace_step_*`", {"files": ["trace_step_5_10.json"]}, {"files": []}),
        ("Profiling data generated", {}, {"files": []}),
        ("Performance metrics documented", {}, {PEAK: None}),
        ("Top operations identified", {}, mm_and("aten::mul", 40)),
        ("Bottlenecks identified", {}, {LAUNCH: None}),
    ],
    2: [
        ("During forward", {PHASE: "forward"}, {PHASE: "backward"}),
        ("Backward pass", {PHASE: "backward"}, {PHASE: "forward"}),
        ("Optimizer step", {PHASE: "optimizer"}, {PHASE: "forward"}),
        ("During att", {WHERE: "attention/core"}, {WHERE: "x"}),
        ("Attention comp", {WHERE: "attention/core"}, {WHERE: "x"}),
        ("High: spikes", {SPREAD: 1.3}, {SPREAD: 1.1}),
        ("Steady", {SPREAD: 1.1}, {SPREAD: 1.2}),
        ("Fluctuating", {SPREAD: 1.2}, {SPREAD: 1.5}),
        ("Spiking", {SPREAD: 1.5}, {SPREAD: 1.4}),
        ("clear drops", {AFTER: [1], LIVE_PEAK: 10}, {AFTER: [95], LIVE_PEAK: 100}),
        ("memory returns", {AFTER: [100], BEFORE: 100}, {AFTER: [105], BEFORE: 100}),
        ("Promptly", {AFTER: [100, 101], BEFORE: 100}, {AFTER: [110, 110], BEFORE: 100}),
        ("Delayed", {AFTER: [110, 110], BEFORE: 100}, {AFTER: [100, 110], BEFORE: 100}),
        ("Not at all", {AFTER: [100, 110], BEFORE: 100}, {AFTER: [110, 110], BEFORE: 100}),
        ("Low GPU compute", {BUSY: 69.0}, {BUSY: 71.0}),
        ("High GPU compute", {BUSY: 81.0}, {BUSY: 79.0}),
        ("High memory bandwidth", {USED: 61.0}, {USED: 59.0}),
        ("Low memory bandwidth", {USED: 49.0}, {USED: 51.0}),
        ("Many small", SHORT, LONG),
        ("Frequent memory transfers", {TRANSFERS: 11}, {TRANSFERS: 10}),
        ("Large matrix", {PRODUCTS: 51.0}, {PRODUCTS: 49.0}),
        ("Good arithmetic", {INTENSITY: 101.0}, {INTENSITY: 99.0}),
        ("Memory-bound (low", {INTENSITY: 9.9}, {INTENSITY: 10.0}),
        ("Compute-bound (high", {INTENSITY: 100.1}, {INTENSITY: 100.0}),
        ("Mixed (moderate", {INTENSITY: 100.0}, {INTENSITY: 9.9}),
        ("Reduce attention", {**TARGETS, SCORES: HUGE}, TARGETS),
        ("Reduce activation", {**TARGETS, KEPT: HUGE}, TARGETS),
        ("Reduce parameter", TARGETS, {KEPT: HUGE}),
        ("Reduce fragmentation", {HELD: HUGE * 1000}, TARGETS),
        ("Memory hotspots identified", {}, LONG),
        ("Bandwidth utilization calculated", {}, {USED: None}),
    ],
    3: [
        ("< 20% MFU", {MFU: 19.9}, {MFU: 20.0}),
        ("20-40% MFU", {MFU: 20.0}, {MFU: 40.0}),
        ("40-60% MFU", {MFU: 40.0}, {MFU: 60.0}),
        ("> 60% MFU", {MFU: 60.0}, {MFU: 59.9}),
        ("**QKV Fusion**", {LAUNCH: 80.0}, {LAUNCH: 0.0}),
        ("**SwiGLU Fusion**", named(ffn__swiglu=30.0), NO_SWIGLU),
        ("Comprehensive bottleneck", {}, LONG),
        ("Performance bottlenecks quantified", {}, {NO_SOFTMAX: None}),
        ("Optimization roadmap created", {}, {NO_SOFTMAX: None}),
        ("Success metrics defined", {}, {SCORES: None}),
    ],
}
# and of runs of exercise 3
SLOW_CORE, FAST_CORE = ({"analysis": named(attention__core=share)} for share in (1.0, 30.0))
NO_LESS, SAVES = {PEAK: 1 << 40}, {PEAK: 10 << 20}
NO_LESS_LONG = {"version_2_long": NO_LESS}
BOXES_OF_RUNS: list[tuple[str, OfRuns, OfRuns]] = [
    ("**Flash Attention**", {**FAST_CORE, **NO_LESS_LONG}, {**SLOW_CORE, **NO_LESS_LONG}),
    ("**Flash Attention**", SLOW_CORE, {**SLOW_CORE, **NO_LESS_LONG}),
    *(
        (label, {run: yes}, {run: no})
        for label, run, yes, no in (
            ("**Mixed Precision**", "mixed_precision", {SPEED: 0.05}, {SPEED: 0.9}),
            # memory alone is no reason for a slower step
            ("**Mixed Precision**", "mixed_precision", SAVES, {SPEED: 0.9, **SAVES}),
            ("Batch size 8, sequence length 128", "version_2", {SPEED: 0.01}, {SPEED: 9.0}),
            ("Batch size 16, sequence", "version_2_scaling", {SPEED: 0.01}, {SPEED: 99.0}),
            ("Memory scaling with sequence", "version_2_long", SAVES, NO_LESS),
            ("Implementation plan validated", "version_2_long", SAVES, NO_LESS),
            ("Ready to begin Version 2", "version_2_long", SAVES, NO_LESS),
            ("Numerical accuracy validation", "version_2", {LOSS: 6.601}, {LOSS: 6.8}),
            ("No degradation in model", "version_2", {LOSS: 6.601}, {LOSS: 6.8}),
            ("Deterministic execution", "deterministic_2", {}, {"steps.3.loss": 6.000001}),
            ("Memory usage reduced or stable", "version_2", SAVES, NO_LESS),
            ("Throughput improved by >30%", "version_2", {SPEED: 0.01}, {SPEED: 0.24}),
        )
    ),
]
ALL_BOXES = [
    (number, label, {run: yes}, {run: no})
    for number, rows in BOXES.items()
    for label, yes, no in rows
    for run in [{3: "analysis"}.get(number, EVERY)]
] + [(3, *row) for row in BOXES_OF_RUNS]


@pytest.mark.parametrize(("number", "label", "yes", "no"), ALL_BOXES)
def test_boxes_follow_the_numbers(number: int, label: str, yes: OfRuns, no: OfRuns) -> None:
    assert box(sheet(number, yes), label) is True
    assert box(sheet(number, no), label) is False


# Answers: what is asked, changes by run, and what the answer, or the row, then holds; `[x] ...`:
# the one box of that question which is ticked.


def at_batch(last: float) -> OfRuns:
    return peaks(BATCHES, 100, 150, last)


def at_length(last: float) -> OfRuns:
    return peaks(LENGTHS, 100, 150, last)


def twice(factor: float) -> OfRuns:
    """Throughput at twice the batch over that at the batch."""
    return {BATCHES[1]: {SPEED: 0.1}, BATCHES[2]: {SPEED: 0.2 / factor}}


def each(key: str, *values: object) -> OfRuns:
    """One value a size."""
    return {name: {key: value} for name, value in zip(NAMES, values, strict=True)}


COSTS = [step_cost(name) for name in NAMES]


def at_rates(*rates: float) -> OfRuns:
    return each(SPEED, *(cost.model_flops / r for cost, r in zip(COSTS, rates, strict=True)))


def at_power(key: str, power: float) -> OfRuns:
    return each(key, *(1e-7 * cost.parameters**power for cost in COSTS))


# of the logarithms of samples a second over those of the parameters
LOGS = np.log([(cost.parameters, cost.name.batch) for cost in COSTS])
SLOPE = np.polyfit(LOGS[:, 0], LOGS[:, 1] - 1.3 * LOGS[:, 0], 1)[0]


def at_roof(percent: float, bound: str) -> OfRuns:
    return {"analysis": {f"{POINT}.percent_of_attainable": percent, f"{POINT}.bound": bound}}


def of_all(key: str, value: object) -> OfRuns:
    return {EVERY: {key: value}}


FILES = {"files": ["trace_step_5_10.json"]}
# of six steps
KEEPING = [
    row | {"self_memory_bytes": 6 * MB * size}
    for row, size in zip(
        operator_table([(n, 1, 1.0, 1.0) for n in "abab"]), (1, 2, 2, 3), strict=True
    )
]
SLOW_MIXED = {"mixed_precision": {SPEED: 0.3}}
QUARTER = {EVERY: {SCORES: 20 * MB, LIVE_PEAK: 80 * MB}}
IDLE = {EVERY: {**of(x=1), LAUNCH: 0.0, NO_SOFTMAX: 0.0}}
FEW_SCORES = {n: {LIVE_PEAK: 1000 << 20, SCORES: 1 << 20} for n in NAMES}
SOME_SCORES = {**FEW_SCORES, "small": {LIVE_PEAK: 1000 << 20, SCORES: 200 << 20}}
SHAPES_OF_MM = [
    *operator_table([("aten::mm", 4, 1.0, 25.0), ("aten::bmm", 4, 1.0, 40.0)]),
    *operator_table([("aten::mm", 4, 1.0, 25.0)]),
]
TWO_SHAPES = {"analysis": {TABLE: SHAPES_OF_MM, "operators.steps": 2}}
LESS = {"analysis": {SCORES: 10 << 20}, "baseline": {PEAK: 100 << 20}}
FIRST, KIND, BOUND = "**1. What is the single", "**2. What type", "**3. Is the workload prim"
EXPECTED, GROWTH = "**5. What is the realistic", "tiny -> small: memory"
CLASS, BOTTLENECK = "Efficiency classification", "Primary bottleneck"
ANSWERS: dict[int, list[tuple[str, OfRuns, str]]] = {
    1: [
        ("Peak memory usage", of_all(PEAK, 77 * MB), "77.0 MB"),
        ("Final loss", of_all(LOSS, 5.4321), "5.432"),
        ("Average time per step", of_all("summary.average_step_seconds", 0.0456), "45.6 ms"),
        ("First step", of_all(FIRST_STEP, 9.0), "9,000 ms"),
        ("parameters", {}, "2,873,600"),
        ("optimizer states", {}, "21.9 MB"),
        ("How much overhead", of_all(OVERHEAD, 21.5), "21.5 %"),
        ("How much overhead", of_all(OVERHEAD, 21.5), "above the range"),
        ("How much overhead", of_all(OVERHEAD, 7.0), "in the range"),
        ("What files were generated", {EVERY: FILES}, "trace_step_5_10"),
        ("top 3", {EVERY: mm_and("aten::bmm", 70)}, "1. aten::mm, 2. aten::bmm"),
        ("consumes the most GPU time", {EVERY: LONG}, "aten::mm, 100.0 %"),
        ("time is spent in attention operations", {EVERY: CORE}, "90.0 %"),
        ("How many different kernel", of_all("operators.distinct_operators", 33), "33 operators"),
        ("What is the peak memory", of_all(LIVE_PEAK, 7 * MB), "7.0 MB"),
        ("When does peak memory", of_all(PHASE, "optimizer"), "optimizer, in"),
        ("spent in attention vs FFN", {EVERY: WIDE}, "attention 0.0 %, FFN 80.0 %, other (norms"),
        ("Top 3 optimization targets", of_all(LAUNCH, 99.0), "1. Batch size scaling"),
        ("GPU utilization", of_all("device_sampling.readings", {}), "not measured"),
        ("MFU", of_all(MFU, 50.0), "above the range"),
        ("What would the profiler", {EVERY: CORE}, "Attention computation first"),
        ("What would the profiler", IDLE, "None is worth it"),
        ("Based on memory usage", QUARTER, "25.0 %, bound: all attention scores"),
        (
            "difference in memory",
            {"plain": {PEAK: 100 * MB}, "profiled": {PEAK: 130 * MB}},
            "30.0 MB: 130.0 MB with, 100.0 MB without",
        ),
    ],
    2: [
        ("Peak memory occurs at", of_all(PHASE, "forward"), "forward"),
        ("Largest memory spike caused", of_all("memory.largest_spike.component", "loss"), "loss"),
        ("Bandwidth Utilization", of_all(USED, 44.0), "44.0 %"),
        ("Bandwidth utilization", of_all(USED, 90.0), "above the range"),
        ("Arithmetic Intensity", of_all(INTENSITY, 33.0), "33 FLOPS/byte"),
        ("Number of Allocations", of_all(ALL, 777), "777"),
        ("1 ", of_all(TABLE, KEEPING), "b | 5.0 MB"),
        ("2 ", of_all(TABLE, KEEPING), "a | 3.0 MB"),
        ("What memory optimization", {EVERY: MANY_SCORES}, "Flash Attention"),
        ("What memory optimization", {EVERY: MANY_KEPT}, "Gradient Checkpointing"),
        ("Memory Efficiency", of_all(SPREAD, 1.3), "1.30x; of the text's 1.2-1.5: in the range"),
        *(
            (f"{number}. {asked}", changes(last), f"[x] {label}")
            for number, asked, changes, last, label in (
                (1, "Memory Scaling", at_batch, 300, "It doubles: linear"),
                (1, "Memory Scaling", at_batch, 320, "More than double"),
                (1, "Memory Scaling", at_batch, 250, "Less than double"),
                (2, "Throughput Scaling", twice, 2.0, "It doubles: perfect"),
                (2, "Throughput Scaling", twice, 1.5, "It grows less"),
                (2, "Throughput Scaling", twice, 0.96, "It stays"),
                (2, "Throughput Scaling", twice, 0.94, "It falls"),
                (1, "What is the memory scaling pattern", at_length, 250, "Linear (~2x"),
                (1, "What is the memory scaling pattern", at_length, 300, "Between linear"),
                (1, "What is the memory scaling pattern", at_length, 350, "Quadratic (~4x"),
            )
        ),
        *(
            ("1. What is the memory scaling behavior", changes, f"scaling: {label} — yes")
            for changes, label in (
                *((at_batch(250), "Linear"), (at_batch(270), "Superlinear")),
                *((at_batch(230), "Sublinear"), (at_length(250), "Linear")),
                *((at_length(350), "Quadratic"), (at_length(550), "Cubic")),
            )
        ),
    ],
    3: [
        (BOTTLENECK, {"analysis": {INTENSITY: 9.9}}, "[x] Memory-bound"),
        (BOTTLENECK, {"analysis": {INTENSITY: 10.0}}, "[x] Mixed"),
        (BOTTLENECK, {"analysis": {INTENSITY: 101.0}}, "[x] Compute-bound"),
        ("Roofline model position", at_roof(30.0, "memory"), "[x] Below roofline"),
        ("Roofline model position", at_roof(90.0, "memory"), "[x] On roofline"),
        ("Roofline model position", at_roof(30.0, "compute"), "[x] Below compute"),
        (FIRST, named_in("analysis", attention__qkv_proj=90.0), "[x] QKV projection operations"),
        (FIRST, named_in("analysis", attention__core=90.0), "[x] Attention score computation"),
        (FIRST, named_in("analysis", ffn__down_proj=90.0), "[x] Feed-forward network"),
        (FIRST, {"analysis": {LAUNCH: 95.0}}, "[x] Kernel launch overhead"),
        (FIRST, named_in("analysis", optimizer=90.0), "[x] Memory bandwidth"),
        (KIND, {"analysis": {LAUNCH: 80.0}, **SLOW_MIXED}, "[x] Kernel fusion"),
        (KIND, {**named_in("analysis", optimizer=70.0), **SLOW_MIXED}, "[x] Memory optimization"),
        (KIND, {**named_in("analysis", attention__core=60.0)}, "[x] Algorithmic optimization"),
        (KIND, {"mixed_precision": {SPEED: 0.05}}, "[x] Precision optimization"),
        (BOUND, named_in("analysis", optimizer=80.0), "[x] Memory-bound (optimize"),
        (BOUND, {}, "[x] Compute-bound (optimize"),
        (BOUND, {"analysis": {LAUNCH: 60.0}}, "[x] Overhead-bound (optimize"),
        (BOUND, {"analysis": {LAUNCH: 48.0}}, "[x] Mixed workload (balanced"),
        *(
            (EXPECTED, {"baseline": {SPEED: gain}, "version_2": {SPEED: 1.0}}, f"[x] {label}")
            for gain, label in (
                *((1.1, "below all of these"), (1.25, "1.2-1.4x"), (1.44, "1.2-1.4x")),
                *((1.46, "1.5-2.0x"), (2.5, "2.0-3.0x"), (4.0, ">3.0x")),
            )
        ),
        ("Time in matrix", {"analysis": {PRODUCTS: 41.5}}, "41.5 %"),
        ("Separate linear", {"analysis": {"operators.linear_projections_per_step": 17}}, "17"),
        ("Overhead of kernel", {"analysis": {LAUNCH: 23.4}}, "23.4 %"),
        ("Attention computation", named_in("analysis", attention__core=60.0), "60.0 %"),
        ("Attention operations", named_in("analysis", attention__core=70.0), "above the range"),
        ("Peak memory usage", LESS, "100.0 MB | 90.0 MB"),
        ("Operator count", {"analysis": {CALLS: 1000}}, "1,000 | 964"),
        # rows of one operator and several shapes are one
        ("1 ", TWO_SHAPES, "aten::mm | 50.0 % | 66.7 % | 4 |"),
        ("2 ", TWO_SHAPES, "aten::bmm | 40.0 % | 33.3 % | 2 |"),
        ("tiny ", each(PEAK, 100 << 20, 1, 1), "2,873,600 | "),
        ("tiny ", each(PEAK, 100 << 20, 1, 1), "100.0 MB"),
        ("large ", {}, "predicted peak memory"),
        ("very_large ", {}, "10,691,284,992"),
        (GROWTH, each(PEAK, 10 << 20, 70 << 20, 1), "7.00x | in the"),
        (GROWTH, each(PEAK, 10 << 20, 90 << 20, 1), "above"),
        ("Does throughput decrease", at_power(SPEED, 1.3), f"parameters ^ {SLOPE:.4g}."),
        ("Is memory scaling proportional", at_power(PEAK, 1.0), "[x] proportional"),
        ("Is memory scaling proportional", each(PEAK, HUGE, HUGE, HUGE), "[ ] proportional"),
        ("GPU become saturated", at_rates(1e11, 1.05e11, 1.2e11), "Answer: tiny"),
        ("GPU become saturated", at_rates(1e11, 2e11, 2.1e11), "Answer: small"),
        ("GPU become saturated", at_rates(1e11, 2e11, 4e11), "none of the measured"),
        ("attention memory become", FEW_SCORES, "size none"),
        ("attention memory become", SOME_SCORES, "size small; tiny alone at S = 64"),
        ("memory overhead ratio", {"tiny": {PEAK: 80 * COSTS[0].parameters}}, "tiny 20.00x"),
        ("best GPU utilization", each(MFU, 50.0, 20.0, 30.0), "Answer: tiny"),
        ("best GPU utilization", each(MFU, 5.0, 20.0, 30.0), "Answer: medium"),
        ("arithmetic intensity change", each(INTENSITY, 1.5, 20, 300), "tiny 1.5 FLOP/byte"),
        ("Which component (att", named_in("tiny", attention__core=80.0), "[x] attention more"),
        ("Which component (att", named_in("tiny", ffn__swiglu=80.0), "[ ] attention more"),
        *(("most from Flash", named_in(n, attention__core=70.0), f"Answer: {n}") for n in NAMES),
        ("most memory-bound", each(INTENSITY, 1, 10, 100), "tiny, most compute-bound medium"),
        ("most memory-bound", each(INTENSITY, 100, 10, 1), "medium, most compute-bound tiny"),
        ("improve throughput", named_in("medium", optimizer=80.0), "optimizer first, 80.0 % of me"),
        ("improve throughput", named_in("medium", optimizer=80.0), "the step is 1.67x as fast"),
        ("optimal problem size", each(SPEED, 0.1, 1.0, 5.0), "Answer: medium"),
        ("optimal problem size", each(SPEED, 0.1, 9.0, 50.0), "Answer: tiny"),
        ("optimal problem size", each(SPEED, 10.0, 90.0, 99.0), "Answer: none"),
        *(
            ("How does batch size affect", {"batch_16": {SPEED: seconds}}, words)
            for seconds, words in ((0.24, "batch raises it"), (0.9, "batch lowers it"))
        ),
        *(
            ("What batch size would", {"batch_16": {SPEED: seconds}}, f"{batch}; the largest that")
            for seconds, batch in ((0.24, 32), (0.9, 16))
        ),
    ],
}
ALL_ANSWERS = [(number, *row) for number, rows in ANSWERS.items() for row in rows]


@pytest.mark.parametrize(("number", "asked", "changes", "words"), ALL_ANSWERS)
def test_answers_follow_the_numbers(number: int, asked: str, changes: OfRuns, words: str) -> None:
    found = " ".join(answer(sheet(number, changes), asked).split())
    assert words in found
    if words.startswith("[x]") and "," not in found.split(words)[0]:
        assert found.count("[x]") == 1 or asked.startswith("Which component")
