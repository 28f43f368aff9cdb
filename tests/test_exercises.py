"""scripts/exercise: every box and answer of its worksheets follows from its measurement; options,
files, exit status and Ctrl-C with a fake program.

Tables of what is asked, the figures of a made-up run that are changed, and what the page says then;
and figures by hand.
"""

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import tools
from fake_training import (
    GIB,
    STORED,
    PlayedPredictor,
    PlayedProgram,
    evidence,
    made_up_summary,
    measured_ratio,
    operator_table,
    step_cost,
)
from published import FOLDER, OLDER
from tinyllama_tools.commands import exercise, exercise_3, profile
from tinyllama_tools.commands.study import PROFILES
from tinyllama_tools.commands.worksheet import holds
from tinyllama_tools.data.profiles import MeasuredRun
from tinyllama_tools.models.step_ratios import Evidence, StepRatio

# keys as of changed(), by name of a run, of a size, `analysis` of exercise 3, or EVERY run
Changes = Mapping[str, Any]
OfRuns = Mapping[str, Changes]
EVERY = ""
MB = 2**20
# runs and sizes of exercise 2 and 3
BATCHES = tuple(f"memory_analysis_bs{size}" for size in (4, 8, 16))
LENGTHS = tuple(f"memory_seq{size}" for size in (64, 128, 256, 512))
NAMES = ("tiny", "small", "medium")
LAUNCH, LIVE_PEAK, SPEED = "operators.launch_overhead_percent", "memory.peak_bytes", "step_seconds"
PEERS = FOLDER / f"peers_{OLDER}.json"
MFU = "flops.flops_profile.efficiency_metrics.mfu_percent"
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
USED = "flops.computational_intensity.memory_bandwidth_utilization_percent"
TABLE, WAIT = "operators.table", "summary.breakdown.data_loading.percent"
PEAK, LOSS = "summary.peak_memory_bytes", "summary.final_loss"
SCORES, KEPT = (f"memory.breakdown_at_peak.{of}" for of in ("attention_scores", "activations"))
AFTER, BEFORE = "memory.live_bytes_after_steps", "memory.baseline_bytes"
WHERE = "memory.peak_component"
FORWARD = "memory.forward_peak_bytes"
SPREAD, OVERHEAD = "memory.peak_to_average", "summary.operator_profiling_overhead_percent"
MICRO = "configuration.gradient_accumulation_steps"
NULLS: Changes = {
    **dict.fromkeys(("memory.largest_spike", "memory.fragmentation", "memory.average_bytes")),
    **dict.fromkeys((FORWARD, WHERE, SPREAD, MFU, INTENSITY, USED, LAUNCH, OVERHEAD)),
    **{"summary.average_forward_seconds": None, "device_sampling.readings": {}},
}


# Exercises that nobody measured, and worksheets read as a person would.


class ChangedProgram(PlayedProgram):
    """Each run with the changes of its name."""

    of_runs: OfRuns

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> MeasuredRun:
        name = "analysis" if exercise_3.ANALYSIS in folder.parts else folder.name
        if name == PROFILES:
            name = next(option for option in options if "size" in option).removeprefix("--size=")
        self.changes = {**self.of_runs.get(EVERY, {}), **self.of_runs.get(name, {})}
        return super().run(options, folder, log)


def run(number: int, folder: Path, program: PlayedProgram, *more: str) -> tuple[int, str]:
    """Exit status and page."""
    output = folder / f"exercise_{number}.md"
    arguments = [str(number), "-o", str(output), "--max-seconds-per-case=6000", *more]
    status = tools.exercise(arguments, program=program)
    return status, output.read_text(encoding="utf-8") if output.exists() else ""


def sheet(number: int, of_runs: OfRuns | None = None, *, gpu: bool = False) -> str:
    """The page of made-up runs with tiny, small and medium."""
    program = ChangedProgram(gpu=gpu)
    program.of_runs = of_runs or {}
    with tempfile.TemporaryDirectory() as folder:
        return run(number, Path(folder), program)[1]


@cache
def plain(number: int) -> str:
    """The page without any changes."""
    return sheet(number)


