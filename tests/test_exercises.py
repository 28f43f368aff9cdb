"""The workshop's worksheets: every box and answer follows from its measurement."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fake_exercise import (
    NO_RESULTS,
    Changes,
    answer,
    box,
    changed,
    components,
    made_up_evidence,
    made_up_findings,
    measured,
    operator_table,
    options,
    roofline,
    sheet_1,
    sheet_2,
    unanswered,
)
from fake_study import GIB, PlayedPredictor
from fake_training import made_up_summary
from tinyllama_tools.commands import exercise_1, exercise_2, exercise_3
from tinyllama_tools.commands.exercise_2 import Limit, component_growth, increment_ratio
from tinyllama_tools.commands.exercise_3 import Findings, forecasts, growth_exponent, memory_gain
from tinyllama_tools.commands.worksheet import MeasuredRun, disagreement, holds
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.models.size_predictions import Prediction, Target
from tinyllama_tools.stats.rank_tests import ratio_of_turns

ABLATION = PROJECT / "results/reference/ablation_2core_xeon_avx512.json"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
USED = "flops.computational_intensity.memory_bandwidth_utilization_percent"
POINTS, POINT = "flops.roofline_data.points", "flops.roofline_data.points.0"
SHARES, TABLE = "operators.components", "operators.table"
LAUNCH, PRODUCTS = "operators.launch_overhead_percent", "operators.matrix_product_percent"
TRANSFERS = "operators.transfers_per_step"
BUSY = "device_sampling.readings.utilization_percent.mean"
WAIT, PEAK = "summary.breakdown.data_loading.percent", "summary.peak_memory_bytes"
SPEED, FIRST_STEP = "step_seconds", "summary.first_step_seconds"
AT_PEAK = "memory.breakdown_at_peak"
SCORES, KEPT = f"{AT_PEAK}.attention_scores", f"{AT_PEAK}.activations"
AFTER, BEFORE = "memory.live_bytes_after_steps", "memory.baseline_bytes"
PHASE, WHERE = "memory.peak_phase", "memory.peak_component"
FORWARD, BACKWARD = "memory.forward_peak_bytes", "memory.backward_peak_bytes"
SMALL, ALL = "memory.small_allocations_per_step", "memory.allocations_per_step"
SPREAD, OVERHEAD = "memory.peak_to_average", "summary.operator_profiling_overhead_percent"
MB, HUGE = 2**20, 10**9


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return made_up_findings(tmp_path_factory.mktemp("exercise_3"))


def page_3(findings: Findings, **changes: Mapping[str, object]) -> str:
    return exercise_3.sheet_of(changed(findings, **changes)).page  # type: ignore[arg-type]


NULLS: Changes = {
    "memory.largest_spike": None,
    "memory.fragmentation": None,
    FORWARD: None,
    WHERE: None,
    "memory.average_bytes": None,
    SPREAD: None,
    MFU: None,
    INTENSITY: None,
    USED: None,
    LAUNCH: None,
    OVERHEAD: None,
    "summary.average_forward_seconds": None,
    "device_sampling.readings": {},
}


def test_no_place_is_left_to_fill_in(base: Findings, tmp_path: Path) -> None:
    made = exercise_3.sheet_of(base)
    assert made.exit_status == 0
    pages = [made.page, exercise_3.sheet_of(made_up_findings(tmp_path, gpu=True)).page]
    pages += [page_3(base, analysis=NULLS, sizes={"tiny": {MFU: None, "memory": None}})]
    for sheet in (sheet_1, sheet_2):
        pages += [sheet(), sheet(gpu=True), sheet(NULLS)]
    for page in pages:
        assert unanswered(page) == []
        assert str(Path.home()) not in page
    for step in range(1, 8):
        assert f"\n## Step {step}: " in made.page
    blanks = (
        "Peak: ___ MB\n- [ ] x\n| a | b |\n|---|---|\n| 1 | |\n**How much?**\n\n**And?**\n\n## End"
    )
    assert len(unanswered(blanks)) == 5


# The boxes of exercises 1 and 2: label, changes with which it is ticked, and with which it is not.


def of(**percents: float) -> Changes:
    """All shares of components, whose / is written __."""
    return {SHARES: components(**percents)}


def mm_and(name: str, share: float) -> Changes:
    rest = 100 - share
    rows = [("aten::mm", 9, 1.0, rest), (name, 9, 1.0, share)]
    return {TABLE: operator_table(rows), PRODUCTS: rest}


LONG, SHORT = [("aten::mm", 10, 1.0, 100.0)], [("aten::mm", 10_000, 0.01, 100.0)]
CORE, WIDE = of(attention__core=90.0, ffn__gate_up_proj=5.0), of(ffn__swiglu=80.0, rms_norm=10.0)
ROOF = {"ffn": ("memory", 90.0)}, {"ffn": ("compute", 10.0)}, {"ffn": ("compute", 99.0)}
BY_MEMORY, SLOW, FAST = ({**WIDE, POINTS: roofline(points)} for points in ROOF)
NOTHING = {**of(x=1), LAUNCH: 0.0, "operators.softmax_percent": 0.0}
MANY_KEPT, MANY_SCORES = {KEPT: HUGE, SCORES: 1}, {KEPT: 0, SCORES: HUGE}
NORMS = {**MANY_SCORES, SCORES: 1, "memory.component_activation_bytes": {"rms_norm": HUGE}}
Box = tuple[str, Changes, Changes]
BOXES_1: list[Box] = [
    ("The first iteration is", {FIRST_STEP: 9.0}, {FIRST_STEP: 0}),
    ("The timing is", {}, {"summary.stddev_step_seconds": 1.0}),
    ("Attention operations dominate", CORE, WIDE),
    ("Matrix multiplications (mm", {PRODUCTS: 51.0}, {PRODUCTS: 49.0}),
    ("Matrix multiplications are the", mm_and("aten::mul", 30), mm_and("aten::mul", 70)),
    ("Attention operations consume", of(attention__core=35.0), of(attention__core=45.0)),
    ("FFN operations consume", of(ffn__down_proj=30.0), of(ffn__down_proj=40.0)),
    ("Attention operations consume", of(attention__core=44.9), of(attention__core=34.9)),
    ("FFN operations consume", of(ffn__down_proj=39.9), of(ffn__down_proj=29.9)),
    ("Many small", {TABLE: operator_table(SHORT)}, {TABLE: operator_table(LONG)}),
    ("Kernel launch overhead visible", {LAUNCH: 11.0}, {LAUNCH: 9.0}),
    ("Memory transfers", {TRANSFERS: 2}, {TRANSFERS: 0}),
    ("Memory usage grows", {FORWARD: 106, BEFORE: 100}, {FORWARD: 104, BEFORE: 100}),
    ("Peak memory during", {WHERE: "attention/core"}, {WHERE: "ffn/swiglu"}),
    ("Gradient tensors", {}, {f"{AT_PEAK}.gradients": 0, FORWARD: 9, BACKWARD: 9}),
    ("Frequent small", {SMALL: 51, ALL: 100}, {SMALL: 50, ALL: 100}),
    ("Memory fragmentation", {"memory.fragmentation.percent": 11.0}, {}),
    ("Kernel fusion", {PRODUCTS: 80.0}, {PRODUCTS: 81.0}),
    ("Mixed precision training", {PRODUCTS: 70.0}, {PRODUCTS: 10.0}),
    ("Flash Attention implementation", CORE, WIDE),
    ("Fused QKV", of(attention__qkv_proj=30.0), WIDE),
    ("Memory layout", mm_and("aten::copy_", 30), mm_and("aten::mul", 30)),
    ("Batch size scaling", {LAUNCH: 21.0}, {LAUNCH: 19.0}),
    ("**High:** Kernel fusion", {PRODUCTS: 70.0}, {PRODUCTS: 90.0}),
    ("**High:** Flash", CORE, WIDE),
    ("**High:** Fused QKV", of(attention__qkv_proj=20.0), WIDE),
    ("**Medium:** Memory layout", mm_and("aten::copy_", 5), mm_and("aten::copy_", 4)),
    ("**Medium:** Mixed", {PRODUCTS: 10.0}, {PRODUCTS: 90.0}),
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
    ("20-40%", {MFU: 39.9}, {MFU: 19.9}),
    ("40-60%", {MFU: 40.0}, {MFU: 60.0}),
    ("40-60%", {MFU: 59.9}, {MFU: 39.9}),
    ("> 60%", {MFU: 60.0}, {MFU: 59.9}),
    ("Gradient checkpointing", MANY_KEPT, MANY_SCORES),
    ("Flash Attention (reduce", MANY_SCORES, MANY_KEPT),
    ("Mixed precision (reduce", {**MANY_KEPT, "configuration.n_layers": 1}, MANY_SCORES),
    ("Tensor fusion", NORMS, MANY_KEPT),
    ("memory spikes", {"memory.largest_spike.bytes": HUGE}, {"memory.largest_spike.bytes": 10}),
    ("Baseline training runs", {}, {"summary.final_loss": None}),
    ("Ready to proceed", {}, {"summary.steps_completed": 3}),
    ("`trace_step_*`", {"files": ["trace_step_5_10.json"]}, {"files": []}),
    ("`memory_timeline.json*`", {"files": ["memory_timeline.json"]}, {"files": []}),
    ("Profiling data generated", {}, {"files": []}),
    ("Performance metrics documented", {}, {PEAK: None}),
    ("Top operations identified", {}, mm_and("aten::mul", 40)),
    ("Bottlenecks identified", {}, {LAUNCH: None}),
]
TARGETS = {KEPT: 0, SCORES: 0, "memory.fragmentation.held_bytes": 0}
PEAKS_IN = {
    ("forward", "backward"): ("During forward", "Forward pass"),
    ("backward", "forward"): ("During backward", "Backward pass"),
    ("optimizer", "forward"): ("During opt", "Optimizer step"),
}
BOXES_2: list[Box] = [
    *((x, {PHASE: a}, {PHASE: b}) for (a, b), labels in PEAKS_IN.items() for x in labels),
    ("During att", {WHERE: "attention/core"}, {WHERE: "x"}),
    ("Attention comp", {WHERE: "attention/core"}, {WHERE: "x"}),
    ("High: spikes", {SPREAD: 1.3}, {SPREAD: 1.1}),
    ("Steady", {SPREAD: 1.1}, {SPREAD: 1.2}),
    ("Fluctuating", {SPREAD: 1.2}, {SPREAD: 1.5}),
    ("Fluctuating", {SPREAD: 1.4}, {SPREAD: 1.1}),
    ("Spiking", {SPREAD: 1.5}, {SPREAD: 1.4}),
    ("clear drops", {AFTER: [1], "memory.peak_bytes": 10}, {AFTER: [95], "memory.peak_bytes": 100}),
    ("memory returns", {AFTER: [100], BEFORE: 100}, {AFTER: [105], BEFORE: 100}),
    ("Promptly", {AFTER: [100, 101], BEFORE: 100}, {AFTER: [110, 110], BEFORE: 100}),
    ("Delayed", {AFTER: [110, 110], BEFORE: 100}, {AFTER: [100, 110], BEFORE: 100}),
    ("Not at all", {AFTER: [100, 110], BEFORE: 100}, {AFTER: [110, 110], BEFORE: 100}),
    ("Low GPU compute", {BUSY: 69.0}, {BUSY: 71.0}),
    ("High GPU compute", {BUSY: 81.0}, {BUSY: 79.0}),
    ("High memory bandwidth", {USED: 61.0}, {USED: 59.0}),
    ("Low memory bandwidth", {USED: 49.0}, {USED: 51.0}),
    ("Many small", {TABLE: operator_table(SHORT)}, {TABLE: operator_table(LONG)}),
    ("Frequent memory transfers", {TRANSFERS: 11}, {TRANSFERS: 10}),
    ("Large matrix", {PRODUCTS: 51.0}, {PRODUCTS: 49.0}),
    ("Good arithmetic", {INTENSITY: 101.0}, {INTENSITY: 99.0}),
    ("Memory-bound (low", {INTENSITY: 9.9}, {INTENSITY: 10.0}),
    ("Compute-bound (high", {INTENSITY: 100.1}, {INTENSITY: 100.0}),
    ("Mixed (moderate", {INTENSITY: 100.0}, {INTENSITY: 9.9}),
    ("Reduce attention", {**TARGETS, SCORES: HUGE}, TARGETS),
    ("Reduce activation", {**TARGETS, KEPT: HUGE}, TARGETS),
    ("Reduce parameter", TARGETS, {KEPT: HUGE}),
    ("Reduce fragmentation", {"memory.fragmentation.held_bytes": HUGE * 1000}, TARGETS),
    ("Memory hotspots identified", {}, {TABLE: operator_table(LONG)}),
    ("Bandwidth utilization calculated", {}, {USED: None}),
]
ALL_BOXES = [(sheet_1, *row) for row in BOXES_1] + [(sheet_2, *row) for row in BOXES_2]


@pytest.mark.parametrize(("sheet", "label", "yes", "no"), ALL_BOXES, ids=[c[1] for c in ALL_BOXES])
def test_boxes_follow_the_numbers(
    sheet: Callable[[Changes], str], label: str, yes: Changes, no: Changes
) -> None:
    assert box(sheet(yes), label) is True
    assert box(sheet(no), label) is False


BATCHES = tuple(f"memory_analysis_bs{size}" for size in (4, 8, 16))
LENGTHS = tuple(f"memory_seq{size}" for size in (64, 128, 256, 512))


def peaks(names: tuple[str, ...], *sizes: float) -> dict[str, Changes]:
    """Peaks in MB, run by run."""
    pairs = zip(names, sizes, strict=False)
    return {name: {"memory.peak_bytes": int(size * MB)} for name, size in pairs}


@pytest.mark.parametrize(
    ("names", "last", "label"),
    [
        (BATCHES, 300, "It doubles: linear"),
        (BATCHES, 320, "More than double"),
        (BATCHES, 250, "Less than double"),
        (BATCHES, 250, "Batch size scaling: Linear"),
        (BATCHES, 270, "Batch size scaling: Superlinear"),
        (BATCHES, 230, "Batch size scaling: Sublinear"),
        (LENGTHS, 250, "Linear (~2x"),
        (LENGTHS, 300, "Between linear"),
        (LENGTHS, 350, "Quadratic (~4x"),
        (LENGTHS, 250, "Sequence length scaling: Linear"),
        (LENGTHS, 350, "Sequence length scaling: Quadratic"),
        (LENGTHS, 550, "Sequence length scaling: Cubic"),
    ],
)
def test_scaling_follows_the_peaks(names: tuple[str, ...], last: float, label: str) -> None:
    assert box(sheet_2(**peaks(names, 100, 150, last)), label) is True
    other = 190 if last > 250 else 900
    assert box(sheet_2(**peaks(names, 100, 150, other)), label) is False


@pytest.mark.parametrize(
    ("factor", "label"),
    [
        *((2.0, "It doubles: perfect"), (1.5, "It grows less"), (1.0, "It stays")),
        *((0.96, "It stays"), (0.94, "It falls")),
    ],
)
def test_throughput_follows_the_times(factor: float, label: str) -> None:
    runs = {BATCHES[1]: {SPEED: 0.1}, BATCHES[2]: {SPEED: 0.2 / factor}}
    asked = answer(sheet_2(**runs), "Throughput Scaling")
    assert [line.startswith(f"- [x] {label}") for line in asked.split("\n")].count(True) == 1
    assert asked.count("[x]") == 1


# Figures: what is asked, the change, and what the answer then holds.
FIGURES = [
    (sheet_1, "Peak memory usage", {PEAK: 77 * MB}, "77.0 MB"),
    (sheet_1, "Final loss", {"summary.final_loss": 5.4321}, "5.432"),
    (sheet_1, "Average time per step", {"summary.average_step_seconds": 0.0456}, "45.6 ms"),
    (sheet_1, "First step", {FIRST_STEP: 9.0}, "9,000 ms"),
    (sheet_1, "parameters", {}, "2,873,600"),
    (sheet_1, "optimizer states", {}, "21.9 MB"),
    (sheet_1, "How much overhead", {OVERHEAD: 21.5}, "21.5 %"),
    (sheet_1, "How much overhead", {OVERHEAD: 21.5}, "above the range"),
    (sheet_1, "How much overhead", {OVERHEAD: 7.0}, "in the range"),
    (sheet_1, "What files were generated", {"files": ["trace_step_5_10.json"]}, "trace_step_5_10"),
    (sheet_1, "top 3", mm_and("aten::bmm", 70), "1. aten::mm, 2. aten::bmm"),
    (sheet_1, "consumes the most GPU time", {TABLE: operator_table(LONG)}, "aten::mm, 100.0 %"),
    (sheet_1, "time is spent in attention operations", CORE, "90.0 %"),
    (sheet_1, "How many different kernel", {"operators.distinct_operators": 33}, "33 operators"),
    (sheet_1, "What is the peak memory", {"memory.peak_bytes": 7 * MB}, "7.0 MB"),
    (sheet_1, "When does peak memory", {PHASE: "optimizer"}, "optimizer, in"),
    (sheet_1, "spent in attention vs FFN", WIDE, "attention 0.0 %, FFN 80.0 %, other (norms"),
    (sheet_1, "Top 3 optimization targets", {LAUNCH: 99.0}, "1. Batch size scaling"),
    (sheet_1, "GPU utilization", {"device_sampling.readings": {}}, "not measured"),
    (sheet_1, "MFU", {MFU: 50.0}, "above the range"),
    (sheet_1, "What would the profiler", CORE, "Attention computation first"),
    (sheet_1, "What would the profiler", NOTHING, "None is worth it"),
    (sheet_2, "Peak memory occurs at", {PHASE: "forward"}, "forward"),
    (sheet_2, "Largest memory spike caused", {"memory.largest_spike.component": "loss"}, "loss"),
    (sheet_2, "Bandwidth Utilization", {USED: 44.0}, "44.0 %"),
    (sheet_2, "Bandwidth utilization", {USED: 44.0}, "in the range"),
    (sheet_2, "Bandwidth utilization", {USED: 90.0}, "above the range"),
    (sheet_2, "Arithmetic Intensity", {INTENSITY: 33.0}, "33 FLOPS/byte"),
    (sheet_2, "Memory Bandwidth Used", {}, "GB/s"),
    (sheet_2, "Number of Allocations", {ALL: 777}, "777"),
    (sheet_2, "What memory optimization", MANY_SCORES, "Flash Attention"),
    (sheet_2, "What memory optimization", MANY_KEPT, "Gradient Checkpointing"),
    (sheet_2, "Memory Efficiency", {SPREAD: 1.3}, "1.30x; of the text's 1.2-1.5: in the range"),
]


@pytest.mark.parametrize(("sheet", "asked", "changes", "words"), FIGURES)
def test_answers_follow_the_numbers(
    sheet: Callable[[Changes], str], asked: str, changes: Changes, words: str
) -> None:
    assert words in answer(sheet(changes), asked)


# Exercise 1.


def test_speed_is_of_the_median_step_that_no_profiler_touched() -> None:
    steps = [
        {"step": n, "time_seconds": 0.1 if n == 20 else 5.0, "profiled": 1 < n < 20}
        for n in range(1, 21)
    ]
    blank = made_up_summary()["steps"]
    made = [{**old, **new} for old, new in zip(blank, steps, strict=True)]
    assert "80 samples/sec" in answer(sheet_1(plain={"steps": made}), "Training speed")


def test_each_leaf_counts_under_its_own_point_or_its_group() -> None:
    shares = of(attention__core=40.0, attention__rotary=10.0, ffn__swiglu=30.0, other=20.0)
    drawn = {
        "step": ("memory", 1.0),
        "attention": ("compute", 25.0),
        "attention/rotary": ("memory", 50.0),
        "ffn": ("compute", 90.0),
    }
    page = sheet_1({**shares, POINTS: roofline(drawn), LAUNCH: 0.0, WAIT: 0.0})
    # 40 x 0.75 and 30 x 0.1 miss the roof; the step's own point is nobody's
    assert "Compute utilization (device not fully utilized) — yes: 33.0 %" in page
    assert "Memory bandwidth (many small operations) — no: 10.0 %" in page


def test_memory_difference_is_between_the_two_runs() -> None:
    page = sheet_1(plain={PEAK: 100 * MB}, profiled={PEAK: 130 * MB})
    assert "30.0 MB: 130.0 MB with, 100.0 MB without" in answer(page, "difference in memory")


def test_a_gpu_shows_kernels_and_its_own_time() -> None:
    page = sheet_1(gpu=True)
    assert "40 kernels" in answer(page, "How many different kernel types")
    assert "of the GPU time" in answer(page, "consumes the most GPU time")
    assert "no GPU" not in page and "no GPU, so no transfers" in sheet_1()


@pytest.mark.parametrize("name", exercise_1.planned_runs(options(1)))
def test_a_run_that_failed_is_named_and_answers_nothing(name: str) -> None:
    runs = measured(exercise_1.planned_runs(options(1)))
    runs[name] = dataclasses.replace(runs[name], summary=None, reason="out of memory")
    made = exercise_1.sheet_of(runs, NO_RESULTS)
    assert made.exit_status == 1
    assert f"- {name}: out of memory" in made.page
    assert "Analysis questions" not in made.page and unanswered(made.page) == []


def test_the_same_work_in_other_times_is_said() -> None:
    def run(name: str, seconds: float, batch: int = 8, steps: int = 5) -> MeasuredRun:
        """Plain steps after a first slow one, and slow profiled ones."""
        times = [9.0, *[seconds] * steps, 9.0]
        made = [
            {"step": n, "time_seconds": t, "profiled": n > steps + 1}
            for n, t in enumerate(times, start=1)
        ]
        configuration = {"batch_size": batch, "num_steps": len(times)}
        return MeasuredRun(name, "", {"configuration": configuration, "steps": made})

    found = disagreement([run("a", 0.1), run("b", 0.121, steps=9), run("c", 0.11)])
    assert "100 ms in a and 121 ms in b (medians), 21 % more" in found
    for other in (run("b", 0.119), run("b", 0.3, batch=16), run("b", 0.3, steps=2)):
        assert disagreement([run("a", 0.1), other, MeasuredRun("c", "")]) == ""


def test_rules_at_their_limits() -> None:
    for rule, inside, outside in (
        ("above 50 %", (50.1,), (50.0, 49.0)),
        ("below 70 %", (69.9, -1.0), (70.0,)),
        ("from 20 to below 40 %", (20.0, 39.9), (19.9, 40.0)),
        ("from 10 to 100 FLOPS/byte", (10.0, 100.0), (9.9, 100.1)),
        ("from -1.15 to -0.85", (-1.0,), (-0.8, 1.0)),
        ("from 60 %", (60.0, 1e9), (59.9,)),
    ):
        assert all(holds(value, rule) for value in inside), rule
        assert not any(holds(value, rule) for value in outside), rule


# Exercise 2.


def test_tables_hold_the_runs_of_their_size() -> None:
    page = sheet_2(**peaks(LENGTHS, 100, 150, 250, 200))
    cells = [[c.strip() for c in answer(page, f"{n} ").split("|")] for n in (64, 256, 512)]
    assert [row[:4] for row in cells] == [
        ["8", "100.0 MB", "0.0 MB", "1.00x"],
        ["8", "250.0 MB", "150.0 MB", "2.50x"],
        ["4", "200.0 MB", "100.0 MB", "2.00x"],
    ]
    # half of the batch: what a sample takes is the fair factor
    assert cells[2][5] == "4.00x"


@pytest.mark.parametrize(("component", "power"), [("ffn/swiglu", 1), ("attention/core", 2)])
def test_the_steepest_component_is_found(component: str, power: int) -> None:
    key, other = "memory.component_activation_bytes", "loss/lm_head"
    runs = {
        name: {key: {other: int(1000 * seq**0.5), component: int(batch * seq**power)}}
        for name, seq, batch in zip(LENGTHS, (64, 128, 256, 512), (8, 8, 8, 4), strict=True)
    }
    found = answer(sheet_2(**runs), "steepest")
    assert f"{component}: its activations grow with S^{power}.00" in found


def test_components_too_small_to_matter_and_missing_peaks() -> None:
    profiles = {64: (1, {"big": 1000.0, "tiny": 0.001}), 128: (1, {"big": 2000.0, "tiny": 1.0})}
    assert [name for name, _, _ in component_growth(profiles)] == ["big"]
    assert component_growth({64: (1, {"big": 1.0})}) == []
    assert increment_ratio([10, 20, 60]) == 4
    assert increment_ratio([10, None, 60]) is increment_ratio([10, 10, 60]) is None


def test_the_law_describes_the_peaks() -> None:
    found = sheet_2()
    assert "memory(B, S) = " in found and "The largest residual is 0.0 %" in found
    off = sheet_2(**peaks((LENGTHS[3],), 5000))
    assert "The largest residual is 0.0 %" not in off


def test_a_size_that_did_not_fit_is_a_row_and_no_answer() -> None:
    runs = measured(exercise_2.planned_runs(options(2)))
    runs[LENGTHS[2]] = dataclasses.replace(runs[LENGTHS[2]], summary=None, reason="out of memory")
    made = exercise_2.sheet_of(runs, options(2), Limit(), NO_RESULTS)
    assert unanswered(made.page) == []
    assert made.exit_status == 1
    assert "out of memory" in answer(made.page, "256 ")
    for label in ("Linear (~2x", "Sequence length scaling analyzed", "Ready to proceed"):
        assert box(made.page, label) is False
    for name in (BATCHES[1], "memory_hotspots", "bandwidth"):
        without = {**runs, name: dataclasses.replace(runs[name], summary=None, reason="refused")}
        made = exercise_2.sheet_of(without, options(2), Limit(), NO_RESULTS)
        assert f"- {name}: refused" in made.page and made.exit_status == 1


def limit_text(limit: Limit) -> str:
    """What the page says of this limit."""
    runs = measured(exercise_2.planned_runs(options(2)))
    made = exercise_2.sheet_of(runs, options(2), limit, NO_RESULTS)
    assert unanswered(made.page) == []
    return answer(made.page, "At what sequence length")


def test_the_limit_is_predicted_and_confirmed() -> None:
    def predicted(seq: int, peak: float) -> Prediction:
        return Prediction("custom", "baseline", "f32", 8, seq, 1, 1.0, 1.0, peak, "")

    summary = {
        "summary": {"peak_memory_bytes": 90 * MB, "first_step_seconds": 12.0},
        "model": {"predicted_peak_memory_bytes": 100 * MB},
    }
    target = Target(predicted(3560, 99 * MB), predicted(3369, 90 * MB), 34.0, "memory")
    text = limit_text(Limit(target, "", MeasuredRun("longest_sequence", "", summary)))
    for words in (
        "is 3560 tokens",
        "3,369",
        "90.0 MB",
        "100.0 MB",
        "90.0 %",
        "12 s",
        "34 s",
        "99.0 MB",
    ):
        assert words in text
    failed = limit_text(Limit(target, "", MeasuredRun("longest_sequence", "", reason="killed")))
    assert "not measured" in failed and "90.0 %" not in failed
    assert "not predicted: no bench" in limit_text(Limit(reason="no bench"))
    assert "not even two tokens" in limit_text(
        Limit(Target(None, None, None, "not even two tokens"))
    )


# Exercise 3. Which one of some boxes is ticked: the boxes' heading, changes of the analysis and of
# runs, and the label that holds.
MIXED = {"mixed_precision": {SPEED: 0.3}}
CLASSES, BOUND, ROOFED = (
    "Efficiency classification",
    "Primary bottleneck",
    "Roofline model position",
)
FIRST, SECOND, THIRD = (
    "**1. What is the single largest",
    "**2. What type",
    "**3. Is the workload prim",
)
FIFTH = "**5. What is the realistic"


def named(**percents: float) -> Changes:
    """Shares of these components; the others keep theirs."""
    return {"components": {name.replace("__", "/"): value for name, value in percents.items()}}


def at_roof(percent: float, bound: str) -> Changes:
    return {f"{POINT}.percent_of_attainable": percent, f"{POINT}.bound": bound}


CHOICES: list[tuple[str, Changes, Mapping[str, Changes], str]] = [
    *((CLASSES, {MFU: m}, {}, "< 20% MFU") for m in (5.0, 19.9)),
    *((CLASSES, {MFU: m}, {}, "20-40% MFU") for m in (20.0, 39.9)),
    (CLASSES, {MFU: 40.0}, {}, "40-60% MFU"),
    (CLASSES, {MFU: 60.0}, {}, "> 60% MFU"),
    (BOUND, {INTENSITY: 9.9}, {}, "Memory-bound"),
    *((BOUND, {INTENSITY: i}, {}, "Mixed") for i in (10.0, 100.0)),
    (BOUND, {INTENSITY: 101.0}, {}, "Compute-bound"),
    (ROOFED, at_roof(30.0, "memory"), {}, "Below roofline"),
    (ROOFED, at_roof(90.0, "memory"), {}, "On roofline"),
    (ROOFED, at_roof(30.0, "compute"), {}, "Below compute"),
    (FIRST, named(attention__qkv_proj=90.0), {}, "QKV projection operations"),
    (FIRST, named(attention__core=90.0), {}, "Attention score computation"),
    (FIRST, named(ffn__down_proj=90.0), {}, "Feed-forward network"),
    (FIRST, {LAUNCH: 95.0}, {}, "Kernel launch overhead"),
    (FIRST, named(optimizer=90.0), {}, "Memory bandwidth"),
    (SECOND, {LAUNCH: 80.0}, MIXED, "Kernel fusion"),
    (SECOND, named(optimizer=70.0), MIXED, "Memory optimization"),
    (SECOND, named(attention__core=60), MIXED, "Algorithmic optimization"),
    (SECOND, {}, {"mixed_precision": {SPEED: 0.05}}, "Precision optimization"),
    (THIRD, named(optimizer=80.0, ffn__gate_up_proj=0.0), {}, "Memory-bound (optimize"),
    (THIRD, {}, {}, "Compute-bound (optimize"),
    (THIRD, {LAUNCH: 60.0}, {}, "Overhead-bound (optimize"),
    (THIRD, {LAUNCH: 48.0}, {}, "Mixed workload (balanced"),
    *(
        (FIFTH, {}, {"baseline": {SPEED: speedup}, "version_2": {SPEED: 1.0}}, label)
        for speedup, label in (
            *((1.1, "below all of these"), (1.25, "1.2-1.4x"), (1.44, "1.2-1.4x")),
            *((1.46, "1.5-2.0x"), (2.5, "2.0-3.0x"), (4.0, ">3.0x")),
        )
    ),
]


def ticked_below(page: str, heading: str) -> list[str]:
    """Labels of the ticked boxes right below a line."""
    lines = page.split(f"\n{heading}")[1].split("\n")[1:]
    boxes = [line for line in lines if line]
    end = next(i for i, line in enumerate(boxes) if not line.startswith("- ["))
    return [line[6:] for line in boxes[:end] if line.startswith("- [x]")]


@pytest.mark.parametrize(("heading", "analysis", "runs", "label"), CHOICES)
def test_one_box_of_a_question_holds(
    base: Findings, heading: str, analysis: Changes, runs: Mapping[str, Changes], label: str
) -> None:
    (found,) = ticked_below(page_3(base, analysis=analysis, runs=runs), heading)
    assert found.startswith(label)


SAVES = {"version_2_long": {PEAK: 10 << 20}}
LOSS = "summary.final_loss"
# label: changes of the analysis and of runs with which it is ticked, and without
Both = tuple[Changes, Mapping[str, Changes]]


def by_run(label: str, run: str, good: Changes, bad: Changes) -> tuple[str, Both, Both]:
    return label, ({}, {run: good}), ({}, {run: bad})


NO_SWIGLU = named(ffn__gate_up_proj=2, ffn__swiglu=0)
PLANNED: list[tuple[str, Both, Both]] = [
    ("**QKV Fusion**", ({LAUNCH: 80.0}, {}), ({LAUNCH: 0.0}, {})),
    ("**SwiGLU Fusion**", (named(ffn__swiglu=30.0), {}), (NO_SWIGLU, {})),
    ("**Flash Attention**", (named(attention__core=30.0), {}), (named(attention__core=1.0), {})),
    ("**Flash Attention**", (named(attention__core=1.0), SAVES), (named(attention__core=1.0), {})),
    by_run("**Mixed Precision**", "mixed_precision", {SPEED: 0.05}, {SPEED: 0.9}),
    # memory alone is no reason for a slower step
    by_run("**Mixed Precision**", "mixed_precision", {PEAK: 1 << 20}, {SPEED: 0.9, PEAK: 1 << 20}),
    by_run("Batch size 8, sequence length 128", "version_2", {SPEED: 0.01}, {SPEED: 9.0}),
    by_run("Batch size 16, sequence length 256", "version_2_scaling", {SPEED: 0.01}, {SPEED: 99.0}),
    by_run("Memory scaling with sequence", "version_2_long", {PEAK: 1 << 20}, {PEAK: 1 << 40}),
    by_run("Numerical accuracy validation", "version_2", {LOSS: 6.6}, {LOSS: 6.8}),
    by_run("No degradation in model", "version_2", {LOSS: 6.6}, {LOSS: 6.8}),
    by_run("Deterministic execution", "deterministic_2", {}, {"steps.3.loss": 6.000001}),
    by_run("Memory usage reduced or stable", "version_2", {PEAK: 1 << 20}, {PEAK: 1 << 30}),
    by_run("Throughput improved by >30%", "version_2", {SPEED: 0.01}, {SPEED: 0.24}),
    ("Comprehensive bottleneck", ({}, {}), ({TABLE: operator_table(LONG)}, {})),
    ("Performance bottlenecks quantified", ({}, {}), ({"operators.softmax_percent": None}, {})),
    ("Optimization roadmap created", ({}, {}), ({"operators.softmax_percent": None}, {})),
    ("Success metrics defined", ({}, {}), ({SCORES: None}, {})),
    ("Implementation plan validated", ({}, SAVES), ({}, {})),
    ("Ready to begin Version 2", ({}, SAVES), ({}, {})),
]


@pytest.mark.parametrize(("label", "good", "bad"), PLANNED)
def test_the_plan_and_its_gates_follow_the_runs(
    base: Findings, label: str, good: Both, bad: Both
) -> None:
    for (analysis, runs), holds_ in ((good, True), (bad, False)):
        assert box(page_3(base, analysis=analysis, runs=runs), label) is holds_


def test_the_matrix_follows_shares_and_measured_speedups(base: Findings) -> None:
    matrix = "High Impact, High Effort (Priority 2):\n\n- "
    for share, first in ((60.0, "Attention computation"), (10.0, "none")):
        assert f"{matrix}{first}" in page_3(base, analysis=named(attention__core=share))
    good, slow = (made_up_evidence(ABLATION, qkv=value) for value in (1.15, 0.97))
    chance = dataclasses.replace(good, speedups={"qkv": ratio_of_turns([1.4, 0.9] * 3, [1.0] * 6)})
    for found, cell, planned in (
        (good, "1.15 (1.15 to 1.15) with qkv", True),
        (slow, "0.97 (0.97 to 0.97) with qkv", False),
        (chance, "~ 1.15", False),  # what may be chance is not planned
    ):
        text = page_3(base, evidence=found)  # type: ignore[arg-type]
        assert cell in answer(text, "QKV projections")
        assert box(text, "**QKV Fusion**") is planned


def with_compile(folder: Path, speedup: float) -> Path:
    """A real ablation's file whose torch.compile rows were given another speedup."""
    found = json.loads(ABLATION.read_text())
    for peer in found["peers"]:
        peer["speedup"]["median"] = speedup
    path = folder / f"ablation_{speedup}.json"
    path.write_text(json.dumps(found))
    return path


