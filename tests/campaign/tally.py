"""How much of a part of the campaign is tried, and what of it did not hold."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from campaign.workloads import Workload


class OfLibrary(str):
    """What did not hold by a fault of a library: counted and listed apart."""


@dataclass
class Tally:
    """`tried`: how many faults of each kind. `violations`: what did not hold, in words;
    `of_libraries`: the same, how often each. `notes`: what was measured besides."""

    tried: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    of_libraries: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, problems: Iterable[str]) -> None:
        """One fault of this kind and what did not hold after it."""
        self.tried[kind] += 1
        for problem in problems:
            if isinstance(problem, OfLibrary):
                self.of_libraries[problem] += 1
            else:
                self.violations.append(f"{kind}: {problem}")

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.tried + other.tried,
            [*self.violations, *other.violations],
            self.of_libraries + other.of_libraries,
            [*self.notes, *other.notes],
        )


@dataclass(frozen=True)
class Scope:
    """How much of a part is done: `share` of its full counts, `minutes` of a soak, from `seed`; of
    workloads and other kinds only those in `names`, where it has any."""

    share: float = 1.0
    minutes: float = 120.0
    seed: int = 1
    names: tuple[str, ...] = ()
    jobs: int = 2

    def has(self, name: str) -> bool:
        return not self.names or name in self.names

    def some(self, workloads: Iterable[Workload]) -> list[Workload]:
        return [workload for workload in workloads if self.has(workload.name)]

    def count(self, full: int) -> int:
        """The share of a full count, at least one."""
        return max(1, round(self.share * full))

    def draws(self, kind: str, full: int) -> list[random.Random]:
        """A generator for each try; the same whatever the order they are tried in."""
        return [random.Random(f"{self.seed} {kind} {i}") for i in range(self.count(full))]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is removed, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="tiny_llama_campaign_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def each(scope: Scope, kind: str, draws: list, one: Callable[..., list[str]]) -> Tally:
    """`one` of each draw, some at a time; it gives what did not hold, an exception is that too."""
    tally = Tally()

    def guarded(draw: object) -> list[str]:
        try:
            return one(draw)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"[:300]]

    begun = time.monotonic()
    with ThreadPoolExecutor(scope.jobs) as pool:
        for number, problems in enumerate(pool.map(guarded, draws), start=1):
            tally.add(kind, problems)
            if problems or number % max(1, len(draws) // 5) == 0:
                seconds = time.monotonic() - begun
                print(f"{kind}: {number} of {len(draws)}, {seconds:.0f} s {problems}", flush=True)
    return tally
