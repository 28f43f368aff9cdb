"""Exercise 3's worksheet: each answer follows from its measurement, whichever way that is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fake_exercise_3 import (
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
from fake_study import GIB, PlayedPredictor
from fake_training import PlayedProgram, made_up_summary
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_3 import (
    ANALYSIS,
    Findings,
    compile_speedup,
    forecasts,
    growth_exponent,
    memory_gain,
    run_exercise,
    saturated,
    sheet_of,
)
from tinyllama_tools.commands.worksheet import unanswered
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.programs import TrainingError
from tinyllama_tools.stats.rank_tests import ratio_of_turns

EFFICIENCY = "flops.flops_profile.efficiency_metrics"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"


PEAK = "summary.peak_memory_bytes"
QKV, CORE = "attention/qkv_proj", "attention/core"
SPEED = "summary.samples_per_second"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
BOUND = "flops.computational_intensity.memory_bound_vs_compute_bound"
SCORES = "memory.breakdown_at_peak.attention_scores"
NAMES = ("tiny", "small", "medium")
Sizes = Mapping[str, Mapping[str, object]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return made_up_findings(tmp_path_factory.mktemp("exercise_3"))


def test_no_place_is_left_to_fill_in(base: Findings) -> None:
    sheet = sheet_of(base)
    assert unanswered(sheet.page) == []
    assert sheet.exit_status == 0
    for step in range(1, 8):
        assert f"\n## Step {step}: " in sheet.page
    assert len([x for x in sheet.page.split("\n") if x.startswith("| ") and "aten::" in x]) >= 10


def test_without_figures_of_the_profilers_the_page_says_so(base: Findings) -> None:
    found = changed(
        base,
        {f"{EFFICIENCY}.mfu_percent": None},
        sizes={
            "tiny": {
                f"{EFFICIENCY}.mfu_percent": None,
                "memory": None,
            }
        },
    )
    text = page(found)
    assert unanswered(text) == []
    assert not ticked(text, "< 20% MFU")
    assert "not measured" in answer(text, "3. Which size achieves best")


def test_runtime_place_and_warnings_are_those_of_the_runs(base: Findings) -> None:
    log = {"total_seconds": 61.5, "runs": [{"name": "flops", "notes": ["warning: hot"]}]}
    text = page(replace(base, log=log))
    assert "61.5 seconds" in text and "flops: warning: hot" in text
    assert "hot" not in page(base)


def test_the_top_ten_follow_the_table(base: Findings) -> None:
    operators = json.loads(json.dumps((base.analysis.summary or {})["operators"]))
    assert row(page(base), "1 ")[1] == "aten::mm"
    rows = operators["table"]
    rows[0]["share_percent"], rows[-1]["share_percent"] = 0.0, rows[0]["share_percent"]
    text = page(changed(base, {"operators.table": rows}))
    assert row(text, "1 ")[1] == rows[-1]["name"] != "aten::mm"


def test_a_gpus_share_stands_in_its_column(tmp_path: Path) -> None:
    text = page(made_up_findings(tmp_path, gpu=True))
    assert row(text, "1 ")[2].endswith("%")
    assert "Kernel count per step" in text


def test_pattern_analysis(base: Findings) -> None:
    changes = {
        "operators.matrix_product_percent": 41.5,
        "operators.linear_projections_per_step": 17,
        "operators.launch_overhead_percent": 23.25,
    }
    text = page(changed(base, changes))
    assert row(text, "Time in matrix")[1] == "41.5 %"
    assert row(text, "Separate linear")[1] == "17"
    assert row(text, "Overhead of kernel")[1].startswith("23.2 %")


@pytest.mark.parametrize(
    ("mfu", "label"),
    [
        (5.0, "< 20% MFU"),
        (20.0, "20-40% MFU"),
        (39.9, "20-40% MFU"),
        (40.0, "40-60% MFU"),
        (60.0, "> 60% MFU"),
        (83.0, "> 60% MFU"),
    ],
)
def test_one_efficiency_class_holds(base: Findings, mfu: float, label: str) -> None:
    text = page(changed(base, {f"{EFFICIENCY}.mfu_percent": mfu}))
    labels = ("< 20% MFU", "20-40% MFU", "40-60% MFU", "> 60% MFU")
    assert [name for name in labels if ticked(text, name)] == [label]


@pytest.mark.parametrize(
    ("intensity", "label"),
    [(9.9, "Memory-bound —"), (10.0, "Mixed —"), (100.0, "Mixed —"), (101.0, "Compute-bound —")],
)
def test_primary_bottleneck(base: Findings, intensity: float, label: str) -> None:
    text = page(changed(base, {INTENSITY: intensity}))
    labels = ("Memory-bound —", "Compute-bound —", "Mixed —")
    assert [name for name in labels if ticked(text, name)] == [label]


@pytest.mark.parametrize(
    ("percent", "bound", "label"),
    [
        (30.0, "memory", "Below roofline"),
        (90.0, "memory", "On roofline"),
        (30.0, "compute", "Below compute"),
    ],
)
def test_roofline_position(base: Findings, percent: float, bound: str, label: str) -> None:
    point = "flops.roofline_data.points.0"
    changes = {f"{point}.percent_of_attainable": percent, f"{point}.bound": bound}
    text = page(changed(base, changes))
    labels = ("Below roofline", "On roofline", "Below compute")
    assert [name for name in labels if ticked(text, name)] == [label]


def test_criteria_fall_with_what_they_rest_on(base: Findings) -> None:
    good = {"version_2_long": {PEAK: 1 << 20}}
    assert ticked(page(changed(base, runs=good)), "Ready to begin Version 2")
    table = (base.analysis.summary or {})["operators"]["table"][:9]
    few = page(changed(base, {"operators.table": table}, good))
    assert not ticked(few, "Comprehensive bottleneck analysis")
    assert not ticked(few, "Ready to begin Version 2")
    none = page(changed(base, {"operators.softmax_percent": None}, good))
    assert not ticked(none, "Performance bottlenecks quantified")
    assert not ticked(none, "Optimization roadmap created")
    bad = page(changed(base, {"memory.breakdown_at_peak.attention_scores": None}, good))
    assert not ticked(bad, "Success metrics defined")
    assert not ticked(page(base), "Implementation plan validated")


def test_a_run_that_fails_makes_no_answers(tmp_path: Path) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100"])
    program = PlayedProgram(refuses={"--dtype=amp_bf16": "no bf16 here"})
    sheet = run_exercise(options, program, PlayedPredictor(GIB))
    assert sheet.exit_status == 1
    assert "mixed_precision: tiny_llama_train: no bf16 here" in sheet.page
    assert "## Analysis questions" not in sheet.page


SAMPLE = "--num-steps=3"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (PlayedProgram(refuses={"--enable-deepspeed-flops": "no room"}), f"{ANALYSIS}: tiny_llama"),
        (PlayedProgram(refuses={SAMPLE: "no room"}), "problem sizes: tiny_llama_train: no room"),
        (
            PlayedProgram(exit_status=1, changes={"operators": None}),
            f"{ANALYSIS}: no profile of operators: the loss was not finite",
        ),
    ],
    ids=["analysis", "sample", "loss"],
)
def test_what_ends_it_early_is_on_the_page(
    tmp_path: Path, program: PlayedProgram, words: str
) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100"])
    sheet = run_exercise(options, program, PlayedPredictor(2 * GIB))
    assert sheet.exit_status == 1
    assert words in sheet.page
    assert "Overall runtime" in sheet.page
    assert unanswered(sheet.page) == []
    assert "## Analysis questions" not in sheet.page


def test_nothing_measured_makes_no_page(tmp_path: Path) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md"])
    with pytest.raises(KeyboardInterrupt):
        run_exercise(options, PlayedProgram(interrupt_after=0), PlayedPredictor(GIB))
    with pytest.raises(TrainingError) as refused:
        run_exercise(options, PlayedProgram(refuses={"--size=tiny": "no"}), PlayedPredictor(GIB))
    assert refused.value.exit_status == 2


# during the analysis, the runs beside it, the samples of the sizes, and the sizes
@pytest.mark.parametrize("after", [1, 3, 6, 16, 17, 18])
def test_ctrl_c_says_what_is_missing(tmp_path: Path, after: int) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100"])
    program = PlayedProgram(interrupt_after=after)
    sheet = run_exercise(options, program, PlayedPredictor(2 * GIB))
    assert sheet.exit_status == 130
    assert "interrupted" in sheet.page
    assert (tmp_path / "exercise_3" / ANALYSIS / "performance_summary_report.md").is_file()
    assert "bottleneck_analysis" in sheet.page


def test_the_page_names_no_place_outside(tmp_path: Path) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100"])
    sheet = run_exercise(options, PlayedProgram(), PlayedPredictor(2 * GIB))
    assert str(PROJECT) not in sheet.page
    detailed = tmp_path / "exercise_3" / "detailed_analysis" / "performance_summary_report.md"
    assert "aten::mm" in detailed.read_text()


@pytest.mark.parametrize("more", [["--quick"], ["--batch-size=2"], ["--size=small"]])
def test_other_options_leave_no_place_either(tmp_path: Path, more: list[str]) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100", *more])
    program = PlayedProgram()
    sheet = run_exercise(options, program, PlayedPredictor(2 * GIB))
    assert unanswered(sheet.page) == []
    assert "samples/s; rule: 5 %" in answer(sheet.page, "1. How does batch size affect")
    sizes = {o for call in program.calls for o in call if o.startswith("--size=")}
    assert "--size=medium" not in sizes


def test_top_operators_are_names_and_not_shapes(base: Findings) -> None:
    of_time = {"calls": 4, "cpu_self_seconds": 1.0, "cpu_total_seconds": 1.0}
    row_of = {**of_time, "device_self_seconds": None, "share_percent": 25.0, "self_memory_bytes": 0}
    table = [
        row_of | {"name": "aten::mm", "input_shapes": "[[1, 2], [2, 3]]"},
        row_of | {"name": "aten::bmm", "input_shapes": "[[1, 2, 2]]", "share_percent": 40.0},
        row_of | {"name": "aten::mm", "input_shapes": "[[7, 8], [8, 9]]"},
    ]
    text = page(changed(base, {"operators.table": table, "operators.steps": 2}))
    for rank, (name, count) in enumerate((("aten::mm", "4"), ("aten::bmm", "2")), start=1):
        found = row(text, f"{rank} ")
        assert (found[1], found[2], found[4]) == (name, "no GPU", count)


# Steps 5 to 7: the ranking, the plan for version 2, and its validation.


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
        target > now == pytest.approx(base.runs["baseline"]("summary.samples_per_second"), rel=1e-3)
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


# The analysis questions.


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
    busy = memory_gain(made_up_summary(changes, gpu=True), None)[0]
    idle = made_up_summary({"operators.launch_overhead_percent": 50.0}, gpu=True)
    assert busy is not None
    # half of the step is idle, so half of what the busy one saves is saved
    saved = 1 - 1 / busy
    assert memory_gain(idle, None)[0] == pytest.approx(1 / (1 - saved / 2))
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


# Chapter 6, the problem sizes.


def every(key: str, *values: object) -> Sizes:
    """One value a size."""
    return {name: {key: value} for name, value in zip(NAMES, values, strict=True)}


def ask(base: Findings, question: str, sizes: Sizes) -> str:
    return answer(page(changed(base, sizes=sizes)), question)


def parameters(base: Findings) -> list[float]:
    return [
        r.summary["model"]["total_parameters"] for r in base.study.results if r.summary is not None
    ]


def with_forecasts(base: Findings, free_bytes: float) -> str:
    found = forecasts(PlayedPredictor(free_bytes), "auto")
    return page(replace(base, study=replace(base.study, forecasts=found)))


def test_the_scaling_table_has_every_size_and_why_some_did_not_run(base: Findings) -> None:
    text = page(changed(base, sizes=every(PEAK, 100 << 20, 200 << 20, 300 << 20)))
    assert row(text, "tiny ")[3] == "100.0"
    assert row(text, "medium ")[3] == "300.0"
    assert row(text, "large ")[2].startswith("not run: predicted peak memory")
    assert row(text, "very_large ")[1] == "10,691,284,992"


def test_throughput_against_size(base: Findings) -> None:
    question = "1. Does throughput decrease linearly with model size?"
    linear = every(SPEED, *(1e9 / p for p in parameters(base)))
    steep = every(SPEED, *(1e18 / p**2 for p in parameters(base)))
    assert ask(base, question, linear).startswith("Answer: Yes: it goes with parameters ^ -1.00")
    assert ask(base, question, steep).startswith("Answer: No: it goes with parameters ^ -2.00")
    again = "1. How does throughput scale with model size?"
    assert ask(base, again, linear).startswith("Answer: It goes with parameters ^ -1.00")
    assert ask(base, again, steep).startswith("Answer: It goes with parameters ^ -2.00")


def test_saturation(base: Findings) -> None:
    question = "1. At what size does GPU become saturated?"
    flops = [r.summary["model"]["flops_per_step"] for r in base.study.results if r.summary]

    def at_rates(*rates: float) -> Sizes:
        return every("step_seconds", *(f / r for f, r in zip(flops, rates, strict=True)))

    assert ask(base, question, at_rates(1e11, 1.05e11, 1.2e11)).startswith("Answer: At tiny:")
    assert ask(base, question, at_rates(1e11, 2e11, 2.1e11)).startswith("Answer: At small:")
    rising = ask(base, question, at_rates(1e11, 2e11, 4e11))
    assert rising.startswith("Answer: Not within the measured sizes: tiny 100 GFLOP/s")
    assert saturated([]) is None


def test_batch_and_throughput(base: Findings) -> None:
    question = "1. How does batch size affect throughput?"
    times = {"raises it: 2.00x": 0.2428, "leaves it as it is: 1.00x": 0.4856, "lowers it": 0.9}
    for words, seconds in times.items():
        text = page(changed(base, runs={"batch_16": {"step_seconds": seconds}}))
        assert f"A larger batch {words}" in answer(text, question)


def test_memory_against_parameters(base: Findings) -> None:
    question = "2. Is memory scaling proportional to parameter count?"
    flat = every(PEAK, 10**9, 10**9 + 1, 10**9 + 2)
    linear = every(PEAK, *(16 * p for p in parameters(base)))
    assert ask(base, question, linear).startswith("Answer: Yes: it goes with parameters ^ 1.00")
    assert ask(base, question, flat).startswith("Answer: No: it goes with parameters ^ 0.00")


@pytest.mark.parametrize(
    "question",
    [
        "2. Where does attention memory become significant?",
        "2. At what point does attention memory become significant?",
    ],
)
def test_attention_memory(base: Findings, question: str) -> None:
    peak = 1000 << 20
    sizes = {n: {"memory.peak_bytes": peak, SCORES: 1 << 20} for n in NAMES}
    assert ask(base, question, sizes).startswith("Answer: At no measured size:")
    sizes["small"] = sizes["small"] | {SCORES: 200 << 20}
    found = ask(base, question, sizes)
    assert found.startswith("Answer: At small:") and "small 20.0 %" in found
    # of tiny over S: at 64 the scores are below a tenth of the peak
    assert "at S = 128" in found


@pytest.mark.parametrize(
    "question", ["2. What's the memory overhead ratio?", "2. What is the memory overhead ratio"]
)
def test_overhead_ratio(base: Findings, question: str) -> None:
    bytes_of_tiny = 4 * parameters(base)[0]
    for times in (20, 31):
        found = ask(base, question, {"tiny": {PEAK: times * bytes_of_tiny}})
        assert f"tiny {times}x" in found


@pytest.mark.parametrize(
    "question",
    [
        "3. Which size achieves best GPU utilization?",
        "1. At what model size does GPU utilization peak?",
    ],
)
def test_best_utilization(base: Findings, question: str) -> None:
    assert ask(base, question, every(MFU, 50.0, 20.0, 30.0)).startswith("Answer: tiny: 50.0 % MFU")
    assert ask(base, question, every(MFU, 5.0, 20.0, 30.0)).startswith("Answer: medium: 30.0 %")


def test_intensity_and_bound(base: Findings) -> None:
    found = ask(base, "3. How does arithmetic intensity change?", every(INTENSITY, 1.5, 20, 300))
    assert found.startswith("Answer: tiny 1.5 FLOP/byte, small 20 FLOP/byte, medium 300 FLOP/byte")
    question = "3. Is the workload memory-bound or compute-bound?"
    bounds = ("memory-bound", "mixed", "compute-bound")
    assert "tiny memory-bound, small mixed, medium compute" in ask(
        base, question, every(BOUND, *bounds)
    )
    assert "tiny compute-bound, small mixed, medium memory" in ask(
        base, question, every(BOUND, *bounds[::-1])
    )


def test_transitions_are_held_against_the_text(base: Findings) -> None:
    sizes = {"tiny": {PEAK: 10 << 20}, "small": {PEAK: 70 << 20}}
    line = next(x for x in page(changed(base, sizes=sizes)).split("\n") if "| memory | " in x)
    assert "7x" in line and "in the range" in line
    sizes["small"] = {PEAK: 300 << 20}
    line = next(x for x in page(changed(base, sizes=sizes)).split("\n") if "| memory | " in x)
    assert "30x" in line and "above the range" in line


def test_profiles_across_sizes(base: Findings) -> None:
    key = "operators.matrix_product_percent"
    lines = page(changed(base, sizes={"small": {key: 12.3}})).split("\n")
    start = lines.index("### Profiles across sizes")
    small = next(x for x in lines[start:] if x.startswith("| small"))
    assert "12.3 %" in small


def test_attention_or_ffn(base: Findings) -> None:
    question = "1. Which component (attention vs FFN) dominates compute time?"
    assert "tiny attention (" in ask(base, question, {"tiny": {"components": {CORE: 80.0}}})
    assert "tiny FFN (" in ask(base, question, {"tiny": {"components": {CORE: 0.0}}})


def test_memory_over_the_sequence(base: Findings) -> None:
    question = "2. How does memory scale with sequence length?"
    assert answer(page(base), question).startswith("Answer: Quadratic at the long end")
    f = base.study.forecasts
    linear = tuple(replace(p, peak_memory_bytes=1e6 * p.seq) for p in f.sequences)
    study = replace(base.study, forecasts=replace(f, sequences=linear))
    found = answer(page(replace(base, study=study)), question)
    assert found.startswith("Answer: Linear or less at the long end: S ^ 1.00")


def test_flash_attention_helps_where_the_core_is_largest(base: Findings) -> None:
    question = "3. Which model size would benefit most from Flash Attention?"
    for name in NAMES:
        sizes = {name: {"components": {CORE: 70.0}}}
        assert ask(base, question, sizes).startswith(f"Answer: {name}: scores, softmax and values")


def test_most_and_least_memory_bound(base: Findings) -> None:
    question = "3. Which size is most memory-bound vs compute-bound?"
    up = ask(base, question, every(INTENSITY, 1.0, 10.0, 100.0))
    assert "Most memory-bound: tiny" in up and "most compute-bound: medium" in up
    down = ask(base, question, every(INTENSITY, 100.0, 10.0, 1.0))
    assert "Most memory-bound: medium" in down and "most compute-bound: tiny" in down


def test_batch_for_medium(base: Findings) -> None:
    question = "3. What batch size would you recommend for medium model?"
    gains = changed(base, runs={"batch_16": {"step_seconds": 0.2}})
    assert answer(page(gains), question).startswith("Answer: 32: batch 32 is the largest")
    assert "measured with tiny at 128 tokens" in answer(page(gains), question)
    none = changed(base, runs={"batch_16": {"step_seconds": 0.4856}})
    assert answer(page(none), question).startswith("Answer: 16: batch 32 is the largest")
    assert answer(with_forecasts(base, 8 * GIB), question).startswith("Answer: 4: batch 4")
    assert answer(with_forecasts(base, GIB), question).startswith("Answer: None: medium does not")


def test_largest_model(base: Findings) -> None:
    question = "4. What's the largest model you can train on your GPU?"
    small = answer(with_forecasts(base, 2 * GIB), question)
    assert small.startswith("Answer: small (20,890,112 parameters")
    huge = answer(with_forecasts(base, 1000 * GIB), question)
    assert huge.startswith("Answer: very_large (10,691,284,992 parameters")
    assert answer(with_forecasts(base, 1), question).startswith("Answer: none as configured")


def test_improving_medium(base: Findings) -> None:
    question = "4. How would you improve throughput for the medium model?"
    for name in (CORE, "optimizer"):
        found = ask(base, question, {"medium": {"components": {name: 80.0}}})
        assert found.startswith(f"Answer: Attack {name} first: 80.0 % of medium")
    results = tuple(r for r in base.study.results if r.size != "medium")
    without = replace(base, study=replace(base.study, results=results))
    assert "of small (medium was not run)" in answer(page(without), question)


def test_size_for_a_workshop(base: Findings) -> None:
    question = "4. What's the optimal problem size for this workshop?"
    assert ask(base, question, every("step_seconds", 0.1, 1.0, 5.0)).startswith("Answer: Medium:")
    assert ask(base, question, every("step_seconds", 0.1, 9.0, 50.0)).startswith("Answer: Tiny:")
    assert ask(base, question, every("step_seconds", 10.0, 90.0, 99.0)).startswith("Answer: None:")


def test_criteria(base: Findings) -> None:
    label = "At least 2 problem sizes tested"
    assert ticked(page(base), label)
    assert ticked(page(base), "Ready to compare with optimized versions")
    tiny = tuple(r for r in base.study.results if r.size == "tiny")
    alone = page(replace(base, study=replace(base.study, results=tiny)))
    assert not ticked(alone, label)
    assert not ticked(alone, "Scaling patterns documented")
    assert not ticked(alone, "Performance characteristics understood")
    no_profile = changed(base, sizes={name: {"operators": None} for name in NAMES})
    assert not ticked(page(no_profile), "Optimization priorities identified")


def test_the_texts_figures_are_corrected(base: Findings) -> None:
    text = page(base)
    assert "D_ff / D is tiny 2.00, small 2.16, medium 3.38, large 5.44, very_large 7.84" in text
    assert "medium 16:8" in text


@pytest.mark.parametrize(
    ("x", "y", "slope"),
    [([1, 2, 4], [3, 6, 12], 1), ([1, 2, 4], [1, 4, 16], 2), ([2, 2], [1, 5], None)],
)
def test_growth_exponent(x: list[float], y: list[float], slope: float | None) -> None:
    found = growth_exponent(x, y)
    assert found == (None if slope is None else pytest.approx(slope))


def test_folders_are_named(base: Findings) -> None:
    assert "Folders, below that of the profiles: `performance_results_tiny_" in page(base)
