"""Exercise 1: its worksheet and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from fake_exercise import NO_RESULTS, Changes, measured, options
from fake_exercise import sheet_1 as sheet
from test_exercise_2 import CONTEXT, study
from tinyllama_tools.commands.exercise_1 import MEMORY, PLAIN, PROFILED, planned_runs, sheet_of
from tinyllama_tools.commands.worksheet import unanswered
from tinyllama_tools.models.ablations import result_text
from worksheet_reading import answer, box, components, operator_table, roofline
from workshop_texts import ANSWERS_1, BOXES_1

OPTIONS = options(1)
SHARES = "operators.components"
PEAK = "memory.breakdown_at_peak"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
POINTS = "flops.roofline_data.points"
LAUNCH = "operators.launch_overhead_percent"
WAIT = "summary.breakdown.data_loading.percent"


def test_nothing_is_left_blank_on_a_cpu_and_on_a_gpu() -> None:
    for gpu in (False, True):
        made = sheet_of(measured(planned_runs(OPTIONS), gpu=gpu), NO_RESULTS)
        assert unanswered(made.page) == []
        assert made.exit_status == 0


NULLS = {
    "memory.largest_spike": None,
    "memory.fragmentation": None,
    "memory.forward_peak_bytes": None,
    "memory.peak_component": None,
    MFU: None,
    "operators.launch_overhead_percent": None,
    "summary.operator_profiling_overhead_percent": None,
    "summary.average_forward_seconds": None,
    "device_sampling.readings": {},
}


def test_what_was_not_measured_is_said_and_leaves_no_blank() -> None:
    page = sheet(NULLS)
    assert unanswered(page) == []
    assert "None" not in page
    assert box(page, "Memory usage grows") is False
    assert "none recorded" in page


def test_every_box_and_question_of_the_workshop_is_there() -> None:
    page = sheet()
    for label in BOXES_1:
        assert isinstance(box(page, label), bool)
    for asked in ANSWERS_1:
        assert answer(page, asked).strip()


def steps_of(seconds: dict[int, float], profiled: Sequence[int] = ()) -> dict[str, object]:
    """`steps` of 0.1 s but for these."""
    summary = measured(planned_runs(OPTIONS))[PLAIN].summary
    assert summary is not None
    return {
        "steps": [
            {
                **step,
                "time_seconds": seconds.get(step["step"], 0.1),
                "profiled": step["step"] in profiled,
            }
            for step in summary["steps"]
        ]
    }


def test_speed_is_of_the_median_plain_step() -> None:
    page = sheet(plain=steps_of({1: 5.0, 8: 5.0}))
    assert "80 samples/sec" in answer(page, "Training speed")
    assert "19 plain ones" in answer(page, "Training speed")


def test_neither_the_first_nor_profiled_steps_count() -> None:
    slow = dict.fromkeys(range(1, 20), 5.0)
    page = sheet(plain=steps_of(slow, profiled=range(2, 20)))
    assert "80 samples/sec" in answer(page, "Training speed")


def test_each_leaf_counts_under_its_own_point_or_its_group() -> None:
    shares = components(attention__core=40.0, attention__rotary=10.0, ffn__swiglu=30.0, other=20.0)
    drawn = {
        "step": ("memory", 1.0),
        "attention": ("compute", 25.0),
        "attention/rotary": ("memory", 50.0),
        "ffn": ("compute", 90.0),
    }
    page = sheet({SHARES: shares, POINTS: roofline(drawn), LAUNCH: 0.0, WAIT: 0.0})
    # 40 x 0.75 and 30 x 0.1 miss the roof; the step's own point is nobody's
    assert "Compute utilization (device not fully utilized) — yes: 33 %" in page
    assert "Memory bandwidth (many small operations) — no: 10 % against" in page


def test_measured_savings_decide_question_4_before_bounds(tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    folder.mkdir()
    made = study(fused_attention=90.0, checkpoint=40.0, fused_swiglu=95.0, mixed=80.0)
    (folder / "ablation_card.json").write_text(result_text(made))
    scores_only = {f"{PEAK}.activations": 0, f"{PEAK}.attention_scores": 10**9}
    changes = {**scores_only, "context.device": CONTEXT["device"], "context.threads": 2}
    runs = measured(planned_runs(OPTIONS), {"": changes})
    page, bounds = (sheet_of(runs, place).page for place in (tmp_path, NO_RESULTS))
    assert box(page, "Gradient checkpointing") is True
    assert "measured: `checkpoint`" in page and "reference/ablation_card.json" in page
    assert box(bounds, "Flash Attention (reduce") is True
    assert "bound: all attention scores" in bounds and "measured: `" not in bounds


def test_a_cpu_has_no_transfers() -> None:
    page = sheet()
    assert "Memory transfers visible between operations — no: no GPU, so no transfers" in page
    assert "no GPU, so no transfers" in answer(page, "copies between host and device")
    gpu = sheet_of(measured(planned_runs(OPTIONS), gpu=True), NO_RESULTS).page
    assert "no transfers" not in gpu


def test_memory_difference_is_between_the_two_runs() -> None:
    page = sheet(
        plain={"summary.peak_memory_bytes": 100 * 2**20},
        profiled={"summary.peak_memory_bytes": 130 * 2**20},
    )
    assert "30.0 MB: 130.0 MB with, 100.0 MB without" in answer(page, "difference in memory")


def test_figures_of_the_text_that_contradict_each_other_get_the_exact_one() -> None:
    page = sheet()
    assert "2,345,984" in answer(page, "parameters")
    assert answer(page, "parameters").count("2,873,600") == 2
    assert "36.8 MB" in answer(page, "optimizer states")
    assert "21.9 MB" in answer(page, "optimizer states")
    assert "2-4 GB" in answer(page, "peak memory")


def test_a_gpu_shows_kernels_and_its_own_time() -> None:
    page = sheet_of(measured(planned_runs(OPTIONS), gpu=True), NO_RESULTS).page
    assert "40 kernels" in answer(page, "How many different kernel types")
    assert "of the GPU time" in answer(page, "consumes the most GPU time")
    assert "no GPU" not in page


@pytest.mark.parametrize("name", [PLAIN, PROFILED, MEMORY])
def test_a_run_that_failed_is_named_and_answers_nothing(name: str) -> None:
    runs = measured(planned_runs(OPTIONS))
    runs[name] = dataclasses.replace(runs[name], summary=None, reason="out of memory")
    made = sheet_of(runs, NO_RESULTS)
    assert made.exit_status == 1
    assert f"- {name}: out of memory" in made.page
    assert unanswered(made.page) == []


def test_a_loss_that_is_not_finite_fails_the_exercise() -> None:
    runs = measured(planned_runs(OPTIONS))
    runs[PLAIN] = dataclasses.replace(runs[PLAIN], exit_status=1)
    made = sheet_of(runs, NO_RESULTS)
    assert made.exit_status == 1
    assert box(made.page, "Baseline training runs") is False


def test_no_path_of_the_machine_is_on_the_page() -> None:
    assert str(Path.home()) not in sheet()
    assert "(memory_and_flops/memory_timeline.html)" in sheet()


CORE, SPIKE = "attention/core", "memory.largest_spike.bytes"
INTENSE = components(attention__core=90.0, ffn__gate_up_proj=5.0, rms_norm=5.0)
WIDE = components(attention__core=10.0, ffn__gate_up_proj=80.0, rms_norm=10.0)
TABLE = "operators.table"
PRODUCTS = "operators.matrix_product_percent"
NOTHING = {SHARES: components(rms_norm=100.0), LAUNCH: 0.0, "operators.softmax_percent": 0.0}
LONG, SHORT = [("aten::mm", 10, 1.0, 100.0)], [("aten::mm", 10_000, 0.01, 100.0)]


def mm_and(name: str, share: float) -> dict[str, object]:
    rest = 100 - share
    return {
        TABLE: operator_table([("aten::mm", 9, 1.0, rest), (name, 9, 1.0, share)]),
        PRODUCTS: rest,
    }


BOTH_WAYS = [
    ("Attention operations dominate", {SHARES: INTENSE}, {SHARES: WIDE}),
    ("Matrix multiplications (mm", {PRODUCTS: 51.0}, {PRODUCTS: 49.0}),
    ("Matrix multiplications are the", mm_and("aten::mul", 30), mm_and("aten::mul", 70)),
    (
        "Attention operations consume",
        {SHARES: components(attention__core=40.0, rms_norm=60.0)},
        {SHARES: components(attention__core=46.0, rms_norm=54.0)},
    ),
    (
        "FFN operations consume",
        {SHARES: components(ffn__down_proj=30.0, rms_norm=70.0)},
        {SHARES: components(ffn__down_proj=41.0, rms_norm=59.0)},
    ),
    ("Many small", {TABLE: operator_table(SHORT)}, {TABLE: operator_table(LONG)}),
    ("Kernel launch overhead visible", {LAUNCH: 11.0}, {LAUNCH: 9.0}),
    ("Memory transfers", {"operators.transfers_per_step": 2}, {"operators.transfers_per_step": 0}),
    (
        "Memory usage grows",
        {"memory.forward_peak_bytes": 200, "memory.baseline_bytes": 100},
        {"memory.forward_peak_bytes": 104, "memory.baseline_bytes": 100},
    ),
    (
        "Peak memory during",
        {"memory.peak_component": CORE},
        {"memory.peak_component": "ffn/swiglu"},
    ),
    (
        "Gradient tensors",
        {f"{PEAK}.gradients": 4},
        {f"{PEAK}.gradients": 0, "memory.forward_peak_bytes": 9, "memory.backward_peak_bytes": 9},
    ),
    (
        "Frequent small",
        {"memory.small_allocations_per_step": 51, "memory.allocations_per_step": 100},
        {"memory.small_allocations_per_step": 50, "memory.allocations_per_step": 100},
    ),
    (
        "Memory fragmentation",
        {"memory.fragmentation.percent": 11.0},
        {"memory.fragmentation.percent": 9.0},
    ),
    ("Kernel fusion", {PRODUCTS: 70.0}, {PRODUCTS: 90.0}),
    ("Mixed precision training", {PRODUCTS: 70.0}, {PRODUCTS: 10.0}),
    ("Flash Attention implementation", {SHARES: INTENSE}, {SHARES: WIDE}),
    (
        "Fused QKV",
        {SHARES: components(attention__qkv_proj=30.0, rms_norm=70.0)},
        {SHARES: WIDE},
    ),
    ("Memory layout", mm_and("aten::copy_", 30), mm_and("aten::mul", 30)),
    ("Batch size scaling", {LAUNCH: 21.0}, {LAUNCH: 19.0}),
    ("**High:** Kernel fusion", {PRODUCTS: 70.0}, {PRODUCTS: 90.0}),
    ("**High:** Flash", {SHARES: INTENSE}, {SHARES: WIDE}),
    ("**High:** Fused QKV", {SHARES: components(attention__qkv_proj=30.0)}, {SHARES: WIDE}),
    ("**Medium:** Memory layout", mm_and("aten::copy_", 10), mm_and("aten::copy_", 1)),
    ("**Medium:** Mixed", {PRODUCTS: 10.0}, {PRODUCTS: 90.0}),
    ("**Low:** Batch", {LAUNCH: 2.0}, {LAUNCH: 30.0}),
    (
        "Memory bandwidth",
        {SHARES: WIDE, POINTS: roofline({"ffn": ("memory", 90.0)})},
        {SHARES: WIDE, POINTS: roofline({"ffn": ("compute", 10.0)})},
    ),
    (
        "Compute utilization",
        {SHARES: WIDE, POINTS: roofline({"ffn": ("compute", 10.0)})},
        {SHARES: WIDE, POINTS: roofline({"ffn": ("compute", 99.0)})},
    ),
    ("Kernel launch overhead (too", {LAUNCH: 95.0}, {LAUNCH: 1.0}),
    ("Data loading", {WAIT: 96.0}, {WAIT: 1.0}),
    (
        "QKV projections",
        {SHARES: components(attention__qkv_proj=50.0, rms_norm=2.0)},
        {SHARES: components(attention__qkv_proj=24.0, rms_norm=50.0)},
    ),
    ("Gate/Up", {SHARES: WIDE}, {SHARES: components(rms_norm=50.0, ffn__swiglu=5.0)}),
    ("Layer normalization", {SHARES: components(rms_norm=9.0, ffn__swiglu=10.0)}, {SHARES: WIDE}),
    (
        "All of the above",
        {SHARES: components(rms_norm=9.0, ffn__swiglu=10.0, attention__qkv_proj=11.0)},
        {SHARES: WIDE},
    ),
    ("< 20%", {MFU: 19.9}, {MFU: 20.0}),
    ("20-40%", {MFU: 20.0}, {MFU: 40.0}),
    ("40-60%", {MFU: 40.0}, {MFU: 60.0}),
    ("> 60%", {MFU: 60.0}, {MFU: 59.9}),
    (
        "Gradient checkpointing",
        {f"{PEAK}.activations": 10**9, f"{PEAK}.attention_scores": 1},
        {f"{PEAK}.activations": 0, f"{PEAK}.attention_scores": 10**9},
    ),
    (
        "Flash Attention (reduce",
        {f"{PEAK}.activations": 0, f"{PEAK}.attention_scores": 10**9},
        {f"{PEAK}.activations": 10**9, f"{PEAK}.attention_scores": 1},
    ),
    (
        "Mixed precision (reduce",
        {
            f"{PEAK}.activations": 10**9,
            f"{PEAK}.attention_scores": 1,
            "configuration.n_layers": 1,
        },
        {f"{PEAK}.activations": 0, f"{PEAK}.attention_scores": 10**9},
    ),
    (
        "Tensor fusion",
        {f"{PEAK}.activations": 0, "memory.component_activation_bytes": {"rms_norm": 10**9}},
        {f"{PEAK}.activations": 10**9},
    ),
    ("memory spikes", {SPIKE: 10**9}, {SPIKE: 10}),
    ("Baseline training runs", {}, {"summary.final_loss": float("nan")}),
    ("Ready to proceed", {}, {"summary.steps_completed": 3}),
    ("`trace_step_*.json`", {"files": ["trace_step_5_10.json"]}, {"files": []}),
    ("`memory_timeline.json`", {"files": ["memory_timeline.json"]}, {"files": []}),
    ("Profiling data generated", {}, {"files": []}),
    ("Performance metrics documented", {}, {"summary.peak_memory_bytes": None}),
    (
        "Top operations identified",
        {},
        {TABLE: operator_table([("aten::mm", 9, 1.0, 60.0), ("aten::mul", 9, 1.0, 40.0)])},
    ),
    ("Bottlenecks identified", {}, {LAUNCH: None}),
]


@pytest.mark.parametrize(("label", "yes", "no"), BOTH_WAYS, ids=[c[0] for c in BOTH_WAYS])
def test_boxes_follow_the_numbers(label: str, yes: Changes, no: Changes) -> None:
    assert box(sheet(yes), label) is True
    assert box(sheet(no), label) is False


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        ("Peak memory usage", {"summary.peak_memory_bytes": 77 * 2**20}, "77.0 MB"),
        ("Final loss", {"summary.final_loss": 5.4321}, "5.432"),
        ("Average time per step", {"summary.average_step_seconds": 0.0456}, "45.6 ms"),
        ("How much overhead", {"summary.operator_profiling_overhead_percent": 21.5}, "21.5 %"),
        ("How much overhead", {"summary.operator_profiling_overhead_percent": 21.5}, "above the"),
        ("How much overhead", {"summary.operator_profiling_overhead_percent": 7.0}, "in the range"),
        (
            "What files were generated",
            {"files": ["trace_step_5_10.json"]},
            "`trace_step_5_10.json`",
        ),
        ("top 3", mm_and("aten::bmm", 70), "1. `aten::mm`, 2. `aten::bmm`"),
        ("consumes the most GPU time", {TABLE: operator_table(LONG)}, "`aten::mm`, 100.0 %"),
        ("percentage of time is spent in attention", {SHARES: INTENSE}, "90.0 %"),
        ("How many different kernel", {"operators.distinct_operators": 33}, "33 operators"),
        ("When does peak memory", {"memory.peak_phase": "optimizer"}, "optimizer, in"),
        ("spent in attention vs FFN", {SHARES: WIDE}, "attention 10.0 %, FFN 80.0 %, other"),
        ("Top 3 optimization targets", {LAUNCH: 99.0}, "1. Batch size scaling"),
        ("Top 3 optimization targets", {PRODUCTS: 98.0}, "1. Mixed precision"),
        ("Is the timing consistent", {"summary.stddev_step_seconds": 1.0}, "not stable"),
        ("Is the first iteration slower", {"summary.first_step_seconds": 9.0}, "9,000 ms"),
        ("GPU utilization", {"device_sampling.readings": {}}, "not measured"),
        ("MFU", {MFU: 50.0}, "above the range"),
        ("What would the profiler recommend", {SHARES: INTENSE}, "Attention computation first"),
        ("What would the profiler recommend", NOTHING, "None is worth it"),
    ],
)
def test_words_follow_the_numbers(asked: str, changes: Changes, words: str) -> None:
    assert words in answer(sheet(changes), asked)
