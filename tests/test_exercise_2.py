"""Exercise 2: its worksheet and its longest sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from fake_exercise import Changes, measured, options
from tinyllama_tools.commands.exercise_2 import (
    BANDWIDTH,
    HOTSPOTS,
    Limit,
    component_growth,
    increment_ratio,
    planned_runs,
    sheet_of,
    target_shares,
)
from tinyllama_tools.commands.worksheet import MeasuredRun, unanswered
from tinyllama_tools.models.ablations import (
    BASELINE,
    Cell,
    Kind,
    Point,
    RowName,
    Study,
    result_text,
)
from tinyllama_tools.models.optimization_effects import (
    CHECKPOINTING,
    FLASH,
    FUSION,
    MIXED,
    OPTIMIZATIONS,
    Effect,
    effects_by_ablation,
    effects_by_shares,
    known_effects,
    ranked,
)
from tinyllama_tools.models.size_predictions import Prediction, Target
from worksheet_reading import answer, box, operator_table
from workshop_texts import ANSWERS_2, BOXES_2

OPTIONS = options(2)
NO_REFERENCES = Path("no/references/here")
NO_LIMIT = Limit(reason="not asked")
BATCHES = tuple(f"memory_analysis_bs{size}" for size in (4, 8, 16))
LENGTHS = tuple(f"memory_seq{size}" for size in (64, 128, 256, 512))
INTENSITY = "flops.computational_intensity.arithmetic_intensity_flops_per_byte"
USED = "flops.computational_intensity.memory_bandwidth_utilization_percent"
BUSY = "device_sampling.readings.utilization_percent.mean"
PRODUCTS = "operators.matrix_product_percent"
TRANSFERS = "operators.transfers_per_step"
PEAK = "memory.breakdown_at_peak"
AFTER, BEFORE = "memory.live_bytes_after_steps", "memory.baseline_bytes"
PHASE, COMPONENT = "memory.peak_phase", "memory.peak_component"
MB = 2**20


def sheet(
    every: Changes | None = None,
    by_run: dict[str, Changes] | None = None,
    references: Path = NO_REFERENCES,
) -> str:
    """The page of made-up runs."""
    runs = measured(planned_runs(OPTIONS), {"": every or {}, **(by_run or {})})
    return sheet_of(runs, OPTIONS, NO_LIMIT, references).page


def peaks(names: Sequence[str], *sizes: float) -> dict[str, Changes]:
    """Peaks in MB, run by run."""
    return {
        name: {"memory.peak_bytes": int(size * MB)}
        for name, size in zip(names, sizes, strict=False)
    }


def seconds(name: str, of_a_step: float) -> dict[str, Changes]:
    steps = measured(planned_runs(OPTIONS))[name].summary["steps"]  # type: ignore[index]
    return {name: {"steps": [{**step, "time_seconds": of_a_step} for step in steps]}}


def test_nothing_is_left_blank_on_a_cpu_and_on_a_gpu() -> None:
    for gpu in (False, True):
        runs = measured(planned_runs(OPTIONS), gpu=gpu)
        made = sheet_of(runs, OPTIONS, NO_LIMIT, NO_REFERENCES)
        assert unanswered(made.page) == []
        assert made.exit_status == 0


NULLS = {
    "memory.largest_spike": None,
    "memory.fragmentation": None,
    "memory.forward_peak_bytes": None,
    "memory.average_bytes": None,
    "memory.peak_to_average": None,
    INTENSITY: None,
    USED: None,
    "flops.computational_intensity.memory_bound_vs_compute_bound": None,
    "flops.computational_intensity.device_memory_bandwidth_source": None,
    "device_sampling.readings": {},
}


def test_what_was_not_measured_is_said_and_leaves_no_blank() -> None:
    page = sheet(NULLS)
    assert unanswered(page) == []
    assert "None" not in page
    assert "not measured" in answer(page, "Memory usage pattern")


def test_every_box_and_question_of_the_workshop_is_there() -> None:
    page = sheet()
    for label in BOXES_2:
        assert isinstance(box(page, label), bool)
    for asked in ANSWERS_2:
        assert answer(page, asked).strip()


BOTH_WAYS = [
    ("During forward pass", {PHASE: "forward"}, {PHASE: "backward"}),
    ("Forward pass", {PHASE: "forward"}, {PHASE: "backward"}),
    ("During backward pass", {PHASE: "backward"}, {PHASE: "forward"}),
    ("Backward pass", {PHASE: "backward"}, {PHASE: "optimizer"}),
    ("During optimizer", {PHASE: "optimizer"}, {PHASE: "forward"}),
    ("Optimizer step", {PHASE: "optimizer"}, {PHASE: "forward"}),
    ("During attention", {COMPONENT: "attention/core"}, {COMPONENT: "loss/lm_head"}),
    ("Attention computation", {COMPONENT: "attention/core"}, {COMPONENT: "loss/lm_head"}),
    ("clear drops", {AFTER: [1], "memory.peak_bytes": 10}, {AFTER: [95], "memory.peak_bytes": 100}),
    ("memory returns", {AFTER: [100], BEFORE: 100}, {AFTER: [105], BEFORE: 100}),
    ("Low GPU compute", {BUSY: 69.0}, {BUSY: 71.0}),
    ("High GPU compute", {BUSY: 81.0}, {BUSY: 79.0}),
    ("High memory bandwidth", {USED: 61.0}, {USED: 59.0}),
    ("Low memory bandwidth", {USED: 49.0}, {USED: 51.0}),
    (
        "Many small",
        {"operators.table": operator_table([("aten::mul", 1000, 0.001, 100.0)])},
        {"operators.table": operator_table([("aten::mul", 10, 1.0, 100.0)])},
    ),
    ("Frequent memory transfers", {TRANSFERS: 11}, {TRANSFERS: 10}),
    ("Large matrix", {PRODUCTS: 51.0}, {PRODUCTS: 49.0}),
    ("Good arithmetic", {INTENSITY: 101.0}, {INTENSITY: 99.0}),
    ("Memory-bound (low", {INTENSITY: 9.9}, {INTENSITY: 10.0}),
    ("Compute-bound (high", {INTENSITY: 100.1}, {INTENSITY: 100.0}),
    ("Mixed (moderate", {INTENSITY: 10.0}, {INTENSITY: 9.9}),
    ("Reduce attention", {f"{PEAK}.attention_scores": 10**10}, {f"{PEAK}.attention_scores": 0}),
    ("Reduce activation", {f"{PEAK}.activations": 10**10}, {f"{PEAK}.activations": 0}),
    ("Reduce parameter", {f"{PEAK}.optimizer_states": 10**10}, {f"{PEAK}.activations": 10**10}),
    (
        "Reduce fragmentation",
        {"memory.fragmentation.held_bytes": 10**12},
        {"memory.fragmentation.held_bytes": 0},
    ),
    ("Memory profiling completed", {}, {"memory": None}),
    (
        "Memory hotspots identified",
        {},
        {"operators.table": operator_table([("aten::mul", 1, 1.0, 100.0)])},
    ),
    ("Bandwidth utilization calculated", {}, {USED: None}),
]


@pytest.mark.parametrize(("label", "yes", "no"), BOTH_WAYS, ids=[c[0] for c in BOTH_WAYS])
def test_boxes_follow_the_numbers(label: str, yes: Changes, no: Changes) -> None:
    assert box(sheet(yes), label) is True
    if no == {"memory": None}:
        assert box(sheet(by_run={BATCHES[0]: no}), label) is False
    else:
        assert box(sheet(no), label) is False


@pytest.mark.parametrize(
    ("names", "sizes", "label"),
    [
        (BATCHES, (100, 150, 300), "It doubles"),
        (BATCHES, (100, 150, 320), "More than double"),
        (BATCHES, (100, 150, 250), "Less than double"),
        (BATCHES, (100, 150, 250), "Batch size scaling: Linear"),
        (BATCHES, (100, 150, 270), "Batch size scaling: Superlinear"),
        (BATCHES, (100, 150, 230), "Batch size scaling: Sublinear"),
        (LENGTHS, (100, 150, 250), "Linear (~2x"),
        (LENGTHS, (100, 150, 300), "Between linear"),
        (LENGTHS, (100, 150, 350), "Quadratic (~4x"),
        (LENGTHS, (100, 150, 250), "Sequence length scaling: Linear"),
        (LENGTHS, (100, 150, 350), "Sequence length scaling: Quadratic"),
        (LENGTHS, (100, 150, 550), "Sequence length scaling: Cubic"),
    ],
)
def test_scaling_follows_the_peaks(
    names: Sequence[str], sizes: Sequence[float], label: str
) -> None:
    assert box(sheet(by_run=peaks(names, *sizes)), label) is True
    other = (100, 150, 190) if sizes[2] > 250 else (100, 150, 900)
    assert box(sheet(by_run=peaks(names, *other)), label) is False


@pytest.mark.parametrize(
    ("asked", "changes", "words"),
    [
        ("Memory Efficiency", {"memory.peak_to_average": 1.1}, "low, consistent"),
        ("Memory Efficiency", {"memory.peak_to_average": 1.3}, "high, with spikes"),
        ("Memory usage pattern", {"memory.peak_to_average": 1.1}, "Steady"),
        ("Memory usage pattern", {"memory.peak_to_average": 1.3}, "Fluctuating"),
        ("Memory usage pattern", {"memory.peak_to_average": 1.5}, "Spiking"),
        ("Memory is deallocated", {AFTER: [100, 100], BEFORE: 100}, "Promptly"),
        ("Memory is deallocated", {AFTER: [110, 110], BEFORE: 100}, "Delayed"),
        ("Memory is deallocated", {AFTER: [100, 110], BEFORE: 100}, "Not at all"),
        ("Peak memory occurs at", {COMPONENT: "ffn/swiglu"}, "ffn/swiglu"),
        ("Largest memory spike", {"memory.largest_spike.component": "embedding"}, "embedding"),
        ("Bandwidth Utilization", {USED: 44.0}, "44.0 %"),
        ("Bandwidth utilization", {USED: 44.0}, "in the range"),
        ("Bandwidth utilization", {USED: 90.0}, "above the range"),
        ("Arithmetic Intensity", {INTENSITY: 33.0}, "33 FLOPS/byte"),
        (
            "Workload Classification",
            {"flops.computational_intensity.memory_bound_vs_compute_bound": "memory-bound"},
            "memory-bound",
        ),
        ("Number of Allocations", {"memory.allocations_per_step": 777}, "777"),
    ],
)
def test_words_follow_the_numbers(asked: str, changes: Changes, words: str) -> None:
    assert words in answer(sheet(changes), asked)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.0, "perfect scaling"),
        (1.91, "perfect scaling"),
        (1.5, "diminishing returns"),
        (1.0, "the device is already full"),
        (0.96, "the device is already full"),
        (0.94, "throughput falls, which a full device does not explain"),
    ],
)
def test_throughput_follows_the_times(factor: float, words: str) -> None:
    page = sheet(by_run={**seconds(BATCHES[1], 0.1), **seconds(BATCHES[2], 0.2 / factor)})
    assert words in answer(page, "Throughput Scaling")
    assert "80" in answer(page, "8 ")


def test_tables_hold_the_runs_of_their_size() -> None:
    page = sheet(by_run=peaks(LENGTHS, 100, 150, 250, 200))
    cells = [[c.strip() for c in answer(page, f"{n} ").split("|")] for n in (64, 256, 512)]
    assert [row[:4] for row in cells] == [
        ["8", "100.0 MB", "baseline", "1.00x"],
        ["8", "250.0 MB", "150.0 MB", "2.50x"],
        ["4", "200.0 MB", "100.0 MB", "2.00x"],
    ]
    # half of the batch: what a sample takes is the fair factor
    assert cells[2][5] == "4.00x"


@pytest.mark.parametrize(("component", "power"), [("ffn/swiglu", 1), ("attention/core", 2)])
def test_the_steepest_component_is_found(component: str, power: int) -> None:
    other = "loss/lm_head"
    by_run = {
        name: {
            "memory.component_activation_bytes": {
                other: int(1000 * seq**0.5),
                component: int(batch * seq**power),
            }
        }
        for name, seq, batch in zip(LENGTHS, (64, 128, 256, 512), (8, 8, 8, 4), strict=True)
    }
    found = answer(sheet(by_run=by_run), "steepest")
    assert f"{component}: its activations grow with S^{power}.00" in found


def test_components_too_small_to_matter_are_left_out() -> None:
    profiles = {64: (1, {"big": 1000.0, "tiny": 0.001}), 128: (1, {"big": 2000.0, "tiny": 1.0})}
    assert [name for name, _, _ in component_growth(profiles)] == ["big"]
    assert component_growth({64: (1, {"big": 1.0})}) == []


def test_increments_need_three_peaks() -> None:
    assert increment_ratio([10, 20, 60]) == 4
    assert increment_ratio([10, None, 60]) is None
    assert increment_ratio([10, 10, 60]) is None


def test_the_rank_follows_the_peak_and_then_the_ablation(tmp_path: Path) -> None:
    scores = {f"{PEAK}.attention_scores": 10**10, f"{PEAK}.activations": 0}
    assert "1. Flash Attention" in sheet(scores)
    other = {f"{PEAK}.activations": 10**10, f"{PEAK}.attention_scores": 0}
    page = sheet(other)
    assert "1. Gradient Checkpointing" in page
    assert "bound:" in page
    write(tmp_path, study(**{**COMPLETE, "sdpa": 10}))
    context = {"context.device": CONTEXT["device"], "context.threads": 2}
    page = sheet({**other, **context}, references=tmp_path)
    assert "1. Flash Attention" in page
    assert "measured: `sdpa`" in page
    assert "reference/ablation_card.json" in page


def test_the_law_describes_the_peaks() -> None:
    found = sheet()
    assert "memory(B, S) = " in found
    assert "The largest residual is 0.0 %" in found
    off = sheet(by_run=peaks([LENGTHS[3]], 5000))
    assert "The largest residual is 0.0 %" not in off


def test_a_size_that_did_not_fit_is_a_row_and_no_answer() -> None:
    runs = measured(planned_runs(OPTIONS))
    runs[LENGTHS[2]] = dataclasses.replace(runs[LENGTHS[2]], summary=None, reason="out of memory")
    made = sheet_of(runs, OPTIONS, NO_LIMIT, NO_REFERENCES)
    assert unanswered(made.page) == []
    assert made.exit_status == 1
    assert "not measured: out of memory" in answer(made.page, "256 ")
    assert box(made.page, "Linear (~2x") is False
    assert box(made.page, "Sequence length scaling analyzed") is False
    assert box(made.page, "Ready to proceed") is False


@pytest.mark.parametrize("name", [BATCHES[1], HOTSPOTS, BANDWIDTH])
def test_without_a_run_that_all_need_the_page_says_so(name: str) -> None:
    runs = measured(planned_runs(OPTIONS))
    runs[name] = dataclasses.replace(runs[name], summary=None, reason="refused")
    made = sheet_of(runs, OPTIONS, NO_LIMIT, NO_REFERENCES)
    assert made.exit_status == 1
    assert f"- {name}: refused" in made.page


def predicted(seq: int, peak: float) -> Prediction:
    return Prediction("custom", "baseline", "f32", 8, seq, 1, 1.0, 1.0, peak, "")


def confirmation(reason: str = "") -> MeasuredRun:
    summary = {
        "summary": {"peak_memory_bytes": 90 * MB, "first_step_seconds": 12.0},
        "model": {"predicted_peak_memory_bytes": 100 * MB},
    }
    return MeasuredRun("longest_sequence", "", None if reason else summary, 0, reason)


def limit_text(limit: Limit) -> str:
    """What the page says of this limit."""
    made = sheet_of(measured(planned_runs(OPTIONS)), OPTIONS, limit, NO_REFERENCES)
    assert unanswered(made.page) == []
    return made.page.split("**3. At what sequence length")[1].split("##")[0]


def limit(held_back_by: str, run: MeasuredRun | None) -> str:
    target = Target(predicted(3560, 99 * MB), predicted(3369, 90 * MB), 34.0, held_back_by)
    return limit_text(Limit(target, "", run))


def test_the_limit_is_predicted_and_confirmed() -> None:
    text = limit("memory", confirmation())
    assert "longest that fits is 3560 tokens" in text
    assert "Confirmed by one step at 3369 tokens (the rule is at most 90%" in text
    assert "peak 90.0 MB, predicted 100.0 MB, -10.0 % apart" in text
    assert "it took 12 s, estimated 34 s" in text
    assert "--max-minutes" in limit("time", confirmation())
    assert "failed: killed" in limit("memory", confirmation("killed"))
    assert "Not confirmed" in limit("memory", None)


def test_the_limit_says_why_there_is_none() -> None:
    assert "not predicted: no bench" in limit_text(Limit(reason="no bench"))
    nothing = Target(None, None, None, "not even two tokens fit")
    assert "not even two tokens fit" in limit_text(Limit(nothing))


POINT = Point("tiny", "f32", 8, 128)
AMP = Point("tiny", "amp_bf16", 8, 128)
CONTEXT = {
    "device": {"name": "Card", "architecture": "gfx942", "backend": "hip"},
    "threads": 2,
}
MIB = 2**20


def study(**peaks: float) -> Study:
    """Peaks in MiB by row; `mixed` is the baseline under autocast. Baseline: 100 MiB in 0.1 s."""
    made = Study([RowName(BASELINE, Kind.baseline)], context=dict(CONTEXT))
    cells = {(BASELINE, POINT): 100.0}
    for name, peak in peaks.items():
        cells[(BASELINE, AMP) if name == "mixed" else (name, POINT)] = peak
    for (row, point), peak in cells.items():
        seconds = {0: peak / 1000}
        cell = Cell(row, point, counters={"peak_memory_MiB": peak}, turns=seconds)
        (made.types if point == AMP else made.main).add(cell)
    return made


def memory(**parts: int) -> dict[str, object]:
    """A memory profile whose peak consists of these."""
    empty = dict.fromkeys(
        ("parameters", "gradients", "optimizer_states", "activations", "attention_scores"), 0
    )
    fused = parts.pop("fused", 0)
    held = parts.pop("held", 0)
    return {
        "breakdown_at_peak": empty | parts,
        "component_activation_bytes": {"rms_norm": fused, "attention/core": 10**6},
        "fragmentation": {"allocated_bytes": 0, "held_bytes": held},
    }


@pytest.mark.parametrize(
    ("parts", "first"),
    [
        ({"activations": 100, "attention_scores": 5}, CHECKPOINTING),
        ({"activations": 5, "attention_scores": 100}, FLASH),
        ({"activations": 5, "attention_scores": 5, "fused": 90}, FUSION),
    ],
)
def test_shares_decide_the_rank(parts: dict[str, int], first: str) -> None:
    found = ranked(effects_by_shares(memory(**parts), layers=4))
    assert found[0].name == first
    assert {effect.name for effect in found} == set(OPTIMIZATIONS)


def test_one_layer_has_nothing_to_recompute() -> None:
    found = {e.name: e for e in effects_by_shares(memory(activations=100), layers=1)}
    assert found[CHECKPOINTING].saved_bytes == 0
    assert found[MIXED].saved_bytes == 50


def test_measured_effects_are_against_the_baseline() -> None:
    made = study(
        sdpa=90, fused_attention=88, checkpoint=50, mixed=94, fused_norm=93, fused_swiglu=97
    )
    found = {effect.name: effect for effect in effects_by_ablation(made, POINT)}
    assert found[FLASH].saved_bytes == 12 * MIB
    assert "`fused_attention`" in found[FLASH].basis
    assert found[CHECKPOINTING].saved_bytes == 50 * MIB
    assert found[CHECKPOINTING].time_ratio == pytest.approx(0.5)
    assert found[MIXED].saved_bytes == 6 * MIB
    assert "amp_bf16" in found[MIXED].basis
    assert found[FUSION].saved_bytes == 7 * MIB
    names = [effect.name for effect in ranked(found.values())]
    assert names == [CHECKPOINTING, FLASH, FUSION, MIXED]


def test_of_equals_the_faster_is_first() -> None:
    slow, fast = Effect("slow", 5, 1.2, ""), Effect("fast", 5, 0.9, "")
    assert ranked([slow, fast]) == [fast, slow]


def test_nothing_was_measured_at_another_point() -> None:
    assert effects_by_ablation(study(sdpa=90), Point("small", "f32", 8, 128)) == []


COMPLETE = {"sdpa": 90, "checkpoint": 50, "mixed": 94, "fused_norm": 93}


def write(folder: Path, made: Study) -> None:
    (folder / "ablation_card.json").write_text(result_text(made), encoding="utf-8")


def origin(folder: Path, context: dict[str, object]) -> str:
    """Where the savings of a run on this device are from."""
    configuration = {"size": "tiny", "dtype": "f32", "batch_size": 8, "seq_len": 128}
    summary = {"context": context, "configuration": configuration, "memory": memory()}
    return known_effects("run", MeasuredRun("run", "", summary), folder)[1]


def test_the_reference_of_this_device_is_found(tmp_path: Path) -> None:
    (tmp_path / "ablation_broken.json").write_text("{")
    write(tmp_path, study(**COMPLETE))
    assert origin(tmp_path, CONTEXT) == "reference/ablation_card.json: main, types"
    for change in ({"name": "Other"}, {"architecture": "gfx90a"}, {"backend": "cuda"}):
        other = {**CONTEXT, "device": {**CONTEXT["device"], **change}}
        assert origin(tmp_path, other).startswith("run/")


def test_a_cpu_with_other_threads_is_another_device(tmp_path: Path) -> None:
    made = study(**COMPLETE)
    made.context = {"device": {"name": "CPU", "backend": "cpu"}, "threads": 2}
    write(tmp_path, made)
    assert origin(tmp_path, made.context).startswith("reference/")
    assert origin(tmp_path, {**made.context, "threads": 8}).startswith("run/")


def test_a_reference_that_lacks_one_of_the_four_does_not_rank(tmp_path: Path) -> None:
    write(tmp_path, study(sdpa=90, checkpoint=50, mixed=94))
    assert origin(tmp_path, CONTEXT).startswith("run/")


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"attention_scores": 9}, "attention"),
        ({"activations": 9}, "activation "),
        ({"optimizer_states": 9}, "parameter"),
        ({"held": 9}, "fragmentation"),
    ],
)
def test_targets_are_parts_of_the_peak(parts: dict[str, int], name: str) -> None:
    targets = target_shares(memory(**parts))
    assert next(size for label, size in targets.items() if name[:8] in label) == 9
    assert sum(targets.values()) == 9
