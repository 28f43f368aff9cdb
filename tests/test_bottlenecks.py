"""Exercise 3's six bottlenecks, what optimizations save, and the shares they stand on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fake_exercise import (
    changed_summary,
    made_up_evidence,
    measured,
    named,
    operator_table,
)
from fake_suite_program import CONTEXT, POINT
from fake_training import made_up_summary
from tinyllama_tools.commands import exercise_1
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.models.ablations import (
    Cell,
    Evidence,
    Point,
    Study,
    find_evidence,
    read_evidence,
    result_text,
)
from tinyllama_tools.models.bottlenecks import (
    ATTENTION,
    CATEGORIES,
    CHECKPOINTING,
    FLASH,
    FUSION,
    LAUNCHES,
    MEMORY,
    MIXED,
    OPTIMIZATIONS,
    QKV,
    SOFTMAX,
    SWIGLU,
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    effects_by_ablation,
    effects_by_shares,
    rank_bottlenecks,
    small_calls_percent,
)
from tinyllama_tools.stats.rank_tests import ratio_of_turns

LAUNCH = "operators.launch_overhead_percent"
MIB = 2**20


def evidence(**speedups: float) -> Evidence:
    return made_up_evidence(Path("ablation.json"), **speedups)


def judged(summary: dict, found: Evidence | None = None) -> dict[str, Bottleneck]:
    return {bottleneck.name: bottleneck for bottleneck in rank_bottlenecks(summary, found)}


def with_shares(summary: dict, **percents: float) -> dict:
    """The same profile where these components take so much."""
    return changed_summary(summary, named(**percents))


def test_shares_are_those_of_the_profile_and_speedups_by_hand() -> None:
    summary = with_shares(
        made_up_summary({LAUNCH: 50.0}),
        attention__qkv_proj=40.0,
        attention__core=20.0,
        ffn__gate_up_proj=30.0,
        ffn__swiglu=10.0,
    )
    found = judged(summary)
    assert [found[n].share_percent for n in (QKV, ATTENTION, SWIGLU, LAUNCHES)] == [40, 20, 40, 50]
    assert found[SOFTMAX].share_percent == summary["operators"]["softmax_percent"]
    # half of the time is launches, of which one of three is left
    assert found[QKV].factor == pytest.approx(1 / (0.5 + 0.5 / 3))
    assert found[QKV].expected_speedup == pytest.approx(1 / (0.6 + 0.4 * (0.5 + 0.5 / 3)))
    assert found[QKV].upper_bound == pytest.approx(1 / 0.6)
    # of 128 x 128 scores the mask leaves 128 x 129 / 2
    assert found[ATTENTION].factor == found[SOFTMAX].factor == pytest.approx(256 / 129)
    assert found[ATTENTION].expected_speedup == pytest.approx(1 / (0.8 + 0.2 * 129 / 256))
    # two launches become one; of five passes over memory three are left
    assert found[SWIGLU].factor == pytest.approx(40 / (30 * 0.75 + 10 * 3 / 5))
    layers = summary["configuration"]["n_layers"]
    assert found[LAUNCHES].factor == pytest.approx((7 * layers + 1) / (4 * layers + 1))
    memory = summary["memory"]
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    assert found[MEMORY].factor == pytest.approx(every / (every - small))
    rows = summary["operators"]["table"]
    rows[0]["name"] = "aten::empty_strided"
    seconds = sum(r["cpu_self_seconds"] for r in rows if r["name"].startswith("aten::empty"))
    share = 100 * seconds / sum(row["cpu_self_seconds"] for row in rows)
    assert judged(summary)[MEMORY].share_percent == pytest.approx(share)


def test_the_order() -> None:
    found = rank_bottlenecks(made_up_summary())
    assert sorted(b.name for b in found) == sorted(name for name, *_ in CATEGORIES)
    assert [b.priority for b in found] == [1, 2, 3, 4, 5, 6]
    for is_worthwhile in (True, False):
        quadrants = [b.quadrant for b in found if b.is_worthwhile == is_worthwhile]
        assert quadrants == sorted(quadrants)
    small, large = (
        judged(with_shares(made_up_summary(), attention__core=share))[ATTENTION]
        for share in (1.0, 60.0)
    )
    assert (small.quadrant, large.quadrant) == (4, 2) and large.priority < small.priority
    assert judged(made_up_summary())[QKV].quadrant == 3
    fast = judged(made_up_summary(), evidence(qkv=1.15))[QKV]
    assert (fast.best_known_speedup, fast.quadrant, fast.priority) == (1.15, 1, 1)


def test_what_brings_nothing_comes_last() -> None:
    summary = with_shares(made_up_summary(), attention__core=10.0, attention__qkv_proj=40.0)
    chance = ratio_of_turns([1.3, 0.9] * 3, [1.0] * 6)
    # the first may be chance, the second is below what is worth anything
    known = evidence(sdpa=1.09, gate_up=WORTHWHILE_SPEEDUP - 0.001, graph=1.0)
    known = dataclasses.replace(known, speedups={**known.speedups, "qkv": chance})
    order = rank_bottlenecks(summary, known)
    found = {b.name: b for b in order}
    assert (found[QKV].quadrant, found[ATTENTION].quadrant) == (1, 4)
    assert order[0].name == ATTENTION
    worth = [b.is_worthwhile for b in order]
    assert worth == sorted(worth, reverse=True)
    assert not found[QKV].is_worthwhile and not found[SWIGLU].is_worthwhile


def test_the_best_known_speedup_is_measured_up_to_the_bound() -> None:
    found = judged(made_up_summary(), evidence(sdpa=1.02, fused_attention=1.5))
    assert found[ATTENTION].measured_text.endswith("with fused_attention")
    # what is beyond the bound is not the category's doing
    assert found[SOFTMAX].best_known_speedup == found[SOFTMAX].upper_bound < 1.1
    on = judged(made_up_summary(variant="qkv"))
    assert on[QKV].expected_speedup == 1 and on[SWIGLU].expected_speedup > 1


def test_a_gpus_shares_are_made_shares_of_the_step() -> None:
    idle = with_shares(made_up_summary({LAUNCH: 40.0}, gpu=True), attention__core=50.0)
    found = judged(idle)
    assert found[ATTENTION].share_percent == pytest.approx(30)
    assert found[ATTENTION].upper_bound == pytest.approx(1 / 0.7)
    assert found[SOFTMAX].share_percent == pytest.approx(0.6 * idle["operators"]["softmax_percent"])
    assert found[LAUNCHES].share_percent == 40
    assert found[LAUNCHES].factor == idle["operators"]["kernels_per_step"]
    assert judged(changed_summary(idle, {LAUNCH: None}))[ATTENTION].share_percent is None


def test_without_a_profiler_nothing_is_claimed() -> None:
    found = rank_bottlenecks(made_up_summary(profilers=()))
    assert len(found) == len(CATEGORIES)
    for b in found:
        assert (b.share_percent, b.expected_speedup, b.quadrant) == (None, None, None)


# What an ablation measured.


def ablation(peaks: dict[str, float] | None = None, qkv: float = 0.08, **context: object) -> Study:
    """Turns of baseline and qkv; peaks in MiB by row (`mixed`: the baseline under autocast)."""
    study = Study(context={**CONTEXT, **context})
    amp = Point(POINT.size, "amp_bf16", POINT.batch, POINT.seq)
    for name, peak in {"baseline": 100.0, "qkv": 100.0, **(peaks or {})}.items():
        time = {"baseline": 0.1, "qkv": qkv}.get(name, peak / 1000)
        turns = {turn: time * (1 + turn / 100) for turn in range(6)}
        where = amp if name == "mixed" else POINT
        row = "baseline" if name == "mixed" else name
        cell = Cell(row, where, variant=row, turns=turns, counters={"peak_memory_MiB": peak})
        study.add(cell)
    return study


def write_ablation(results: Path, study: Study, name: str = "a") -> Path:
    path = results / f"reference/ablation_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result_text(study))
    return path


def test_an_ablation_of_this_device_is_found(tmp_path: Path) -> None:
    summary = made_up_summary({"context": CONTEXT})
    assert find_evidence(summary, tmp_path) is None
    study = ablation()
    # what failed after some turns is no evidence
    cells = {name: study.get(name, POINT) for name in ("baseline", "qkv")}
    study.add(dataclasses.replace(cells["qkv"], row="gate_up", failure="wrong"))
    of_type = dataclasses.replace(POINT, dtype="bf16")
    for cell in cells.values():
        study.add(dataclasses.replace(cell, point=of_type))
    path = write_ablation(tmp_path, study)
    other = CONTEXT["device"] | {"name": "another"}
    write_ablation(tmp_path, ablation(device=other, qkv=0.01), "other")
    (tmp_path / "reference/ablation_broken.json").write_text("{")
    found = find_evidence(summary, tmp_path)
    assert found is not None and found.file == path
    assert found.speedups.keys() == {"qkv"}
    assert found.speedups["qkv"].median == pytest.approx(1.25)
    summary = made_up_summary({"context": CONTEXT, "configuration.dtype": "bf16"})
    assert read_evidence(path, summary).speedups["qkv"].median == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context.device.name": "another"}, r"those of the profile \('another'"),
        ({"context.threads": 64}, "'cpu', 64, 1"),
        ({"configuration.variant": "fused"}, "over baseline, not fused"),
        ({"configuration.seq_len": 64}, "no turn at .*sequence 64"),
        ({"configuration.gradient_accumulation_steps": 2}, "'cpu', 2, 2"),
    ],
)
def test_an_ablation_of_something_else(tmp_path: Path, changes: dict, words: str) -> None:
    path = write_ablation(tmp_path, ablation())
    summary = made_up_summary({"context": CONTEXT} | changes)
    with pytest.raises(BadInputError, match=words):
        read_evidence(path, summary)
    assert find_evidence(summary, tmp_path) is None


# What optimizations save of the memory.


def test_bounds_by_shares_of_the_peak() -> None:
    kept = {"rms_norm": 7, "attention/core": 10**6}
    peak = {"activations": 60, "attention_scores": 20}
    memory = {"breakdown_at_peak": peak, "component_activation_bytes": kept}
    for layers, all_but_one in ((4, 60), (1, 0)):
        found = {e.name: e.saved_bytes for e in effects_by_shares(memory, layers)}
        assert found == {FLASH: 20, CHECKPOINTING: all_but_one, MIXED: 40, FUSION: 7}


PEAKS = {"sdpa": 90, "fused_attention": 88, "checkpoint": 50, "mixed": 94, "fused_norm": 93}


def test_measured_effects_are_against_the_baseline() -> None:
    found = {e.name: e for e in effects_by_ablation(ablation(PEAKS), POINT)}
    saved = {name: effect.saved_bytes / MIB for name, effect in found.items()}
    assert saved == {FLASH: 12, CHECKPOINTING: 50, MIXED: 6, FUSION: 7}
    assert "`fused_attention`" in found[FLASH].basis and "amp_bf16" in found[MIXED].basis
    assert effects_by_ablation(ablation(PEAKS), Point("small", "f32", 8, 128)) == []


def test_measured_savings_decide_before_bounds(tmp_path: Path) -> None:
    runs = measured(1, {"": {"context": CONTEXT}})

    def boxes(**peaks: float) -> str:
        write_ablation(tmp_path, ablation(peaks))
        page = exercise_1.sheet_of(runs, find_evidence(runs["plain"].summary, tmp_path)).page
        return page.split("**4. Based on memory")[1].split("## Key")[0]

    for first, label in (("sdpa", "Flash Attention"), ("checkpoint", "Gradient checkpointing")):
        text = boxes(**{**PEAKS, "fused_attention": 95, "checkpoint": 80, first: 10})
        assert f"[x] {label}" in text and text.count("measured: `") == len(OPTIMIZATIONS)
    # one that lacks any of the four does not rank
    assert "measured" not in boxes(sdpa=90, checkpoint=50)


def test_only_rows_that_work_count() -> None:
    views = ("aten::view", "aten::t", "detach", "torch::autograd::AccumulateGrad", "MulBackward0")
    dispatching = operator_table([(name, 99, 1e-4, 0.1) for name in views])
    rows = [("aten::mm", 30, 1.0, 60.0), ("aten::_softmax_backward_data", 20, 1.0, 30.0)]
    short = [("aten::add_", 50, 50e-6, 1.0), ("aten::transpose_kernel", 100, 100e-6, 0.1)]
    table = [*dispatching, *operator_table([*rows, *short])]
    assert small_calls_percent(table) == pytest.approx(75)
    assert small_calls_percent(dispatching) is None
    # on a GPU those with time of their own there
    table = operator_table([("aten::mm", 30, 1.0, 60.0), ("aten::add_", 10, 9.0, 1.0)])
    for row, seconds in zip([*table, *dispatching], (1.0, 1e-5, 0.0, None), strict=False):
        row["device_self_seconds"] = seconds
    assert small_calls_percent([*table, *dispatching]) == pytest.approx(25)
