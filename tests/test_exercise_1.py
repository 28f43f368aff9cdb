"""Exercise 1's worksheet: complete, with every figure of the run that measured it."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from exercise_1_sheets import (
    LAUNCH,
    MFU,
    NO_RESULTS,
    OPTIONS,
    PEAK,
    POINTS,
    SHARES,
    WAIT,
    sheet,
)
from exercise_stand_in import measured
from test_memory_optimizations import CONTEXT, study
from tinyllama_tools.ablation.study import result_text
from tinyllama_tools.workshop.exercise_1 import MEMORY, PLAIN, PROFILED, make_sheet, planned_runs
from tinyllama_tools.workshop.worksheet import unanswered
from worksheet_reading import answer, box, components, roofline
from workshop_texts import ANSWERS_1, BOXES_1


def test_nothing_is_left_blank_on_a_cpu_and_on_a_gpu() -> None:
    for gpu in (False, True):
        made = make_sheet(measured(planned_runs(OPTIONS), gpu=gpu), NO_RESULTS)
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
    page, bounds = (make_sheet(runs, place).page for place in (tmp_path, NO_RESULTS))
    assert box(page, "Gradient checkpointing") is True
    assert "measured: `checkpoint`" in page and "reference/ablation_card.json" in page
    assert box(bounds, "Flash Attention (reduce") is True
    assert "bound: all attention scores" in bounds and "measured: `" not in bounds


def test_a_cpu_has_no_transfers() -> None:
    page = sheet()
    assert "Memory transfers visible between operations — no: no GPU, so no transfers" in page
    assert "no GPU, so no transfers" in answer(page, "copies between host and device")
    gpu = make_sheet(measured(planned_runs(OPTIONS), gpu=True), NO_RESULTS).page
    assert "no transfers" not in gpu


def test_every_figure_names_the_run_that_measured_it() -> None:
    page = sheet()
    assert "memory_and_flops/performance_summary.json: memory.fragmentation.percent" in page
    assert not re.search(
        r"(profiled|plain)/performance_summary.json: [^;)\n]*(memory|flops)\.", page
    )
    assert not re.search(r"(memory_and_flops|plain)/\S*: [^;)\n]*operators\.", page)


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
    page = make_sheet(measured(planned_runs(OPTIONS), gpu=True), NO_RESULTS).page
    assert "40 kernels" in answer(page, "How many different kernel types")
    assert "of the GPU time" in answer(page, "consumes the most GPU time")
    assert "no GPU" not in page


@pytest.mark.parametrize("name", [PLAIN, PROFILED, MEMORY])
def test_a_run_that_failed_is_named_and_answers_nothing(name: str) -> None:
    runs = measured(planned_runs(OPTIONS))
    runs[name] = dataclasses.replace(runs[name], summary=None, reason="out of memory")
    made = make_sheet(runs, NO_RESULTS)
    assert made.exit_status == 1
    assert f"- {name}: out of memory" in made.page
    assert unanswered(made.page) == []


def test_a_loss_that_is_not_finite_fails_the_exercise() -> None:
    runs = measured(planned_runs(OPTIONS))
    runs[PLAIN] = dataclasses.replace(runs[PLAIN], exit_status=1)
    made = make_sheet(runs, NO_RESULTS)
    assert made.exit_status == 1
    assert box(made.page, "Baseline training runs") is False


def test_no_path_of_the_machine_is_on_the_page() -> None:
    assert str(Path.home()) not in sheet()
    assert "(memory_and_flops/memory_timeline.html)" in sheet()
