"""`compare run` where a side fails, where it is interrupted, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_run import document_of, run
from turns_stand_in import FFN, LOSS, NORM, make_build, requests_of
from unanswered import LONG, cut_wait_short

from tinyllama_tools.compare.recording import read_recording
from tinyllama_tools.compare.sequential_run import SequentialRun
from tools import compare as main


@pytest.mark.parametrize("how", ["crash", "hang", "nonsense"])
def test_a_side_that_fails_twice_fails_the_case_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", trouble={LOSS: {"at": "time", "how": how}})
    if how == "hang":
        cut_wait_short(monkeypatch, new, f"time {LOSS}")
    status, cases = run(base, new, tmp_path / "out", f"--limit={LONG}")
    assert status == 1
    assert cases[LOSS]["outcome"] == "failed"
    assert "time" in cases[LOSS]["note"]
    assert cases[FFN]["outcome"] == "same"
    failures = read_recording(tmp_path / "out/blocks.jsonl").failures
    assert [(item.index, item.case) for item in failures] == [(1, LOSS), (2, LOSS)]


def test_failures_that_are_allowed_by_name_do_not_fail_the_gate(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[LOSS])
    status, cases = run(base, new, tmp_path / "out", "--allow-missing=loss/*")
    assert (status, cases[LOSS]["outcome"], cases[LOSS]["allowed"]) == (0, "failed", True)


@pytest.mark.parametrize(("at", "how"), [("open", "failed"), ("time", "crash")])
def test_a_base_that_fails_is_no_fault_of_the_new_but_no_answer_either(
    tmp_path: Path, at: str, how: str
) -> None:
    base = make_build(tmp_path / "base", trouble={LOSS: {"at": at, "how": how}})
    new = make_build(tmp_path / "new")
    strict = ["--strict"] if at == "time" else []
    status, cases = run(base, new, tmp_path / "out", *strict)
    assert status == (3 if strict else 0)
    assert cases[LOSS]["outcome"] == "no verdict"
    assert cases[LOSS]["note"].startswith("failed in the base: ")
    first = document_of(tmp_path / "out")["warnings"][0]
    assert first.startswith("1 case failed in the base, so nothing shows")
    assert first.endswith(LOSS)


def test_a_base_that_fails_everywhere_is_nothing_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01}, wrong=[FFN])
    new = make_build(tmp_path / "new", cases={FFN: 0.01})
    status, cases = run(base, new, tmp_path / "out")
    assert (status, cases[FFN]["outcome"]) == (2, "no verdict")
    said = capsys.readouterr().err
    assert "nothing comparable: no case was measured on both sides" in said
    assert "became slower" not in said


def test_a_wrong_result_is_never_timed(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[NORM])
    status, cases = run(base, new, tmp_path / "out")
    assert (status, cases[NORM]["outcome"]) == (1, "failed")
    assert cases[NORM]["note"] == "gradient differs by 0.5"
    assert all(r["case"] != NORM for r in requests_of(base) if r["do"] == "time")
    unproven, cases = run(base, new, tmp_path / "off", "--verify=off")
    assert (unproven, cases[NORM]["outcome"]) == (0, "same")
    assert any("--verify off" in text for text in document_of(tmp_path / "off")["warnings"])


def _announce_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first block had taken minutes: a budget so short that it is too short in truth
    would not be enough to open the cases on a busy machine."""
    announce = SequentialRun._announce

    def slow(run: SequentialRun) -> None:
        run.record.cost.learn(1000.0, {})
        announce(run)

    monkeypatch.setattr(SequentialRun, "_announce", slow)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--budget=0.001s"], "is too short: opening the cases once took"),
        (["--alpha=0.00001"], "is too short: the first verdicts"),
        (["--components=ffn", "--filter=^attention"], "no case to compare"),
        (["--problem-sizes=none.json"], "none.json"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    expected: str,
) -> None:
    _announce_as_slow(monkeypatch)
    cases = {} if "--components=ffn" in options else {FFN: 0.01}
    base = make_build(tmp_path / "base", cases=cases)
    status, _ = run(base, make_build(tmp_path / "new", cases=cases), tmp_path / "out", *options)
    assert status == 2
    assert expected in capsys.readouterr().err


def test_a_regression_that_is_known_is_not_hidden_by_a_short_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _announce_as_slow(monkeypatch)
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", wrong=[LOSS])
    short = "--alpha=0.00001"
    status, cases = run(base, new, tmp_path / "out", short)
    assert status == 1
    assert (cases[LOSS]["outcome"], cases[FFN]["outcome"]) == ("failed", "no verdict")
    assert cases[FFN]["blocks"] == 1
    said = capsys.readouterr()
    assert "became slower" not in said.err
    assert "exit status 1" in said.out
    assert "is too short: the first verdicts" in document_of(tmp_path / "out")["warnings"][0]
    allowed = run(base, new, tmp_path / "allowed", short, f"--allow-missing={LOSS}")
    assert allowed[0] == 2
    assert allowed[1][FFN]["outcome"] == "no verdict"
    assert "is too short" in capsys.readouterr().err


def test_a_run_without_any_verdict_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if blocks took longer than the whole budget after the first one
    monkeypatch.setattr(SequentialRun, "_announce", _make_slow)
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    status, cases = run(base, new, tmp_path / "out")
    assert status == 2
    assert cases[FFN]["outcome"] == "no verdict"
    first = document_of(tmp_path / "out")["design"]["looks"][0]
    assert f"held 1 of the {first} that the first verdicts need" in capsys.readouterr().err


def _make_slow(self: SequentialRun) -> None:
    self.record.cost.learn(1000.0, {})
    self.record.cost.learn(1000.0, {})


def test_a_case_that_neither_side_measures_is_nothing_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = {FFN: {"at": "open", "how": "skipped"}}
    builds = [
        make_build(tmp_path / name, cases={FFN: 0.01}, trouble=skipped) for name in ("base", "new")
    ]
    status, cases = run(builds[0], builds[1], tmp_path / "out")
    assert (status, cases[FFN]["outcome"]) == (2, "skipped")
    assert "nothing comparable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--budget=10x", "'10x': must be a time such as"),
        ("--budget=0s", "'0s': must be a time"),
        ("--pairs=0", "'0': must be a whole number of 1 or more"),
        ("--environment-new=A", "'A': must be NAME=VALUE"),
        ("--alpha=1", "'1': must be a number between 0 and 1"),
        ("--base", "expected one argument"),
    ],
)
def test_bad_options_are_named(
    option: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--base=build", "--new=build", option])
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err
