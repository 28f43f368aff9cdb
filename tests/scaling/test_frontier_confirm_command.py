"""scripts/frontier --confirm with a stand-in for the program: tries, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontier_stand_in import (
    MIB,
    ONE_LINE,
    played_largest,
    played_program,
    result_file,
    run_frontier,
    tried_batches,
)

from tinyllama_tools.frontier import command
from tinyllama_tools.frontier.axis import Axis, Line
from tinyllama_tools.frontier.confirmation import Try
from tinyllama_tools.frontier.tries import Trial
from tinyllama_tools.suite_run import SuiteError

LIMIT = 512 * MIB


@pytest.mark.parametrize(("ending", "how"), [("fails", "out of memory"), ("killed", "SIGKILL")])
def test_a_prediction_that_is_off_is_corrected_by_tries(
    tmp_path: Path, ending: str, how: str
) -> None:
    played_program(tmp_path / "build", truth=1.04, ending=ending)
    status, document, page = run_frontier(tmp_path, *ONE_LINE, "--confirm")
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


def test_the_overhead_of_measured_results_corrects_it_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "head_commit", lambda _: "0123456789")
    played_program(tmp_path / "build", truth=1.04)
    measured = result_file(tmp_path / "measured.json", 1.04, 1.04, 1.04)
    status, document, page = run_frontier(
        tmp_path, *ONE_LINE, "--confirm", f"--measured={measured}"
    )
    assert status == 0
    true = played_largest(LIMIT, 256, truth=1.04)
    (point,) = document["points"]
    assert (point["largest_batch"], point["confirmed_batch"]) == (true, true)
    assert point["apart_percent"] == 0
    assert document["overhead"]["share"] == pytest.approx(0.04)
    assert document["device"] == "card"
    assert tried_batches(tmp_path / "build") == [true, true + 1]
    assert "measured on 3 steps of tiny: 0.0 MiB + 4.00 % beyond the formulas" in page
    assert document["git_commit"] == "0123456789"
    assert "on card, commit 01234567, 20" in page


def test_without_a_limit_tries_get_nine_tenths_of_what_is_free(tmp_path: Path) -> None:
    played_program(tmp_path / "build", free=600 * MIB)
    status, document, page = run_frontier(tmp_path, *ONE_LINE[:-1], "--confirm")
    assert status == 0
    assert document["limit_bytes"] == 540 * MIB
    assert "90 % of the 0.59 GiB free on the device: the program and its libraries need" in page
    (point,) = document["points"]
    largest = played_largest(540 * MIB, 256)
    assert (point["largest_batch"], point["confirmed_batch"]) == (largest, largest)
    assert max(one["peak_bytes"] or 0 for one in document["tries"]) <= 540 * MIB


def test_a_limit_above_that_is_lowered_and_said_so(tmp_path: Path) -> None:
    played_program(tmp_path / "build", free=500 * MIB)
    _, document, page = run_frontier(tmp_path, *ONE_LINE, "--confirm")
    assert document["limit_bytes"] == 450 * MIB
    assert "free on the device, below the 0.50 GiB asked for, so that no try uses up" in page


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
    status, document, page = run_frontier(tmp_path, *ONE_LINE, "--confirm", *options)
    assert status == 1
    (point,) = document["points"]
    assert point["confirmed_batch"] is None
    assert point["apart_percent"] is None
    assert point["confirmed"].startswith("not confirmed: batch ")
    assert why in point["confirmed"]
    assert why in page


class Ended(Trial):
    """Answers so often, then ends as it is told to."""

    answers, how = 0, KeyboardInterrupt

    def attempt(self, axis: Axis, line: Line, value: int) -> Try:
        if not Ended.answers:
            raise Ended.how("the program is gone")
        Ended.answers -= 1
        return super().attempt(axis, line, value)


LINES = (
    "tiny",
    "--variants=baseline",
    "--dtypes=f32",
    "--seq=128,256,512",
    "--memory-limit=512MiB",
)


def ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int, how: type[BaseException]
) -> tuple[int, dict[str, Any], str]:
    monkeypatch.setattr(Ended, "answers", answers)
    monkeypatch.setattr(Ended, "how", how)
    monkeypatch.setattr(command, "Trial", Ended)
    played_program(tmp_path / "build")
    return run_frontier(tmp_path, *LINES, "--confirm")


def test_an_interruption_keeps_what_was_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # a line takes two tries, so this is within the second
    status, document, page = ended(tmp_path, monkeypatch, 3, KeyboardInterrupt)
    assert status == 130
    largest = played_largest(LIMIT, 128)
    settled = [point["confirmed_batch"] for point in document["points"]]
    assert settled == [largest, None, None]
    second = document["points"][1]
    ran, next_one = second["largest_batch"], second["largest_batch"] + 1
    assert second["confirmed"] == f"not confirmed: batch {next_one}: interrupted; batch {ran} ran"
    # the tries of the line in hand are kept
    assert [one["fits"] for one in document["tries"]] == [True, False, True, None]
    assert page.count("not tried") == 1
    assert "interrupted" in capsys.readouterr().err


def test_a_program_that_is_gone_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, document, page = ended(tmp_path, monkeypatch, 3, SuiteError)
    assert status == 1
    settled = [point["confirmed_batch"] for point in document["points"]]
    assert settled == [played_largest(LIMIT, 128), None, None]
    assert "the program is gone" in document["points"][1]["confirmed"]
    assert "the program is gone" in page


def test_a_program_that_never_answers_is_an_error_and_the_prediction_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, document, _ = ended(tmp_path, monkeypatch, 0, SuiteError)
    assert status == 2
    assert len(document["points"]) == 3
    assert document["tries"] == []


def test_every_line_is_written_before_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def keep(_: Trial, *asked: object) -> Try:
        (path,) = (tmp_path / "r").glob("*_frontier/frontier.json")
        document = json.loads(path.read_text())
        seen.append(sum(p["confirmed_batch"] is not None for p in document["points"]))
        return Try(asked[2], len(seen) % 2 == 1, "out of memory")

    monkeypatch.setattr(Trial, "attempt", keep)
    played_program(tmp_path / "build")
    assert run_frontier(tmp_path, *LINES, "--confirm")[0] == 0
    assert seen == [0, 0, 1, 1, 2, 2]
