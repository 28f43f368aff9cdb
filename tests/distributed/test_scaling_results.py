"""Reading what tiny_llama_scaling wrote, efficiencies and the loss waterfall."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from made_up_scaling import BUSY, World, analysis_of, document, step_name, write_run, write_world
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import parse_case_name, parse_collective_name
from tinyllama_tools.data.parts import wholes_among
from tinyllama_tools.models.collectives import (
    Estimate,
    ScalingPoint,
    paired,
    read_scaling_result,
    waterfall_of,
)
from tinyllama_tools.models.projection import Analysis
from tinyllama_tools.scaling.output import collective_notes

STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"


def written(folder: Path, changed: dict) -> Path:
    path = folder / "ranks_2.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    return path


def point(analysis: Analysis, ranks: int, mode: str = "overlap") -> ScalingPoint:
    return next(p for p in analysis.points if (p.ranks, p.mode) == (ranks, mode))


@pytest.mark.parametrize("text", [STEP, f"{STEP}/ranks:2/no_overlap"])
def test_a_name_is_what_was_parsed(text: str) -> None:
    name = parse_case_name(f"{text}/manual_time")
    assert name is not None
    assert str(name) == text
    assert name.is_data_parallel == ("ranks" in text)
    assert name.is_training_step == ("ranks" not in text)


def test_names_with_half_of_it_are_no_cases() -> None:
    assert parse_case_name(f"{STEP}/ranks:2") is None
    assert parse_case_name(f"{STEP}/overlap") is None


def test_a_collectives_name_is_what_was_parsed() -> None:
    text = "reduce_scatter/bf16/bytes:4096/ranks:4"
    name = parse_collective_name(text)
    assert name is not None and str(name) == text
    assert (name.bytes, name.ranks) == (4096, 4)
    assert parse_collective_name("all_reduce/f32/bytes:x/ranks:2") is None


def test_a_data_parallel_step_has_no_parts() -> None:
    alone = f"{STEP}/ranks:2/alone"
    ffn = STEP.replace("full_step/train", "ffn/forward_backward")
    assert list(wholes_among([alone, ffn], {"small": 8})) == []
    assert [whole for whole, _ in wholes_among([STEP, ffn], {"small": 8})] == [STEP]


def test_drift_that_all_share_is_no_loss(weak: Analysis) -> None:
    world = World()
    step = world.alone * world.slower * (1 + world.imbalance)
    expected = 100 * world.alone / (step + (1 - world.hidden) * world.communication)
    found = point(weak, 2).efficiency
    assert found is not None and found.interval is not None
    # the step itself drifts by 5 %, its efficiency by the noise of a row only
    assert found.median == pytest.approx(expected, rel=0.005)
    assert found.interval.high - found.interval.low < 1
    assert found.interval.confidence >= 0.95


def test_shares_are_those_of_the_made_up_world(weak: Analysis) -> None:
    world = World()
    found = point(weak, 2)
    assert found.overlap is not None and found.communication is not None
    assert found.overlap.median == pytest.approx(100 * world.hidden, abs=0.1)
    assert found.hidden is not None
    assert found.hidden.median == pytest.approx(100 * world.hidden, abs=0.1)
    exposed = (1 - world.hidden) * world.communication
    local = world.alone * world.slower * (1 + world.imbalance)
    assert found.communication.median == pytest.approx(100 * exposed / (local + exposed), rel=0.02)
    assert found.communication_free is not None
    assert found.communication_free.median == pytest.approx(100 - found.communication.median)


def test_processors_at_work_for_the_sums_are_told(weak: Analysis, tmp_path: Path) -> None:
    found = point(weak, 2).busy
    assert found is not None
    assert found.median == pytest.approx(100 * BUSY)
    assert point(weak, 1).busy is None
    path = write_run(tmp_path, ranks=(2,)) / "ranks_2.json"
    document = json.loads(path.read_text())
    document["context"]["distributed"]["backend"] = "nccl"
    path.write_text(json.dumps(document))
    assert point(analysis_of(path), 2).busy is None


def test_without_overlap_nothing_is_hidden(weak: Analysis) -> None:
    plain = point(weak, 4, "no_overlap")
    assert plain.overlap is None
    assert plain.hidden is not None and plain.hidden.median == pytest.approx(0, abs=0.01)
    assert point(weak, 4).seconds.median < plain.seconds.median


def test_a_world_of_one_says_what_the_machinery_costs(weak: Analysis) -> None:
    found = point(weak, 1).efficiency
    assert found is not None
    assert found.median == pytest.approx(100 / 1.01, rel=0.005)
    assert [one.ranks for one in weak.waterfalls] == [2, 4]


def test_strong_efficiency_is_of_the_whole_batch(strong: Analysis) -> None:
    world = World(ranks=4, global_batch=16)
    local = world.seconds_alone(4) * world.slower * (1 + world.imbalance)
    step = local + (1 - world.hidden) * world.communication
    found = point(strong, 4)
    assert found.batch == 4
    assert found.efficiency is not None and found.speedup is not None
    expected = 100 * world.seconds_alone(16) / 4 / step
    assert found.efficiency.median == pytest.approx(expected, rel=0.005)
    assert found.speedup.median == pytest.approx(4 * found.efficiency.median / 100)


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_the_parts_of_the_loss_make_up_the_whole(kind: str, request: pytest.FixtureRequest) -> None:
    analysis: Analysis = request.getfixturevalue(kind)
    for one in analysis.waterfalls:
        assert one.refusal == ""
        assert one.efficiency + sum(p.percent for p in one.parts) == pytest.approx(100, abs=1e-6)
        names = [part.name for part in one.parts]
        assert ("small batch" in names) == (kind == "strong")
        assert all(p.low is not None and p.low <= p.percent <= (p.high or 0) for p in one.parts)


def test_parts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    changed = document(World())
    for entry in changed["benchmarks"]:
        if "loss_imbalance_percent" in entry:
            entry["loss_imbalance_percent"] += 1.0
    found = waterfall_of(read_scaling_result(written(tmp_path, changed)))
    assert "add up to 101 %" in found.refusal
    assert found.parts == ()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    changed = document(World())
    for entry in changed["benchmarks"]:
        entry.pop("loss_slower_local_percent", None)
    found = waterfall_of(read_scaling_result(written(tmp_path, changed)))
    assert found.refusal == "not measured: loss_slower_local_percent"


def test_rounds_that_a_row_lacks_are_not_paired(tmp_path: Path) -> None:
    changed = document(World())
    lost = step_name(World(), "alone")
    changed["benchmarks"] = [
        e
        for e in changed["benchmarks"]
        if not (e["run_name"] == lost and e.get("repetition_index") in {0, 3})
    ]
    write_run(tmp_path, ranks=(1,))
    written(tmp_path, changed)
    found = point(analysis_of(tmp_path), 2)
    assert found.efficiency is not None
    assert found.efficiency.rounds == World().rounds - 2


def test_one_round_has_no_interval(tmp_path: Path) -> None:
    found = point(analysis_of(write_run(tmp_path, ranks=(2,), rounds=1)), 2).efficiency
    assert found is not None
    assert (found.interval, found.rounds) == (None, 1)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("world_size", "two", "world_size is 'two'"),
        ("world_size", 0, "world_size 0"),
        ("scaling", "both", "scaling 'both'"),
        ("bucket_bytes", None, "bucket_bytes is None"),
        ("bucket_bytes", [0], "must be positive"),
        ("bucket_MiB", float("nan"), "bucket_MiB nan: must be positive and finite"),
        ("world_size", 4, r"ranks:2.*: is of 2 ranks, context\.distributed\.world_size is 4"),
    ],
)
def test_a_context_that_cannot_be_used_is_named(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    changed = copy.deepcopy(document(World()))
    changed["context"]["distributed"][key] = value
    with pytest.raises(BadInputError, match=said):
        read_scaling_result(written(tmp_path, changed))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cpu_time", None, "cpu_time is None, must be a number"),
        ("repetition_index", [0], r"repetition_index is \[0\], must be a whole number"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    changed = copy.deepcopy(document(World()))
    changed["benchmarks"][0][key] = value
    with pytest.raises(BadInputError, match=said):
        read_scaling_result(written(tmp_path, changed))


def test_other_files_are_refused(tmp_path: Path) -> None:
    changed = document(World())
    del changed["context"]["distributed"]
    with pytest.raises(BadInputError, match=r"has no context\.distributed"):
        read_scaling_result(written(tmp_path, changed))
    with pytest.raises(BadInputError, match="measure first: scripts/scaling"):
        analysis_of(tmp_path.parent / tmp_path.name / "..")


def test_worlds_of_different_steps_are_refused(tmp_path: Path) -> None:
    write_world(tmp_path, World(ranks=2))
    write_world(tmp_path, World(ranks=4, size="small"))
    with pytest.raises(BadInputError, match="results of different steps"):
        analysis_of(tmp_path)


def test_worlds_of_different_settings_are_said(tmp_path: Path) -> None:
    write_world(tmp_path, World(ranks=2))
    write_world(tmp_path, World(ranks=4, bucket_MiB=1.0))
    assert "ranks_4.json: bucket_MiB is 1.0, in ranks_2.json 25.0" in analysis_of(tmp_path).warnings


def test_a_world_of_one_has_no_other_backend(weak: Analysis) -> None:
    """It talks to nobody: that is no difference to warn of."""
    backends = [one.distributed["backend"] for one in weak.results]
    assert backends == ["none", "gloo", "gloo"]
    assert weak.warnings == ()


def test_as_many_ranks_twice_are_refused(tmp_path: Path) -> None:
    path = write_world(tmp_path, World(ranks=2))
    path.rename(tmp_path / "ranks_2_2.json")
    write_world(tmp_path, World(ranks=2, seed=2))
    with pytest.raises(BadInputError, match=r"ranks_2_2\.json are both of 2 ranks"):
        analysis_of(tmp_path)


def sharded_beside_overlap(world: World) -> dict:
    """Its rows are those of the overlap under another name."""
    changed = document(world)
    plain, sharded = step_name(world, "overlap"), step_name(world, "sharded")
    rows = [e for e in changed["benchmarks"] if e["run_name"] == plain]
    renamed = [
        e | {key: e[key].replace(plain, sharded) for key in ("name", "run_name")} for e in rows
    ]
    changed["benchmarks"] += renamed
    return changed


def test_a_sharded_step_hides_no_all_reduce(tmp_path: Path) -> None:
    found = analysis_of(written(tmp_path, sharded_beside_overlap(World())))
    sharded = point(found, 2, "sharded")
    assert sharded.hidden is None and sharded.overlap is None
    assert sharded.efficiency == point(found, 2).efficiency


def test_what_gloo_makes_of_a_reduce_scatter_is_said(weak: Analysis, tmp_path: Path) -> None:
    (note,) = collective_notes(weak)
    assert note.startswith("Gloo makes a reduce-scatter as an all-reduce")
    changed = document(World())
    changed["context"]["distributed"]["backend"] = "nccl"
    assert collective_notes(analysis_of(written(tmp_path, changed))) == []


def test_a_failed_row_stays_with_its_reason(tmp_path: Path) -> None:
    changed = document(World())
    name = step_name(World(), "sharded")
    failed = {"name": name, "run_name": name, "run_type": "iteration", "repetition_index": 0}
    failed |= {"real_time": 0.0, "time_unit": "ms", "iterations": 0}
    failed |= {"error_occurred": True, "error_message": "rank 1 was lost"}
    changed["benchmarks"].append(failed)
    found = analysis_of(written(tmp_path, changed))
    assert found.failed == {f"{name} (ranks_2.json)": "rank 1 was lost"}
    assert point(found, 2).efficiency is not None


def test_rounds_without_a_cost_of_communication_hide_nothing() -> None:
    found = paired(lambda a, b: a / b if b else None, {0: 1.0, 1: 2.0}, {0: 0.0, 1: 4.0})
    assert found == Estimate(0.5, None, 1)
    assert paired(lambda _: None, {0: 1.0}) is None
    assert paired(lambda a, b: a + b, {0: 1.0}, None) is None
    assert paired(lambda a, b: a + b, {0: 1.0}, {1: 1.0}) is None
