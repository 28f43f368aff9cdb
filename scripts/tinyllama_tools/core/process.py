"""Environments of the programs, and progress on standard error."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tinyllama_tools.core.text import duration


class Progress:
    """Counts steps of one kind at a time."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self.stream = stream
        self.total = 0
        self.done = 0
        self.start = 0.0

    def line(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self.stream, flush=True)

    def begin(self, total: int) -> None:
        """From now on, `total` steps."""
        self.total, self.done, self.start = total, 0, time.monotonic()

    def step(self, text: str) -> None:
        """A step begins. Only a terminal shows it; elsewhere every tenth of all steps does."""
        left = ""
        if self.done:
            elapsed = time.monotonic() - self.start
            left = f", {duration(elapsed / self.done * (self.total - self.done))} left"
        message = f"[{self.done + 1}/{self.total}{left}] {text}"
        if self.stream.isatty():
            print(f"\r{message}\033[K", end="", file=self.stream, flush=True)
        elif self.done % max(1, self.total // 10) == 0:
            print(message, file=self.stream, flush=True)
        self.done += 1

    def end(self) -> None:
        """No step is in hand any more."""
        self._clear()

    def _clear(self) -> None:
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)
