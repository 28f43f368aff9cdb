"""What the history keeps of a result file, and how files are put in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHORT_COMMIT = 10


@dataclass(frozen=True)
class Machine:
    """What a series is of: times of two machines are never in one. `threads`: computed with."""

    device: str
    architecture: str
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return ", ".join(part for part in (self.device, self.architecture, threads) if part)


@dataclass(frozen=True)
class CaseEntry:
    """One case of one file. `seconds`: of an iteration, the median over `repetitions`; None where
    it was skipped or failed, with the `reason`. `counters`: medians too."""

    name: str
    seconds: float | None
    repetitions: int
    counters: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class ResultEntry:
    """One result file. `date`, `commit_time`: ISO 8601 in UTC; `commit_time` is empty where git
    does not know the commit. `digest`: SHA-256 of the file. `context`: without the peaks."""

    file: str
    digest: str
    machine: Machine
    commit: str
    dirty: bool
    commit_time: str
    date: str
    context: Mapping[str, Any]
    cases: tuple[CaseEntry, ...]


@dataclass(frozen=True)
class StoredResult:
    """A result's row, without its cases. `number`: by which people and pages name it."""

    number: int
    file: str
    machine: Machine
    commit: str
    dirty: bool
    commit_time: str
    date: str
    added: str
    torch_version: str

    @property
    def label(self) -> str:
        """The commit in short, with a + where tracked files had been changed."""
        return (self.commit[:SHORT_COMMIT] or "no commit") + ("+" if self.dirty else "")

    @property
    def place(self) -> tuple[str, str, int]:
        """Its place in a series: by commit, and by date within a commit. What was measured of
        changed files belongs to no commit, and stands where its date does."""
        at = self.date if self.dirty or not self.commit_time else self.commit_time
        return (at, self.date, self.number)


@dataclass(frozen=True)
class Point:
    """One case in one file: median seconds of an iteration."""

    result: StoredResult
    seconds: float


@dataclass(frozen=True)
class Series:
    """One case on one machine, its points in order."""

    machine: Machine
    case: str
    points: tuple[Point, ...]
