"""From a comparison to the exit status of the command, and what that status says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinyllama_tools.compare.comparison import ComparedCase, Comparison
from tinyllama_tools.judging.outcome import NO_REGRESSION, REGRESSION, STILL_UNCLEAR

MEANINGS = {
    NO_REGRESSION: "no regression shown",
    REGRESSION: "regression",
    STILL_UNCLEAR: "not every case has an answer (--strict)",
}


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


REGRESSIONS_ONLY = Gate()


def growing(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Those with a deterministic counter that got worse."""
    return [case for case in cases if case.grown]
