"""What a block of certain cases will take, learned from the blocks so far."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping

# the last few: a machine that others use may change within minutes
REMEMBERED = 5
# Of the budget, where blocks became slower than they were when a look was begun for.
MOST_OVERRUN = 1.15


class BlockCost:
    """Seconds of a block: those around the cases (start and end of its processes), and each case's
    own."""

    def __init__(self) -> None:
        self._around: list[float] = []
        self._cases: dict[str, list[float]] = {}

    def learn(self, whole: float, cases: Mapping[str, float]) -> None:
        """One block: its seconds, and of these the cases' own, the processes' start left out."""
        self._around = [*self._around, max(0.0, whole - sum(cases.values()))][-REMEMBERED:]
        for case, seconds in cases.items():
            self._cases[case] = [*self._cases.get(case, []), seconds][-REMEMBERED:]

    @property
    def around(self) -> float:
        """Start and end of the processes."""
        return statistics.median(self._around) if self._around else 0.0

    def of_case(self, case: str) -> float:
        """As the usual case where it was not measured yet."""
        if case in self._cases:
            return statistics.median(self._cases[case])
        known = [statistics.median(found) for found in self._cases.values()]
        return statistics.median(known) if known else 0.0

    def of_block(self, cases: Collection[str]) -> float:
        """With these cases."""
        return self.around + sum(map(self.of_case, cases))
