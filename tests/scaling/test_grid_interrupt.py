"""A grid that is interrupted or killed loses nothing, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from grid_runs import CASES, SMALL_GRID, document, grid_folder, names_in, run_grid, without_frontier
from grid_stand_in import HELD, Json, make_program, measuring_calls, tell, value

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def no_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    without_frontier(monkeypatch)


def heed_signals() -> None:
    """The tests themselves may run where some of these are ignored, and so a program of theirs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """What it says on standard error goes to a file, for said_by()."""
    places = (f"--results={tmp_path / 'results'}", f"--build-folder={tmp_path / 'build'}")
    options = ["tiny", "--grid=only", *SMALL_GRID, *arguments, *places]
    with (tmp_path / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "tinyllama_tools", "study", *options],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
            stderr=said,
            stdout=subprocess.DEVNULL,
            preexec_fn=heed_signals,
        )


def said_by(tmp_path: Path) -> str:
    """So far."""
    return (tmp_path / "said").read_text()


def journaled(tmp_path: Path, number: int) -> list[Json]:
    """The cases in the journal of a round so far, in order."""
    for folder in (tmp_path / "results").glob("*_grid"):
        path = folder / f"round_{number}.journal.jsonl"
        if path.exists():
            lines = [json.loads(text) for text in path.read_text().split("\n")[:-1]]
            return [line for line in lines if "case" in line]
    return []


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_until_held(
    tmp_path: Path, number: int, rounds: int, process: subprocess.Popen[bytes]
) -> None:
    """Until the study says that it has heard of the last case before the one that is held. From
    then on it listens; that the case is in the journal says no more than that the program runs,
    which the study may still be starting, in the midst of Popen."""
    line = f"round {number}/{rounds} [{(number - 1) * CASES + HELD}/{rounds * CASES} cases"
    wait_until(lambda: line in said_by(tmp_path), process)
    assert len(journaled(tmp_path, number)) == HELD


def interrupted_in(tmp_path: Path, number: int, by: signal.Signals = signal.SIGINT) -> str:
    """What was said."""
    make_program(tmp_path, hold_in=f"round_{number}")
    process = start(tmp_path, "--rounds=2")
    wait_until_held(tmp_path, number, 2, process)
    process.send_signal(by)
    status = process.wait(60)
    assert status == 130, said_by(tmp_path)
    return said_by(tmp_path)


@pytest.mark.parametrize("by", ASKING)
def test_an_interrupted_study_keeps_what_it_measured_and_says_how_to_go_on(
    tmp_path: Path, by: signal.Signals
) -> None:
    said = interrupted_in(tmp_path, 1, by)
    assert "ending after the case in hand" in said
    results = tmp_path / "results"
    assert f"interrupted: 0 of 2 rounds are done, and nothing is lost; scripts/study --resume " \
           f"--results {results} continues" in said  # fmt: skip
    kept = journaled(tmp_path, 1)
    # the one in hand was ended, if it had begun when the signal came
    assert len(kept) in {HELD, HELD + 1}
    folder = grid_folder(tmp_path)
    assert len(names_in(folder, "round_1.json")) == len(kept)
    record = document(folder, "study.json")
    assert (record["rounds_done"], record["finished"]) == (0, "")
    assert record["round_seconds"][0] > 0


def test_a_resumed_study_measures_only_what_is_missing(tmp_path: Path) -> None:
    interrupted_in(tmp_path, 2)
    first, kept = journaled(tmp_path, 1), journaled(tmp_path, 2)
    before = len(measuring_calls(tmp_path))
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    folder = grid_folder(tmp_path)
    record = document(folder, "study.json")
    assert record["rounds_done"] == 2 and record["finished"]
    assert record["command"].startswith("scripts/study tiny --grid=only")
    assert journaled(tmp_path, 1) == first
    assert journaled(tmp_path, 2)[: len(kept)] == kept
    assert len(journaled(tmp_path, 2)) == CASES
    # the rest of round 2, twice the products, and the check
    again = measuring_calls(tmp_path)[before:]
    assert [Path(value(call, "benchmark_out")).name for call in again] == [
        *("round_2.json", "products_own.json", "products_largest.json", "check.json")
    ]
    assert value(again[0], "grid-batch") == "" and value(again[0], "batch") in {"1,2", "2,1"}
    assert (folder / "products.json").is_file()


def test_a_killed_study_goes_on_from_its_journal(tmp_path: Path) -> None:
    make_program(tmp_path, hold_in="round_1")
    process = start(tmp_path, "--rounds=1")
    wait_until(lambda: len(journaled(tmp_path, 1)) == HELD, process)
    process.kill()
    process.wait(60)
    kept = journaled(tmp_path, 1)
    journal = grid_folder(tmp_path) / "round_1.journal.jsonl"
    with journal.open("a") as stream:
        stream.write('{"case": "cut sho')
    tell(tmp_path)
    assert run_grid(tmp_path, "--resume") == 0
    assert journaled(tmp_path, 1)[: len(kept)] == kept
    assert len(names_in(grid_folder(tmp_path), "round_1.json")) == CASES


def test_ctrl_c_twice_ends_at_once(tmp_path: Path) -> None:
    make_program(tmp_path, hold_in="round_1", is_stubborn=True)
    process = start(tmp_path)
    wait_until_held(tmp_path, 1, 3, process)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C once more ends at once" in said_by(tmp_path), process)
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    said = said_by(tmp_path)
    assert status == 130, said
    assert "interrupted: 0 of 3 rounds are done" in said.splitlines()[-1]
    assert len(journaled(tmp_path, 1)) == HELD


def test_another_build_is_refused_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_in(tmp_path, 1)
    kept = journaled(tmp_path, 1)
    tell(tmp_path, commit="def")
    assert run_grid(tmp_path, "--resume") == 2
    said = capsys.readouterr().err
    assert 'git_commit = "abc", this run has "def"' in said
    assert "begun with another build, commit or machine" in said
    assert journaled(tmp_path, 1) == kept


def test_another_build_is_refused_between_rounds_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_program(tmp_path)
    run_grid(tmp_path, "tiny", "--grid=only", *SMALL_GRID, "--rounds=1")
    folder = grid_folder(tmp_path)
    record = document(folder, "study.json") | {"rounds": 2, "finished": ""}
    (folder / "study.json").write_text(json.dumps(record))
    tell(tmp_path, commit="def")
    assert run_grid(tmp_path, "--resume") == 2
    assert 'git_commit = "abc", this run has "def"' in capsys.readouterr().err
    assert not (folder / "round_2.json").exists()


def test_a_study_that_ended_is_not_resumed(tmp_path: Path) -> None:
    make_program(tmp_path)
    assert run_grid(tmp_path, "tiny", "--grid=only", *SMALL_GRID, "--rounds=1") == 0
    with pytest.raises(SystemExit) as ended:
        run_grid(tmp_path, "--resume")
    assert ended.value.code == 2
