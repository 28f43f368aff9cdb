"""Sides that take turns at one case: who runs when and how often, and what becomes of the times.

Knows neither processes nor torch, so that tests can play any side.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tinyllama_tools.data.programs import SuiteCase
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns


class SideError(Exception):
    """A side failed at a case; the message names it."""


class SideSkip(Exception):  # noqa: N818 -- not an error: the case is left out on purpose
    """A side's case is left out; the message says why, with the figures."""


class Side(Protocol):
    """One of the programs that are compared. Every method raises SideError or SideSkip."""

    variant: str

    def start(self, case: SuiteCase) -> None:
        """Begins to build the case, without waiting."""

    def wait_until_built(self) -> None:
        """Until then it may keep every processor busy; from then on only when it is asked."""

    def get_ready(self, case: SuiteCase) -> float:
        """Warms up; seconds of a step, as far as they are known then."""

    def time(self, case: SuiteCase, steps: int) -> list[float]:
        """Seconds of so many steps."""


@dataclass(frozen=True)
class Effort:
    """Turns of a case, steps of a turn, and the seconds of timed steps that a side may have."""

    turns: int
    steps: int
    max_seconds: float

    def for_step_of(self, seconds: float) -> Effort:
        """What of it there is time for: first fewer steps, then fewer turns, at least one."""
        affordable = max(1, int(self.max_seconds / seconds))
        turns = min(self.turns, affordable)
        return Effort(turns, max(1, min(self.steps, affordable // turns)), self.max_seconds)


@dataclass
class SideRun:
    """What one side did at a case: seconds of the steps of each turn, or why there are none."""

    variant: str
    turns: list[list[float]] = field(default_factory=list)
    skipped: str = ""
    failed: str = ""

    @property
    def medians(self) -> list[float]:
        """The median step of each turn."""
        return [statistics.median(turn) for turn in self.turns]

    @property
    def seconds(self) -> float | None:
        """The median over turns of a turn's median."""
        return statistics.median(self.medians) if self.turns else None


@dataclass
class CaseRun:
    """One case (its variant is that of our first side) and what each side did."""

    case: SuiteCase
    sides: dict[str, SideRun]

    def ratio(self, other: str, ours: str) -> Ratio | None:
        """Times of `other` over those of `ours`, over the turns that both had: above 1, ours is
        faster."""
        pairs = list(zip(self.sides[other].medians, self.sides[ours].medians, strict=False))
        if not pairs:
            return None
        return ratio_of_turns([pair[0] for pair in pairs], [pair[1] for pair in pairs])


class Turns:
    """One case while it is measured. `result` fills meanwhile: whoever interrupts still has it."""

    def __init__(self, case: SuiteCase, sides: Sequence[Side], effort: Effort) -> None:
        self.result = CaseRun(case, {side.variant: SideRun(side.variant) for side in sides})
        self._case = case
        self._effort = effort
        self._sides = list(sides)
        self._efforts: dict[str, Effort] = {}

    def _attempt(self, side: Side, do: Callable[[Side], None]) -> bool:
        """Does it and returns True, or keeps the reason why not, and no times beside it."""
        run = self.result.sides[side.variant]
        try:
            do(side)
        except SideSkip as reason:
            run.skipped = str(reason)
        except SideError as error:
            run.failed = str(error)
        if run.skipped or run.failed:
            run.turns.clear()
            return False
        return True

    def _start(self, side: Side) -> None:
        side.start(self._case)

    def _wait_until_built(self, side: Side) -> None:
        side.wait_until_built()

    def _get_ready(self, side: Side) -> None:
        seconds = side.get_ready(self._case)
        self._efforts[side.variant] = self._effort.for_step_of(seconds)

    def _time(self, side: Side) -> None:
        steps = self._efforts[side.variant].steps
        self.result.sides[side.variant].turns.append(side.time(self._case, steps))

    def prepare(self) -> None:
        """Builds all sides at once and, when all are built, warms them up one by one, since what
        a step takes then decides over its turns. Who cannot go on is out."""
        for prepare in (self._start, self._wait_until_built, self._get_ready):
            self._sides = [side for side in self._sides if self._attempt(side, prepare)]

    def take(self, turn: int) -> None:
        """Each side that has time for this turn once; who begins moves on by one each turn."""
        sides = [s for s in self._sides if turn < self._efforts[s.variant].turns]
        first = turn % len(sides) if sides else 0
        for side in (*sides[first:], *sides[:first]):
            if not self._attempt(side, self._time):
                self._sides.remove(side)


def measure_case(
    case: SuiteCase,
    sides: Sequence[Side],
    effort: Effort,
    say: Callable[[str], None],
    keep: Callable[[CaseRun], None],
) -> None:
    """All sides at one case; `keep` gets its result before anything is measured."""
    turns = Turns(case, sides, effort)
    keep(turns.result)
    turns.prepare()
    for turn in range(effort.turns):
        turns.take(turn)
        if turn == 0:
            say(f"  {turn_text(list(turns.result.sides.values()))}")


def turn_text(runs: Sequence[SideRun]) -> str:
    """`baseline 150.1 ms, peer:eager skipped: ...`: every side in the first turn."""
    texts = []
    for run in runs:
        if run.failed:
            texts.append(f"{run.variant} FAILED: {run.failed}")
        elif run.skipped:
            texts.append(f"{run.variant} skipped: {run.skipped}")
        elif run.turns:
            texts.append(f"{run.variant} {1e3 * run.medians[0]:.1f} ms")
    return ", ".join(texts)
