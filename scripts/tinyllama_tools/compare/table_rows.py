"""The rows of the table of all cases, the same in every output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tinyllama_tools.compare.comparison import ComparedCase
from tinyllama_tools.compare.counters import HEADLINE
from tinyllama_tools.compare.wording import (
    change_text,
    counter_text,
    interval_text,
    note_text,
    seconds_text,
    verdict_text,
)
from tinyllama_tools.stats.verdicts import Outcome

HEADER = ("case", "base", "new", "change", "interval", "verdict", "blocks", "note")
# what needs somebody's eyes comes first
ORDER = (
    Outcome.SLOWER,
    Outcome.FAILED,
    Outcome.MISSING,
    Outcome.UNCLEAR,
    Outcome.FASTER,
    Outcome.NO_VERDICT,
    Outcome.SAME,
    Outcome.ADDED,
    Outcome.SKIPPED,
)


@dataclass(frozen=True)
class Row:
    """A case as texts; `cells` under HEADER."""

    case: ComparedCase
    cells: tuple[str, ...]


def in_order(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    """Regressions first, the largest change first among equals; allowed ones after the others."""
    return sorted(
        cases,
        key=lambda case: (
            case.allowed,
            ORDER.index(case.outcome),
            -(case.ratio or 0.0) if case.outcome is not Outcome.FASTER else (case.ratio or 0.0),
            case.name,
        ),
    )


def table_rows(cases: Iterable[ComparedCase]) -> list[Row]:
    """In that order."""
    return [
        Row(
            case,
            (
                case.name,
                seconds_text(case.base_seconds),
                seconds_text(case.new_seconds),
                change_text(case.ratio),
                interval_text(case.interval),
                verdict_text(case),
                str(case.blocks) if case.blocks else "-",
                note_text(case),
            ),
        )
        for case in in_order(cases)
    ]


def is_changed(case: ComparedCase) -> bool:
    """Whether its details are worth reading: other time, or a counter that grew."""
    return case.outcome in {Outcome.SLOWER, Outcome.FASTER} or bool(case.grown)


def headline_counters(case: ComparedCase) -> list[str]:
    """What matters of a changed case beside time, every deterministic counter that moved, and
    those that a side lacks."""
    shown = [
        c
        for c in case.counters
        if c.name in HEADLINE or c.is_one_sided or (c.exact and c.base != c.new)
    ]
    return [counter_text(change) for change in shown]
