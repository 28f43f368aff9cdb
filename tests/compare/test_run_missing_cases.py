"""Cases that are not on both sides, of a run and of stored results alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_samples import FFN, TIMES, document, stopped, write

from tinyllama_tools.compare.comparison import SideState, outcome_without_times
from tinyllama_tools.compare.stored import Rules, compare_stored, read_stored
from tinyllama_tools.stats.verdicts import Outcome

ABSENT, MEASURED = SideState(), SideState(is_measured=True)
FAILED, SKIPPED = SideState(failed="crashed"), SideState(skipped="too large")
PENDING = SideState(is_pending=True)
INTERRUPTED = (Outcome.NO_VERDICT, "interrupted before it was opened")


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (MEASURED, MEASURED, None),
        (MEASURED, FAILED, (Outcome.FAILED, "crashed")),
        (MEASURED, SKIPPED, (Outcome.MISSING, "skipped in the new: too large")),
        (MEASURED, ABSENT, (Outcome.MISSING, "not in the new")),
        (ABSENT, MEASURED, (Outcome.ADDED, "not in the base")),
        (SKIPPED, MEASURED, (Outcome.ADDED, "skipped in the base: too large")),
        # it is there, and nothing shows that the new is no slower
        (FAILED, MEASURED, (Outcome.NO_VERDICT, "failed in the base: crashed")),
        (MEASURED, PENDING, INTERRUPTED),
        (PENDING, MEASURED, INTERRUPTED),
        (PENDING, PENDING, INTERRUPTED),
    ],
)
def test_outcomes_without_times(
    base: SideState, new: SideState, expected: tuple[Outcome, str] | None
) -> None:
    assert outcome_without_times(base, new) == expected


def test_a_stored_case_that_failed_in_the_base_has_no_verdict(tmp_path: Path) -> None:
    without = {name: seconds for name, seconds in TIMES.items() if name != FFN}
    failing = document(without, more=[stopped(FFN, failed="wrong loss")])
    paths = write(tmp_path / "base.json", failing), write(tmp_path / "new.json", document(TIMES))
    base, new = ([read_stored(path)] for path in paths)
    found = compare_stored(base, new, Rules(1e-3, 0.03))
    (case,) = (case for case in found.cases if case.name == FFN)
    assert (case.outcome, case.note) == (Outcome.NO_VERDICT, "failed in the base: wrong loss")
    assert found.exit_status(strict=True) == 3
