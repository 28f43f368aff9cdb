"""Confirms a prediction by trying: outwards from it until one step runs and a larger one does not,
then by halves between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinyllama_tools.frontier.axis import Axis
from tinyllama_tools.frontier.bracket import LARGEST, Bracket

# by which a step outwards grows: a prediction is far off or not at all
GROWTH = 4


@dataclass(frozen=True)
class Try:
    """`fits` None: it did not show, and `why` says what happened; `why` of one that does not fit
    says how it ended. `peak_bytes`: measured, of one that ran."""

    value: int
    fits: bool | None
    why: str = ""
    peak_bytes: float | None = None


Attempt = Callable[[int], Try]


@dataclass(frozen=True)
class Confirmation:
    """`largest`: 0 where nothing fits, None where it was not settled, for the reason in the last of
    `tries`."""

    predicted: int
    largest: int | None
    tries: tuple[Try, ...]

    def text(self, axis: Axis) -> str:
        """`12, as predicted (batch 13: killed by SIGKILL)`."""
        if self.largest is None:
            return self._unsettled_text(axis)
        apart = "as predicted" if self.largest == self.predicted else f"predicted {self.predicted}"
        refused = [one for one in self.tries if one.fits is False]
        if not refused:
            return f"{self.largest}, {apart}"
        smallest = min(refused, key=lambda one: one.value)
        return f"{self.largest}, {apart} ({axis.counted(smallest.value)}: {smallest.why})"

    def _unsettled_text(self, axis: Axis) -> str:
        ran = max((one.value for one in self.tries if one.fits), default=0)
        last = self.tries[-1]
        known = f"; {axis.counted(ran)} ran" if ran else ""
        return f"not confirmed: {axis.counted(last.value)}: {last.why}{known}"


def next_value(predicted: int, bracket: Bracket, step: int, smallest: int) -> int:
    """What to try next; `step`: how far outwards from the last one."""
    nothing_ran, nothing_failed = bracket.accepted < smallest, bracket.refused > LARGEST
    if nothing_ran and nothing_failed:
        return max(smallest, predicted)
    if nothing_failed:
        return min(bracket.accepted + step, LARGEST)
    if nothing_ran:
        return max(bracket.refused - step, smallest)
    return (bracket.accepted + bracket.refused) // 2


def confirm(predicted: int, attempt: Attempt, smallest: int = 1) -> Confirmation:
    """Tries values, about log(how far off the prediction is) of them; two where it is exact.

    Stops at the first try that shows nothing. `smallest`: value that there is.
    """
    bracket, step, tries = Bracket(smallest - 1), 1, []
    while not bracket.is_closed:
        value = next_value(predicted, bracket, step, smallest)
        if tries:
            step *= GROWTH
        tries.append(attempt(value))
        fits = tries[-1].fits
        if fits is None:
            return Confirmation(predicted, None, tuple(tries))
        bracket = bracket.narrowed({value: fits})
    largest = bracket.accepted if bracket.accepted >= smallest else 0
    return Confirmation(predicted, largest, tuple(tries))
