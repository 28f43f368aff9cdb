"""scripts/frontier with a stand-in for the program: its options, files, tables and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontier_stand_in import (
    GIB,
    MIB,
    ONE_LINE,
    PlayedAsker,
    largest_by_trial,
    played_bytes,
    played_largest,
    played_program,
    result_file,
    run_frontier,
)

from tinyllama_tools.frontier import command
from tinyllama_tools.frontier.command import main, write_frontier
from tinyllama_tools.profile_text import shown
from tinyllama_tools.suite_run import SuiteError

LIMIT = 512 * MIB


def test_predictions_are_written_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played_program(tmp_path / "build")
    options = ("tiny", "--seq=128,1024", "--memory-limit=512MiB")
    status, document, page = run_frontier(tmp_path, *options)
    assert status == 0
    assert document["limit_bytes"] == LIMIT
    assert document["limit_source"] == "--memory-limit"
    assert document["overhead"]["steps"] == 0
    assert document["overhead"]["source"].startswith("no --measured results were given")
    assert document["date"].startswith("20")
    assert len(document["points"]) == 2 * 2 * 2
    for point in document["points"]:
        largest = played_largest(LIMIT, point["seq"])
        assert point["largest_batch"] == largest
        assert point["predicted_bytes"] == played_bytes(largest, point["seq"])
        assert point["confirmed"] == ""
    few, many = played_largest(LIMIT, 1024), played_largest(LIMIT, 128)
    said = capsys.readouterr().out
    for text in (said, page):
        assert f"| tiny | baseline  | f32   | {many}     | {few}        |" in text
        assert "into 512.0 MiB (--memory-limit)" in text
    assert "frontier.md" in said
    assert "confirmed" not in page
    assert "Made by `scripts/frontier tiny --seq=128,1024" in page


def test_the_longest_sequence_for_each_batch(tmp_path: Path) -> None:
    played_program(tmp_path / "build")
    status, document, page = run_frontier(
        tmp_path, "tiny", "--by=batch", "--batch=4", "--variants=baseline", "--memory-limit=512MiB"
    )
    assert status == 0
    assert document["points"] == []
    point, other = document["sequences"]
    assert (point["dtype"], other["dtype"], point["batch"]) == ("f32", "bf16", 4)
    longest = point["longest_seq"]
    assert played_bytes(4, longest) <= LIMIT < played_bytes(4, longest + 1)
    assert "# Out-of-memory frontier: longest seq for each batch" in page


def test_without_confirm_a_limit_above_what_is_free_is_kept(tmp_path: Path) -> None:
    played_program(tmp_path / "build", free=100 * MIB)
    _, document, _ = run_frontier(tmp_path, *ONE_LINE[:-1], "--memory-limit=64GiB")
    assert document["limit_bytes"] == 64 * GIB
    assert document["points"][0]["largest_batch"] == played_largest(64 * GIB, 256)


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> PlayedAsker:
    """Asked in place of a program."""
    played = PlayedAsker(free=64 * GIB)
    monkeypatch.setattr(command, "ask_program", lambda *_: played)
    return played


def test_a_study_gets_its_frontier_of_both_axes(tmp_path: Path, asker: PlayedAsker) -> None:
    path = write_frontier(tmp_path, Path("tiny_llama_bench"), "auto")
    document = json.loads(path.read_text())
    limit = int(0.9 * asker.free)
    assert path == tmp_path / "frontier.json"
    assert document["limit_bytes"] == limit
    assert document["limit_source"].startswith("90 % of the 64.00 GiB free on the device")
    assert document["by"] == "seq,batch"
    assert document["overhead"]["steps"] == 0
    # in the error's own words, without the folders above
    reason = f"none is known: {shown(tmp_path)}: holds neither round_*.json"
    assert document["overhead"]["source"].startswith(reason)
    points = document["points"]
    assert len(points) == len(document["sequences"]) == 5 * 2 * 2 * 5
    by_name = {(p["size"], p["variant"], p["dtype"], p["seq"]): p for p in points}
    largest = largest_by_trial(limit, "large", "baseline", "bf16", seq=2048)
    assert by_name["large", "baseline", "bf16", 2048]["largest_batch"] == largest > 0
    assert by_name["very_large", "optimized", "f32", 128]["largest_batch"] == 0
    longest = {(p["size"], p["variant"], p["dtype"], p["batch"]): p for p in document["sequences"]}
    expected = largest_by_trial(limit, "large", "baseline", "bf16", batch=4)
    assert longest["large", "baseline", "bf16", 4]["longest_seq"] == expected
    # some seconds of processes that start and end
    assert len(asker.questions) <= 120


@pytest.mark.usefixtures("asker")
def test_a_study_with_rounds_gives_the_overhead(tmp_path: Path) -> None:
    result_file(tmp_path / "round_1.json", 1.02)
    path = write_frontier(tmp_path, Path("tiny_llama_bench"), "cpu", 3 * GIB)
    document = json.loads(path.read_text())
    assert document["overhead"]["share"] == pytest.approx(0.02)
    assert (document["limit_bytes"], document["device"]) == (3 * GIB, "card")
    largest = largest_by_trial(3 * GIB / 1.02 / 1.001, "tiny", "baseline", "f32", seq=128)
    assert document["points"][0]["largest_batch"] == largest


def test_the_program_says_which_device_it_is_of(tmp_path: Path, asker: PlayedAsker) -> None:
    asker.device, asker.git_commit = "a CPU", "89abcdef"
    # measured on another one
    result_file(tmp_path / "round_1.json", 1.02)
    document = json.loads(write_frontier(tmp_path, Path("tiny_llama_bench")).read_text())
    assert (document["device"], document["git_commit"]) == ("a CPU", "89abcdef")


def test_a_program_or_file_that_is_not_there_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"--build-folder={tmp_path}", f"--results={tmp_path / 'r'}"]
    assert main(places) == 2
    assert "tiny_llama_bench cannot be started" in capsys.readouterr().err
    assert main([*places, f"--measured={tmp_path}"]) == 2
    assert "holds neither round_*.json nor results.json; name a folder" in capsys.readouterr().err
    other = result_file(tmp_path / "other.json")
    assert main([*places, f"--measured={other}"]) == 2
    assert "other.json" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    with pytest.raises(SuiteError, match="cannot be started"):
        write_frontier(tmp_path, tmp_path / "tiny_llama_bench")
