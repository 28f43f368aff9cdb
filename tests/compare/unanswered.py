"""Cuts the wait for an answer that never comes short. The limit of all other answers can then be
long: on a busy machine the start of a healthy program alone may take seconds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_bench import PROGRAM

from tinyllama_tools.compare.served_process import ServedProcess

START = "its start"
SHORT, LONG = 0.3, 30.0


def _starts(build: Path) -> int:
    path = (build / PROGRAM).with_name("starts")
    return path.read_text().count("\n") if path.exists() else 0


def cut_wait_short(monkeypatch: pytest.MonkeyPatch, build: Path, what: str) -> None:
    """Where processes of this build, which is named as its side, are waited for at `what`. A start
    is waited for until the process has noted that it began, so that it can be counted."""
    line = ServedProcess._line
    waits: list[str] = []

    def short(process: ServedProcess, asked: str) -> bytes:
        if (process.name, asked) == (build.name, what):
            waits.append(asked)
            deadline = time.monotonic() + LONG
            while what == START and _starts(build) < len(waits):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process._limit = SHORT
        return line(process, asked)

    monkeypatch.setattr(ServedProcess, "_line", short)