def predict(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    """On a machine with so much memory."""
    played = PlayedPredictor(gib * GIB)
    monkeypatch.setattr(exercise_3, "ask_costs", lambda _, options: played(options))


def know(monkeypatch: pytest.MonkeyPatch, known: Evidence, compiled: StepRatio) -> None:
    """What an ablation measured, and torch.compile's speedup."""
    monkeypatch.setattr(exercise_3, "find_ablation", lambda *_: known)
    monkeypatch.setattr(exercise_3, "compile_speedup", lambda *_: compiled)


@pytest.fixture(autouse=True)
def _no_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    # a page of plotly's for each run takes its time
    monkeypatch.setattr(profile, "draw_timelines", lambda _: [])
    row = {"largest": 2048, "predicted_memory_bytes": 2**33, "skip_reason": ""}
    monkeypatch.setattr(exercise, "ask_json", lambda *_: {"limits": [row]})
    predict(monkeypatch, 40)
    monkeypatch.setattr(exercise_3, "find_ablation", lambda *_: None)


def box(page: str, label: str) -> bool:
    """Of the boxes whose text begins with `label`; they all have to agree."""
    found = re.findall(r"^- \[([ x])\] (.*?) — (yes|no): ", page, re.MULTILINE)
    marks = {mark == "x" for mark, text, _ in found if text.startswith(label)}
    assert len(marks) == 1, f"{label}: {len(marks)} different boxes"
    assert all((mark == "x") == (word == "yes") for mark, _, word in found)
    return marks.pop()


def answer(page: str, asked: str) -> str:
    """What stands below a question or heading up to the next one, or in the row of that name."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(f"| {asked}"):
            return line.split("|", 2)[2]
        if line.startswith(asked) or (line.startswith("**") and asked in line):
            rest = lines[number + 1 :]
            ends = [i for i, text in enumerate(rest) if re.match(r"\*\*|##|[^-|A ]", text)]
            return "\n".join(filter(None, rest[: min(ends, default=len(rest))]))
    raise AssertionError(f"not on the page: {asked}")


def unanswered(page: str) -> list[str]:
    """Blanks, empty cells, boxes that no rule decided and questions without an answer below."""
    found, lines = [], page.split("\n")
    for index, line in enumerate(lines):
        undecided = line.startswith("- [") and not re.search(r" — (yes|no): \S", line)
        cells = re.split(r"(?<!\\)\|", line.strip())[1:-1] if line.startswith("|") else []
        is_header = index + 1 < len(lines) and lines[index + 1].startswith("|--")
        empty = not is_header and not all(text.strip() for text in cells)
        following = next((text for text in lines[index + 1 :] if text.strip()), "")
        is_open = (
            line.startswith("**") and line.endswith("?**") and following.startswith(("*", "#"))
        )
        if undecided or empty or is_open or "___" in line or "None" in line:
            found.append(line)
    return found


def named(**percents: float) -> Changes:
    """Shares of these components, `__` for `/`; the others keep theirs."""
    return {"components": {name.replace("__", "/"): value for name, value in percents.items()}}


def of(**percents: float) -> Changes:
    """The others have none."""
    others = dict.fromkeys((c["name"] for c in STORED["operators"]["components"]), 0.0)
    return {"components": others | named(**percents)["components"]}


def each(key: str, *values: object, names: Sequence[str] = NAMES) -> OfRuns:
    """One value a run, or a size."""
    return {name: {key: value} for name, value in zip(names, values, strict=False)}


def peaks(names: Sequence[str], *sizes: int) -> OfRuns:
    """In MB."""
    return each(LIVE_PEAK, *(size * MB for size in sizes), names=names)


def test_no_place_is_left_to_fill_in_and_every_box_finds_its_figure() -> None:
    on_gpu = [sheet(number, gpu=True) for number in (1, 2, 3)]
    pages = [*on_gpu, *(plain(number) for number in (1, 2, 3))]
    pages += [sheet(number, {EVERY: NULLS}) for number in (1, 2)]
    pages += [sheet(3, {"analysis": NULLS, "tiny": {MFU: None, "memory": None}})]
    for page in pages:
        assert unanswered(page) == []
        assert str(Path.home()) not in page
    blanks = (
        "Peak: ___ MB\n- [ ] x\n| a | b |\n|---|---|\n| 1 | |\n**How much?**\n\n**And?**\n\n## End"
    )
    assert len(unanswered(blanks)) == 5
    for number, page in enumerate(on_gpu, start=1):
        # there every profiler has its figures; what no ablation measured is no fault of a key
        open_boxes = re.findall(r"^- \[ \] (.*) — no: not measured; rule", page, re.MULTILINE)
        assert open_boxes == ["Torch compile (automatic optimization)"] * (number == 3)
        assert re.findall(r"^\| ([^|]*) \| not measured +\|$", page, re.MULTILINE) == []


def test_overhead_is_dominant_where_launches_show_it_and_not_for_a_low_mfu() -> None:
    for launches, mark in ((60.0, "x"), (10.0, " "), (None, " ")):
        page = sheet(3, {"analysis": {MFU: 3.0, LAUNCH: launches}})
        assert re.search(rf"^- \[{mark}\] Kernel overhead dominant", page, re.MULTILINE), launches
        assert "- [x] < 20% MFU: Severely underutilized \u2014 yes: 3.0 %" in page


def test_a_box_is_decided_by_its_limits() -> None:
    for rule, inside, outside in (
        ("above 5 x", [5.1], [5, 4.9]),
        ("below 5 copies a step", [4.9], [5, 5.1]),
        ("from -1.15 to -0.85", [-1.15, -0.85], [-1.16, -0.84]),
        ("from 5 to below 7 %", [5, 6.9], [4.9, 7]),
    ):
        assert all(holds(value, rule) for value in inside)
        assert not any(holds(value, rule) for value in outside)


# Boxes and answers with a logic of their own.


def at_rates(*rates: float) -> OfRuns:
    costs = [step_cost(name).model_flops for name in NAMES]
    return each(SPEED, *(cost / rate for cost, rate in zip(costs, rates, strict=True)))


def mm_and(name: str, share: float) -> Changes:
    rows = [("aten::mm", 9, 1.0, 100 - share), (name, 9, 1.0, share)]
    return {TABLE: operator_table(rows), "operators.matrix_product_percent": 100 - share}


WIDE, LESS_MEMORY = of(ffn__swiglu=80.0, rms_norm=10.0), {PEAK: 10 << 20}
# exercise, label, and changes with which its box is another than without any
FLIPPED: list[tuple[int, str, OfRuns]] = [
    (1, "Attention operations dominate", {EVERY: WIDE}),
    (1, "Matrix multiplications are the", {EVERY: mm_and("aten::mul", 70)}),
    (1, "Memory usage grows", {EVERY: {FORWARD: 104, BEFORE: 100}}),
    (1, "**High:** Fused QKV", {EVERY: of(attention__qkv_proj=20.0)}),
    (1, "All of the above", {EVERY: WIDE}),
    (1, "Ready to proceed", {EVERY: {"summary.steps_completed": 3}}),
    (2, "During att", {EVERY: {WHERE: "attention/core"}}),
    (2, "clear drops", {EVERY: {AFTER: [95], LIVE_PEAK: 100}}),
    (2, "Promptly", {EVERY: {AFTER: [110, 110], BEFORE: 100}}),
    (2, "Not at all", {EVERY: {AFTER: [100, 110], BEFORE: 100}}),
    (2, "Reduce fragmentation", {EVERY: {"memory.fragmentation.held_bytes": 10**12}}),
    # without a saving of memory that could be worth it as well
    (
        *(3, "**Flash Attention**"),
        {"analysis": named(attention__core=1.0), "version_2_long": {PEAK: 1 << 40}},
    ),
    (3, "**Mixed Precision**", {"mixed_precision": LESS_MEMORY}),
    (3, "Batch size 16, sequence", {"version_2_scaling": {SPEED: 99.0}}),
    (3, "Memory scaling with sequence", {"version_2_long": {PEAK: 1 << 40}}),
    (3, "Numerical accuracy validation", {"version_2": {LOSS: 6.8}}),
    (3, "Deterministic execution", {"deterministic_2": {"steps.3.loss": 6.000001}}),
]


@pytest.mark.parametrize(("number", "label", "changes"), FLIPPED)
def test_boxes_follow_the_numbers(number: int, label: str, changes: OfRuns) -> None:
    assert box(sheet(number, changes), label) is not box(plain(number), label)


# of six steps
KEEPING = [
    row | {"self_memory_bytes": 6 * MB * size}
    for row, size in zip(
        operator_table([(n, 1, 1.0, 1.0) for n in "abab"]), (1, 2, 2, 3), strict=True
    )
]
SHAPES_OF_MM = operator_table(
    [("aten::mm", 4, 1.0, 25.0), ("aten::bmm", 4, 1.0, 40.0), ("aten::mm", 4, 1.0, 25.0)]
)
TWO_SHAPES = {"analysis": {TABLE: SHAPES_OF_MM, "operators.steps": 2}}
PLUS_30 = {"plain": {PEAK: 100 * MB}, "profiled": {PEAK: 130 * MB}}
LESS = {"analysis": {SCORES: 10 << 20}, "baseline": {PEAK: 100 << 20}}
FEW_SCORES = {n: {LIVE_PEAK: 1000 << 20, SCORES: 1 << 20} for n in NAMES}
GROWING = peaks(LENGTHS, 100, 150, 250, 200)
BOUND = "**3. Is the workload prim"
CALLS = {"analysis": {"operators.operator_calls_per_step": 1000}}
# exercise, what is asked, changes by run, and what the answer, or the row, then holds; `[x] ...`:
# the one box of that question which is ticked
ANSWERS: list[tuple[int, str, OfRuns, str]] = [
    (1, "How much overhead", {EVERY: {OVERHEAD: 21.5}}, "above the range"),
    (1, "Top 3 optimization targets", {EVERY: {LAUNCH: 99.0}}, "1. Batch size scaling"),
    # what a profiler did not see is unknown, and not a share of zero
    (1, "Does the text's rank hold", {EVERY: {LAUNCH: None}}, "not measured is unknown; rule"),
    (1, "What is the primary bottleneck", {EVERY: {WAIT: 96.0}}, "[x] Data loading"),
    (1, "Based on memory", {EVERY: {SCORES: 20, LIVE_PEAK: 80}}, "25.0 %, at most all attention"),
    (1, "Training speed", {"plain": {MICRO: 2, SPEED: 0.1}}, "160 samples/sec"),
    (1, "difference in memory", PLUS_30, "30.0 MB: 130.0 MB with, 100.0 MB without"),
    (2, "1 ", {EVERY: {TABLE: KEEPING}}, "b | 5.0 MB"),
    (2, "64 ", GROWING, "8 | 100.0 MB | 0.0 MB | 1.00x"),
    (2, "256 ", GROWING, "8 | 250.0 MB | 150.0 MB | 2.50x"),
    # of half the batch: what a sample takes is the fair factor
    (2, "512 ", GROWING, "4 | 200.0 MB | 100.0 MB | 2.00x | 4.00x"),
    (2, "What memory optimization", {EVERY: {KEPT: 0, SCORES: 10**9}}, "Flash Attention"),
    (2, "behavior", peaks(BATCHES, 100, 150, 270), "Batch size scaling: Superlinear — yes"),
    (3, "**1. What is the single", {"analysis": named(optimizer=90.0)}, "[x] Memory bandwidth"),
    (
        *(3, "**2. What type"),
        *({"analysis": {LAUNCH: 80.0}, "mixed_precision": {SPEED: 0.3}}, "[x] Kernel fusion"),
    ),
    (3, BOUND, {"analysis": {LAUNCH: 60.0}}, "[x] Overhead-bound (optimize"),
    (3, BOUND, {"analysis": {LAUNCH: 48.0}}, "[x] Mixed workload (balanced"),
    (3, "Peak memory usage", LESS, "100.0 MB | 90.0 MB"),
    (3, "Operator count (CPU)", CALLS, "1,000 | 964"),
    # rows of one operator and several shapes are one
    (3, "1 ", TWO_SHAPES, "aten::mm | 50.0 % | 66.7 % | 4 |"),
    (3, "GPU become saturated", at_rates(1e11, 2e11, 2.1e11), "Answer: small"),
    (3, "GPU become saturated", at_rates(1e11, 2e11, 4e11), "none of the measured"),
    (3, "attention memory become", FEW_SCORES | {"small": {SCORES: 1 << 30}}, "size small"),
    # all of medium's attention is more
    (
        *(3, "most from Flash"),
        {"small": of(attention__core=70.0), "medium": of(attention__qkv_proj=90.0)},
        "Answer: small",
    ),
    (3, "most memory-bound", each(INTENSITY, 100, 10, 1), "medium, most compute-bound tiny"),
    (3, "improve throughput", {"medium": named(optimizer=80.0)}, "the step is 1.67x as fast"),
    (3, "What batch size would", {"batch_16": {SPEED: 0.24}}, "32; the largest that"),
]


@pytest.mark.parametrize(("number", "asked", "changes", "words"), ANSWERS)
def test_answers_follow_the_numbers(number: int, asked: str, changes: OfRuns, words: str) -> None:
    pages = (sheet(number, changes), plain(number))
    found, before = (" ".join(answer(page, asked).split()) for page in pages)
    assert words in found and words not in before
    assert not words.startswith("[x]") or found.count("[x]") == 1


# Figures by hand.


def test_each_leaf_counts_under_its_own_point_or_its_group() -> None:
    shares = of(attention__core=40.0, attention__rotary=10.0, ffn__swiglu=30.0, optimizer=20.0)
    of_points = {
        "step": ("memory", 1.0),
        "attention": ("compute", 25.0),
        "attention/rotary": ("memory", 50.0),
        "ffn": ("compute", 90.0),
    }
    points = [
        {"name": name, "bound": bound, "percent_of_attainable": percent}
        for name, (bound, percent) in of_points.items()
    ]
    page = sheet(
        1, {EVERY: {**shares, "flops.roofline_data.points": points, LAUNCH: 0.0, WAIT: 0.0}}
    )
    # 40 x 0.75 and 30 x 0.1 miss the roof; the step's own point is nobody's
    assert "Compute utilization (device not fully utilized) — yes: 33.0 %" in page
    # the optimizer multiplies nothing
    assert "Memory bandwidth (many small operations) — no: 30.0 %" in page
    summary = made_up_summary({**shares, "flops.roofline_data.points": points, LAUNCH: 20.0})
    assert exercise_3.memory_bound_percent(summary, ("attention/rotary",)) == 20.0
    assert exercise_3.memory_bound_percent(summary, ("attention/rot",)) == 30.0
    assert list(exercise_3.bounds(summary).values()) == pytest.approx([24.0, 56.0, 20.0])


def test_growth_by_hand() -> None:
    # bytes of a sample over the sequence, at batch 8 and 4
    known = {"linear": 64.0, "square": 64.0, "small": 1e-3}
    grown = {"linear": 64.0 * 4, "square": 64.0 * 32, "small": 1e-2}
    found = exercise.component_growth({64: (8, known), 512: (4, grown)})
    assert [(name, round(power, 6)) for name, power, _ in found] == [("square", 2), ("linear", 1)]


# Exercise 3: what an ablation measured, and predictions.


def test_the_plan_follows_measured_speedups(monkeypatch: pytest.MonkeyPatch) -> None:
    good, slow = (evidence(qkv=value) for value in (1.15, 0.97))
    chance = measured_ratio(1.15, 0.9, 1.4)
    doubtful = dataclasses.replace(good, speedups={"qkv": chance, "layout": chance})
    for found, cell, planned in (
        (good, "1.15 (1.15 to 1.15) with qkv", True),
        (slow, "0.97 (0.97 to 0.97) with qkv", False),
        (doubtful, "~ 1.15", False),  # what may be chance is not planned
    ):
        know(monkeypatch, found, chance)
        text = sheet(3)
        assert cell in answer(text, "QKV projections")
        assert box(text, "**QKV Fusion**") is planned
    assert box(text, "**Memory Layout**") is box(text, "**Torch Compile**") is False
    twice = evidence(qkv=1.01, sdpa=0.9, gate_up=0.9, layout=2.0)
    know(monkeypatch, twice, twice.speedups["layout"])
    # memory alone is no reason for a slower step
    text = sheet(3, {"mixed_precision": {SPEED: 0.9, **LESS_MEMORY}})
    assert box(text, "**Mixed Precision**") is False
    asked = answer(text, "**4. What should be the first optimization")
    assert "[x] Torch compile" in asked and asked.count("[x]") == 1
    assert box(text, "**Memory Layout**") is box(text, "**Torch Compile**") is True


def test_torch_compile_is_of_the_peers_of_this_step(tmp_path: Path) -> None:
    context = json.loads(PEERS.read_text())["context"]
    summary = made_up_summary({f"context.{key}": context[key] for key in ("device", "threads")})
    best = exercise_3.compile_speedup(summary)
    # its best form, over our baseline
    assert best is not None and best.median == pytest.approx(1.1328, abs=1e-4)
    assert exercise_3.compile_speedup(summary, tmp_path) is None


def test_gains_by_hand() -> None:
    none = {"attention/qkv_proj": 0.0, "ffn/gate_up_proj": 0.0, "ffn/swiglu": 0.0}
    # half of the step becomes 2 * 128 / 129 times as fast
    half = 1 / (1 - 0.5 + 0.5 * 129 / 256)
    changes = {
        "analysis": {"components": {**none, "attention/core": 50.0}},
        **{"baseline": {SPEED: 0.3}, "version_2": {SPEED: 0.1}},
    }
    text = answer(sheet(3, changes), "expected overall speedup")
    assert f"{half:.2f}x by Amdahl" in text and "3.00x measured" in text
    gain = exercise_3.traffic_gain
    # of the step, 20 % and 9.1 % are saved; what is slower is not done
    measured_gain, _ = gain({}, evidence(fused_norm=1.25, fused_adamw=1.1, fused_rotary=0.9))
    assert measured_gain == pytest.approx(1 / (1 / 1.25 + 1 / 1.1 - 1))
    # half of the step is idle, so half of what the busy one saves is saved
    busy, idle = (gain(made_up_summary({LAUNCH: n}, gpu=True), None)[0] for n in (0.0, 50.0))
    assert busy > 1.01 and idle == pytest.approx(1 / (1 - (1 - 1 / busy) / 2))


def test_forecasts_decide_the_largest_model_batch_and_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for gib, model, batch in (
        (4, "medium: 167,224,320 parameters", "1; the largest that fits is 1"),
        (1000, "very_large: 10,691,284,992 parameters", "16; the largest that fits is 128"),
    ):
        predict(monkeypatch, gib)
        page = sheet(3)
        assert f"at batch 1 {model}" in answer(page, "What's the largest model")
        assert f"Answer: {batch}" in answer(page, "What batch size would you")
    assert box(page, "quadratic") is True
    # where tiny alone fits
    predict(monkeypatch, 0.2)
    alone = sheet(3)
    for label in ("At least 2 problem sizes", "Scaling patterns", "Performance characteristics"):
        assert box(page, label) is True and box(alone, label) is False
    assert "of tiny: twice as fast" in answer(alone, "improve throughput")
    assert "predicted peak memory" in answer(alone, "small ")


# The command.


def test_the_worksheet_is_written_and_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PlayedProgram(arguments=("--threads=2",))
    status, page = run(3, tmp_path / "new folder", program, "--size=small")
    assert (status, unanswered(page)) == (0, [])
    # commands are those that ran
    commands = re.findall(r"\| (build/benchmarks/tiny_llama_train .*?) \|", page)
    assert len(commands) >= 3 and all(" --threads=2 " in command for command in commands)
    said = capsys.readouterr()
    assert said.out.strip().endswith("exercise_3.md") and "run 1 of" in said.err
    report = tmp_path / "new folder/exercise_3/bottleneck_analysis/performance_summary_report.md"
    assert "aten::mm" in report.read_text()
    assert (report.parent / "flops_analysis/flops_profile.json").is_file()
    assert "--size=large" not in {option for call in program.calls for option in call}


def test_exercises_run_what_their_sheets_say(tmp_path: Path) -> None:
    first, second = PlayedProgram(), PlayedProgram()
    run(1, tmp_path, first)
    plain, profiled, memory = first.calls
    assert plain == ["--batch-size=8", "--seq-len=128", "--num-steps=20", "--size=tiny"]
    assert profiled == [*plain, "--enable-pytorch-profiler", "--profile-steps=5"]
    assert memory == [*plain, "--profile-memory", "--enable-deepspeed-flops"]
    run(2, tmp_path, second)
    shapes = [tuple(int(o.partition("=")[2]) for o in call[:3]) for call in second.calls]
    by_batch, by_seq = [(b, 128, 15) for b in (4, 8, 16)], [(8, s, 10) for s in (64, 128, 256)]
    assert shapes == [*by_batch, *by_seq, (4, 512, 5), (8, 128, 10), (8, 128, 10)]
    assert "--profile-operators" in second.calls[7]


def test_the_longest_sequence_is_asked_of_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"largest": 640, "predicted_memory_bytes": 2**33, "skip_reason": ""}
    nothing = row | {"largest": None, "skip_reason": "no room"}
    asked = Mock(side_effect=[{"limits": [row]}, {"limits": [nothing]}, KeyboardInterrupt])
    monkeypatch.setattr(exercise, "ask_json", asked)
    for status, words in (
        (0, "is 640 tokens, with a predicted peak of 8,192.0 MB"),
        (0, "Answer: not predicted: no room"),
        (130, "Answer: not predicted: interrupted"),
    ):
        ended, page = run(2, tmp_path, PlayedProgram(), "--device=cpu")
        assert ended == status and unanswered(page) == []
        assert words in answer(page, "At what sequence length")
    wanted = "--find-limit=seq --device=cpu --components=full_step --sizes=tiny --dtypes=f32"
    options = asked.call_args.args[1]
    assert options[:5] == wanted.split() and "--batch=8" in options


# of exercise 3: during the analysis, the samples of the sizes, and the sizes
@pytest.mark.parametrize(("number", "after"), [(1, 1), (3, 1), (3, 16), (3, 18)])
def test_ctrl_c_keeps_what_was_measured(number: int, after: int, tmp_path: Path) -> None:
    status, page = run(number, tmp_path, PlayedProgram(interrupt_after=after))
    assert status == 130
    assert unanswered(page) == [] and "interrupted" in page
    beside = tmp_path / f"exercise_{number}"
    assert len(list(beside.rglob("performance_summary.json"))) >= min(after, 4)


@pytest.mark.parametrize("number", [1, 3])
def test_what_gives_no_figure_keeps_the_earlier_page(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"exercise_{number}.md").write_text("earlier", encoding="utf-8")
    assert run(number, tmp_path, PlayedProgram(interrupt_after=0)) == (130, "earlier")
    program = PlayedProgram(refuses={"--size=tiny": "--device 'cuda:9': there is no such device"})
    assert run(number, tmp_path, program) == (2, "earlier")
    assert len(program.calls) == 1
    assert "scripts/exercise: tiny_llama_train: --device 'cuda:9'" in capsys.readouterr().err
    assert run(number, tmp_path / "new/folder", program)[0] == 2
    assert not (tmp_path / "new").exists()


NOT_FINITE = PlayedProgram(exit_status=1, changes={"operators": None})


@pytest.mark.parametrize(
    ("number", "program", "words"),
    [
        (2, "--seq-len=256", "tiny_llama_train: no room"),
        (3, "--enable-deepspeed-flops", "bottleneck_analysis: tiny_llama_train: no room"),
        (3, "--num-steps=3", "problem sizes: tiny_llama_train: no room"),
        (3, NOT_FINITE, "pytorch_profiling: its summary has no `operators`"),
        (1, PlayedProgram(exit_status=1), "exit status 1; rule: 0"),
    ],
)
def test_what_fails_is_on_the_page(
    number: int, program: str | PlayedProgram, words: str, tmp_path: Path
) -> None:
    if isinstance(program, str):
        program = PlayedProgram(refuses={program: "no room"})
    status, page = run(number, tmp_path, program)
    assert status == 1
    assert words in page and unanswered(page) == []
    if number == 2:
        # a size that did not fit is a row and no answer
        assert "no room" in answer(page, "256 ")
        for label in ("Linear (~2x", "Sequence length scaling analyzed", "Ready to proceed"):
            assert box(page, label) is False


def test_a_study_of_which_no_size_fits_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(monkeypatch, 1e-3)
    status, page = run(3, tmp_path, PlayedProgram())
    assert status == 1
    assert "no problem size was measured" in page and unanswered(page) == []