def test_the_first_optimization_is_the_one_that_was_fastest(base: Findings, tmp_path: Path) -> None:
    asked = "**4. What should be the first optimization"
    for qkv, sdpa, gate_up, compiled, label in (
        (1.16, 0.9, 0.9, 1.0, "QKV fusion"),
        (0.9, 1.15, 0.9, 1.0, "Flash Attention"),
        (0.9, 0.9, 1.3, 1.0, "SwiGLU fusion"),
        (1.01, 0.9, 0.9, 2.0, "Torch compile"),
    ):
        speedups = {"qkv": qkv, "sdpa": sdpa, "gate_up": gate_up, "layout": compiled}
        evidence = made_up_evidence(with_compile(tmp_path, compiled), **speedups)
        text = page_3(base, evidence=evidence)  # type: ignore[arg-type]
        (found,) = ticked_below(text, asked)
        assert found.startswith(label)
        assert box(text, "**Torch Compile**") is box(text, "**Memory Layout**") is (compiled > 1)


def test_gains_by_hand(base: Findings) -> None:
    none = {"attention/qkv_proj": 0.0, "ffn/gate_up_proj": 0.0, "ffn/swiglu": 0.0}
    # half of the step becomes 2 * 128 / 129 times as fast
    half = 1 / (1 - 0.5 + 0.5 * 129 / 256)
    runs = {"baseline": {SPEED: 0.3}, "version_2": {SPEED: 0.1}}
    for share, speedup in ((0.0, 1.0), (50.0, half)):
        shares = {"components": {**none, "attention/core": share}}
        text = answer(page_3(base, analysis=shares, runs=runs), "expected overall speedup")
        assert f"{speedup:.2f}x by Amdahl" in text and "3.00x measured" in text
    measured_gain, text = memory_gain(
        base.analysis.summary or {},
        made_up_evidence(ABLATION, fused_norm=1.25, fused_adamw=1.1, fused_rotary=0.9),
    )
    # of the step, 20 % and 9.1 % are saved; what is slower is not done
    assert measured_gain == pytest.approx(1 / (1 / 1.25 + 1 / 1.1 - 1))
    assert "1.25 (1.25 to 1.25) with fused_norm" in text
    busy, text = memory_gain(made_up_summary({LAUNCH: 0.0}, gpu=True), None)
    idle = memory_gain(made_up_summary({LAUNCH: 50.0}, gpu=True), None)[0]
    part = float(text.split("traffic, of ")[1].split(" %")[0]) / 100
    assert part > 0.01
    assert busy == pytest.approx(1 / (1 - part / 2), abs=1e-3)
    # half of the step is idle, so half of what the busy one saves is saved
    assert idle == pytest.approx(1 / (1 - (1 - 1 / busy) / 2))


