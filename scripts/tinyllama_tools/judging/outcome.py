"""What can be said of a case. Words, colours and the exit status all derive from this one value."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Outcome(str, Enum):
    """The values are the words that people and JSON read."""

    SLOWER = "slower"
    """The corrected p-value and an estimate beyond the margin say so."""
    FASTER = "faster"
    """As `slower`, the other way."""
    SAME = "same"
    """Equivalence shown: the interval lies within the margin on both sides."""
    UNCLEAR = "unclear"
    """Neither shown."""
    NO_VERDICT = "no verdict"
    """Not what an error rate could be stated from: one run a side, or the base's own failure."""
    MISSING = "missing"
    """In the base only."""
    ADDED = "added"
    """In the new only: the base does not have it, or skips it."""
    FAILED = "failed"
    """Measured in the base, failed in the new: wrong result, crash, hang."""
    SKIPPED = "skipped"
    """Not measured on a side, with that side's reason, and no fault of the new."""

    @property
    def is_regression(self) -> bool:
        """Whether it fails the gate, unless it was allowed by name."""
        return self in {Outcome.SLOWER, Outcome.MISSING, Outcome.FAILED}

    @property
    def colour(self) -> str:
        """The one colour that every output gives it: red, green, yellow or grey."""
        if self.is_regression:
            return "red"
        if self in {Outcome.FASTER, Outcome.SAME}:
            return "green"
        return "yellow" if self is Outcome.UNCLEAR else "grey"


NO_REGRESSION = 0
REGRESSION = 1
BAD_INPUT = 2
STILL_UNCLEAR = 3


def exit_status(outcomes: Iterable[Outcome], *, strict: bool = False) -> int:
    """Of the whole comparison. `strict`: cases without an answer end it with 3."""
    found = set(outcomes)
    if any(outcome.is_regression for outcome in found):
        return REGRESSION
    if strict and found & {Outcome.UNCLEAR, Outcome.NO_VERDICT}:
        return STILL_UNCLEAR
    return NO_REGRESSION
