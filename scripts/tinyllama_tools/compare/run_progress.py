"""Progress of `compare run` on standard error: a line in hand on a terminal, plain lines else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from tinyllama_tools.core.text import duration

# between two plain lines where the output is no terminal
QUIET_SECONDS = 30.0


def cases_text(count: int) -> str:
    """`1 case`, `9 cases`."""
    return f"{count} case" if count == 1 else f"{count} cases"


class RunProgress:
    """Lines that stay, and one that is written over."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._last: float | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def opening(self, done: int, total: int) -> None:
        """Cases are opened once, before any timing."""
        self._in_hand(f"opening each case once: {done} of {total} done")

    def block(self, index: int, next_look: int, left: float, open_cases: int) -> None:
        """A block begins. `left`: seconds of the budget."""
        text = f"block {index}, next verdicts after {next_look}"
        self._in_hand(f"{text}; {cases_text(open_cases)} open, at most {duration(left)} left")

    def clear(self) -> None:
        """No line is in hand any more."""
        if self._stream.isatty():
            print("\r\033[K", end="", file=self._stream, flush=True)

    def _in_hand(self, text: str) -> None:
        if self._stream.isatty():
            print(f"\r{text}\033[K", end="", file=self._stream, flush=True)
            return
        now = self._clock()
        if self._last is None or now - self._last >= QUIET_SECONDS:
            self._last = now
            print(text, file=self._stream, flush=True)