# Tables: the first words of a row, changes, and cells by their index.
NAMES = ("tiny", "small", "medium")


def every(key: str, *values: object) -> Mapping[str, Changes]:
    """One value a size."""
    return {name: {key: value} for name, value in zip(NAMES, values, strict=True)}


LESS = {"analysis": {SCORES: 10 << 20}, "runs": {"baseline": {PEAK: 100 << 20}}}
CALLS, GROWTH = "operators.operator_calls_per_step", "tiny -> small: memory"
CELLS: list[tuple[str, dict[str, Mapping[str, object]], dict[int, str]]] = [
    ("1 ", {}, {0: "aten::mm", 3: "32"}),
    ("Overall runtime", {}, {0: "seconds"}),
    ("Time in matrix", {"analysis": {PRODUCTS: 41.5}}, {0: "41.5 %"}),
    ("Separate linear", {"analysis": {"operators.linear_projections_per_step": 17}}, {0: "17"}),
    ("Overhead of kernel", {"analysis": {LAUNCH: 23.4}}, {0: "23.4 %"}),
    ("Attention computation", {"analysis": named(attention__core=60.0)}, {0: "60.0 %", 6: "1"}),
    ("Peak memory usage", LESS, {0: "100.0 MB", 1: "90.0 MB"}),
    ("Operator count", {"analysis": {CALLS: 1000}}, {0: "1,000", 1: "964"}),
    ("Attention operations", {"analysis": named(attention__core=70.0)}, {2: "above the range"}),
    ("tiny ", {"sizes": every(PEAK, 100 << 20, 1, 1)}, {0: "2,873,600", 2: "100.0 MB"}),
    ("large ", {}, {2: "not measured", 5: "predicted peak memory"}),
    ("very_large ", {}, {0: "10,691,284,992"}),
    (GROWTH, {"sizes": every(PEAK, 10 << 20, 70 << 20, 1)}, {1: "7.00x", 2: "in the"}),
    (GROWTH, {"sizes": every(PEAK, 10 << 20, 90 << 20, 1)}, {2: "above"}),
]


