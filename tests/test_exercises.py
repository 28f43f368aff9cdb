"""The workshop's worksheets: every box and answer follows from its measurement.

Tables of what is asked, the figures of a made-up run that are changed, and what the page says then;
and figures by hand.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
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
    forecasts,
    made_up_evidence,
    measured,
    named,
    named_in,
    of,
    operator_table,
    options,
    peaks,
    roofline,
    sheet,
    unanswered,
)
from fake_training import GIB, made_up_summary, step_cost
from tinyllama_tools.commands import exercise_2, exercise_3
from tinyllama_tools.commands.exercise_2 import component_growth, increment_ratio
from tinyllama_tools.commands.exercise_3 import bounds, memory_bound_percent, memory_gain
from tinyllama_tools.commands.worksheet import growth_exponent, holds, tick
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.models.ablations import Evidence
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

ABLATION = PROJECT / "results/reference/ablation_2core_xeon_avx512.json"
PEERS = PROJECT / "results/reference/peers_2core_xeon_avx512.json"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
USED = "flops.computational_intensity.memory_bandwidth_utilization_percent"
POINT = f"{POINTS}.0"
TABLE, CALLS = "operators.table", "operators.operator_calls_per_step"
PRODUCTS = "operators.matrix_product_percent"
PEAK, LOSS = "summary.peak_memory_bytes", "summary.final_loss"
AT_PEAK = "memory.breakdown_at_peak"
SCORES, KEPT = f"{AT_PEAK}.attention_scores", f"{AT_PEAK}.activations"
AFTER, BEFORE = "memory.live_bytes_after_steps", "memory.baseline_bytes"
PHASE, WHERE = "memory.peak_phase", "memory.peak_component"
FORWARD, BACKWARD = "memory.forward_peak_bytes", "memory.backward_peak_bytes"
SPREAD, OVERHEAD = "memory.peak_to_average", "summary.operator_profiling_overhead_percent"
HELD, HUGE = "memory.fragmentation.held_bytes", 10**9
NULLS: Changes = {
    **dict.fromkeys(("memory.largest_spike", "memory.fragmentation", "memory.average_bytes")),
    **dict.fromkeys((FORWARD, WHERE, SPREAD, MFU, INTENSITY, USED, LAUNCH, OVERHEAD)),
    **{"summary.average_forward_seconds": None, "device_sampling.readings": {}},
}


def test_no_place_is_left_to_fill_in() -> None:
    pages = [sheet(number, gpu=gpu) for number in (1, 2, 3) for gpu in (False, True)]
    pages += [sheet(number, {EVERY: NULLS}) for number in (1, 2)]
    pages += [sheet(3, {"analysis": NULLS, "tiny": {MFU: None, "memory": None}})]
    for page in pages:
        assert unanswered(page) == []
        assert str(Path.home()) not in page
    for step in range(1, 8):
        assert f"\n## Step {step}: " in sheet(3)
    blanks = (
        "Peak: ___ MB\n- [ ] x\n| a | b |\n|---|---|\n| 1 | |\n**How much?**\n\n**And?**\n\n## End"
    )
    assert len(unanswered(blanks)) == 5


def test_every_box_finds_its_figure() -> None:
    for number in (1, 2, 3):
        page = sheet(number, gpu=True)
        # on a GPU every profiler has its figures; what no ablation measured is no fault of a key
        open_boxes = re.findall(r"^- \[ \] (.*) — no: not measured; rule", page, re.MULTILINE)
        assert open_boxes == ["Torch compile (automatic optimization)"] * (number == 3)
        assert re.findall(r"^\| ([^|]*) \| not measured +\|$", page, re.MULTILINE) == []
    assert "40 kernels" in answer(sheet(1, gpu=True), "How many different kernel types")


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("above 5 x", [5.1], [5, 4.9]),
        ("below 5 copies a step", [4.9], [5, 5.1]),
        ("from 5", [5, 9], [4.9]),
        ("from -1.15 to -0.85", [-1.15, -0.85], [-1.16, -0.84]),
        ("from 5 to below 7 %", [5, 6.9], [4.9, 7]),
    ],
)
def test_a_box_is_decided_by_its_limits(
    rule: str, inside: list[float], outside: list[float]
) -> None:
    assert all(holds(value, rule) for value in inside)
    assert not any(holds(value, rule) for value in outside)
    assert tick("it", inside[0], rule).startswith("- [x] it — yes: ")
    assert tick("it", None, rule) == f"- [ ] it — no: not measured; rule: {rule}"


# Boxes with a logic of their own: label, changes of every run (of the analysis in exercise 3) with
# which it is ticked, and with which it is not.


def mm_and(name: str, share: float) -> Changes:
    rest = 100 - share
    rows = [("aten::mm", 9, 1.0, rest), (name, 9, 1.0, share)]
    return {TABLE: operator_table(rows), PRODUCTS: rest}


CORE, WIDE = of(attention__core=90.0, ffn__gate_up_proj=5.0), of(ffn__swiglu=80.0, rms_norm=10.0)
MANY_KEPT, MANY_SCORES = {KEPT: HUGE, SCORES: 1}, {KEPT: 0, SCORES: HUGE}
BOXES: dict[int, list[tuple[str, Changes, Changes]]] = {
    1: [
        ("Attention operations dominate", CORE, WIDE),
        ("Matrix multiplications are the", mm_and("aten::mul", 30), mm_and("aten::mul", 70)),
        ("Memory usage grows", {FORWARD: 106, BEFORE: 100}, {FORWARD: 104, BEFORE: 100}),
        ("Peak memory during", {WHERE: "attention/core"}, {WHERE: "ffn/swiglu"}),
        ("Gradient tensors", {}, {f"{AT_PEAK}.gradients": 0, FORWARD: 9, BACKWARD: 9}),
        ("Kernel fusion", {PRODUCTS: 80.0}, {PRODUCTS: 81.0}),
        ("Flash Attention implementation", CORE, WIDE),
        ("Memory layout", mm_and("aten::copy_", 30), mm_and("aten::mul", 30)),
        ("Batch size scaling", {LAUNCH: 21.0}, {LAUNCH: 19.0}),
        ("**High:** Fused QKV", of(attention__qkv_proj=20.0), WIDE),
        ("**Medium:** Memory layout", mm_and("aten::copy_", 5), mm_and("aten::copy_", 4)),
        ("**Low:** Batch", {LAUNCH: 4.0}, {LAUNCH: 5.0}),
        ("QKV projections", of(attention__qkv_proj=5.0, rms_norm=10.0), of(rms_norm=50.0)),
        ("All of the above", of(rms_norm=9.0, ffn__swiglu=10.0, attention__qkv_proj=11.0), WIDE),
        ("Baseline training runs", {}, {LOSS: None}),
        ("Ready to proceed", {}, {"summary.steps_completed": 3}),
        ("Profiling data generated", {}, {"files": []}),
        ("Performance metrics documented", {}, {PEAK: None}),
    ],
    2: [
        ("During forward", {PHASE: "forward"}, {PHASE: "backward"}),
        ("During att", {WHERE: "attention/core"}, {WHERE: "x"}),
        ("clear drops", {AFTER: [1], LIVE_PEAK: 10}, {AFTER: [95], LIVE_PEAK: 100}),
        ("memory returns", {AFTER: [100], BEFORE: 100}, {AFTER: [105], BEFORE: 100}),
        ("Promptly", {AFTER: [100, 101], BEFORE: 100}, {AFTER: [110, 110], BEFORE: 100}),
        ("Delayed", {AFTER: [110, 110], BEFORE: 100}, {AFTER: [100, 110], BEFORE: 100}),
        ("Not at all", {AFTER: [100, 110], BEFORE: 100}, {AFTER: [110, 110], BEFORE: 100}),
        ("Reduce fragmentation", {HELD: HUGE * 1000}, {KEPT: 0, SCORES: 0, HELD: 0}),
        ("Bandwidth utilization calculated", {}, {USED: None}),
    ],
    3: [("**QKV Fusion**", {LAUNCH: 80.0}, {LAUNCH: 0.0})],
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
            ("Batch size 16, sequence", "version_2_scaling", {SPEED: 0.01}, {SPEED: 99.0}),
            ("Memory scaling with sequence", "version_2_long", SAVES, NO_LESS),
            ("Implementation plan validated", "version_2_long", SAVES, NO_LESS),
            ("Numerical accuracy validation", "version_2", {LOSS: 6.601}, {LOSS: 6.8}),
            ("Deterministic execution", "deterministic_2", {}, {"steps.3.loss": 6.000001}),
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


# Answers with a logic of their own: what is asked, changes by run, and what the answer, or the row,
# then holds; `[x] ...`: the one box of that question which is ticked.


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


def of_all(key: str, value: object) -> OfRuns:
    return {EVERY: {key: value}}


# of six steps
KEEPING = [
    row | {"self_memory_bytes": 6 * MB * size}
    for row, size in zip(
        operator_table([(n, 1, 1.0, 1.0) for n in "abab"]), (1, 2, 2, 3), strict=True
    )
]
SLOW_MIXED = {"mixed_precision": {SPEED: 0.3}}
FEW_SCORES = {n: {LIVE_PEAK: 1000 << 20, SCORES: 1 << 20} for n in NAMES}
SOME_SCORES = {**FEW_SCORES, "small": {LIVE_PEAK: 1000 << 20, SCORES: 200 << 20}}
SHAPES_OF_MM = [
    *operator_table([("aten::mm", 4, 1.0, 25.0), ("aten::bmm", 4, 1.0, 40.0)]),
    *operator_table([("aten::mm", 4, 1.0, 25.0)]),
]
TWO_SHAPES = {"analysis": {TABLE: SHAPES_OF_MM, "operators.steps": 2}}
LESS = {"analysis": {SCORES: 10 << 20}, "baseline": {PEAK: 100 << 20}}
NEAR = {"analysis": {f"{POINT}.percent_of_attainable": 90.0, f"{POINT}.bound": "memory"}}
FIRST, KIND, BOUND = "**1. What is the single", "**2. What type", "**3. Is the workload prim"
ANSWERS: dict[int, list[tuple[str, OfRuns, str]]] = {
    1: [
        ("How much overhead", of_all(OVERHEAD, 21.5), "above the range"),
        ("How much overhead", of_all(OVERHEAD, 7.0), "in the range"),
        ("What files were generated", of_all("files", ["trace_step_5_10.json"]), "trace_step_5_10"),
        ("spent in attention vs FFN", {EVERY: WIDE}, "attention 0.0 %, FFN 80.0 %, other (norms"),
        ("Top 3 optimization targets", of_all(LAUNCH, 99.0), "1. Batch size scaling"),
        ("What is the primary bottleneck", of_all(WAIT, 96.0), "[x] Data loading"),
        (
            "Based on memory usage",
            {EVERY: {SCORES: 20 * MB, LIVE_PEAK: 80 * MB}},
            "25.0 %, bound: all attention scores",
        ),
        (
            "difference in memory",
            {"plain": {PEAK: 100 * MB}, "profiled": {PEAK: 130 * MB}},
            "30.0 MB: 130.0 MB with, 100.0 MB without",
        ),
    ],
    2: [
        ("1 ", of_all(TABLE, KEEPING), "b | 5.0 MB"),
        ("2 ", of_all(TABLE, KEEPING), "a | 3.0 MB"),
        ("What memory optimization", {EVERY: MANY_SCORES}, "Flash Attention"),
        ("What memory optimization", {EVERY: MANY_KEPT}, "Gradient Checkpointing"),
        ("1. Memory Scaling", peaks(BATCHES, 100, 150, 250), "[x] Less than double"),
        (
            "2. Throughput Scaling",
            {BATCHES[1]: {SPEED: 0.1}, BATCHES[2]: {SPEED: 0.2 / 1.5}},
            "[x] It grows less",
        ),
        *(
            ("1. What is the memory scaling behavior", changes, f"scaling: {label} — yes")
            for changes, label in (
                (peaks(BATCHES, 100, 150, 270), "Superlinear"),
                (peaks(LENGTHS, 100, 150, 350), "Quadratic"),
            )
        ),
    ],
    3: [
        ("Roofline model position", NEAR, "[x] On roofline"),
        (FIRST, named_in("analysis", optimizer=90.0), "[x] Memory bandwidth"),
        (KIND, {"analysis": {LAUNCH: 80.0}, **SLOW_MIXED}, "[x] Kernel fusion"),
        (KIND, {**named_in("analysis", optimizer=70.0), **SLOW_MIXED}, "[x] Memory optimization"),
        (KIND, {**named_in("analysis", attention__core=60.0)}, "[x] Algorithmic optimization"),
        (KIND, {"mixed_precision": {SPEED: 0.05}}, "[x] Precision optimization"),
        (BOUND, {"analysis": {LAUNCH: 60.0}}, "[x] Overhead-bound (optimize"),
        (BOUND, {"analysis": {LAUNCH: 48.0}}, "[x] Mixed workload (balanced"),
        (
            "**5. What is the realistic",
            {"baseline": {SPEED: 1.25}, "version_2": {SPEED: 1.0}},
            "[x] 1.2-1.4x",
        ),
        ("Peak memory usage", LESS, "100.0 MB | 90.0 MB"),
        ("Operator count (CPU)", {"analysis": {CALLS: 1000}}, "1,000 | 964"),
        # rows of one operator and several shapes are one
        ("1 ", TWO_SHAPES, "aten::mm | 50.0 % | 66.7 % | 4 |"),
        ("2 ", TWO_SHAPES, "aten::bmm | 40.0 % | 33.3 % | 2 |"),
        ("large ", {}, "predicted peak memory"),
        ("tiny -> small: memory", each(PEAK, 10 << 20, 90 << 20, 1), "9.00x | above"),
        ("Does throughput decrease", at_power(SPEED, 1.3), f"parameters ^ {SLOPE:.4g}."),
        ("Is memory scaling proportional", at_power(PEAK, 1.0), "[x] proportional"),
        ("GPU become saturated", at_rates(1e11, 2e11, 2.1e11), "Answer: small"),
        ("GPU become saturated", at_rates(1e11, 2e11, 4e11), "none of the measured"),
        ("attention memory become", FEW_SCORES, "size none"),
        ("attention memory become", SOME_SCORES, "size small; tiny alone at S = 64"),
        ("best GPU utilization", each(MFU, 5.0, 20.0, 30.0), "Answer: medium"),
        ("Which component (att", named_in("tiny", ffn__swiglu=80.0), "[ ] attention more"),
        ("most from Flash", named_in("small", attention__core=70.0), "Answer: small"),
        ("most memory-bound", each(INTENSITY, 100, 10, 1), "medium, most compute-bound tiny"),
        ("improve throughput", named_in("medium", optimizer=80.0), "optimizer first, 80.0 % of me"),
        ("improve throughput", named_in("medium", optimizer=80.0), "the step is 1.67x as fast"),
        ("optimal problem size", each(SPEED, 0.1, 9.0, 50.0), "Answer: tiny"),
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


# Figures by hand.


def test_speed_is_of_the_median_step_that_no_profiler_touched() -> None:
    steps = [
        step | {"time_seconds": 0.1 if n == 20 else 5.0, "profiled": 1 < n < 20}
        for n, step in enumerate(made_up_summary()["steps"], start=1)
    ]
    assert "80 samples/sec" in answer(sheet(1, {"plain": {"steps": steps}}), "Training speed")


def test_each_leaf_counts_under_its_own_point_or_its_group() -> None:
    shares = of(attention__core=40.0, attention__rotary=10.0, ffn__swiglu=30.0, optimizer=20.0)
    points = roofline(
        {
            "step": ("memory", 1.0),
            "attention": ("compute", 25.0),
            "attention/rotary": ("memory", 50.0),
            "ffn": ("compute", 90.0),
        }
    )
    page = sheet(1, {EVERY: {**shares, POINTS: points, LAUNCH: 0.0, WAIT: 0.0}})
    # 40 x 0.75 and 30 x 0.1 miss the roof; the step's own point is nobody's
    assert "Compute utilization (device not fully utilized) — yes: 33.0 %" in page
    assert "Memory bandwidth (many small operations) — no: 10.0 %" in page
    assert roofline_point(points, "residual") is roofline_point(points, "ffn_norm") is None
    summary = made_up_summary({**shares, POINTS: points, LAUNCH: 20.0})
    # the optimizer multiplies nothing
    assert memory_bound_percent(summary) == 30.0
    assert memory_bound_percent(summary, ("attention/rotary",)) == 20.0
    assert memory_bound_percent(summary, ("attention/rot",)) == 30.0
    assert list(bounds(summary).values()) == pytest.approx([24.0, 56.0, 20.0])


def test_a_size_that_did_not_fit_is_a_row_and_no_answer() -> None:
    runs = measured(2, {})
    runs[LENGTHS[2]] = dataclasses.replace(runs[LENGTHS[2]], summary=None, reason="out of memory")
    made = exercise_2.sheet_of(runs, options(2), reason="not asked")
    assert made.exit_status == 1 and unanswered(made.page) == []
    assert "out of memory" in answer(made.page, "256 ")
    for label in ("Linear (~2x", "Sequence length scaling analyzed", "Ready to proceed"):
        assert box(made.page, label) is False


def test_tables_hold_the_runs_of_their_size() -> None:
    page = sheet(2, peaks(LENGTHS, 100, 150, 250, 200))
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
    found = answer(sheet(2, runs), "steepest")
    assert f"{component}: its activations grow with S^{power}.00" in found


def test_components_too_small_to_matter_and_missing_peaks() -> None:
    profiles = {64: (1, {"big": 1000.0, "tiny": 0.001}), 128: (1, {"big": 2000.0, "tiny": 1.0})}
    assert [name for name, _, _ in component_growth(profiles)] == ["big"]
    assert component_growth({64: (1, {"big": 1.0})}) == []
    assert increment_ratio([10, 20, 60]) == 4
    assert increment_ratio([10, None, 60]) is increment_ratio([10, 10, 60]) is None
    assert growth_exponent([1, 2, 4], [1, 4, 16]) == pytest.approx(2)
    assert growth_exponent([2, 2], [1, 5]) is None


# Exercise 3: what an ablation measured, and predictions.


def page_with(evidence: Evidence, compiled: Ratio | None = None) -> str:
    found = dataclasses.replace(findings(), evidence=evidence, compiled=compiled)
    return exercise_3.sheet_of(found).page


def test_the_matrix_follows_shares_and_measured_speedups() -> None:
    matrix = "High Impact, High Effort (Priority 2):\n\n- "
    for share, first in ((60.0, "Attention computation"), (10.0, "none")):
        assert f"{matrix}{first}" in sheet(3, named_in("analysis", attention__core=share))
    good, slow = (made_up_evidence(ABLATION, qkv=value) for value in (1.15, 0.97))
    chance = ratio_of_turns([1.4, 0.9] * 3, [1.0] * 6)
    doubtful = dataclasses.replace(good, speedups={"qkv": chance, "layout": chance})
    for found, cell, planned in (
        (good, "1.15 (1.15 to 1.15) with qkv", True),
        (slow, "0.97 (0.97 to 0.97) with qkv", False),
        (doubtful, "~ 1.15", False),  # what may be chance is not planned
    ):
        text = page_with(found, compiled=chance)
        assert cell in answer(text, "QKV projections")
        assert box(text, "**QKV Fusion**") is planned
    for label in ("**Memory Layout**", "**Torch Compile**"):
        assert box(text, label) is False
    assert "[x] Torch compile" not in text


def test_the_first_optimization_is_the_one_that_was_fastest() -> None:
    for qkv, sdpa, gate_up, compiled, label in (
        (1.16, 0.9, 0.9, 1.0, "QKV fusion"),
        (0.9, 1.15, 0.9, 1.0, "Flash Attention"),
        (0.9, 0.9, 1.3, 1.0, "SwiGLU fusion"),
        (1.01, 0.9, 0.9, 2.0, "Torch compile"),
    ):
        speedups = {"qkv": qkv, "sdpa": sdpa, "gate_up": gate_up, "layout": compiled}
        evidence = made_up_evidence(ABLATION, **speedups)
        text = page_with(evidence, compiled=evidence.speedups["layout"])
        asked = answer(text, "**4. What should be the first optimization")
        assert f"[x] {label}" in asked and asked.count("[x]") == 1
        assert box(text, "**Torch Compile**") is box(text, "**Memory Layout**") is (compiled > 1)


def test_torch_compile_is_of_the_newest_peers_of_this_step(tmp_path: Path) -> None:
    document = json.loads(PEERS.read_text())
    context = document["context"]
    summary = made_up_summary({f"context.{key}": context[key] for key in ("device", "threads")})
    best = exercise_3.compile_speedup(summary)
    # its best form, over our baseline
    assert best is not None and best.median == pytest.approx(1.1328, abs=1e-4)
    assert exercise_3.compile_speedup(summary, tmp_path) is None
    ratios = context["peers"]["ratios"]
    slower = [row | {"of_each_turn": [2 * of for of in row["of_each_turn"]]} for row in ratios]
    # newer ones without this step, of other threads, and damaged say nothing of it
    found = [(ratios, 2), (slower, 2), (ratios[:4], 2), (ratios, 3)]
    texts = [
        json.dumps(document | {"context": context | {"peers": peers, "threads": threads}})
        for rows, threads in found
        for peers in [context["peers"] | {"ratios": rows}]
    ]
    for number, text in enumerate((*texts, "{")):
        (tmp_path / f"{number}_peers").mkdir()
        (tmp_path / f"{number}_peers/peers.json").write_text(text)
    newest = exercise_3.compile_speedup(summary, tmp_path)
    assert newest is not None and newest.median == pytest.approx(best.median / 2)


def test_gains_by_hand() -> None:
    none = {"attention/qkv_proj": 0.0, "ffn/gate_up_proj": 0.0, "ffn/swiglu": 0.0}
    # half of the step becomes 2 * 128 / 129 times as fast
    half = 1 / (1 - 0.5 + 0.5 * 129 / 256)
    runs = {"baseline": {SPEED: 0.3}, "version_2": {SPEED: 0.1}}
    for share, speedup in ((0.0, 1.0), (50.0, half)):
        shares = {"analysis": {"components": {**none, "attention/core": share}}}
        text = answer(sheet(3, {**shares, **runs}), "expected overall speedup")
        assert f"{speedup:.2f}x by Amdahl" in text and "3.00x measured" in text
    measured_gain, text = memory_gain(
        findings().analysis.summary or {},
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


def test_forecasts_decide_the_largest_model_batch_and_growth() -> None:
    for free, model, batch in (
        (4 * GIB, "20,890,112", "1; the largest that fits is 1"),
        (1000 * GIB, "10,691,284,992", "16; the largest that fits is 128"),
        (1, "not measured", "none fits"),
    ):
        predicted = forecasts(free)
        page = exercise_3.sheet_of(dataclasses.replace(findings(), forecasts=predicted)).page
        asked = answer(page, "What's the largest model").split("\n")
        assert model in next(line for line in asked if "as configured" in line)
        assert f"Answer: {batch}" in answer(page, "What batch size would you")
    assert box(sheet(3), "quadratic at the long end") is True
    known: Mapping = forecasts()
    linear = [
        dataclasses.replace(cost, predicted_memory_bytes=1000 * cost.name.seq)
        for cost in known["sequences"]
    ]
    study = dataclasses.replace(findings(), forecasts={**known, "sequences": linear})
    text = exercise_3.sheet_of(study).page
    assert box(text, "linear at the long end") is True
    assert "S ^ 1 over the three shortest" in answer(text, "scale with sequence length")


def test_chapter_6_falls_with_what_it_rests_on() -> None:
    labels = ("At least 2 problem sizes", "Scaling patterns", "Performance characteristics")
    assert box(sheet(3), "Ready to compare") is True
    tiny = [result for result in findings().results if result.size == "tiny"]
    alone = exercise_3.sheet_of(dataclasses.replace(findings(), results=tiny)).page
    assert not any(box(alone, label) for label in (*labels, "Ready to compare"))
    assert "of tiny: twice as fast" in answer(alone, "improve throughput")
    no_profile = sheet(3, {name: {"operators": None} for name in NAMES})
    assert box(no_profile, "Optimization priorities identified") is False
