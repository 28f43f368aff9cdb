"""Exercise 1's worksheet: every box and every answer follows from the numbers."""

import pytest

from exercise_1_sheets import (
    LAUNCH,
    MFU,
    PEAK,
    POINTS,
    SHARES,
    WAIT,
    sheet,
)
from exercise_stand_in import Changes
from worksheet_reading import answer, box, components, operator_table, roofline

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
        {SHARES: components(attention__qkv_proj=5.0, rms_norm=50.0)},
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
