"""What measuring two sides yields, item by item, whichever way they were run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tinyllama_tools.stats.looks import Block


class Side(str, Enum):
    """Which program; the order is that of CaseBlock.first: 0 base, 1 new."""

    BASE = "base"
    NEW = "new"

    @property
    def other(self) -> Side:
        """The one it is compared with."""
        return Side.NEW if self is Side.BASE else Side.BASE


SIDES = (Side.BASE, Side.NEW)


@dataclass(frozen=True)
class CaseBlock:
    """One case of one block. `first`: which side began each pair, 0 base, 1 new. `at`: seconds
    since the run's start. `index`: from 1."""

    index: int
    case: str
    block: Block
    first: tuple[int, ...]
    at: float = 0.0


@dataclass(frozen=True)
class CaseFailure:
    """A side crashed, hung, or gave a wrong result. `index`: of the block, 0 before the first."""

    index: int
    case: str
    side: Side
    reason: str


@dataclass(frozen=True)
class CaseSkip:
    """A side does not run this case, and says why."""

    case: str
    side: Side
    reason: str


@dataclass(frozen=True)
class CaseOpening:
    """A case as a side first built it. `seconds`: of one warm iteration. `counters`: those that
    time has no part in, by the names of a result file."""

    case: str
    side: Side
    seconds: float
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BothReady:
    """Of a block: its processes are there, and all that comes after is the cases' own time."""


Measured = CaseBlock | CaseFailure | CaseSkip
Opened = CaseOpening | CaseFailure | CaseSkip


class Measurer(Protocol):
    """A way of running the two sides."""

    method: str
    """`in turn` or `whole processes`."""

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        """Before any timing: every case once on each side, with its counters, and with the proof
        of its result where `verify`."""
        ...

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured | BothReady]:
        """One block: a fresh process on each side, every case once, each yielded when done. Where
        the processes' start is none of the cases' time, BothReady comes when they are there."""
        ...
