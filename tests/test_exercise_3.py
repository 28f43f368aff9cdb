"""Exercise 3's worksheet: each answer follows from its measurement, whichever way that is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
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

MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
BOUND = "flops.computational_intensity.memory_bound_vs_compute_bound"
POINT = "flops.roofline_data.points.0"
PEAK, SPEED, SECONDS = "summary.peak_memory_bytes", "summary.samples_per_second", "step_seconds"
SCORES = "memory.breakdown_at_peak.attention_scores"
LAUNCHES = "operators.launch_overhead_percent"
QKV, CORE = "attention/qkv_proj", "attention/core"
NAMES = ("tiny", "small", "medium")
Changes = Mapping[str, object]


def of(**percents: float) -> Changes:
    """Shares of components, whose / is written __."""
    return {"components": {name.replace("__", "/"): value for name, value in percents.items()}}


def every(key: str, *values: object) -> Mapping[str, Changes]:
    """One value a size."""
    return {name: {key: value} for name, value in zip(NAMES, values, strict=True)}


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
    # the text's own figures are corrected, and folders named
    assert "D_ff / D is tiny 2.00, small 2.16, medium 3.38, large 5.44, very_large 7.84" in (
        sheet.page
    )
    assert "medium 16:8" in sheet.page
    assert "Folders, below that of the profiles: `performance_results_tiny_" in sheet.page


def test_without_figures_of_the_profilers_the_page_says_so(base: Findings) -> None:
    text = page(changed(base, {MFU: None}, sizes={"tiny": {MFU: None, "memory": None}}))
    assert unanswered(text) == []
    assert not ticked(text, "< 20% MFU")
    assert "not measured" in answer(text, "3. Which size achieves best")


def test_runtime_place_and_warnings_are_those_of_the_runs(base: Findings) -> None:
    log = {"total_seconds": 61.5, "runs": [{"name": "flops", "notes": ["warning: hot"]}]}
    text = page(replace(base, log=log))
    assert "61.5 seconds" in text and "flops: warning: hot" in text
    assert "hot" not in page(base)


def test_the_top_ten_follow_the_table(base: Findings, tmp_path: Path) -> None:
    assert row(page(base), "1 ")[1] == "aten::mm"
    rows = json.loads(json.dumps((base.analysis.summary or {})["operators"]["table"]))
    rows[0]["share_percent"], rows[-1]["share_percent"] = 0.0, rows[0]["share_percent"]
    assert row(page(changed(base, {"operators.table": rows})), "1 ")[1] == rows[-1]["name"]
    # rows of one name and several shapes are one operator
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
    on_gpu = page(made_up_findings(tmp_path, gpu=True))
    assert row(on_gpu, "1 ")[2].endswith("%")
    assert "Kernel count per step" in on_gpu


# Which of some boxes is ticked: the labels, and for each change the one that holds.
CLASSES = ("< 20% MFU", "20-40% MFU", "40-60% MFU", "> 60% MFU")
BOTTLENECKS = ("Memory-bound —", "Mixed —", "Compute-bound —")
POSITIONS = ("Below roofline", "On roofline", "Below compute")
BOXES: list[tuple[tuple[str, ...], Changes, str]] = [
    *((CLASSES, {MFU: m}, CLASSES[0]) for m in (5.0, 19.9)),
    *((CLASSES, {MFU: m}, CLASSES[1]) for m in (20.0, 39.9)),
    (CLASSES, {MFU: 40.0}, CLASSES[2]),
    *((CLASSES, {MFU: m}, CLASSES[3]) for m in (60.0, 83.0)),
    (BOTTLENECKS, {INTENSITY: 9.9}, BOTTLENECKS[0]),
    *((BOTTLENECKS, {INTENSITY: i}, BOTTLENECKS[1]) for i in (10.0, 100.0)),
    (BOTTLENECKS, {INTENSITY: 101.0}, BOTTLENECKS[2]),
    *(
        (POSITIONS, {f"{POINT}.percent_of_attainable": p, f"{POINT}.bound": b}, POSITIONS[i])
        for i, (p, b) in enumerate([(30.0, "memory"), (90.0, "memory"), (30.0, "compute")])
    ),
]


@pytest.mark.parametrize(("labels", "changes", "holds"), BOXES)
def test_one_of_the_boxes_holds(
    base: Findings, labels: tuple[str, ...], changes: Changes, holds: str
) -> None:
    text = page(changed(base, changes))
    assert [label for label in labels if ticked(text, label)] == [holds]


# A cell of a table: the row's first words, the cell's number, changes, and how it then begins.
CELLS: list[tuple[str, int, Mapping[str, Changes], str]] = [
    ("Time in matrix", 1, {"analysis": {"operators.matrix_product_percent": 41.5}}, "41.5 %"),
    ("Separate linear", 1, {"analysis": {"operators.linear_projections_per_step": 17}}, "17"),
    ("Overhead of kernel", 1, {"analysis": {LAUNCHES: 23.25}}, "23.2 %"),
    ("Attention computation", 1, {"analysis": of(attention__core=10.0)}, "10.0 %"),
    ("Attention computation", 1, {"analysis": of(attention__core=60.0)}, "60.0 %"),
    ("Attention computation", 5, {"analysis": of(attention__core=60.0)}, "1"),
    ("Model FLOPS Utilization", 1, {"analysis": {MFU: 10.0}}, "10.0 %"),
    ("tiny ", 3, {"sizes": every(PEAK, 100 << 20, 200 << 20, 300 << 20)}, "100.0"),
    ("medium ", 3, {"sizes": every(PEAK, 100 << 20, 200 << 20, 300 << 20)}, "300.0"),
    ("large ", 2, {}, "not run: predicted peak memory"),
    ("very_large ", 1, {}, "10,691,284,992"),
]


@pytest.mark.parametrize(("first", "index", "changes", "begins"), CELLS)
def test_cells_follow_their_measurement(
    base: Findings, first: str, index: int, changes: dict[str, Changes], begins: str
) -> None:
    assert row(page(changed(base, **changes)), first)[index].startswith(begins)


def test_criteria_fall_with_what_they_rest_on(base: Findings) -> None:
    good = {"version_2_long": {PEAK: 1 << 20}}
    assert ticked(page(changed(base, runs=good)), "Ready to begin Version 2")
    table = (base.analysis.summary or {})["operators"]["table"][:9]
    for changes, labels in {
        ("operators.table", str(len(table))): (
            "Comprehensive bottleneck analysis",
            "Ready to begin Version 2",
        ),
        ("operators.softmax_percent", ""): (
            "Performance bottlenecks quantified",
            "Optimization roadmap created",
        ),
        (SCORES, ""): ("Success metrics defined",),
    }.items():
        text = page(changed(base, {changes[0]: table if changes[1] else None}, good))
        assert not any(ticked(text, label) for label in labels)
    assert not ticked(page(base), "Implementation plan validated")
    sizes = ("At least 2 problem sizes tested", "Ready to compare with optimized versions")
    assert all(ticked(page(base), label) for label in sizes)
    tiny = tuple(r for r in base.study.results if r.size == "tiny")
    alone = page(replace(base, study=replace(base.study, results=tiny)))
    patterns = ("Scaling patterns documented", "Performance characteristics understood")
    assert not any(ticked(alone, label) for label in (sizes[0], *patterns))
    no_profile = changed(base, sizes={name: {"operators": None} for name in NAMES})
    assert not ticked(page(no_profile), "Optimization priorities identified")


OPTIONS = ("3", "--max-minutes=100")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            PlayedProgram(refuses={"--dtype=amp_bf16": "no bf16 here"}),
            "mixed_precision: tiny_llama",
        ),
        (PlayedProgram(refuses={"--enable-deepspeed-flops": "no room"}), f"{ANALYSIS}: tiny_llama"),
        (
            PlayedProgram(refuses={"--num-steps=3": "no room"}),
            "problem sizes: tiny_llama_train",
        ),
        (
            PlayedProgram(exit_status=1, changes={"operators": None}),
            f"{ANALYSIS}: no profile of operators: the loss was not finite",
        ),
    ],
    ids=["run", "analysis", "sample", "loss"],
)
def test_what_fails_is_on_the_page_and_makes_no_answers(
    tmp_path: Path, program: PlayedProgram, words: str
) -> None:
    options = parse_options([*OPTIONS, f"--output={tmp_path}/e.md"])
    sheet = run_exercise(options, program, PlayedPredictor(2 * GIB))
    assert sheet.exit_status == 1
    assert words in sheet.page and "Overall runtime" in sheet.page
    assert unanswered(sheet.page) == []
    assert "## Analysis questions" not in sheet.page


def test_nothing_measured_makes_no_page(tmp_path: Path) -> None:
    options = parse_options([*OPTIONS, f"--output={tmp_path}/e.md"])
    with pytest.raises(KeyboardInterrupt):
        run_exercise(options, PlayedProgram(interrupt_after=0), PlayedPredictor(GIB))
    with pytest.raises(TrainingError) as refused:
        run_exercise(options, PlayedProgram(refuses={"--size=tiny": "no"}), PlayedPredictor(GIB))
    assert refused.value.exit_status == 2


# during the analysis, the runs beside it, the samples of the sizes, and the sizes
@pytest.mark.parametrize("after", [1, 3, 6, 16, 17, 18])
def test_ctrl_c_says_what_is_missing(tmp_path: Path, after: int) -> None:
    options = parse_options([*OPTIONS, f"--output={tmp_path}/e.md"])
    sheet = run_exercise(options, PlayedProgram(interrupt_after=after), PlayedPredictor(2 * GIB))
    assert sheet.exit_status == 130
    assert "interrupted" in sheet.page and "bottleneck_analysis" in sheet.page
    assert (tmp_path / "exercise_3" / ANALYSIS / "performance_summary_report.md").is_file()


@pytest.mark.parametrize("more", [[], ["--quick"], ["--batch-size=2"], ["--size=small"]])
def test_other_options_leave_no_place_to_fill_in_either(tmp_path: Path, more: list[str]) -> None:
    options = parse_options([*OPTIONS, f"--output={tmp_path}/e.md", *more])
    program = PlayedProgram()
    sheet = run_exercise(options, program, PlayedPredictor(2 * GIB))
    assert unanswered(sheet.page) == []
    assert str(PROJECT) not in sheet.page
    assert "samples/s; rule: 5 %" in answer(sheet.page, "1. How does batch size affect")
    assert "--size=medium" not in {option for call in program.calls for option in call}
    detailed = tmp_path / "exercise_3/detailed_analysis/performance_summary_report.md"
    assert "aten::mm" in detailed.read_text()


# Steps 5 to 7: the ranking, the plan for version 2, and its validation.


def test_the_matrix_follows_shares_and_measured_speedups(base: Findings) -> None:
    matrix = "High Impact, High Effort (Priority 2):\n\n- "
    for share, found in ((60.0, "Attention computation"), (10.0, "none")):
        assert f"{matrix}{found}" in page(changed(base, of(attention__core=share)))
    fast = page(changed(base, evidence=made_up_evidence(ABLATION, qkv=1.15)))
    assert "High Impact, Low Effort (Priority 1):\n\n- QKV projections (1.15x" in fast
    evidence = made_up_evidence(ABLATION, qkv=1.15)
    chance = replace(evidence, speedups={"qkv": ratio_of_turns([1.4, 0.9] * 3, [1.0] * 6)})
    slow = made_up_evidence(ABLATION, qkv=0.97)
    for found, cell, planned in (
        (evidence, "1.15 (1.15 to 1.15) with qkv", True),
        (slow, "0.97 (0.97 to 0.97) with qkv", False),
        (chance, "~ 1.15", False),  # what may be chance is not planned
    ):
        text = page(changed(base, evidence=found))
        assert cell in row(text, "QKV projections")[4]
        assert ticked(text, "**QKV Fusion**") is planned


SAVES = {"version_2_long": {PEAK: 10 << 20}}
# label: changes of the analysis and of runs with which it is ticked, and without
Both = tuple[Changes, Mapping[str, Changes]]
PLANNED: list[tuple[str, Both, Both]] = [
    (
        "**SwiGLU Fusion**",
        (of(ffn__swiglu=30.0), {}),
        (of(ffn__gate_up_proj=2, ffn__swiglu=0), {}),
    ),
    ("**Flash Attention**", (of(attention__core=30.0), {}), (of(attention__core=1.0), {})),
    ("**Flash Attention**", (of(attention__core=1.0), SAVES), (of(attention__core=1.0), {})),
    *(
        (label, ({}, {run: good}), ({}, {run: bad}))
        for label, run, good, bad in (
            ("**Mixed Precision**", "mixed_precision", {SECONDS: 0.05}, {SECONDS: 0.9}),
            # memory alone is no reason for a slower step
            (
                "**Mixed Precision**",
                "mixed_precision",
                {SECONDS: 0.2428, PEAK: 1 << 20},
                {SECONDS: 0.9, PEAK: 1 << 20},
            ),
            ("Batch size 8, sequence length 128", "version_2", {SECONDS: 0.01}, {SECONDS: 9.0}),
            (
                "Batch size 16, sequence length 256",
                "version_2_scaling",
                {SECONDS: 0.01},
                {SECONDS: 99.0},
            ),
            ("Memory scaling with sequence", "version_2_long", {PEAK: 1 << 20}, {PEAK: 1 << 40}),
            (
                "Numerical accuracy validation",
                "version_2",
                {"summary.final_loss": 6.6},
                {"summary.final_loss": 6.8},
            ),
            (
                "No degradation in model",
                "version_2",
                {"summary.final_loss": 6.6},
                {"summary.final_loss": 6.8},
            ),
            ("Deterministic execution", "deterministic_2", {}, {"steps.3.loss": 6.000001}),
            ("Memory usage reduced or stable", "version_2", {PEAK: 1 << 20}, {PEAK: 1 << 30}),
            ("Throughput improved by >30%", "version_2", {SECONDS: 0.01}, {SECONDS: 0.24}),
        )
    ),
]


@pytest.mark.parametrize(("label", "good", "bad"), PLANNED)
def test_the_plan_and_its_gates_follow_the_runs(
    base: Findings,
    label: str,
    good: Both,
    bad: Both,
) -> None:
    assert ticked(page(changed(base, *good)), label)
    assert not ticked(page(changed(base, *bad)), label)


def test_compile_and_layout_need_an_ablation(base: Findings, tmp_path: Path) -> None:
    text = page(base)
    assert not ticked(text, "**Torch Compile**") and not ticked(text, "**Memory Layout**")
    slow, fast = (evidence_with_compile(tmp_path, speed) for speed in (0.9, 3.0))
    assert not ticked(page(changed(base, evidence=slow)), "**Torch Compile**")
    assert ticked(page(changed(base, evidence=fast)), "**Torch Compile**")
    layout = made_up_evidence(slow.file, layout=1.2)
    assert ticked(page(changed(base, evidence=layout)), "**Memory Layout**")
    # the best at that shape
    assert compile_speedup(made_up_evidence(ABLATION, qkv=1.0)) == pytest.approx(1.1328, abs=1e-4)
    assert compile_speedup(None) is None


def test_expected_overall_speedup_follows_shares_and_runs(base: Findings) -> None:
    question = "What is the expected overall speedup for Version 2?"
    small = {QKV: 0.0, CORE: 0.0, "ffn/gate_up_proj": 0.0, "ffn/swiglu": 0.0}
    # half of the step becomes 2 * 128 / 129 times as fast
    half = 1 / (1 - 0.5 + 0.5 * 129 / 256)
    for share, speedup in ((0.0, 1.0), (50.0, half)):
        text = page(changed(base, {"components": {**small, CORE: share}}))
        assert answer(text, question).startswith(f"Answer: {speedup:.2f}x by Amdahl")
    runs = {"baseline": {SECONDS: 0.3}, "version_2": {SECONDS: 0.1}}
    assert "3.00x measured" in answer(page(changed(base, runs=runs)), question)


def test_targets_follow_from_now(base: Findings) -> None:
    now, target = (float(x.split()[0]) for x in row(page(base), "Training throughput")[1:3])
    assert target > now == pytest.approx(base.runs["baseline"](SPEED), rel=1e-3)
    text = page(changed(base, {SCORES: 10 << 20}, {"baseline": {PEAK: 100 << 20}}))
    assert "| 100.0 MB" in text and "| 90.0 MB" in text
    calls = page(changed(base, {"operators.operator_calls_per_step": 1000}))
    assert row(calls, "Operator count per step")[1:3] == ["1,000", "964"]


def test_the_expected_hierarchy_is_held_against_the_profile(base: Findings) -> None:
    for core, where in ((20.0, "in the range"), (70.0, "above the range")):
        shares = of(attention__o_proj=0, attention__rotary=0, attention__qkv_proj=20)["components"]
        text = page(changed(base, {"components": {**shares, CORE: core}}))  # type: ignore[dict-item]
        assert row(text, "Attention operations")[3].startswith(where)


# The analysis questions: which one box is ticked.
FIRST, SECOND = "1. What is the single largest", "2. What type of optimization"
THIRD, FIFTH = "3. Is the workload primarily", "5. What is the realistic"
MIXED = {"mixed_precision": {SECONDS: 0.3}}
CHOICES: list[tuple[str, Changes, Mapping[str, Changes], str]] = [
    (FIRST, of(attention__qkv_proj=90.0), {}, "QKV projection operations"),
    (FIRST, of(attention__core=90.0), {}, "Attention score computation"),
    (FIRST, of(ffn__down_proj=90.0), {}, "Feed-forward network"),
    (FIRST, {LAUNCHES: 95.0}, {}, "Kernel launch overhead"),
    (FIRST, of(optimizer=90.0), {}, "Memory bandwidth"),
    (SECOND, {LAUNCHES: 80.0}, MIXED, "Kernel fusion"),
    (SECOND, of(optimizer=70.0), MIXED, "Memory optimization"),
    (
        SECOND,
        of(attention__core=60),
        MIXED,
        "Algorithmic optimization",
    ),
    (SECOND, {}, {"mixed_precision": {SECONDS: 0.05}}, "Precision optimization"),
    (THIRD, of(optimizer=80.0, ffn__gate_up_proj=0.0), {}, "Memory-bound (optimize"),
    (THIRD, {}, {}, "Compute-bound (optimize"),
    (THIRD, {LAUNCHES: 60.0}, {}, "Overhead-bound (optimize"),
    (THIRD, {LAUNCHES: 48.0}, {}, "Mixed workload (balanced"),
    *(
        (FIFTH, {}, {"baseline": {SECONDS: speedup}, "version_2": {SECONDS: 1.0}}, label)
        for speedup, label in (
            (1.1, "below all of these"),
            (1.25, "1.2-1.4x"),
            (1.44, "1.2-1.4x"),
            (1.46, "1.5-2.0x"),
            (2.5, "2.0-3.0x"),
            (4.0, ">3.0x"),
        )
    ),
]


def only_choice(text: str, question: str) -> str:
    """The label of the one ticked box below the question."""
    (label,) = (x[6:] for x in answer(text, question).split("\n") if x.startswith("- [x]"))
    return label


@pytest.mark.parametrize(("question", "analysis", "runs", "label"), CHOICES)
def test_one_choice_of_a_question_holds(
    base: Findings, question: str, analysis: Changes, runs: Mapping[str, Changes], label: str
) -> None:
    text = page(changed(base, analysis, runs))
    assert only_choice(text, question).startswith(label)
    # memory, compute and overhead share the step
    shares = [float(x) for x in re.findall(r": (\d+\.\d) %", answer(text, THIRD))[:3]]
    assert sum(shares) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize(
    ("qkv", "sdpa", "gate_up", "compiled", "label"),
    [
        (1.16, 0.9, 0.9, 1.0, "QKV fusion"),
        (0.9, 1.15, 0.9, 1.0, "Flash Attention"),
        (0.9, 0.9, 1.3, 1.0, "SwiGLU fusion"),
        (1.01, 0.9, 0.9, 2.0, "Torch compile"),
    ],
)
def test_the_first_optimization_is_the_one_that_was_fastest(
    base: Findings,
    tmp_path: Path,
    qkv: float,
    sdpa: float,
    gate_up: float,
    compiled: float,
    label: str,
) -> None:
    file = evidence_with_compile(tmp_path, compiled).file
    evidence = made_up_evidence(file, qkv=qkv, sdpa=sdpa, gate_up=gate_up)
    text = page(changed(base, evidence=evidence))
    assert only_choice(text, "4. What should be the first optimization").startswith(label)


def test_a_measured_gain_goes_before_an_assumed_one(base: Findings) -> None:
    def gains(**measured: float) -> dict[str, str]:
        evidence = made_up_evidence(ABLATION, **measured) if measured else None
        lines = answer(page(changed(base, of(optimizer=70.0), evidence=evidence)), SECOND)
        return {x[6:].split()[0]: x for x in lines.split("\n") if x.startswith("- [")}

    found = gains()
    assert found["Memory"].startswith("- [x]")
    assert all("assumed: half the traffic" in line for line in found.values())
    found = gains(fused_norm=1.25, fused_adamw=1.1, fused_rotary=0.9)
    # of the step, 20 % and 9.1 % are saved; what is slower is not done
    assert f"{1 / (1 / 1.25 + 1 / 1.1 - 1):.3g}" in found["Memory"]
    assert "1.25 (1.25 to 1.25) with fused_norm" in found["Memory"]
    assert "assumed" not in "".join(found.values())


def test_a_gpus_memory_bound_share_is_made_one_of_the_step() -> None:
    busy, text = memory_gain(made_up_summary({LAUNCHES: 0.0}, gpu=True), None)
    idle = memory_gain(made_up_summary({LAUNCHES: 50.0}, gpu=True), None)[0]
    share = float(text.split("traffic, of ")[1].split(" %")[0]) / 100
    assert share > 0.01
    assert busy == pytest.approx(1 / (1 - share / 2), abs=1e-3)
    # half of the step is idle, so half of what the busy one saves is saved
    assert idle == pytest.approx(1 / (1 - (1 - 1 / busy) / 2))


# Chapter 6, the problem sizes: question, changes of the sizes (of the base's parameters and FLOPs a
# step where it is a function), and what the answer then begins with or, after "...", holds.
Sizes = Mapping[str, Changes] | Callable[[list[float], list[float]], Mapping[str, Changes]]


def at_rates(*rates: float) -> Sizes:
    return lambda _, flops: every(SECONDS, *(f / r for f, r in zip(flops, rates, strict=True)))


LINEAR = lambda p, _: every(SPEED, *(1e9 / n for n in p))  # noqa: E731
STEEP = lambda p, _: every(SPEED, *(1e18 / n**2 for n in p))  # noqa: E731
DECREASE, SCALE = "1. Does throughput decrease linearly", "1. How does throughput scale with model"
SATURATED, PROPORTIONAL = "1. At what size does GPU become", "2. Is memory scaling proportional"
SIGNIFICANT = (
    "2. Where does attention memory become significant?",
    "2. At what point does attention memory become significant?",
)
FEW_SCORES = {n: {"memory.peak_bytes": 1000 << 20, SCORES: 1 << 20} for n in NAMES}
MANY_SCORES = {**FEW_SCORES, "small": {**FEW_SCORES["small"], SCORES: 200 << 20}}
OVERHEAD = ("2. What's the memory overhead ratio?", "2. What is the memory overhead ratio")
UTILIZATION = (
    "3. Which size achieves best GPU",
    "1. At what model size does GPU utilization peak?",
)
ROOF, BOUND_BY = "3. How does arithmetic intensity change?", "3. Is the workload memory-bound or"
DOMINATES, MOST_BOUND = (
    "1. Which component (attention vs FFN)",
    "3. Which size is most memory-bound",
)
IMPROVE, WORKSHOP = "4. How would you improve throughput", "4. What's the optimal problem size"
BOUNDS = ("memory-bound", "mixed", "compute-bound")
ANSWERS: list[tuple[str, Sizes, str]] = [
    (DECREASE, LINEAR, "Yes: it goes with parameters ^ -1.00"),
    (DECREASE, STEEP, "No: it goes with parameters ^ -2.00"),
    (SCALE, LINEAR, "It goes with parameters ^ -1.00"),
    (SCALE, STEEP, "It goes with parameters ^ -2.00"),
    (SATURATED, at_rates(1e11, 1.05e11, 1.2e11), "At tiny:"),
    (SATURATED, at_rates(1e11, 2e11, 2.1e11), "At small:"),
    (SATURATED, at_rates(1e11, 2e11, 4e11), "Not within the measured sizes: tiny 100 GFLOP/s"),
    (
        PROPORTIONAL,
        lambda p, _: every(PEAK, *(16 * n for n in p)),
        "Yes: it goes with parameters ^ 1",
    ),
    (PROPORTIONAL, every(PEAK, 10**9, 10**9 + 1, 10**9 + 2), "No: it goes with parameters ^ 0.00"),
    *((question, FEW_SCORES, "At no measured size:") for question in SIGNIFICANT),
    *((question, MANY_SCORES, "At small:") for question in SIGNIFICANT),
    *((question, MANY_SCORES, "...small 20.0 %") for question in SIGNIFICANT),
    # of tiny over S: at 64 the scores are below a tenth of the peak
    *((question, MANY_SCORES, "...at S = 128") for question in SIGNIFICANT),
    *((q, lambda p, _: {"tiny": {PEAK: 20 * 4 * p[0]}}, "...tiny 20x") for q in OVERHEAD),
    *((q, lambda p, _: {"tiny": {PEAK: 31 * 4 * p[0]}}, "...tiny 31x") for q in OVERHEAD),
    *((q, every(MFU, 50.0, 20.0, 30.0), "tiny: 50.0 % MFU") for q in UTILIZATION),
    *((q, every(MFU, 5.0, 20.0, 30.0), "medium: 30.0 %") for q in UTILIZATION),
    (
        ROOF,
        every(INTENSITY, 1.5, 20, 300),
        "tiny 1.5 FLOP/byte, small 20 FLOP/byte, medium 300",
    ),
    (BOUND_BY, every(BOUND, *BOUNDS), "...tiny memory-bound, small mixed, medium compute"),
    (BOUND_BY, every(BOUND, *BOUNDS[::-1]), "...tiny compute-bound, small mixed, medium memory"),
    (DOMINATES, {"tiny": of(attention__core=80.0)}, "...tiny attention ("),
    (DOMINATES, {"tiny": of(attention__core=0.0)}, "...tiny FFN ("),
    *(
        (
            "3. Which model size would benefit most from Flash Attention?",
            {name: of(attention__core=70.0)},
            f"{name}: scores, softmax and values",
        )
        for name in NAMES
    ),
    (MOST_BOUND, every(INTENSITY, 1.0, 10.0, 100.0), "Most memory-bound: tiny"),
    (MOST_BOUND, every(INTENSITY, 1.0, 10.0, 100.0), "...most compute-bound: medium"),
    (MOST_BOUND, every(INTENSITY, 100.0, 10.0, 1.0), "...most compute-bound: tiny"),
    (IMPROVE, {"medium": of(attention__core=80.0)}, f"Attack {CORE} first: 80.0 % of medium"),
    (IMPROVE, {"medium": of(optimizer=80.0)}, "Attack optimizer first: 80.0 % of medium"),
    (WORKSHOP, every(SECONDS, 0.1, 1.0, 5.0), "Medium:"),
    (WORKSHOP, every(SECONDS, 0.1, 9.0, 50.0), "Tiny:"),
    (WORKSHOP, every(SECONDS, 10.0, 90.0, 99.0), "None:"),
]


@pytest.mark.parametrize(("question", "sizes", "words"), ANSWERS)
def test_answers_follow_the_sizes(base: Findings, question: str, sizes: Sizes, words: str) -> None:
    models = [r.summary["model"] for r in base.study.results if r.summary is not None]
    if callable(sizes):
        columns = ([m[key] for m in models] for key in ("total_parameters", "flops_per_step"))
        sizes = sizes(*columns)
    found = answer(page(changed(base, sizes=sizes)), question)
    if words.startswith("..."):
        assert words[3:] in found
    else:
        assert found.startswith(f"Answer: {words}")


def test_batch_and_throughput(base: Findings) -> None:
    recommended = "3. What batch size would you recommend for medium model?"
    for words, batch, seconds in (
        ("raises it: 2.00x", 32, 0.2428),
        ("leaves it as it is: 1.00x", 16, 0.4856),
        ("lowers it", 16, 0.9),
    ):
        text = page(changed(base, runs={"batch_16": {SECONDS: seconds}}))
        assert f"A larger batch {words}" in answer(
            text, "1. How does batch size affect throughput?"
        )
        found = answer(text, recommended)
        assert found.startswith(f"Answer: {batch}: batch 32 is the largest")
    assert "measured with tiny at 128 tokens" in found


@pytest.mark.parametrize(("small", "where"), [(70, "7x"), (300, "30x")])
def test_transitions_are_held_against_the_text(base: Findings, small: int, where: str) -> None:
    text = page(changed(base, sizes={"tiny": {PEAK: 10 << 20}, "small": {PEAK: small << 20}}))
    line = next(x for x in text.split("\n") if "| memory | " in x)
    assert where in line and ("in the range" if small == 70 else "above the range") in line


def test_profiles_across_sizes(base: Findings) -> None:
    key = "operators.matrix_product_percent"
    lines = page(changed(base, sizes={"small": {key: 12.3}})).split("\n")
    start = lines.index("### Profiles across sizes")
    assert "12.3 %" in next(x for x in lines[start:] if x.startswith("| small"))
    results = tuple(r for r in base.study.results if r.size != "medium")
    without = replace(base, study=replace(base.study, results=results))
    assert "of small (medium was not run)" in answer(page(without), IMPROVE)


@pytest.mark.parametrize(
    ("question", "free_bytes", "words"),
    [
        ("3. What batch size would you recommend for medium", 8 * GIB, "4: batch 4"),
        ("3. What batch size would you recommend for medium", GIB, "None: medium does not"),
        ("4. What's the largest model", 2 * GIB, "small (20,890,112 parameters"),
        ("4. What's the largest model", 1000 * GIB, "very_large (10,691,284,992 parameters"),
        ("4. What's the largest model", 1, "none as configured"),
    ],
)
def test_what_fits_follows_the_forecasts(
    base: Findings, question: str, free_bytes: float, words: str
) -> None:
    found = forecasts(PlayedPredictor(free_bytes), "auto")
    text = page(replace(base, study=replace(base.study, forecasts=found)))
    assert answer(text, question).startswith(f"Answer: {words}")


def test_memory_over_the_sequence(base: Findings) -> None:
    question = "2. How does memory scale with sequence length?"
    assert answer(page(base), question).startswith("Answer: Quadratic at the long end")
    f = base.study.forecasts
    linear = tuple(replace(p, peak_memory_bytes=1e6 * p.seq) for p in f.sequences)
    study = replace(base.study, forecasts=replace(f, sequences=linear))
    found = answer(page(replace(base, study=study)), question)
    assert found.startswith("Answer: Linear or less at the long end: S ^ 1.00")


def test_growth_and_saturation_of_nothing() -> None:
    assert growth_exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    assert growth_exponent([1, 2, 4], [1, 4, 16]) == pytest.approx(2)
    assert growth_exponent([2, 2], [1, 5]) is None
    assert saturated([]) is None
