"""scripts/frontier with a stand-in for the program: its options, files, tables and exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontier_stand_in import (
    GIB,
    MIB,
    PlayedAsker,
    largest_by_trial,
    played_bytes,
    played_largest,
    played_program,
    result_file,
    tried_batches,
)

from tinyllama_tools.frontier import command
from tinyllama_tools.frontier.command import main, write_frontier
from tinyllama_tools.frontier.confirmation import Confirmation, Try
from tinyllama_tools.suite_run import SuiteError

LIMIT = 512 * MIB
ONE_LINE = ("tiny", "--variants=baseline", "--dtypes=f32", "--seq=256", "--memory-limit=512MiB")


def frontier(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, frontier.json and frontier.md."""
    places = (f"--results={tmp_path / 'r'}", f"--build-folder={tmp_path / 'build'}")
    status = main([*options, *places])
    (folder,) = (tmp_path / "r").glob("*_frontier")
    document = json.loads((folder / "frontier.json").read_text())
    return status, document, (folder / "frontier.md").read_text()


def test_predictions_are_written_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played_program(tmp_path / "build")
    options = ("tiny", "--seq=128,1024", "--memory-limit=512MiB")
    status, document, page = frontier(tmp_path, *options)
    assert status == 0
    assert document["limit_bytes"] == LIMIT
    assert document["limit_source"] == "--memory-limit"
    assert document["overhead"] == {
        "factor": 1.0,
        "source": "none: no --measured results were given",
    }
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
    status, document, page = frontier(
        tmp_path, "tiny", "--by=batch", "--batch=4", "--variants=baseline", "--memory-limit=512MiB"
    )
    assert status == 0
    assert document["points"] == []
    point, other = document["sequences"]
    assert (point["dtype"], other["dtype"], point["batch"]) == ("f32", "bf16", 4)
    longest = point["longest_seq"]
    assert played_bytes(4, longest) <= LIMIT < played_bytes(4, longest + 1)
    assert "# Out-of-memory frontier: longest seq for each batch" in page


@pytest.mark.parametrize(("ending", "how"), [("fails", "out of memory"), ("killed", "SIGKILL")])
def test_a_prediction_that_is_off_is_corrected_by_tries(
    tmp_path: Path, ending: str, how: str
) -> None:
    played_program(tmp_path / "build", truth=1.04, ending=ending)
    status, document, page = frontier(tmp_path, *ONE_LINE, "--confirm")
    assert status == 0
    predicted, true = played_largest(LIMIT, 256), played_largest(LIMIT, 256, truth=1.04)
    assert true < predicted
    (point,) = document["points"]
    assert (point["largest_batch"], point["confirmed_batch"]) == (predicted, true)
    assert point["apart_percent"] == pytest.approx(100 * (predicted / true - 1))
    assert point["confirmed"].startswith(f"{true}, predicted {predicted} (batch {true + 1}: ")
    assert how in point["confirmed"]
    assert f"{100 * (predicted / true - 1):+.1f} %" in page
    # every try is a process, and is kept
    tried = tried_batches(tmp_path / "build")
    assert [int(one["case"].split("batch:")[1].split("/")[0]) for one in document["tries"]] == tried
    assert {one["fits"] for one in document["tries"]} == {True, False}
    assert {true, true + 1, predicted} <= set(tried)


def test_the_overhead_of_measured_results_corrects_it_beforehand(tmp_path: Path) -> None:
    played_program(tmp_path / "build", truth=1.04)
    measured = result_file(tmp_path / "measured.json", 1.01, 1.04, 0.9)
    status, document, page = frontier(tmp_path, *ONE_LINE, "--confirm", f"--measured={measured}")
    assert status == 0
    true = played_largest(LIMIT, 256, truth=1.04)
    (point,) = document["points"]
    assert (point["largest_batch"], point["confirmed_batch"]) == (true, true)
    assert point["apart_percent"] == 0
    assert document["overhead"]["factor"] == pytest.approx(1.04)
    assert tried_batches(tmp_path / "build") == [true, true + 1]
    assert "1.0400 at full_step/train/baseline/tiny/f32/batch:2/seq:128, the largest of 3" in page