@pytest.mark.parametrize(("first", "changes", "cells"), CELLS)
def test_cells_follow_their_measurement(
    base: Findings, first: str, changes: dict[str, Mapping[str, object]], cells: dict[int, str]
) -> None:
    found = [cell.strip() for cell in answer(page_3(base, **changes), first).split("|")]
    for index, words in cells.items():
        assert words in found[index]


def test_rows_of_one_operator_and_several_shapes_are_one(base: Findings) -> None:
    rows = operator_table([("aten::mm", 4, 1.0, 25.0), ("aten::bmm", 4, 1.0, 40.0)])
    table = {TABLE: [*rows, rows[0]], "operators.steps": 2}
    text = page_3(base, analysis=table)
    assert [
        answer(text, f"{rank} ").split("|")[i].strip() for rank in (1, 2) for i in (0, 1, 3)
    ] == [*("aten::mm", "50.0 %", "4"), *("aten::bmm", "40.0 %", "2")]


# Chapter 6, the problem sizes: question, changes of the sizes (of the base's parameters and FLOPs a
# step where it is a function), and what the answer then holds.
Sizes = Mapping[str, Changes] | Callable[[list[float], list[float]], Mapping[str, Changes]]


def at_rates(*rates: float) -> Sizes:
    return lambda _, flops: every(SPEED, *(f / r for f, r in zip(flops, rates, strict=True)))


