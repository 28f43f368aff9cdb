"""Exercise 3's six bottlenecks, and the operators and components they stand on."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from fake_ablation import CONTEXT, POINT
from fake_training import made_up_summary
from tinyllama_tools.commands.exercise_3 import bounds, memory_bound_percent
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.models.ablation_evidence import Evidence, find_evidence, read_evidence
from tinyllama_tools.models.ablations import Cell, Kind, RowName, Study, result_text
from tinyllama_tools.models.bottlenecks import (
    CATEGORIES,
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    amdahl,
    rank_bottlenecks,
    recommended,
    working_rows,
)
from tinyllama_tools.models.optimization_effects import small_calls_percent
from tinyllama_tools.models.roofline import roofline_point
from tinyllama_tools.stats.rank_tests import ratio_of_turns
from worksheet_reading import components, operator_table, roofline

QKV, ATTENTION, SWIGLU, LAUNCH, FRAGMENTATION, SOFTMAX = (category.name for category in CATEGORIES)


def evidence(**speedups: float) -> Evidence:
    ratios = {name: ratio_of_turns([value] * 6, [1.0] * 6) for name, value in speedups.items()}
    return Evidence(Path("ablation.json"), POINT, ratios)


def by_name(found: list[Bottleneck]) -> dict[str, Bottleneck]:
    return {bottleneck.category: bottleneck for bottleneck in found}


def with_component(summary: dict, name: str, percent: float) -> dict:
    """The same profile where that component takes `percent`."""
    changed = copy.deepcopy(summary)
    for row in changed["operators"]["components"]:
        if row["name"] == name:
            row["percent"] = percent
    return changed


def test_amdahl() -> None:
    assert amdahl(0.5, 2) == pytest.approx(4 / 3)
    assert amdahl(0.0, 100) == 1
    assert amdahl(1.0, 3) == pytest.approx(3)
    for share, factor in ((1.1, 2), (-0.1, 2), (0.5, 0)):
        with pytest.raises(ValueError, match="must be"):
            amdahl(share, factor)


def test_every_category_once_and_in_order() -> None:
    found = rank_bottlenecks(made_up_summary())
    assert sorted(b.category for b in found) == sorted(c.name for c in CATEGORIES)
    assert [b.priority for b in found] == [1, 2, 3, 4, 5, 6]
    for is_worthwhile in (True, False):
        quadrants = [b.quadrant for b in found if b.is_worthwhile == is_worthwhile]
        assert quadrants == sorted(quadrants)


def test_shares_are_those_of_the_profile() -> None:
    summary = made_up_summary()
    found = by_name(rank_bottlenecks(summary))
    percents = {row["name"]: row["percent"] for row in summary["operators"]["components"]}
    assert found[QKV].share_percent == percents["attention/qkv_proj"]
    assert found[ATTENTION].share_percent == percents["attention/core"]
    both = percents["ffn/gate_up_proj"] + percents["ffn/swiglu"]
    assert found[SWIGLU].share_percent == pytest.approx(both)
    assert found[LAUNCH].share_percent == summary["operators"]["launch_overhead_percent"]
    assert found[SOFTMAX].share_percent == summary["operators"]["softmax_percent"]


def test_expected_speedups_by_hand() -> None:
    summary = made_up_summary({"operators.launch_overhead_percent": 50.0})
    summary = with_component(summary, "attention/qkv_proj", 40.0)
    summary = with_component(summary, "attention/core", 20.0)
    found = by_name(rank_bottlenecks(summary))
    # half of the time is launches, of which one of three is left
    assert found[QKV].factor == pytest.approx(1 / (0.5 + 0.5 / 3))
    assert found[QKV].expected_speedup == pytest.approx(1 / (0.6 + 0.4 * (0.5 + 0.5 / 3)))
    assert found[QKV].upper_bound == pytest.approx(1 / 0.6)
    # of 128 x 128 scores the mask leaves 128 x 129 / 2
    assert found[ATTENTION].factor == pytest.approx(256 / 129)
    assert found[ATTENTION].expected_speedup == pytest.approx(1 / (0.8 + 0.2 * 129 / 256))


def test_a_larger_share_moves_a_category_up() -> None:
    small, large = (
        by_name(rank_bottlenecks(with_component(made_up_summary(), "attention/core", share)))
        for share in (1.0, 60.0)
    )
    assert small[ATTENTION].quadrant == 4
    assert large[ATTENTION].quadrant == 2
    assert large[ATTENTION].priority < small[ATTENTION].priority


def test_a_measured_speedup_decides() -> None:
    summary = made_up_summary()
    assert by_name(rank_bottlenecks(summary))[QKV].quadrant == 3
    found = by_name(rank_bottlenecks(summary, evidence(qkv=1.15)))[QKV]
    assert (found.measured.ratio.median, found.quadrant, found.priority) == (1.15, 1, 1)


def test_what_brings_nothing_comes_last() -> None:
    summary = with_component(made_up_summary(), "attention/core", 10.0)
    summary = with_component(summary, "attention/qkv_proj", 40.0)
    chance = ratio_of_turns([1.3, 0.9] * 3, [1.0] * 6)
    # the first may be chance, the second is below what is worth anything
    measured = evidence(sdpa=1.09, gate_up=WORTHWHILE_SPEEDUP - 0.001, graph=1.0)
    measured = Evidence(measured.file, POINT, {**measured.speedups, "qkv": chance})
    ranked = rank_bottlenecks(summary, measured)
    found = by_name(ranked)
    assert (found[QKV].quadrant, found[ATTENTION].quadrant) == (1, 4)
    assert ranked[0].category == ATTENTION
    worth = [b.is_worthwhile for b in ranked]
    assert worth == sorted(worth, reverse=True)
    assert not found[QKV].is_worthwhile
    assert not found[SWIGLU].is_worthwhile


def test_the_best_known_speedup_is_recommended() -> None:
    both = evidence(qkv=1.15, sdpa=1.3, gate_up=1.0, graph=1.0)
    summary = with_component(made_up_summary(), "attention/core", 60.0)
    ranked = rank_bottlenecks(summary, both)
    best = recommended(ranked)
    assert best is not None
    assert (ranked[0].category, best.category) == (QKV, ATTENTION)
    assert recommended(rank_bottlenecks(made_up_summary(profilers=()))) is None


def test_the_best_of_several_switches_counts() -> None:
    found = by_name(rank_bottlenecks(made_up_summary(), evidence(sdpa=1.02, fused_attention=1.08)))
    assert found[ATTENTION].measured is not None
    assert found[ATTENTION].measured.switch == "fused_attention"
    assert found[ATTENTION].measured.ratio.median == pytest.approx(1.08)


def test_what_is_beyond_the_bound_is_not_the_categorys_doing() -> None:
    found = by_name(rank_bottlenecks(made_up_summary(), evidence(sdpa=1.5)))[SOFTMAX]
    assert found.measured.ratio.median == pytest.approx(1.5)
    assert found.best_known_speedup == found.upper_bound
    assert found.upper_bound is not None
    assert found.upper_bound < 1.1


def test_a_switch_that_is_on_brings_nothing_more() -> None:
    found = by_name(rank_bottlenecks(made_up_summary(variant="qkv")))
    assert found[QKV].expected_speedup == 1
    assert "on in this profile" in found[QKV].factor_reason
    assert found[SWIGLU].expected_speedup > 1


def test_allocation_time_is_found_by_operator() -> None:
    summary = made_up_summary()
    assert by_name(rank_bottlenecks(summary))[FRAGMENTATION].share_percent == 0
    summary["operators"]["table"][0]["name"] = "aten::empty_strided"
    share = summary["operators"]["table"][0]["share_percent"]
    found = by_name(rank_bottlenecks(summary))[FRAGMENTATION]
    assert found.share_percent == pytest.approx(share)
    assert "4.0 % of the memory held" in found.share_definition


def test_on_a_gpu_a_graph_replaces_all_launches() -> None:
    found = by_name(rank_bottlenecks(made_up_summary(gpu=True)))[LAUNCH]
    assert found.factor == made_up_summary(gpu=True)["operators"]["kernels_per_step"]


def test_a_gpus_shares_are_made_shares_of_the_step() -> None:
    idle = made_up_summary({"operators.launch_overhead_percent": 40.0}, gpu=True)
    idle = with_component(idle, "attention/core", 50.0)
    found = by_name(rank_bottlenecks(idle))
    assert found[ATTENTION].share_percent == pytest.approx(30)
    assert found[ATTENTION].upper_bound == pytest.approx(1 / 0.7)
    softmax = idle["operators"]["softmax_percent"]
    assert found[SOFTMAX].share_percent == pytest.approx(0.6 * softmax)
    assert found[LAUNCH].share_percent == 40
    assert "operators.launch_overhead_percent" in found[ATTENTION].keys
    unknown = with_component(idle, "attention/core", 50.0)
    unknown["operators"]["launch_overhead_percent"] = None
    assert by_name(rank_bottlenecks(unknown))[ATTENTION].share_percent is None


def test_without_a_profiler_nothing_is_claimed() -> None:
    found = rank_bottlenecks(made_up_summary(profilers=()))
    assert len(found) == len(CATEGORIES)
    for bottleneck in found:
        assert bottleneck.share_percent is None
        assert bottleneck.expected_speedup is None
        assert bottleneck.quadrant is None


def ablation_of(context: dict, seconds: dict[str, float]) -> str:
    study = Study([RowName("baseline", Kind.baseline), RowName("qkv", Kind.single)])
    study.context = context
    for row, time in seconds.items():
        turns = {turn: time * (1 + turn / 100) for turn in range(6)}
        study.main.add(Cell(row, POINT, variant=row, turns=turns))
    return result_text(study)


def write_ablation(results: Path, context: dict, qkv: float, name: str = "a") -> Path:
    path = results / f"reference/ablation_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ablation_of(context, {"baseline": 0.1, "qkv": qkv}))
    return path


def test_an_ablation_of_this_device_is_found(tmp_path: Path) -> None:
    summary = made_up_summary({"context": CONTEXT})
    assert find_evidence(summary, tmp_path) is None
    path = write_ablation(tmp_path, CONTEXT, 0.08)
    other = CONTEXT | {"device": CONTEXT["device"] | {"name": "another"}}
    write_ablation(tmp_path, other, 0.01, "other")
    (tmp_path / "reference/ablation_broken.json").write_text("{")
    found = find_evidence(summary, tmp_path)
    assert found is not None
    assert found.file == path
    assert found.speedups["qkv"].median == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context.device.name": "another"}, "another device"),
        ({"context.threads": 64}, "another device"),
        ({"configuration.variant": "fused"}, "the profile is of fused"),
        ({"configuration.seq_len": 64}, "no turn at .*sequence 64"),
        ({"configuration.gradient_accumulation_steps": 2}, "micro-batch"),
    ],
)
def test_an_ablation_of_something_else(tmp_path: Path, changes: dict, words: str) -> None:
    path = write_ablation(tmp_path, CONTEXT, 0.08)
    summary = made_up_summary({"context": CONTEXT} | changes)
    with pytest.raises(BadInputError, match=words):
        read_evidence(path, summary)
    assert find_evidence(summary, tmp_path) is None


VIEWS = [("aten::view", 700, 1e-4, 0.1), ("aten::t", 800, 1e-4, 0.1), ("detach", 9, 1e-6, 0.0)]
NODES = [
    ("autograd::engine::evaluate_function: MmBackward0", 99, 1e-4, 0.1),
    ("torch::autograd::AccumulateGrad", 99, 1e-4, 0.1),
    ("MulBackward0", 99, 1e-4, 0.1),
]
WORK = [
    ("aten::mm", 30, 1.0, 60.0),
    ("aten::_softmax_backward_data", 20, 1.0, 30.0),
    ("aten::add_", 50, 50e-6, 1.0),
    ("aten::transpose_kernel", 100, 100e-6, 0.1),
]


def test_on_a_cpu_dispatch_is_left_out() -> None:
    table = operator_table([*VIEWS, *WORK, *NODES])
    assert working_rows(table) == operator_table(WORK)
    assert small_calls_percent(table) == pytest.approx(75)


def test_on_a_gpu_only_rows_with_time_there_count() -> None:
    table = operator_table([("aten::mm", 30, 1.0, 60.0), ("aten::add_", 10, 9.0, 1.0), *VIEWS])
    for row, seconds in zip(table, (1.0, 1e-5, 0.0, 0.0, None), strict=True):
        row["device_self_seconds"] = seconds
    assert [row["name"] for row in working_rows(table)] == ["aten::mm", "aten::add_"]
    assert small_calls_percent(table) == pytest.approx(25)


def test_nothing_that_works_is_not_measured() -> None:
    assert small_calls_percent(operator_table(VIEWS)) is None


POINTS = roofline(
    {
        "step": ("memory", 1.0),
        "attention": ("compute", 20.0),
        "attention/rotary": ("memory", 30.0),
        "ffn": ("memory", 40.0),
        "loss": ("compute", 50.0),
    }
)


@pytest.mark.parametrize(
    ("component", "percent"),
    [
        ("attention/core", 20.0),
        ("attention/rotary", 30.0),
        ("attention/core/deeper", 20.0),
        ("ffn/gate_up_proj", 40.0),
        ("loss", 50.0),
    ],
)
def test_own_point_else_the_nearest_ancestors(component: str, percent: float) -> None:
    found = roofline_point(POINTS, component)
    assert found is not None
    assert found["percent_of_attainable"] == percent


@pytest.mark.parametrize("component", ["residual", "ffn_norm", "step", "step/other"])
def test_without_a_point_of_its_family_there_is_none(component: str) -> None:
    assert roofline_point(POINTS, component) is None


def test_exercise_3_counts_leaves_by_their_groups() -> None:
    shares = components(
        attention__core=40.0, attention__rotary=10.0, ffn__gate_up_proj=25.0, optimizer=5.0
    )
    operators = {"components": shares, "launch_overhead_percent": 20.0}
    summary = {"operators": operators, "flops": {"roofline_data": {"points": POINTS}}}
    assert memory_bound_percent(summary) == 40.0
    assert memory_bound_percent(summary, ("ffn",)) == 15.0
    assert memory_bound_percent(summary, ("ff",)) == 40.0
    assert list(bounds(summary).values()) == pytest.approx([32.0, 48.0, 20.0])
