"""`compare run` where it is ended early, and where its files cannot be written."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare_run import document_of, run
from turns_stand_in import FFN, PROGRAM, make_build, starts_of

from tinyllama_tools.compare.blocks import CaseBlock, Measured, Opened, TakingTurns
from tinyllama_tools.compare.recording import RecordingWriter, read_recording
from tinyllama_tools.core.app import BadInputError

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("openings", [0, 1, 3])
def test_what_was_not_reached_while_opening_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openings: int
) -> None:
    open_once = TakingTurns.open_once

    def interrupted(self: TakingTurns, cases: list[str], *, verify: bool) -> Iterator[Opened]:
        yield from itertools.islice(open_once(self, cases, verify=verify), openings)
        raise KeyboardInterrupt

    monkeypatch.setattr(TakingTurns, "open_once", interrupted)
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    status, cases = run(base, new, tmp_path / "out")
    assert status == 130
    assert {case["outcome"] for case in cases.values()} == {"no verdict"}
    reached = openings // 2
    notes = [case["note"] for case in cases.values()]
    assert notes[reached:] == ["interrupted before it was opened"] * (3 - reached)
    assert not any("interrupted" in note for note in notes[:reached])
    assert document_of(tmp_path / "out")["exit_status"] == 0


def test_the_verdict_is_printed_where_the_folder_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new", factor={FFN: 1.2})
    (tmp_path / "file").write_text("")
    status, _ = run(base, new, tmp_path / "file", f"--record={tmp_path / 'blocks.jsonl'}")
    said = capsys.readouterr()
    assert status == 2
    assert said.out.splitlines()[-1].startswith("1 slower, 2 same; exit status 1")
    assert "file: cannot be written" in said.err.splitlines()[-1]


def test_a_recording_that_fails_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = RecordingWriter.add

    def full(self: RecordingWriter, item: Measured | Opened) -> None:
        if isinstance(item, CaseBlock) and item.index == 4:
            raise BadInputError("blocks.jsonl: no space left")
        add(self, item)

    monkeypatch.setattr(RecordingWriter, "add", full)
    base = make_build(tmp_path / "base", cases={FFN: 0.01})
    new = make_build(tmp_path / "new", cases={FFN: 0.01})
    status, cases = run(base, new, tmp_path / "out")
    said = capsys.readouterr()
    assert status == 2
    assert (cases[FFN]["outcome"], cases[FFN]["blocks"]) == ("no verdict", 4)
    assert FFN in said.out
    assert "blocks.jsonl: no space left" in said.err.splitlines()[-1]


def test_an_earlier_recording_is_kept_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01})
    new = make_build(tmp_path / "new", cases={FFN: 0.01})
    assert run(base, new, tmp_path / "out")[0] == 0
    before, starts = read_recording(tmp_path / "out/blocks.jsonl"), len(starts_of(base))
    assert run(base, new, tmp_path / "out")[0] == 2
    assert "is there already" in capsys.readouterr().err
    assert read_recording(tmp_path / "out/blocks.jsonl") == before
    assert len(starts_of(base)) == starts


ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_signals() -> None:
    """The tests themselves may run where some of these are ignored, and so a program of theirs."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", ASKING)
def test_being_asked_to_end_judges_and_writes_what_was_measured(
    tmp_path: Path, number: signal.Signals
) -> None:
    base = make_build(tmp_path / "base", cases={FFN: 0.01}, between=0.3)
    new = make_build(tmp_path / "new", cases={FFN: 0.01}, between=0.3)
    output = tmp_path / "out"
    options = [f"--base={base}", f"--new={new}", f"--output={output}", "--alpha=0.2", "--looks=9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tinyllama_tools", "compare", "run", *options],
        env=os.environ | {"PYTHONPATH": str(PROJECT / "scripts")},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_signals,
    )
    recording = output / "blocks.jsonl"
    deadline = time.monotonic() + 30
    while not recording.exists() or '"block": 4' not in recording.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    document = document_of(output)
    assert document["warnings"][0].startswith("interrupted after ")
    assert document["cases"][0]["outcome"] in {"unclear", "no verdict"}
    assert document["cases"][0]["blocks"] >= 3
    # what was killed may take a moment to be gone
    while _running(base) or _running(new):
        assert time.monotonic() < deadline + 60
        time.sleep(0.01)


def _running(build: Path) -> bool:
    found = subprocess.run(["pgrep", "-f", str(build / PROGRAM)], capture_output=True, check=False)
    return found.returncode == 0
