"""Exercise 3's worksheet: each answer follows from its measurement, whichever way that is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from exercise_3_stand_in import (
    answer,
    changed,
    made_up_findings,
    page,
    row,
    ticked,
)
from study_stand_in import GIB, PlayedPredictor
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_3 import ANALYSIS, Findings, make_sheet, run_exercise_3
from tinyllama_tools.commands.exercise_3_rules import operator_rows
from tinyllama_tools.commands.worksheet import unanswered
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.data.programs import TrainingError
from training_stand_in import PlayedProgram

EFFICIENCY = "flops.flops_profile.efficiency_metrics"


INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"


PEAK = "summary.peak_memory_bytes"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return made_up_findings(tmp_path_factory.mktemp("exercise_3"))


def test_no_place_is_left_to_fill_in(base: Findings) -> None:
    sheet = make_sheet(base)
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
    sheet = run_exercise_3(options, program, PlayedPredictor(GIB))
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
    sheet = run_exercise_3(options, program, PlayedPredictor(2 * GIB))
    assert sheet.exit_status == 1
    assert words in sheet.page
    assert "Overall runtime" in sheet.page
    assert unanswered(sheet.page) == []
    assert "## Analysis questions" not in sheet.page


def test_nothing_measured_makes_no_page(tmp_path: Path) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md"])
    with pytest.raises(KeyboardInterrupt):
        run_exercise_3(options, PlayedProgram(interrupt_after=0), PlayedPredictor(GIB))
    with pytest.raises(TrainingError) as refused:
        run_exercise_3(options, PlayedProgram(refuses={"--size=tiny": "no"}), PlayedPredictor(GIB))
    assert refused.value.exit_status == 2


# during the analysis, the runs beside it, the samples of the sizes, and the sizes
@pytest.mark.parametrize("after", [1, 3, 6, 16, 17, 18])
def test_ctrl_c_says_what_is_missing(tmp_path: Path, after: int) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100"])
    program = PlayedProgram(interrupt_after=after)
    sheet = run_exercise_3(options, program, PlayedPredictor(2 * GIB))
    assert sheet.exit_status == 130
    assert "interrupted" in sheet.page
    assert (tmp_path / "exercise_3" / ANALYSIS / "performance_summary_report.md").is_file()
    assert "bottleneck_analysis" in sheet.page


def test_the_page_names_no_place_outside(tmp_path: Path) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100"])
    sheet = run_exercise_3(options, PlayedProgram(), PlayedPredictor(2 * GIB))
    assert str(PROJECT) not in sheet.page
    detailed = tmp_path / "exercise_3" / "detailed_analysis" / "performance_summary_report.md"
    assert "aten::mm" in detailed.read_text()


@pytest.mark.parametrize("more", [["--quick"], ["--batch-size=2"], ["--size=small"]])
def test_other_options_leave_no_place_either(tmp_path: Path, more: list[str]) -> None:
    options = parse_options(["3", f"--output={tmp_path}/e.md", "--max-minutes=100", *more])
    program = PlayedProgram()
    sheet = run_exercise_3(options, program, PlayedPredictor(2 * GIB))
    assert unanswered(sheet.page) == []
    assert "samples/s; rule: 5 %" in answer(sheet.page, "1. How does batch size affect")
    sizes = {o for call in program.calls for o in call if o.startswith("--size=")}
    assert "--size=medium" not in sizes


def test_top_operators_are_names_and_not_shapes() -> None:
    row = {
        "calls": 4,
        "cpu_self_seconds": 1.0,
        "cpu_total_seconds": 1.0,
        "device_self_seconds": None,
        "share_percent": 25.0,
    }
    table = [
        row | {"name": "aten::mm", "input_shapes": "[[1, 2], [2, 3]]"},
        row | {"name": "aten::bmm", "input_shapes": "[[1, 2, 2]]", "share_percent": 40.0},
        row | {"name": "aten::mm", "input_shapes": "[[7, 8], [8, 9]]"},
    ]
    rows = operator_rows({"steps": 2, "device_time": "cpu", "table": table})
    assert [(r[1], r[2], r[4]) for r in rows] == [
        ("aten::mm", "no GPU", "4"),
        ("aten::bmm", "no GPU", "2"),
    ]
