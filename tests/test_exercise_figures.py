"""Figures of the workshop's worksheets, each by hand from the runs they are of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

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
    answer,
    box,
    findings,
    made_up_evidence,
    measured,
    named_in,
    of,
    options,
    peaks,
    roofline,
    sheet,
    unanswered,
)
from fake_training import GIB, PlayedPredictor, made_up_summary
from tinyllama_tools.commands import exercise_1, exercise_2, exercise_3
from tinyllama_tools.commands.exercise_2 import Longest, component_growth, increment_ratio
from tinyllama_tools.commands.exercise_3 import forecasts, memory_gain
from tinyllama_tools.commands.worksheet import MeasuredRun, growth_exponent
from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.models.ablations import Evidence
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

ABLATION = PROJECT / "results/reference/ablation_2core_xeon_avx512.json"
PEERS = PROJECT / "results/reference/peers_2core_xeon_avx512.json"


# Exercise 1.


def test_speed_is_of_the_median_step_that_no_profiler_touched() -> None:
    steps = [
        step | {"time_seconds": 0.1 if n == 20 else 5.0, "profiled": 1 < n < 20}
        for n, step in enumerate(made_up_summary()["steps"], start=1)
    ]
    assert "80 samples/sec" in answer(sheet(1, {"plain": {"steps": steps}}), "Training speed")


def test_each_leaf_counts_under_its_own_point_or_its_group() -> None:
    shares = of(attention__core=40.0, attention__rotary=10.0, ffn__swiglu=30.0, other=20.0)
    drawn = {
        "step": ("memory", 1.0),
        "attention": ("compute", 25.0),
        "attention/rotary": ("memory", 50.0),
        "ffn": ("compute", 90.0),
    }
    page = sheet(1, {EVERY: {**shares, POINTS: roofline(drawn), LAUNCH: 0.0, WAIT: 0.0}})
    # 40 x 0.75 and 30 x 0.1 miss the roof; the step's own point is nobody's
    assert "Compute utilization (device not fully utilized) — yes: 33.0 %" in page
    assert "Memory bandwidth (many small operations) — no: 10.0 %" in page


def test_a_gpu_shows_kernels_and_its_own_time() -> None:
    page = sheet(1, gpu=True)
    assert "40 kernels" in answer(page, "How many different kernel types")
    assert "of the GPU time" in answer(page, "consumes the most GPU time")
    assert "no GPU" not in page and "no GPU, so no transfers" in sheet(1)


@pytest.mark.parametrize("name", exercise_1.planned_runs(options(1)))
def test_a_run_that_failed_is_named_and_answers_nothing(name: str) -> None:
    runs = measured(1, {})
    runs[name] = dataclasses.replace(runs[name], summary=None, reason="out of memory")
    made = exercise_1.sheet_of(runs)
    assert made.exit_status == 1
    assert f"- {name}: out of memory" in made.page
    assert "Analysis questions" not in made.page and unanswered(made.page) == []


# Exercise 2.


def test_tables_hold_the_runs_of_their_size_and_the_law_their_peaks() -> None:
    page = sheet(2, peaks(LENGTHS, 100, 150, 250, 200))
    cells = [[c.strip() for c in answer(page, f"{n} ").split("|")] for n in (64, 256, 512)]
    assert [row[:4] for row in cells] == [
        ["8", "100.0 MB", "0.0 MB", "1.00x"],
        ["8", "250.0 MB", "150.0 MB", "2.50x"],
        ["4", "200.0 MB", "100.0 MB", "2.00x"],
    ]
    # half of the batch: what a sample takes is the fair factor
    assert cells[2][5] == "4.00x"
    # the fake's: 16 bytes a parameter, and what tokens and scores take
    tokens, scores = 4 * 4 * (8 * 256 + 4 * 512) + 8 * 1000, 12 * 8 * 4
    base = 16 * 2873600
    at = [base, 8 * 128 * tokens, 8 * 128**2 * scores]
    shares = [f"{100 * part / sum(at):.1f} %" for part in at]
    page = sheet(2)
    assert f"memory(B, S) = {base / MB:,.1f} MB + B (S x {tokens:,} bytes + S^2 x {scores}" in page
    assert "base {}, linear part {}, quadratic part {}.".format(*shares) in page
    assert "The largest residual is 0.0 %" in page
    off = sheet(2, peaks((LENGTHS[3],), 5000))
    assert "The largest residual is 0.0 %" not in off
    same = {name: {LIVE_PEAK: None} for name in (*LENGTHS, *BATCHES[::2])}
    assert "No law was fitted: 1 size" in sheet(2, same)


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


def test_a_size_that_did_not_fit_is_a_row_and_no_answer() -> None:
    runs = measured(2, {})
    runs[LENGTHS[2]] = dataclasses.replace(runs[LENGTHS[2]], summary=None, reason="out of memory")
    made = exercise_2.sheet_of(runs, options(2), Longest())
    assert unanswered(made.page) == []
    assert made.exit_status == 1
    assert "out of memory" in answer(made.page, "256 ")
    for label in ("Linear (~2x", "Sequence length scaling analyzed", "Ready to proceed"):
        assert box(made.page, label) is False
    for name in (BATCHES[1], "memory_hotspots", "bandwidth"):
        without = {**runs, name: dataclasses.replace(runs[name], summary=None, reason="refused")}
        made = exercise_2.sheet_of(without, options(2), Longest())
        assert f"- {name}: refused" in made.page and made.exit_status == 1


def test_the_longest_sequence_is_predicted_and_tried() -> None:
    def text(**found: object) -> str:
        page = exercise_2.sheet_of(measured(2, {}), options(2), Longest(**found)).page
        assert unanswered(page) == []
        return answer(page, "At what sequence length")

    fitting = {"largest": 3560, "predicted_memory_bytes": 99 * MB}
    tried = {"largest": 3369, "predicted_memory_bytes": 90 * MB}
    tried |= {"tried": {"peak_bytes": 45 * MB, "failure": ""}, "tried_beyond": {"fits": False}}
    found = text(fitting=fitting, tried=tried)
    words = ("is 3560 tokens", "peak of 99.0 MB", "it is 3369 tokens", "peak is 45.0 MB, 50.0 % of")
    assert [word for word in words if word not in found] == []
    assert found.endswith("the predicted; a token more does not fit.")
    assert text(fitting=fitting, reason="killed").endswith("Not tried: killed.")
    none = text(fitting=fitting, tried=tried | {"tried": None})
    assert none.endswith("Not tried: none fits into 90 % of that memory.")
    assert text(reason="no bench") == "Answer: not predicted: no bench."


# Exercise 3: what an ablation measured, and predictions.


def page_with(evidence: Evidence, compiled: Ratio | None = None) -> str:
    found = dataclasses.replace(findings(), evidence=evidence, compiled=compiled)
    return exercise_3.sheet_of(found).page


def test_the_matrix_follows_shares_and_measured_speedups() -> None:
    matrix = "High Impact, High Effort (Priority 2):\n\n- "
    for share, first in ((60.0, "Attention computation"), (10.0, "none")):
        assert f"{matrix}{first}" in sheet(3, named_in("analysis", attention__core=share))
    good, slow = (made_up_evidence(ABLATION, qkv=value) for value in (1.15, 0.97))
    chance = dataclasses.replace(good, speedups={"qkv": ratio_of_turns([1.4, 0.9] * 3, [1.0] * 6)})
    for found, cell, planned in (
        (good, "1.15 (1.15 to 1.15) with qkv", True),
        (slow, "0.97 (0.97 to 0.97) with qkv", False),
        (chance, "~ 1.15", False),  # what may be chance is not planned
    ):
        text = page_with(found)
        assert cell in answer(text, "QKV projections")
        assert box(text, "**QKV Fusion**") is planned
    of_layout = dataclasses.replace(good, speedups={"layout": chance.speedups["qkv"]})
    text = page_with(of_layout, compiled=chance.speedups["qkv"])
    for label in ("**Memory Layout**", "**Torch Compile**"):
        assert box(text, label) is False
    assert "speedup 1.15x (may be chance)" in text and "[x] Torch compile" not in text


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
    assert best.interval is not None and best.interval.low == pytest.approx(1.1068, abs=1e-4)
    assert exercise_3.compile_speedup(summary, tmp_path) is None
    ratios = context["peers"]["ratios"]
    slower = [row | {"of_each_turn": [2 * of for of in row["of_each_turn"]]} for row in ratios]
    # newer ones without this step, of other threads, and damaged say nothing of it
    for number, rows, threads in (
        (1, ratios, 2),
        (2, slower, 2),
        (3, ratios[:4], 2),
        (4, ratios, 3),
    ):
        peers = {"peers": context["peers"] | {"ratios": rows}, "threads": threads}
        (tmp_path / f"{number}_peers").mkdir()
        text = json.dumps(document | {"context": context | peers})
        (tmp_path / f"{number}_peers/peers.json").write_text(text)
    (tmp_path / "5_peers").mkdir()
    (tmp_path / "5_peers/peers.json").write_text("{")
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
        predicted = forecasts(PlayedPredictor(free), "auto")
        page = exercise_3.sheet_of(dataclasses.replace(findings(), forecasts=predicted)).page
        asked = answer(page, "What's the largest model").split("\n")
        assert model in next(line for line in asked if "as configured" in line)
        assert f"Answer: {batch}" in answer(page, "What batch size would you")
    assert box(sheet(3), "quadratic at the long end") is True
    known: Mapping = findings().forecasts
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
    second = {"summary": {"median_step_seconds": 1.0}}
    runs = [MeasuredRun("", "", {"configuration": {"batch_size": b}, **second}) for b in (4, 16)]
    # four times the batch in the same time: twice as fast at each of two doublings
    assert exercise_3.batch_gain(runs) == pytest.approx(2)