def at_power(key: str, power: float) -> Sizes:
    return lambda parameters, _: every(key, *(1e-7 * n**power for n in parameters))


FEW_SCORES = {n: {"memory.peak_bytes": 1000 << 20, SCORES: 1 << 20} for n in NAMES}
SOME_SCORES = {**FEW_SCORES, "small": {**FEW_SCORES["small"], SCORES: 200 << 20}}
MORE, LESS_CORE = ({"tiny": named(attention__core=share)} for share in (80.0, 0.0))
ANSWERS: list[tuple[str, Sizes, str]] = [
    ("Does throughput decrease", at_power(SPEED, 1.3), "parameters ^ -1."),
    ("Is memory scaling proportional", at_power(PEAK, 1.0), "- [x] proportional"),
    ("Is memory scaling proportional", every(PEAK, 10**9, 10**9, 10**9), "- [ ] proportional"),
    ("GPU become saturated", at_rates(1e11, 1.05e11, 1.2e11), "Answer: tiny"),
    ("GPU become saturated", at_rates(1e11, 2e11, 2.1e11), "Answer: small"),
    ("GPU become saturated", at_rates(1e11, 2e11, 4e11), "none of the measured"),
    ("attention memory become", FEW_SCORES, "size none"),
    ("attention memory become", SOME_SCORES, "size small; tiny alone at S = 128"),
    ("memory overhead ratio", lambda p, _: {"tiny": {PEAK: 20 * 4 * p[0]}}, "tiny 20.00x"),
    ("best GPU utilization", every(MFU, 50.0, 20.0, 30.0), "Answer: tiny"),
    ("best GPU utilization", every(MFU, 5.0, 20.0, 30.0), "Answer: medium"),
    ("arithmetic intensity change", every(INTENSITY, 1.5, 20, 300), "tiny 1.5 FLOP/byte"),
    ("Which component (att", MORE, "- [x] attention more than FFN: tiny"),
    ("Which component (att", LESS_CORE, "- [ ] attention more than FFN: tiny"),
    *(("most from Flash", {n: named(attention__core=70.0)}, f"Answer: {n}") for n in NAMES),
    ("most memory-bound", every(INTENSITY, 1.0, 10.0, 100.0), "tiny, most compute-bound medium"),
    ("most memory-bound", every(INTENSITY, 100.0, 10.0, 1.0), "medium, most compute-bound tiny"),
    ("improve throughput", {"medium": named(optimizer=80.0)}, "optimizer first, 80.0 % of medium"),
    ("optimal problem size", every(SPEED, 0.1, 1.0, 5.0), "Answer: medium"),
    ("optimal problem size", every(SPEED, 0.1, 9.0, 50.0), "Answer: tiny"),
    ("optimal problem size", every(SPEED, 10.0, 90.0, 99.0), "Answer: none"),
]


