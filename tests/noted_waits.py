"""Code at the head of a Python program under test, which then notes the command of each process
that it waits for. A signal that a test sends earlier could find it still starting that process, in
the midst of Popen, where no program can be ready for a signal."""

from __future__ import annotations

from pathlib import Path

CODE = """\
import subprocess

class NotingPopen(subprocess.Popen):
    def wait(self, timeout=None):
        with open({note!r}, "a") as stream:
            print(*self.args, file=stream)
        return super().wait(timeout)

subprocess.Popen = NotingPopen
"""


def noting_waits(note: Path) -> str:
    """With this file for the notes, a line each."""
    return CODE.format(note=str(note))


def has_noted(note: Path, text: str) -> bool:
    """Whether a process with this in its command is waited for."""
    return note.exists() and text in note.read_text()
