"""What one stored file says: a run of the suite or of the training program, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StoredCase:
    """A case of one file.

    `seconds`: of an iteration, the median over `repetitions`; None where it was skipped or failed,
    which `skipped` and `failed` give the reason for. `counters`: medians too. `varying`: counters
    that were not the same in every repetition. `label`: what the program says of the row.
    `above_peak`: why it has no shares of peaks; empty where it has.
    """

    seconds: float | None = None
    repetitions: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    skipped: str = ""
    failed: str = ""
    label: str = ""
    above_peak: str = ""


@dataclass(frozen=True)
class StoredRun:
    """`cases` by name; `peaks`: rows that measure the machine, likewise. `context`: what the
    figures belong to. `digest`: the same of the same file. `configuration`: of a training run, what
    it was asked to do; names of cases say so elsewhere."""

    path: Path
    context: Mapping[str, Any]
    cases: Mapping[str, StoredCase]
    peaks: Mapping[str, StoredCase] = field(default_factory=dict)
    digest: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