@pytest.mark.parametrize(("question", "sizes", "words"), ANSWERS)
def test_answers_follow_the_sizes(base: Findings, question: str, sizes: Sizes, words: str) -> None:
    models = [r.summary["model"] for r in base.results if r.summary is not None]
    if callable(sizes):
        keys = ("total_parameters", "flops_per_step")
        sizes = sizes(*([model[key] for model in models] for key in keys))
    assert words in answer(page_3(base, sizes=sizes), question)


def test_batch_and_throughput(base: Findings) -> None:
    for label, batch, seconds in (("raises", 32, 0.2428), ("", 16, 0.4856), ("lowers", 16, 0.9)):
        text = page_3(base, runs={"batch_16": {SPEED: seconds}})
        for word in ("raises", "lowers"):
            assert box(text, f"a larger batch {word}") is (word == label)
        found = answer(text, "What batch size would you recommend")
        assert f"Answer: {batch}; the largest that fits is 32" in found
    for free, words in ((8 * GIB, "4; the largest that fits is 4"), (GIB, "none fits")):
        study = dataclasses.replace(base, forecasts=forecasts(PlayedPredictor(free), "auto"))
        assert f"Answer: {words}" in answer(page_3(study), "What batch size would you")


def test_forecasts_decide_the_largest_model_and_growth(base: Findings) -> None:
    for free, words in (
        (2 * GIB, "20,890,112"),
        (1000 * GIB, "10,691,284,992"),
        (1, "not measured"),
    ):
        study = dataclasses.replace(base, forecasts=forecasts(PlayedPredictor(free), "auto"))
        asked = answer(page_3(study), "What's the largest model")
        assert words in next(line for line in asked.split("\n") if "as configured" in line)
    assert box(page_3(base), "quadratic at the long end") is True
    linear = [
        dataclasses.replace(p, peak_memory_bytes=1e6 * p.seq) for p in base.forecasts["sequences"]
    ]
    study = dataclasses.replace(base, forecasts={**base.forecasts, "sequences": linear})
    text = page_3(study)
    assert box(text, "linear at the long end") is True
    assert "S ^ 1 over the three shortest" in answer(text, "scale with sequence length")


