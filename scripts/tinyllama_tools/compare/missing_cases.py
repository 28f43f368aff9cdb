"""Cases that are not on both sides: which outcome they get, and which are allowed by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tinyllama_tools.compare.comparison import ComparedCase
from tinyllama_tools.stats.verdicts import Outcome


@dataclass(frozen=True)
class SideState:
    """What became of a case on one side; nothing set: the side knows no such case. `is_pending`: it
    lists the case, and was interrupted before it came to it."""

    is_measured: bool = False
    skipped: str = ""
    failed: str = ""
    is_pending: bool = False


def outcome_without_times(base: SideState, new: SideState) -> tuple[Outcome, str] | None:
    """The outcome and its reason; None where both sides measured it and the new never failed.

    A case that the base lists but fails at has no verdict: nothing shows that the new is no slower.
    """
    if base.is_pending or new.is_pending:
        return Outcome.NO_VERDICT, "interrupted before it was opened"
    if base.is_measured and new.failed:
        return Outcome.FAILED, new.failed
    if base.is_measured and not new.is_measured:
        # a case that is skipped now would hide a slowdown as well as one that is gone
        reason = f"skipped in the new: {new.skipped}" if new.skipped else "not in the new"
        return Outcome.MISSING, reason
    if base.is_measured:
        return None
    before = base.failed or base.skipped
    words = f"{'failed' if base.failed else 'skipped'} in the base: {before}" if before else ""
    if new.is_measured and not new.failed:
        return Outcome.NO_VERDICT if base.failed else Outcome.ADDED, words or "not in the base"
    now = f"failed in the new: {new.failed}" if new.failed else f"skipped in the new: {new.skipped}"
    known = now if new.failed or new.skipped else "not in the new"
    return Outcome.SKIPPED, "; ".join(filter(None, [words or "not in the base", known]))


def is_allowed(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name or pattern (`loss/*`) covers the case."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def unknown_patterns(cases: Sequence[ComparedCase], patterns: Iterable[str]) -> list[str]:
    """Patterns that no case has: perhaps misspelt, perhaps of a case that is gone for good."""
    return [p for p in patterns if not any(is_allowed(case.name, [p]) for case in cases)]


def allow_missing(
    cases: Sequence[ComparedCase], patterns: Sequence[str]
) -> tuple[ComparedCase, ...]:
    """Marks missing and failed cases of these names as allowed; others stay what they are."""
    excusable = {Outcome.MISSING, Outcome.FAILED}
    return tuple(
        replace(case, allowed=True)
        if case.outcome in excusable and is_allowed(case.name, patterns)
        else case
        for case in cases
    )
