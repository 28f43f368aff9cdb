"""Exercise 3, steps 5 to 7: the ranking, the plan for version 2, and its validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from exercise_3_stand_in import (
    ABLATION,
    answer,
    changed,
    evidence_with_compile,
    made_up_evidence,
    made_up_findings,
    page,
    row,
    ticked,
)
from tinyllama_tools.commands.exercise_3 import Findings
from tinyllama_tools.commands.exercise_3_rules import compile_speedup
from tinyllama_tools.stats.rank_tests import ratio_of_turns

EFFICIENCY = "flops.flops_profile.efficiency_metrics"


PEAK = "summary.peak_memory_bytes"


QKV, CORE = "attention/qkv_proj", "attention/core"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return made_up_findings(tmp_path_factory.mktemp("exercise_3"))


def test_the_bottleneck_table_and_matrix_follow_shares_and_speedups(base: Findings) -> None:
    low = page(changed(base, {"components": {CORE: 10.0}}))
    high = page(changed(base, {"components": {CORE: 60.0}}))
    assert row(low, "Attention computation")[1] == "10.0 %"
    assert row(high, "Attention computation")[1] == "60.0 %"
    matrix = "High Impact, High Effort (Priority 2):\n\n- "
    assert f"{matrix}Attention computation" in high
    assert f"{matrix}none" in low
    assert row(high, "Attention computation")[5] == "1"
    assert row(low, "Attention computation")[5] != "1"


def test_a_measured_speedup_stands_in_the_table_and_decides(base: Findings) -> None:
    fast = page(changed(base, evidence=made_up_evidence(ABLATION, qkv=1.15)))
    slow = page(changed(base, evidence=made_up_evidence(ABLATION, qkv=0.97)))
    assert "1.15 (1.15 to 1.15) with qkv" in row(fast, "QKV projections")[4]
    assert "0.97 (0.97 to 0.97) with qkv" in row(slow, "QKV projections")[4]
    assert "High Impact, Low Effort (Priority 1):\n\n- QKV projections (1.15x" in fast
    assert ticked(fast, "**QKV Fusion**") and not ticked(slow, "**QKV Fusion**")


def test_what_may_be_chance_is_not_planned(base: Findings) -> None:
    evidence = made_up_evidence(ABLATION, qkv=1.15)
    chance = {"qkv": ratio_of_turns([1.4, 0.9] * 3, [1.0] * 6)}
    text = page(changed(base, evidence=replace(evidence, speedups=chance)))
    assert row(text, "QKV projections")[4].startswith("~ 1.15")
    assert not ticked(text, "**QKV Fusion**")


def test_swiglu_fusion_is_planned_where_it_pays(base: Findings) -> None:
    shares = {"ffn/gate_up_proj": 2.0, "ffn/swiglu": 0.1}
    assert not ticked(page(changed(base, {"components": shares})), "**SwiGLU Fusion**")
    assert ticked(page(changed(base, {"components": {"ffn/swiglu": 30.0}})), "**SwiGLU Fusion**")


def test_flash_attention_is_planned_for_time_or_for_memory(base: Findings) -> None:
    small = {"components": {CORE: 1.0}}
    assert not ticked(page(changed(base, small)), "**Flash Attention**")
    assert ticked(page(changed(base, {"components": {CORE: 30.0}})), "**Flash Attention**")
    saves = changed(base, small, {"version_2_long": {PEAK: 10 << 20}})
    assert ticked(page(saves), "**Flash Attention**")


def test_compile_and_layout_need_an_ablation(base: Findings, tmp_path: Path) -> None:
    text = page(base)
    assert not ticked(text, "**Torch Compile**") and not ticked(text, "**Memory Layout**")
    slow, fast = (evidence_with_compile(tmp_path, speed) for speed in (0.9, 3.0))
    assert not ticked(page(changed(base, evidence=slow)), "**Torch Compile**")
    assert ticked(page(changed(base, evidence=fast)), "**Torch Compile**")
    layout = made_up_evidence(slow.file, layout=1.2)
    assert ticked(page(changed(base, evidence=layout)), "**Memory Layout**")


def test_compile_speedup_is_the_best_at_that_shape() -> None:
    assert compile_speedup(made_up_evidence(ABLATION, qkv=1.0)) == pytest.approx(1.1328, abs=1e-4)
    assert compile_speedup(None) is None


def test_mixed_precision_is_planned_where_it_pays(base: Findings) -> None:
    for seconds, expected in ((0.05, True), (0.9, False)):
        found = changed(base, runs={"mixed_precision": {"step_seconds": seconds}})
        assert ticked(page(found), "**Mixed Precision**") is expected


def test_memory_alone_is_no_reason_for_a_slower_step(base: Findings) -> None:
    for seconds, expected in ((0.9, False), (0.2428, True)):
        run = {"step_seconds": seconds, PEAK: 1 << 20}
        text = page(changed(base, runs={"mixed_precision": run}))
        assert ticked(text, "**Mixed Precision**") is expected


def test_expected_overall_speedup_follows_shares_and_runs(base: Findings) -> None:
    question = "What is the expected overall speedup for Version 2?"
    small = {"components": {QKV: 0.0, CORE: 0.0, "ffn/gate_up_proj": 0.0, "ffn/swiglu": 0.0}}
    assert answer(page(changed(base, small)), question).startswith("Answer: 1.00x by Amdahl")
    half = changed(base, {"components": {**small["components"], CORE: 50.0}})
    # half of the step becomes 2 * 128 / 129 times as fast
    expected = 1 / (1 - 0.5 + 0.5 * 129 / 256)
    assert answer(page(half), question).startswith(f"Answer: {expected:.2f}x by Amdahl")
    runs = {"baseline": {"step_seconds": 0.3}, "version_2": {"step_seconds": 0.1}}
    assert "3.00x measured" in answer(page(changed(base, runs=runs)), question)


def test_targets_follow_from_now(base: Findings) -> None:
    text = page(base)
    now, target = (float(cell.split()[0]) for cell in row(text, "Training throughput")[1:3])
    assert (
        target
        > now
        == pytest.approx(base.runs["baseline"].value("summary.samples_per_second"), rel=1e-3)
    )
    scores = "memory.breakdown_at_peak.attention_scores"
    changes = changed(base, {scores: 10 << 20}, {"baseline": {PEAK: 100 << 20}})
    assert row(page(changes), "Peak memory usage ")[0:1] == ["Peak memory usage"]
    assert "| 100.0 MB" in page(changes) and "| 90.0 MB" in page(changes)
    calls = changed(base, {"operators.operator_calls_per_step": 1000})
    assert row(page(calls), "Operator count per step")[1:3] == ["1,000", "964"]
    mfu = changed(base, {f"{EFFICIENCY}.mfu_percent": 10.0})
    assert row(page(mfu), "Model FLOPS Utilization")[1] == "10.0 %"


@pytest.mark.parametrize(
    ("label", "good", "bad"),
    [
        (
            "Batch size 8, sequence length 128",
            {"version_2": {"step_seconds": 0.01}},
            {"version_2": {"step_seconds": 9.0}},
        ),
        (
            "Batch size 16, sequence length 256",
            {"version_2_scaling": {"step_seconds": 0.01}},
            {"version_2_scaling": {"step_seconds": 99.0}},
        ),
        (
            "Memory scaling with sequence",
            {"version_2_long": {PEAK: 1 << 20}},
            {"version_2_long": {PEAK: 1 << 40}},
        ),
        (
            "Numerical accuracy validation",
            {"version_2": {"summary.final_loss": 6.6}},
            {"version_2": {"summary.final_loss": 6.8}},
        ),
        (
            "No degradation in model",
            {"version_2": {"summary.final_loss": 6.6}},
            {"version_2": {"summary.final_loss": 6.8}},
        ),
        (
            "Deterministic execution",
            {"deterministic_2": {}},
            {"deterministic_2": {"steps.3.loss": 6.000001}},
        ),
        (
            "Memory usage reduced or stable",
            {"version_2": {PEAK: 1 << 20}},
            {"version_2": {PEAK: 1 << 30}},
        ),
        (
            "Throughput improved by >30%",
            {"version_2": {"step_seconds": 0.01}},
            {"version_2": {"step_seconds": 0.24}},
        ),
    ],
)
def test_validation_and_gates(
    base: Findings,
    label: str,
    good: Mapping[str, Mapping[str, object]],
    bad: Mapping[str, Mapping[str, object]],
) -> None:
    assert ticked(page(changed(base, runs=good)), label)
    assert not ticked(page(changed(base, runs=bad)), label)