def test_chapter_6_falls_with_what_it_rests_on(base: Findings) -> None:
    labels = ("At least 2 problem sizes", "Scaling patterns", "Performance characteristics")
    assert box(page_3(base), "Ready to compare") is True
    tiny = [result for result in base.results if result.size == "tiny"]
    alone = page_3(dataclasses.replace(base, results=tiny))
    assert not any(box(alone, label) for label in (*labels, "Ready to compare"))
    assert "of tiny: twice as fast" in answer(alone, "improve throughput")
    no_profile = page_3(base, sizes={name: {"operators": None} for name in NAMES})
    assert box(no_profile, "Optimization priorities identified") is False


def test_growth_of_nothing() -> None:
    assert growth_exponent([1, 2, 4], [1, 4, 16]) == pytest.approx(2)
    assert growth_exponent([2, 2], [1, 5]) is None
    assert exercise_3.saturated([]) is None
    second = {"summary": {"median_step_seconds": 1.0}}
    runs = [MeasuredRun("", "", {"configuration": {"batch_size": b}, **second}) for b in (4, 16)]
    # four times the batch in the same time: twice as fast at each of two doublings
    assert exercise_3.batch_gain(runs) == pytest.approx(2)
    assert exercise_3.compile_speedup(None) is None
    best = exercise_3.compile_speedup(made_up_evidence(ABLATION, qkv=1.0))
    assert best == pytest.approx(1.1328, abs=1e-4)
