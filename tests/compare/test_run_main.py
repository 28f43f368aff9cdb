"""How the command ends where something goes wrong: never with a regression's status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tinyllama_tools.compare import main as command
from tinyllama_tools.core.app import ASKING_TO_END, PROJECT, ended_as_by_ctrl_c
from tools import compare

START = "import sys; from tinyllama_tools.compare import main as m; m.COMMANDS['run'] = 'played'; "
START += "from tools import compare; sys.exit(compare(['run']))"


def played(folder: Path, body: str, output: int) -> subprocess.CompletedProcess[str]:
    """The command, whose `run` is a module with this body."""
    (folder / "played.py").write_text(f"import sys\ndef main(arguments):\n    {body}\n")
    return subprocess.run(
        [sys.executable, "-c", START],
        # an empty PYTHONUNBUFFERED counts as none
        env=os.environ
        | {
            "PYTHONPATH": f"{PROJECT / 'scripts'}:{PROJECT / 'tests'}:{folder}",
            "PYTHONUNBUFFERED": "",
        },
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_what_nobody_foresaw_is_no_regression(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("def main(_):\n    raise KeyError('a case')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(command.COMMANDS, "run", "broken")
    assert compare(["run"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("scripts/compare run: not foreseen: KeyError: 'a case'")
    # nor is a module that cannot be imported
    monkeypatch.setitem(command.COMMANDS, "run", "no_such_module")
    assert compare(["run"]) == 2


@pytest.mark.parametrize(
    ("characters", "status"),
    # what fits into the buffer fails when all is said, and the verdict is known by then
    [(10, 3), (10_000_000, 2)],
)
def test_a_reader_that_stops_ends_it_in_order(tmp_path: Path, characters: int, status: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = played(tmp_path, f"print('x' * {characters}); return 3", writer)
    finally:
        os.close(writer)
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_output_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = played(tmp_path, "print('a verdict'); return 1", full.fileno())
    assert ended.returncode == 2
    assert "output: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", ASKING_TO_END)
def test_being_asked_to_end_is_ctrl_c(number: signal.Signals) -> None:
    # the tests themselves may run where it is ignored
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), ended_as_by_ctrl_c():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
