"""Exercise 3's analysis questions: which box is ticked follows from the measurements."""

from __future__ import annotations

from collections.abc import Mapping
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
)
from tinyllama_tools.commands.exercise_3 import Findings
from tinyllama_tools.commands.exercise_3_rules import memory_gain
from training_stand_in import made_up_summary

QKV, CORE = "attention/qkv_proj", "attention/core"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return made_up_findings(tmp_path_factory.mktemp("exercise_3"))


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"components": {QKV: 90.0}}, "QKV projection operations"),
        ({"components": {CORE: 90.0}}, "Attention score computation"),
        ({"components": {"ffn/down_proj": 90.0}}, "Feed-forward network"),
        ({"operators.launch_overhead_percent": 95.0}, "Kernel launch overhead"),
        ({"components": {"optimizer": 90.0}}, "Memory bandwidth"),
    ],
)
def test_question_1(base: Findings, changes: Mapping[str, object], label: str) -> None:
    found = answer(page(changed(base, changes)), "1. What is the single largest")
    assert next(x[6:] for x in found.split("\n") if x.startswith("- [x]")).startswith(label)
    assert found.count("- [x]") == 1


@pytest.mark.parametrize(
    ("analysis", "mixed_seconds", "label"),
    [
        ({"operators.launch_overhead_percent": 80.0}, 0.3, "Kernel fusion"),
        ({"components": {"optimizer": 70.0}}, 0.3, "Memory optimization"),
        ({"components": {CORE: 60.0}}, 0.3, "Algorithmic optimization"),
        ({}, 0.05, "Precision optimization"),
    ],
)
def test_question_2(
    base: Findings, analysis: Mapping[str, object], mixed_seconds: float, label: str
) -> None:
    found = changed(base, analysis, {"mixed_precision": {"step_seconds": mixed_seconds}})
    text = answer(page(found), "2. What type of optimization")
    assert next(x[6:] for x in text.split("\n") if x.startswith("- [x]")).startswith(label)


def gains(base: Findings, **measured: float) -> dict[str, str]:
    """Question 2's lines by their first word, of a profile full of work bound by memory."""
    evidence = made_up_evidence(ABLATION, **measured) if measured else None
    found = changed(base, {"components": {"optimizer": 70.0}}, evidence=evidence)
    lines = answer(page(found), "2. What type of optimization").split("\n")
    return {x[6:].split()[0]: x for x in lines if x.startswith("- [")}


def test_an_assumed_gain_says_so_wherever_it_competes(base: Findings) -> None:
    found = gains(base)
    assert found["Memory"].startswith("- [x]")
    for line in found.values():
        assert "assumed: half the traffic" in line


def test_a_measured_gain_goes_before_an_assumed_one(base: Findings) -> None:
    found = gains(base, fused_norm=1.25, fused_adamw=1.1, fused_rotary=0.9)
    # of the step, 20 % and 9.1 % are saved; what is slower is not done
    assert f"{1 / (1 / 1.25 + 1 / 1.1 - 1):.3g}" in found["Memory"]
    assert "1.25 (1.25 to 1.25) with fused_norm" in found["Memory"]
    assert "assumed" not in "".join(found.values())


def test_a_gpus_memory_bound_share_is_made_one_of_the_step() -> None:
    changes = {"operators.launch_overhead_percent": 0.0}
    busy = memory_gain(made_up_summary(changes, gpu=True), None).speedup
    idle = made_up_summary({"operators.launch_overhead_percent": 50.0}, gpu=True)
    assert busy is not None
    # half of the step is idle, so half of what the busy one saves is saved
    saved = 1 - 1 / busy
    assert memory_gain(idle, None).speedup == pytest.approx(1 / (1 - saved / 2))
    assert saved > 0.001


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"components": {"optimizer": 80.0, "ffn/gate_up_proj": 0.0}}, "Memory-bound (optimize"),
        ({}, "Compute-bound (optimize"),
        ({"operators.launch_overhead_percent": 60.0}, "Overhead-bound (optimize"),
        ({"operators.launch_overhead_percent": 48.0}, "Mixed workload (balanced"),
    ],
)
def test_question_3(base: Findings, changes: Mapping[str, object], label: str) -> None:
    text = answer(page(changed(base, changes)), "3. Is the workload primarily")
    assert next(x[6:] for x in text.split("\n") if x.startswith("- [x]")).startswith(label)
    assert text.count("- [x]") == 1


@pytest.mark.parametrize(
    ("speedups", "compiled", "label"),
    [
        ({"qkv": 1.16, "sdpa": 0.9, "gate_up": 0.9}, 1.0, "QKV fusion"),
        ({"qkv": 0.9, "sdpa": 1.15, "gate_up": 0.9}, 1.0, "Flash Attention"),
        ({"qkv": 0.9, "sdpa": 0.9, "gate_up": 1.3}, 1.0, "SwiGLU fusion"),
        ({"qkv": 1.01, "sdpa": 0.9, "gate_up": 0.9}, 2.0, "Torch compile"),
    ],
)
def test_question_4(
    base: Findings, tmp_path: Path, speedups: Mapping[str, float], compiled: float, label: str
) -> None:
    file = evidence_with_compile(tmp_path, compiled).file
    text = page(changed(base, evidence=made_up_evidence(file, **speedups)))
    found = answer(text, "4. What should be the first optimization")
    assert next(x[6:] for x in found.split("\n") if x.startswith("- [x]")).startswith(label)
    assert found.count("- [x]") == 1


@pytest.mark.parametrize(
    ("speedup", "label"),
    [
        (1.1, "below all of these"),
        (1.25, "1.2-1.4x"),
        (1.44, "1.2-1.4x"),
        (1.46, "1.5-2.0x"),
        (2.5, "2.0-3.0x"),
        (4.0, ">3.0x"),
    ],
)
def test_question_5(base: Findings, speedup: float, label: str) -> None:
    runs = {"baseline": {"step_seconds": speedup}, "version_2": {"step_seconds": 1.0}}
    text = answer(page(changed(base, runs=runs)), "5. What is the realistic")
    assert next(x[6:] for x in text.split("\n") if x.startswith("- [x]")).startswith(label)
    assert text.count("- [x]") == 1


def test_the_expected_hierarchy_is_held_against_the_profile(base: Findings) -> None:
    inside = {"attention/o_proj": 0.0, "attention/rotary": 0.0, QKV: 20.0, CORE: 20.0}
    text = page(changed(base, {"components": inside}))
    assert row(text, "Attention operations")[3] == "in the range"
    text = page(changed(base, {"components": inside | {CORE: 70.0}}))
    assert row(text, "Attention operations")[3].startswith("above the range")
