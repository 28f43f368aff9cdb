"""Watches the ranks of one world to their end, and ends those that do not end by themselves."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyllama_tools.core.app import INTERRUPTED
from tinyllama_tools.scaling.rank_process import RankProcess, ending_text

# between two looks at the ranks
LOOK_SECONDS = 0.05
OnLine = Callable[[int, str], None]


@dataclass(frozen=True)
class Patience:
    """Seconds. `others`: how long the ranks have to end by themselves once one has ended: the time
    that the program waits for a lost one, and some more. `after_term`: between SIGTERM and
    SIGKILL."""

    others: float
    after_term: float = 5.0


@dataclass(frozen=True)
class WorldEnd:
    """`status`: of the rank that ended badly first, 0 where none did; 1 for a signal. `first`: that
    rank and how it ended, with its last words. `killed`: ranks that had to be ended."""

    status: int
    first: str = ""
    words: str = ""
    killed: tuple[int, ...] = ()
    is_interrupted: bool = False


class _Watch:
    def __init__(
        self,
        ranks: Sequence[RankProcess],
        patience: Patience,
        on_line: OnLine,
        on_interrupt: Callable[[], None],
    ) -> None:
        self._ranks, self._patience = ranks, patience
        self._on_line, self._on_interrupt = on_line, on_interrupt
        self._ended: dict[int, int] = {}
        # in the order in which they ended
        self._bad: list[RankProcess] = []
        self._killed: list[int] = []
        self._deadline = float("inf")
        self._next_signal = signal.SIGTERM
        self._is_interrupted = False

    def _running(self) -> list[RankProcess]:
        return [one for one in self._ranks if one.rank not in self._ended]

    def _listen(self) -> None:
        pipes = [one.output for one in self._running()]
        select.select(pipes, [], [], LOOK_SECONDS)
        for one in self._ranks:
            for line in one.said():
                self._on_line(one.rank, line)
        # the pipe of a rank that has closed its output is ready at once, every time
        if self._running():
            time.sleep(LOOK_SECONDS / 10)

    def _note_ends(self) -> None:
        new = [(one, one.status) for one in self._running() if one.status is not None]
        for one, status in new:
            self._ended[one.rank] = status
            for line in one.said():
                self._on_line(one.rank, line)
        # of several at once, the one that a signal ended, or that refused to start, is the cause,
        # and the 1 of the others the effect
        bad = sorted(
            (pair for pair in new if pair[1] != 0), key=lambda pair: (pair[1] > 0, -pair[1])
        )
        self._bad += [one for one, _ in bad]
        if new and self._deadline == float("inf"):
            self._deadline = time.monotonic() + self._patience.others

    def _end_the_rest(self) -> None:
        if time.monotonic() < self._deadline:
            return
        for one in self._running():
            if self._next_signal == signal.SIGTERM:
                self._killed.append(one.rank)
            one.signal_group(self._next_signal)
        self._next_signal = signal.SIGKILL
        self._deadline = time.monotonic() + self._patience.after_term

    def interrupt(self) -> None:
        """The ranks finish the round in hand, however long that takes, and write; a second time
        they are killed."""
        number = signal.SIGKILL if self._is_interrupted else signal.SIGINT
        for one in self._running():
            one.signal_group(number)
        if not self._is_interrupted:
            self._on_interrupt()
        self._is_interrupted = True

    def to_the_end(self) -> WorldEnd:
        while self._running():
            try:
                self._listen()
                self._note_ends()
                self._end_the_rest()
            except KeyboardInterrupt:
                self.interrupt()
        return self._world_end()

    def _cause(self) -> RankProcess:
        """The rank that ended badly first. Of a wrong result all ranks end with 1 and rank 0 alone
        says why, so a silent one has no word where another of its status has."""
        first = self._bad[0]
        status = self._ended[first.rank]
        if status < 0:
            return first
        alike = (one for one in self._bad if one.words and self._ended[one.rank] == status)
        return next(alike, first)

    def _world_end(self) -> WorldEnd:
        killed = tuple(sorted(self._killed))
        if self._is_interrupted:
            return WorldEnd(INTERRUPTED, killed=killed, is_interrupted=True)
        if not self._bad:
            return WorldEnd(0)
        first = self._cause()
        status = self._ended[first.rank]
        text = f"rank {first.rank} of {len(self._ranks)} {ending_text(status)}"
        if first.rank in killed:
            text = f"rank {first.rank} of {len(self._ranks)} did not end after the others had"
        words = "\n".join(first.words)
        return WorldEnd(status if status > 0 else 1, text, words, killed)


def end_all(ranks: Sequence[RankProcess]) -> None:
    """Ends what still runs of them and of what they started, at once."""
    for one in ranks:
        one.signal_group(signal.SIGKILL)
    for one in ranks:
        one.close()


def watch(
    ranks: Sequence[RankProcess],
    patience: Patience,
    on_line: OnLine,
    on_interrupt: Callable[[], None],
) -> WorldEnd:
    """To the end of all of them. A KeyboardInterrupt asks them to end (SIGINT), a second one kills
    them. `on_line`: gets every line with its rank. `on_interrupt`: is called at the first
    interrupt. No rank, and nothing that a rank started, is left, whatever happens."""
    try:
        return _Watch(ranks, patience, on_line, on_interrupt).to_the_end()
    finally:
        end_all(ranks)