def test_without_a_limit_tries_get_nine_tenths_of_what_is_free(tmp_path: Path) -> None:
    played_program(tmp_path / "build", free=600 * MIB)
    status, document, page = frontier(tmp_path, *ONE_LINE[:-1], "--confirm")
    assert status == 0
    assert document["limit_bytes"] == 540 * MIB
    assert "90 % of the 600.0 MiB free on the device, so that no try uses up" in page
    (point,) = document["points"]
    largest = played_largest(540 * MIB, 256)
    assert (point["largest_batch"], point["confirmed_batch"]) == (largest, largest)
    assert max(one["peak_bytes"] or 0 for one in document["tries"]) <= 540 * MIB


def test_a_limit_above_that_is_lowered_and_said_so(tmp_path: Path) -> None:
    played_program(tmp_path / "build", free=500 * MIB)
    _, document, page = frontier(tmp_path, *ONE_LINE, "--confirm")
    assert document["limit_bytes"] == 450 * MIB
    assert "free on the device, below the 512.0 MiB asked for" in page


def test_without_confirm_a_limit_above_what_is_free_is_kept(tmp_path: Path) -> None:
    played_program(tmp_path / "build", free=100 * MIB)
    _, document, _ = frontier(tmp_path, *ONE_LINE[:-1], "--memory-limit=64GiB")
    assert document["limit_bytes"] == 64 * GIB
    assert document["points"][0]["largest_batch"] == played_largest(64 * GIB, 256)


@pytest.mark.parametrize(
    ("ending", "options", "why"),
    [
        ("wrong result: x", (), "wrong result: x"),
        ("hangs", ("--max-seconds=0.4",), "took more than 0.4 s (--max-seconds)"),
    ],
)
def test_a_try_without_an_answer_is_not_confirmed(
    tmp_path: Path, ending: str, options: tuple[str, ...], why: str
) -> None:
    played_program(tmp_path / "build", ending=ending)
    status, document, page = frontier(tmp_path, *ONE_LINE, "--confirm", *options)
    assert status == 1
    (point,) = document["points"]
    assert point["confirmed_batch"] is None
    assert point["apart_percent"] is None
    assert point["confirmed"].startswith("not confirmed: batch ")
    assert why in point["confirmed"]
    assert why in page


def test_an_interruption_keeps_what_was_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def interrupted_confirm(predicted: int, *_: object) -> Confirmation:
        calls.append(predicted)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Confirmation(predicted, predicted, (Try(predicted, True),))

    monkeypatch.setattr(command, "confirm", interrupted_confirm)
    played_program(tmp_path / "build")
    options = ("tiny", "--variants=baseline", "--seq=128,256", "--memory-limit=512MiB")
    status, document, page = frontier(tmp_path, *options, "--confirm")
    assert status == 130
    settled = [point["confirmed_batch"] for point in document["points"]]
    assert settled == [calls[0], None, None, None]
    assert page.count("not tried") == 3
    assert "interrupted" in capsys.readouterr().err


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> PlayedAsker:
    """Asked in place of a program."""
    played = PlayedAsker(free=64 * GIB)
    monkeypatch.setattr(command, "ask_program", lambda *_: played)
    return played


def test_a_study_gets_its_frontier(tmp_path: Path, asker: PlayedAsker) -> None:
    path = write_frontier(tmp_path, Path("tiny_llama_bench"), "auto")
    document = json.loads(path.read_text())
    assert path == tmp_path / "frontier.json"
    assert document["limit_bytes"] == asker.free
    assert document["limit_source"] == "free on the device"
    assert document["overhead"]["factor"] == 1
    points = document["points"]
    assert len(points) == 5 * 2 * 2 * 5
    by_name = {(p["size"], p["variant"], p["dtype"], p["seq"]): p for p in points}
    largest = largest_by_trial(asker.free, "large", "baseline", "bf16", seq=2048)
    assert by_name["large", "baseline", "bf16", 2048]["largest_batch"] == largest > 0
    assert by_name["very_large", "optimized", "f32", 128]["largest_batch"] == 0
    # some seconds of processes that start and end
    assert len(asker.questions) <= 60


@pytest.mark.usefixtures("asker")
def test_a_study_with_rounds_gives_the_overhead(tmp_path: Path) -> None:
    result_file(tmp_path / "round_1.json", 1.02)
    path = write_frontier(tmp_path, Path("tiny_llama_bench"), "cpu", 3 * GIB)
    document = json.loads(path.read_text())
    assert document["overhead"]["factor"] == pytest.approx(1.02)
    assert document["limit_bytes"] == 3 * GIB
    largest = largest_by_trial(3 * GIB / 1.02, "tiny", "baseline", "f32", seq=128)
    assert document["points"][0]["largest_batch"] == largest


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
