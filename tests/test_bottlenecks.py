"""Exercise 3's six bottlenecks, what optimizations save, and the ablation that both may rest on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fake_suite_program import CONTEXT, POINT
from fake_training import changed, made_up_summary, operator_table
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.models.ablations import (
    Cell,
    Evidence,
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
    QKV,
    SOFTMAX,
    SWIGLU,
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    memory_effects,
    rank_bottlenecks,
    small_calls_percent,
)
from tinyllama_tools.stats.rank_tests import ratio_of_turns

LAUNCH = "operators.launch_overhead_percent"
CORE, PROJECTIONS = "attention/core", "attention/qkv_proj"


def evidence(**speedups: float) -> Evidence:
    ratios = {name: ratio_of_turns([value] * 6, [1.0] * 6) for name, value in speedups.items()}
    return Evidence(Path("ablation.json"), Study(), POINT, ratios)


def judged(summary: dict, found: Evidence | None = None) -> dict[str, Bottleneck]:
    return {bottleneck.name: bottleneck for bottleneck in rank_bottlenecks(summary, found)}


def test_shares_are_those_of_the_profile_and_speedups_by_hand() -> None:
    components = {PROJECTIONS: 40, CORE: 20, "ffn/gate_up_proj": 30, "ffn/swiglu": 10}
    summary = made_up_summary({LAUNCH: 50.0, "components": components})
    summary["operators"]["table"][0]["name"] = "aten::empty_strided"
    found = judged(summary)
    assert [found[n].share_percent for n in (QKV, ATTENTION, SWIGLU, LAUNCHES)] == [40, 20, 40, 50]
    assert found[SOFTMAX].share_percent == summary["operators"]["softmax_percent"]
    # half of the time is launches, of which one of three is left
    assert found[QKV].factor == pytest.approx(1 / (0.5 + 0.5 / 3))
    assert found[QKV].expected_speedup == pytest.approx(1 / (0.6 + 0.4 * (0.5 + 0.5 / 3)))
    assert found[QKV].upper_bound == pytest.approx(1 / 0.6)
    # of 128 x 128 scores the mask leaves 128 x 129 / 2
    assert found[ATTENTION].factor == found[SOFTMAX].factor == pytest.approx(256 / 129)
    # two launches become one; of five passes over memory three are left
    assert found[SWIGLU].factor == pytest.approx(40 / (30 * 0.75 + 10 * 3 / 5))
    layers = summary["configuration"]["n_layers"]
    assert found[LAUNCHES].factor == pytest.approx((7 * layers + 1) / (4 * layers + 1))
    memory, rows = summary["memory"], summary["operators"]["table"]
    every, small = memory["allocations_per_step"], memory["small_allocations_per_step"]
    assert found[MEMORY].factor == pytest.approx(every / (every - small))
    seconds = sum(r["cpu_self_seconds"] for r in rows if r["name"].startswith("aten::empty"))
    share = 100 * seconds / sum(row["cpu_self_seconds"] for row in rows)
    assert found[MEMORY].share_percent == pytest.approx(share)
    # of one that has it already
    assert judged(made_up_summary(variant="qkv"))[QKV].expected_speedup == 1


def test_the_order_is_by_quadrant_and_what_brings_nothing_comes_last() -> None:
    small, large = (judged(made_up_summary({"components": {CORE: share}})) for share in (1.0, 60.0))
    assert [found[ATTENTION].quadrant for found in (small, large)] == [4, 2]
    assert [*large].index(ATTENTION) < [*small].index(ATTENTION)
    fast = judged(made_up_summary(), evidence(qkv=1.15))
    assert fast[QKV].quadrant == 1 and next(iter(fast)) == QKV
    summary = made_up_summary({"components": {CORE: 10.0, PROJECTIONS: 40.0}})
    # the first may be chance, the second is below what is worth anything
    known = evidence(sdpa=1.09, gate_up=WORTHWHILE_SPEEDUP - 0.001, graph=1.0)
    known.speedups["qkv"] = ratio_of_turns([1.3, 0.9] * 3, [1.0] * 6)
    order = rank_bottlenecks(summary, known)
    found = {b.name: b for b in order}
    assert sorted(found) == sorted(name for name, *_ in CATEGORIES)
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


def test_a_gpus_shares_are_made_shares_of_the_step() -> None:
    idle = made_up_summary({LAUNCH: 40.0, "components": {CORE: 50.0}}, gpu=True)
    found = judged(idle)
    assert found[ATTENTION].share_percent == pytest.approx(30)
    assert found[SOFTMAX].share_percent == pytest.approx(0.6 * idle["operators"]["softmax_percent"])
    assert found[LAUNCHES].share_percent == 40
    assert found[LAUNCHES].factor == idle["operators"]["kernels_per_step"]
    for unknown in (changed(idle, {LAUNCH: None}), made_up_summary(profilers=())):
        of = judged(unknown)[ATTENTION]
        assert (of.share_percent, of.expected_speedup, of.quadrant) == (None, None, None)


def test_what_optimizations_save_is_at_most_their_part_of_the_peak() -> None:
    peak = {"activations": 60, "attention_scores": 20}
    kept = {"rms_norm": 7, CORE: 10**6}
    memory = {"breakdown_at_peak": peak, "component_activation_bytes": kept, "peak_bytes": 200}
    for layers, all_but_one in ((4, 60), (1, 0)):
        found = memory_effects({"memory": memory, "configuration": {"n_layers": layers}})
        saved = {row["name"]: row["saved_bytes"] for row in found}
        assert saved == {FLASH: 20, CHECKPOINTING: all_but_one, MIXED: 40, FUSION: 7}
        assert [*saved.values()] == sorted(saved.values(), reverse=True)
        assert found[0]["saved_percent"] == max(saved.values()) / 2


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


# What an ablation measured.


def write_ablation(results: Path, name: str, qkv: float = 0.08, **context: object) -> Path:
    """Turns of baseline and qkv; of gate_up one that failed after them; in f32 and bf16."""
    study = Study(context={**CONTEXT, **context})
    for row, time, failure in (("baseline", 0.1, ""), ("qkv", qkv, ""), ("gate_up", 0.05, "wrong")):
        turns = {turn: time * (1 + turn / 100) for turn in range(6)}
        for dtype in ("f32", "bf16"):
            point = dataclasses.replace(POINT, dtype=dtype)
            study.add(Cell(row, point, variant=row, turns=turns, failure=failure))
    path = results / f"reference/ablation_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result_text(study))
    return path


def test_an_ablation_of_this_device_is_found(tmp_path: Path) -> None:
    summary = made_up_summary({"context": CONTEXT})
    assert find_evidence(summary, tmp_path) is None
    path = write_ablation(tmp_path, "a")
    write_ablation(tmp_path, "b", qkv=0.01, device=CONTEXT["device"] | {"name": "another"})
    (tmp_path / "reference/ablation_broken.json").write_text("{")
    for of in (summary, changed(summary, {"configuration.dtype": "bf16"})):
        found = find_evidence(of, tmp_path)
        assert found is not None and found.file == path
        assert found.speedups.keys() == {"qkv"}
        assert found.speedups["qkv"].median == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context.device.name": "another"}, r"those of the profile \('another'"),
        ({"configuration.variant": "fused"}, "over baseline, not fused"),
        ({"configuration.seq_len": 64}, "no turn at .*sequence 64"),
        ({"configuration.gradient_accumulation_steps": 2}, "'cpu', 2, 2"),
    ],
)
def test_an_ablation_of_something_else(tmp_path: Path, changes: dict, words: str) -> None:
    path = write_ablation(tmp_path, "a")
    with pytest.raises(BadInputError, match=words):
        read_evidence(path, made_up_summary({"context": CONTEXT} | changes))
