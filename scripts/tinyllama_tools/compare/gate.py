"""From a comparison to the exit status of the command, and what that status says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinyllama_tools.compare.comparison import ComparedCase, Comparison
from tinyllama_tools.stats.verdicts import NO_REGRESSION, REGRESSION, STILL_UNCLEAR, Outcome

MEANINGS = {
    NO_REGRESSION: "no regression shown",
    REGRESSION: "regression",
    STILL_UNCLEAR: "not every case has an answer (--strict)",
}
ABSENCE_SHOWN = frozenset({Outcome.SAME, Outcome.FASTER})


@dataclass(frozen=True)
class Gate:
    """What fails beside regressions. `strict`: cases without an answer; `fail_on_growth`: a
    deterministic counter that got worse."""

    strict: bool = False
    fail_on_growth: bool = False

    def status(self, comparison: Comparison) -> int:
        """0, 1 or 3."""
        if self.fail_on_growth and growing(comparison.cases):
            return REGRESSION
        return comparison.exit_status(strict=self.strict)

    def colour(self, comparison: Comparison) -> str:
        """The one that every output gives the whole: red, yellow, green, or grey where nothing
        failed and nothing was shown either."""
        status = self.status(comparison)
        if status != NO_REGRESSION:
            return "red" if status == REGRESSION else "yellow"
        return "green" if is_absence_shown(comparison.cases) else "grey"


REGRESSIONS_ONLY = Gate()


def is_absence_shown(cases: Iterable[ComparedCase]) -> bool:
    """Whether every case is `same` or `faster`: no regression, and not only none that was seen."""
    found = {case.outcome for case in cases}
    return bool(found) and found <= ABSENCE_SHOWN


def failing(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Regressions that were not allowed by name."""
    return [case for case in cases if case.outcome.is_regression and not case.allowed]


def growing(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Those with a deterministic counter that got worse."""
    return [case for case in cases if case.grown]
