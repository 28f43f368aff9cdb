"""Measures the rounds of a grid, each in one process, as far as the budget of time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.studies import CHECK, PRODUCTS, journal_of, journaled_names, round_file
from tinyllama_tools.grid_study.bench_process import (
    StoppedError,
    case_of,
    check_ending,
    journal_options,
    listen,
    read_document,
)
from tinyllama_tools.grid_study.plan import round_options
from tinyllama_tools.grid_study.progress import GridProgress, Place
from tinyllama_tools.grid_study.record import Record, write_record

# What a later round takes beside the first, which proves every case before it times it. Small
# cases, which spend their time on preparation, measured 0.8; large ones gain more.
LATER_SHARE = 0.8
ENDING = "interrupted: ending after the case in hand; Ctrl-C once more ends at once"


@dataclass
class GridStudy:
    """A grid's folder, its program, and how far it is; `record` is on disk whenever it changes."""

    folder: Path
    program: Path
    record: Record
    clock: Callable[[], float] = field(default=time.monotonic)

    def keep(self, record: Record) -> None:
        """OSError where it cannot be written."""
        write_record(self.folder, record)
        self.record = record

    def spend(self, number: int, seconds: float) -> None:
        """Adds to a round's time."""
        spent = list(self.record.round_seconds)
        spent += [0.0] * (number - len(spent))
        spent[number - 1] += seconds
        self.keep(replace(self.record, round_seconds=tuple(spent)))

    @property
    def begun(self) -> int:
        """Rounds that were begun."""
        return len(self.record.round_seconds)

    @property
    def seconds_left(self) -> float:
        """Of the budget."""
        return max(0.0, 60 * self.record.plan.minutes - self.record.seconds_spent)


@dataclass(frozen=True)
class Outcomes:
    """How many cases of a result were measured, left out with a reason, and failed."""

    measured: int
    left_out: int
    failed: int

    def __str__(self) -> str:
        return f"{self.measured} measured, {self.left_out} left out, {self.failed} failed"


def count_outcomes(document: Json) -> Outcomes:
    """Of a result of the suite."""
    rows: dict[str, list[Json]] = {}
    for entry in document["benchmarks"]:
        rows.setdefault(case_of(entry), []).append(entry)
    failed = sum(any("error_occurred" in e for e in entries) for entries in rows.values())
    left_out = sum(any("skipped" in e for e in entries) for entries in rows.values())
    return Outcomes(len(rows) - failed - left_out, left_out, failed)


def run_journaled(
    study: GridStudy,
    options: Sequence[str],
    result: Path,
    names: Sequence[str],
    verify: str,
    progress: GridProgress,
) -> tuple[Json, bool]:
    """Runs the program to its end, from where its journal is: the result that it wrote, and whether
    we were interrupted while it did. `names`: of all cases that have to be in it.

    Raises KeyboardInterrupt where it had to end before, and has kept what it had; StoppedError
    where there is no whole result.
    """
    journal = journal_options(result, journal_of(round_file(study.folder, 1)), verify)
    command = [str(study.program), *options, *journal, f"--benchmark_out={result}"]
    ending = listen(command, progress.hear, lambda: progress.say(ENDING))
    progress.clear()
    check_ending(ending, study.program.name, result.name)
    document = read_document(result)
    missing = set(names) - {case_of(entry) for entry in document["benchmarks"]}
    if missing:
        # it could not write its journal, say
        what = f"{result.name} lacks {len(missing)} of {len(names)} cases"
        raise StoppedError(f"{what}; last words of {study.program.name}: {ending.words}", 1)
    return document, ending.is_interrupted


def _run_round(study: GridStudy, number: int, names: Sequence[str], progress: GridProgress) -> None:
    plan = study.record.plan
    title = f"round {number}/{plan.rounds}"
    result = round_file(study.folder, number)
    place = Place(number, plan.rounds, study.seconds_left)
    progress.begin(title, names, journaled_names(journal_of(result)), place)
    verify = "before" if number == 1 else "off"
    started = study.clock()
    try:
        options = round_options(plan, number)
        document, is_interrupted = run_journaled(study, options, result, names, verify, progress)
    finally:
        study.spend(number, study.clock() - started)
    study.keep(replace(study.record, rounds_done=number))
    took = duration(study.record.round_seconds[number - 1])
    progress.say(f"{title}: {count_outcomes(document)}, in {took}")
    if is_interrupted:
        raise KeyboardInterrupt


def _expected_seconds(study: GridStudy, number: int) -> float:
    """Of a round that was not begun, from the one before it; 0 for the first."""
    before = study.record.round_seconds[: number - 1]
    if not before:
        return 0.0
    return before[-1] * (LATER_SHARE if len(before) == 1 else 1.0)


def _leave_out(study: GridStudy, number: int, expected: float, progress: GridProgress) -> None:
    plan = study.record.plan
    which = f"round {number}" if number == plan.rounds else f"rounds {number} to {plan.rounds}"
    text = (
        f"{which} left out: another {duration(expected)} would exceed --grid-minutes "
        f"{plan.minutes:g}, of which {duration(study.seconds_left)} are left"
    )
    study.keep(replace(study.record, left_out=text))
    progress.say(text)


def run_rounds(study: GridStudy, names: Sequence[str], progress: GridProgress) -> None:
    """All rounds that are not done yet.

    A round that was begun is always ended; later ones are left out where the budget is spent.
    Raises what run_journaled does.
    """
    for number in range(study.record.rounds_done + 1, study.record.plan.rounds + 1):
        expected = _expected_seconds(study, number)
        if number > study.begun and expected > study.seconds_left:
            _leave_out(study, number, expected, progress)
            break
        _run_round(study, number, names, progress)


def has_failures(study: GridStudy) -> bool:
    """Whether a case of a round that is done failed, of the products or of the check."""
    done = range(1, study.record.rounds_done + 1)
    files = [round_file(study.folder, number) for number in done]
    files += [path for name in (PRODUCTS, CHECK) if (path := study.folder / name).is_file()]
    return any(count_outcomes(read_document(path)).failed for path in files)
