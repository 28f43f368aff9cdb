"""How far a grid is: cases of all rounds, with the time left; plain lines where nobody watches."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from tinyllama_tools.core.text import duration
from tinyllama_tools.data.programs import CaseCost

# What the program says of a case on standard error: "[3/96] attention/...  1.27 ms".
CASE_LINE = re.compile(r"\[\d+/\d+\] (?P<name>\S+)  (?P<outcome>.*)")
FAILED = "FAILED: "
# Of a case: seconds beside its products, and for each of their FLOPs. Only proportions matter.
FIXED_SECONDS, SECONDS_PER_FLOP = 0.5, 1e-10
# Elsewhere than on a terminal a line comes each time so much of a round is done.
LINES_A_ROUND = 10


def expected_weights(costs: Iterable[CaseCost]) -> dict[str, float]:
    """How long each case takes beside the others."""
    return {str(c.name): FIXED_SECONDS + SECONDS_PER_FLOP * c.hardware_flops for c in costs}


@dataclass(frozen=True)
class Place:
    """Which of how many rounds is in hand, and the seconds that this and all later ones have."""

    number: int = 1
    rounds: int = 1
    seconds: float = 0.0


class GridProgress:
    """Shows one round, or another run of many cases, at a time."""

    def __init__(
        self,
        weights: Mapping[str, float],
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights = dict(weights)
        self._stream = stream
        self._clock = clock
        self._title = ""
        self._place = Place()
        self._left: dict[str, float] = {}
        self._whole = 0.0
        self._total = 0
        self._begun = self._first = 0.0
        self._weight_done: float | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def begin(
        self, title: str, names: Sequence[str], done: Iterable[str] = (), place: Place | None = None
    ) -> None:
        """A run of these cases, of which `done` are there already. `place`: where it is a round."""
        weights = {name: self._weights.get(name, FIXED_SECONDS) for name in names}
        kept = set(done)
        self._title, self._place = title, place or Place()
        self._left = {name: w for name, w in weights.items() if name not in kept}
        self._whole = sum(weights.values())
        self._total = len(weights)
        self._begun, self._weight_done = self._clock(), None
        self._show("preparing", is_first=True)

    def hear(self, line: str) -> None:
        """A line that the program said: a finished case counts, a failed one is told at once."""
        found = CASE_LINE.fullmatch(line)
        if found is None:
            return
        weight = self._left.pop(found["name"], None)
        if found["outcome"].startswith(FAILED):
            self.say(f"{found['name']}: {found['outcome']}")
        if self._weight_done is None:
            # what came before it, such as measuring the peaks, is no measure of the others
            self._first, self._weight_done = self._clock(), 0.0
        elif weight is not None:
            self._weight_done += weight
        self._show(f"{found['name']}  {found['outcome']}")

    @property
    def seconds_left(self) -> float | None:
        """Of this round at the rate so far, and of later ones as far as the budget goes; None
        before a rate is known."""
        if not self._weight_done:
            return None
        now = self._clock()
        rate = (now - self._first) / self._weight_done
        here = rate * sum(self._left.values())
        later = (self._place.rounds - self._place.number) * rate * self._whole
        budget = self._place.seconds - (now - self._begun) - here
        return here + max(0.0, min(later, budget))

    def clear(self) -> None:
        """Takes the status line away."""
        if self._stream.isatty():
            print("\r\033[K", end="", file=self._stream, flush=True)

    def _show(self, text: str, *, is_first: bool = False) -> None:
        here, seconds = self._total - len(self._left), self.seconds_left
        done = (self._place.number - 1) * self._total + here
        left = "" if seconds is None else f", {duration(seconds)} left"
        cases = f"{done}/{self._place.rounds * self._total} cases"
        message = f"{self._title} [{cases}{left}] {text}"
        if self._stream.isatty():
            # a line that wraps could not be taken away
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r{message[:columns]}\033[K", end="", file=self._stream, flush=True)
        elif is_first or not self._left or here % max(1, -(-self._total // LINES_A_ROUND)) == 0:
            print(message, file=self._stream, flush=True)
