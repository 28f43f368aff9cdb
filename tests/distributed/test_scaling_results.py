"""Reading what tiny_llama_scaling wrote, efficiencies and the loss waterfall."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fake_training import set_key
from made_up_scaling import BUSY, World, analysis_of, document, step_name, write_run, write_world
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.ranks import read_scaling_result
from tinyllama_tools.models.collectives import ScalingPoint, waterfall_of
from tinyllama_tools.models.scaling_projection import Analysis, collective_notes

STEP = "full_step/train/baseline/small/f32/batch:8/seq:256"


def written(folder: Path, changed: dict) -> Path:
    path = folder / "ranks_2.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    return path


def point(analysis: Analysis, ranks: int, mode: str = "overlap") -> ScalingPoint:
    return next(p for p in analysis.points if (p.ranks, p.mode) == (ranks, mode))


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


def test_worlds_of_different_settings_are_said(tmp_path: Path) -> None:
    write_world(tmp_path, World(ranks=2))
    write_world(tmp_path, World(ranks=4, bucket_MiB=1.0))
    assert "ranks_4.json: bucket_MiB is 1.0, in ranks_2.json 25.0" in analysis_of(tmp_path).warnings


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


def test_what_gloo_does_is_told_of_gloo_alone(weak: Analysis, tmp_path: Path) -> None:
    """A reduce-scatter that is an all-reduce, and the processors at work for the sums."""
    (note,) = collective_notes(weak)
    assert note.startswith("Gloo makes a reduce-scatter as an all-reduce")
    busy = point(weak, 2).busy
    assert busy is not None and busy.median == pytest.approx(100 * BUSY)
    assert point(weak, 1).busy is None
    changed = document(World())
    changed["context"]["distributed"]["backend"] = "nccl"
    found = analysis_of(written(tmp_path, changed))
    assert collective_notes(found) == [] and point(found, 2).busy is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("context.distributed.world_size", "two", "world_size: 'two' is not of type 'integer'"),
        ("context.distributed.world_size", 0, "world_size: 0 is less than the minimum"),
        ("context.distributed.world_size", 4, r"ranks:2.*: is of 2 ranks, .*world_size is 4"),
        ("context.distributed.scaling", "both", "scaling: 'both' is not one of"),
        ("context.distributed.bucket_bytes", None, "bucket_bytes: None is not of type"),
        ("context.distributed.bucket_bytes", [0], r"bucket_bytes\[0\]: 0 is less than or equal"),
        ("context.distributed.bucket_MiB", math.nan, "bucket_MiB: nan is not of type"),
        ("context.distributed", None, r"has no context\.distributed"),
        ("benchmarks.0.cpu_time", None, "cpu_time is None, must be a number"),
        ("benchmarks.0.repetition_index", [0], r"index is \[0\], must be a whole number"),
    ],
)
def test_a_result_that_cannot_be_used_is_named(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    changed = document(World())
    set_key(changed, key, value)
    with pytest.raises(BadInputError, match=said):
        read_scaling_result(written(tmp_path, changed))


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (None, "measure first: scripts/scaling"),
        (World(ranks=4, size="small"), "results of different steps"),
        (World(ranks=2, seed=2), "are both of 2 ranks"),
    ],
)
def test_worlds_that_make_no_run_are_refused(
    tmp_path: Path, world: World | None, said: str
) -> None:
    if world is not None:
        write_world(tmp_path, World(ranks=2)).rename(tmp_path / "ranks_2_2.json")
        write_world(tmp_path, world)
    with pytest.raises(BadInputError, match=said):
        analysis_of(tmp_path)
