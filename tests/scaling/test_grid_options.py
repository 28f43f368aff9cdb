"""What a grid is asked for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tinyllama_tools.study.command import parse_options
from tinyllama_tools.study.grid_plan import (
    COMPONENTS,
    GridPlan,
    Record,
    number_list,
    read_record,
    write_record,
)


def plan_of(*arguments: str) -> GridPlan | None:
    return parse_options(arguments).grid_plan


def test_tiny_and_small_have_a_grid_of_their_own() -> None:
    both = plan_of("tiny", "small")
    assert both == GridPlan(("tiny", "small"))
    assert (both.batch, both.seq) == ((1, 2, 4, 8), (64, 128, 256, 512))
    assert (both.rounds, both.minutes, both.variants) == (3, 20.0, ("baseline",))
    assert both.components == COMPONENTS
    assert plan_of("medium,tiny") == GridPlan(("tiny",))
    assert plan_of("medium", "large") is None
    assert plan_of("tiny", "--grid", "off") is None


def test_the_training_stays_unless_only_the_grid_is_wanted() -> None:
    assert parse_options(["tiny"]).trains
    assert parse_options(["medium"]).trains
    assert parse_options(["tiny", "--grid=off"]).trains
    only = parse_options(["tiny", "--grid=only"])
    assert not only.trains and only.grid_plan == GridPlan(("tiny",))
    assert not parse_options(["--grid=only", "--grid-sizes=medium"]).trains


def test_every_axis_can_be_named() -> None:
    plan = plan_of(
        *("medium", "--grid-sizes=medium,tiny", "--grid-batch=2:8:*2", "--grid-seq=32,16"),
        *("--grid-components=ffn,full_step", "--grid-variants=baseline,sdpa+qkv", "--rounds=5"),
        *("--grid-minutes=1.5", "--dtype=bf16", "--device=cpu"),
    )
    assert plan == GridPlan(
        sizes=("medium", "tiny"),
        batch=(2, 4, 8),
        seq=(32, 16),
        components=("ffn", "full_step"),
        variants=("baseline", "sdpa+qkv"),
        dtype="bf16",
        device="cpu",
        rounds=5,
        minutes=1.5,
    )
    assert plan.cells == 24


def test_the_grid_is_of_the_variant_that_is_trained() -> None:
    trained = plan_of("tiny", "--variant=optimized")
    assert trained is not None and trained.variants == ("optimized",)
    assert plan_of("tiny", "--grid=only", "--variant=optimized") == trained
    named = plan_of("tiny", "--variant=optimized", "--grid-variants=baseline")
    assert named is not None and named.variants == ("baseline",)


def test_a_bigger_size_checks() -> None:
    plan = plan_of("tiny")
    assert plan is not None and plan.check_size == "medium" and plan.is_checked
    off = plan_of("tiny", "--check-size=off")
    assert off is not None and not off.is_checked
    of_grid = plan_of("tiny", "--grid-sizes=tiny,medium")
    assert of_grid is not None and not of_grid.is_checked


def test_a_study_of_before_the_check_can_be_resumed(tmp_path: Path) -> None:
    folder = begun(tmp_path, "20260101T000000Z")
    path = folder / "study.json"
    document = json.loads(path.read_text())
    assert document.pop("check_size") == "medium"
    path.write_text(json.dumps(document))
    assert not read_record(folder).plan.is_checked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: SIZE"),
        (["tony"], "size 'tony': must be one of tiny"),
        (["tiny", "--grid=yes"], "'yes'"),
        (["tiny", "--grid-batch=0"], "--grid-batch: '0': 0 is not at least 1"),
        (["tiny", "--grid-seq=8:4:*2"], "the last value is below the first"),
        (["tiny", "--grid-components=fnn"], "component 'fnn': must be one of embedding"),
        (["tiny", "--grid-variants=Q K"], "'Q K': must be a name"),
        (["tiny", "--grid-sizes=tony"], "size 'tony'"),
        (["tiny", "--rounds=0"], "--rounds: '0'"),
        (["tiny", "--check-size=tony"], "--check-size: invalid choice: 'tony'"),
        (["tiny", "--grid=off", "--check-size=off"], "--check-size: has no effect with --grid off"),
        (["tiny", "--grid-minutes=nan"], "--grid-minutes: 'nan'"),
        (["tiny", "--grid-minutes=-1"], "--grid-minutes: '-1'"),
        (["--grid=only"], "--grid only: no SIZE; name tiny and small"),
        (["medium", "--grid=on"], "--grid on: medium has no grid of its own"),
        (["medium", "--grid-batch=4"], "--grid-batch: medium has no grid of its own"),
        (["tiny", "--grid=off", "--rounds=2"], "--rounds: has no effect with --grid off"),
        (["tiny", "--grid=only", "--num-steps=9"], "--num-steps: has no effect with --grid only"),
        (["tiny", "--grid-batch=1:900:+1"], "3600 cells of size, variant, batch and sequence"),
        (["tiny", "--resume"], "SIZE: not with --resume"),
        (["--resume", "--rounds=2"], "--rounds: not with --resume"),
        (["--resume", "--dry-run"], "--dry-run: not with --resume"),
        (["tiny", "--gridd=on"], "--gridd"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def begun(results: Path, name: str, **changes: object) -> Path:
    folder = results / f"{name}_grid"
    folder.mkdir(parents=True)
    write_record(folder, Record(GridPlan(("tiny",))))
    path = folder / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_resume_finds_the_newest_grid_that_did_not_end(tmp_path: Path) -> None:
    begun(tmp_path, "20260101T000000Z")
    wanted = begun(tmp_path, "20260102T000000Z")
    begun(tmp_path, "20260103T000000Z", finished="2026-01-03T00:20:00+00:00")
    (tmp_path / "20260104T000000Z_grid").mkdir()
    options = parse_options(["--resume", f"--results={tmp_path}"])
    assert options.unfinished == wanted
    assert options.grid_plan is None and not options.trains


def test_resume_with_nothing_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, "20260103T000000Z", finished="2026-01-03T00:20:00+00:00")
    with pytest.raises(SystemExit) as ended:
        parse_options(["--resume", f"--results={tmp_path}"])
    assert ended.value.code == 2
    assert f"{tmp_path} holds no grid that did not end" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "other"}, "kind is 'other', must be 'grid'"),
        ({"schema_version": 2}, "schema_version is 2, must be 1"),
        ({"sizes": []}, "sizes is []"),
        ({"batch": [8, "4"]}, "batch is [8, '4']"),
        ({"rounds": True}, "rounds is True"),
        ({"round_seconds": [None]}, "round_seconds is [None]"),
        ({"minutes": None}, "minutes is None"),
    ],
)
def test_a_record_that_no_study_wrote_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tmp_path, "20260103T000000Z", **changes)
    with pytest.raises(SystemExit):
        parse_options(["--resume", f"--results={tmp_path}"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert words in said and str(folder / "study.json") in said


def test_a_record_that_was_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = begun(tmp_path, "20260103T000000Z") / "study.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(SystemExit):
        parse_options(["--resume", f"--results={tmp_path}"])
    assert "study.json: is cut short" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", (8,)),
        ("4,8,16", (4, 8, 16)),
        ("16,4,16", (16, 4)),
        ("64:512:*2", (64, 128, 256, 512)),
        ("64:500:*2", (64, 128, 256)),
        ("128:1024:+128", tuple(range(128, 1025, 128))),
        ("1,2:8:*2,3", (1, 2, 4, 8, 3)),
        ("7:7:+1", (7,)),
        ("9223372036854775807", (2**63 - 1,)),
        ("1:1000:+1", tuple(range(1, 1001))),
    ],
)
def test_the_grammar(text: str, numbers: tuple[int, ...]) -> None:
    assert number_list(text) == numbers


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "write numbers as"),
        ("4,", "write numbers as"),
        ("4,,8", "write numbers as"),
        ("-4", "write numbers as"),
        ("4.0", "write numbers as"),
        ("²", "write numbers as"),
        ("9223372036854775808", "write numbers as"),
        ("1" * 5000, "write numbers as"),
        ("0", "not at least 1"),
        ("1:8", "write numbers as"),
        ("1:8:2", "write numbers as"),
        ("1:8:*", "write numbers as"),
        ("1:8:*2:3", "write numbers as"),
        ("8:4:*2", "the last value is below the first"),
        ("1:8:*1", "a factor must be at least 2"),
        ("1:8:+0", "not at least 1"),
        ("1:1001:+1", "more than 1000 values"),
        ("1:9223372036854775807:+1", "more than 1000 values"),
    ],
)
def test_what_is_no_list_is_named_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=rule) as refused:
        number_list(text)
    assert text in str(refused.value)
