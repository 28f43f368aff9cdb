"""One case as all files of a side have it: a file is a block."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.compare.comparison import CounterChange
from tinyllama_tools.compare.counters import compare_counters
from tinyllama_tools.compare.missing_cases import SideState
from tinyllama_tools.data.names import StoredCase
from tinyllama_tools.data.results import StoredRun


@dataclass(frozen=True)
class SideCase:
    """`runs`: of the files that know the case; `files`: how many files there are."""

    runs: tuple[StoredCase, ...]
    files: int

    @property
    def seconds(self) -> tuple[float, ...]:
        """A median for each file that measured it."""
        return tuple(run.seconds for run in self.runs if run.seconds is not None)

    @property
    def median(self) -> float | None:
        """Over files; None where none measured it."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def state(self) -> SideState:
        """What became of it, with the first reason."""
        skipped = next((run.skipped for run in self.runs if run.skipped), "")
        failures = [run.failed for run in self.runs if run.failed]
        failed = failures[0] if failures else ""
        if failures and self.files > 1:
            failed = f"in {len(failures)} of {self.files} files: {failed}"
        return SideState(bool(self.seconds), skipped, failed)

    @property
    def note(self) -> str:
        """In how many files it was measured, if not in all; why one has no shares of peaks."""
        measured = len(self.seconds)
        some = "" if measured == self.files else f"measured in {measured} of {self.files} files"
        above = next((run.above_peak for run in self.runs if run.above_peak), "")
        return ", ".join(filter(None, (some, above)))


def side_cases(runs: Sequence[StoredRun]) -> dict[str, SideCase]:
    """By name, in the order of the first file that has each."""
    found: dict[str, list[StoredCase]] = {}
    for run in runs:
        for name, case in run.cases.items():
            found.setdefault(name, []).append(case)
    return {name: SideCase(tuple(cases), len(runs)) for name, cases in found.items()}


def _counters(case: SideCase) -> tuple[Mapping[str, float], frozenset[str]]:
    """Medians over files, and the names of those that are not the same in all of them."""
    runs = [run for run in case.runs if run.seconds is not None]
    varying = frozenset().union(*(run.varying for run in runs))
    if len(runs) == 1:
        return runs[0].counters, varying
    shared = set.intersection(*(set(run.counters) for run in runs))
    values = {name: [run.counters[name] for run in runs] for name in sorted(shared)}
    found = {name: statistics.median(values[name]) for name in values}
    return found, varying | {name for name in values if len(set(values[name])) > 1}


def counter_changes(base: SideCase, new: SideCase) -> tuple[CounterChange, ...]:
    """A counter that is not the same in all runs of a side is not compared exactly."""
    (before, varying_before), (after, varying_after) = _counters(base), _counters(new)
    return compare_counters(before, after, varying_before | varying_after)
