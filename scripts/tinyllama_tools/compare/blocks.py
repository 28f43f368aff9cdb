"""Two served programs that are timed interleaved, in short slices, so that drift hits both alike.

A block is one fresh pair of processes. Within it the cases come in random order, and of each pair
of slices either side begins, half of the pairs each. Whatever else one side must do before the
other (start, open a case, close it) one side does first in this block and the other in the next.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tinyllama_tools.compare.served_process import (
    MOST_PADDING_BYTES,
    CaseFailedError,
    CaseSkippedError,
    Greeting,
    ProcessLostError,
    ServedProcess,
    ServedProgram,
    start_all,
)
from tinyllama_tools.data.names import SideState
from tinyllama_tools.stats.rank_tests import Block, BlockSummary, summarise


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
    """What runs the two sides: Interleaved, or a fake with a clock of its own."""

    method: str
    """As a recording calls it."""

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        """Before any timing: every case once on each side, with its counters, and with the proof
        of its result where `verify`."""
        ...

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured | BothReady]:
        """One block: a fresh process on each side, BothReady when both are there, then every case
        once, each yielded when done."""
        ...


class SideOrder:
    """Drawn, and balanced: of every two blocks each side comes first in one."""

    def __init__(self, order: random.Random) -> None:
        self._order = order
        self._coming: list[tuple[Side, Side]] = []

    def next(self) -> tuple[Side, Side]:
        """Of the next block."""
        if not self._coming:
            base, new = SIDES
            self._coming = [(base, new), (new, base)]
            self._order.shuffle(self._coming)
        return self._coming.pop()


# of one side, until the case is given up: one may be the machine's
MOST_FAILURES = 2


@dataclass
class CaseRecord:
    """`failures`: reasons by side, in order. `given_up`: no more blocks, since a side fails or
    skips it. `decided`: it has its verdict. `out_of_time`: its next look does not fit. `exhausted`:
    it is past the last look."""

    name: str
    blocks: list[BlockSummary] = field(default_factory=list)
    openings: dict[Side, CaseOpening] = field(default_factory=dict)
    failures: dict[Side, list[str]] = field(default_factory=lambda: {side: [] for side in SIDES})
    skips: dict[Side, str] = field(default_factory=dict)
    given_up: bool = False
    decided: bool = False
    out_of_time: bool = False
    exhausted: bool = False

    @property
    def is_open(self) -> bool:
        """Whether another block of it may be measured."""
        return not (self.given_up or self.decided or self.out_of_time or self.exhausted)

    def counters(self, side: Side) -> Mapping[str, float]:
        """Of the first opening."""
        return self.openings[side].counters if side in self.openings else {}

    def add(self, item: Measured | Opened) -> None:
        """Whatever became of it."""
        if isinstance(item, CaseBlock):
            self.blocks.append(summarise(item.block))
        elif isinstance(item, CaseOpening):
            self.openings[item.side] = item
        elif isinstance(item, CaseSkip):
            self.skips[item.side] = item.reason
            self.given_up = True
        elif isinstance(item, CaseFailure):
            self.failures[item.side].append(item.reason)
            if len(self.failures[item.side]) >= MOST_FAILURES:
                self.given_up = True

    def end_of_openings(self) -> None:
        """Who could not be opened before any timing is not timed."""
        if any(side not in self.openings for side in SIDES):
            self.given_up = True

    def state(self, side: Side) -> SideState:
        """For the outcome. What failed once and went well since counts as measured."""
        failed = self.failures[side]
        if side in self.skips:
            return SideState(skipped=self.skips[side])
        if failed and (side not in self.openings or len(failed) >= MOST_FAILURES):
            return SideState(failed=failed[-1])
        is_open = side in self.openings
        return SideState(is_measured=is_open, is_pending=not is_open)

    @property
    def failed_sides(self) -> dict[Side, list[str]]:
        """Reasons by side, of sides that failed at all, whether it went on after that or not."""
        return {side: reasons for side, reasons in self.failures.items() if reasons}


# the last few: a machine that others use may change within minutes
REMEMBERED = 5
# Of the budget, where blocks became slower than they were when a look was begun for.
MOST_OVERRUN = 1.15


class BlockCost:
    """Seconds of a block: those around the cases (start and end of its processes), and each case's
    own."""

    def __init__(self) -> None:
        self._around: list[float] = []
        self._cases: dict[str, list[float]] = {}

    def learn(self, whole: float, cases: Mapping[str, float]) -> None:
        """One block: its seconds, and of these the cases' own, the processes' start left out."""
        self._around = [*self._around, max(0.0, whole - sum(cases.values()))][-REMEMBERED:]
        for case, seconds in cases.items():
            self._cases[case] = [*self._cases.get(case, []), seconds][-REMEMBERED:]

    @property
    def around(self) -> float:
        """Start and end of the processes."""
        return statistics.median(self._around) if self._around else 0.0

    def of_case(self, case: str) -> float:
        """As the usual case where it was not measured yet."""
        if case in self._cases:
            return statistics.median(self._cases[case])
        known = [statistics.median(found) for found in self._cases.values()]
        return statistics.median(known) if known else 0.0

    def of_block(self, cases: Collection[str]) -> float:
        """With these cases."""
        return self.around + sum(map(self.of_case, cases))


METHOD = "interleaved"
# until the workers of the side that has just been timed sleep; see SHORT_SPIN
SETTLING_SECONDS = 0.002
# Of a slow case fewer pairs have to do, since their scatter shrinks with their length while that
# between processes stays: as many as take this long, but never fewer than these.
MOST_SECONDS_A_CASE = 1.5
FEWEST_PAIRS = 4
# at the first opening, for a process that was lost
CHANCES = 2


@dataclass(frozen=True)
class SliceEffort:
    """`pairs` of slices a case and block, if it is not slow; `slice_seconds`: whole iterations
    until that is used; `limit`: seconds that one answer may take."""

    pairs: int = 8
    slice_seconds: float = 0.015
    limit: float = 60.0

    def pairs_for(self, seconds: float) -> int:
        """Of a case whose iteration takes so long."""
        affordable = int(MOST_SECONDS_A_CASE / (2 * max(seconds, self.slice_seconds)))
        return min(self.pairs, max(FEWEST_PAIRS, affordable))


class SideError(Exception):
    """A side could not go on with a case. `is_skip`: it does not mean to run it. `is_lost`: its
    process is gone."""

    def __init__(
        self, side: Side, reason: object, *, is_skip: bool = False, is_lost: bool = False
    ) -> None:
        super().__init__(str(reason))
        self.side = side
        self.is_skip = is_skip
        self.is_lost = is_lost


@contextlib.contextmanager
def of_side(side: Side) -> Iterator[None]:
    """Whatever goes wrong inside is this side's."""
    try:
        yield
    except CaseSkippedError as error:
        raise SideError(side, error, is_skip=True) from error
    except CaseFailedError as error:
        raise SideError(side, error) from error
    except ProcessLostError as error:
        raise SideError(side, error, is_lost=True) from error


class ProcessPair:
    """Both sides' processes, started at once; one that was lost is started anew when needed.

    `sides`: in the order in which they are started, waited for and closed.
    """

    def __init__(
        self,
        programs: Mapping[Side, ServedProgram],
        limit: float,
        order: random.Random,
        sides: tuple[Side, ...] = SIDES,
    ) -> None:
        self.sides = sides
        self._programs = programs
        self._limit = limit
        self._order = order
        self.greetings: dict[Side, Greeting] = {}
        self._processes: dict[Side, ServedProcess] = {}
        # why a side is not started once more: each try may take as long as the limit
        self._cannot_start: dict[Side, str] = {}

    def __enter__(self) -> ProcessPair:
        self._start(self.sides)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for side in self.sides:
            self._processes[side].close(wait=kind is None)

    def _start(self, sides: Sequence[Side]) -> None:
        paddings = [self._order.randint(0, MOST_PADDING_BYTES) for _ in sides]
        programs = [self._programs[side] for side in sides]
        started = start_all(programs, limit=self._limit, paddings=paddings)
        self._processes.update(zip(sides, started, strict=True))

    def greet(self, side: Side) -> Greeting:
        """What the side says of itself; waits until it is there."""
        if side not in self.greetings:
            self.greetings[side] = self._processes[side].greet()
        return self.greetings[side]

    def ready(self, side: Side) -> ServedProcess:
        """Its process, which has nothing open where it is a new one. SideError: it cannot start;
        after a second try it is left at that."""
        if side in self._cannot_start:
            raise SideError(side, self._cannot_start[side])
        if not self._processes[side].is_running:
            self._processes[side].close()
            self.greetings.pop(side, None)
            self._start([side])
        try:
            self.greet(side)
        except ProcessLostError as error:
            self._cannot_start[side] = str(error)
            raise SideError(side, error) from error
        return self._processes[side]

    def wait_until_ready(self) -> None:
        """Until both compute nothing. One that cannot start is said with each of its cases."""
        for side in self.sides:
            with contextlib.suppress(ProcessLostError):
                self.greet(side)


Opening = Mapping[Side, ServedProcess]


def _close_case(case: str, opened: dict[Side, ServedProcess]) -> None:
    """Where one side fails at this, `opened` keeps the other if it has not been asked yet."""
    for side in tuple(opened):
        process = opened.pop(side)
        with of_side(side):
            process.close_case(case)


def _leave(case: str, opened: Opening) -> None:
    """After a failure; what fails once more shows at the next case."""
    for process in opened.values():
        if process.is_running:
            with contextlib.suppress(CaseFailedError, CaseSkippedError, ProcessLostError):
                process.close_case(case)


def _open_both(processes: Opening, case: str, opened: dict[Side, ServedProcess]) -> float:
    """Both build at once, since nothing is timed yet; `opened` gets those that could. Seconds of an
    iteration of the less disturbed side."""
    for process in processes.values():
        process.ask_to_open(case)
    seconds, errors = [], []
    for side, process in processes.items():
        try:
            with of_side(side):
                seconds.append(process.opened(case).seconds)
            opened[side] = process
        except SideError as error:
            # the other side's answer has to be read all the same
            errors.append(error)
    if errors:
        raise errors[0]
    return min(seconds)


def balanced_order(pairs: int, order: random.Random) -> tuple[int, ...]:
    """Who begins each pair: each side half of them, as nearly as that goes, in random order."""
    extra = [order.randrange(2)] if pairs % 2 else []
    first = [0, 1] * (pairs // 2) + extra
    order.shuffle(first)
    return tuple(first)


def _time_pairs(opened: Opening, case: str, effort: SliceEffort, firsts: Sequence[int]) -> Block:
    """The median iteration of each slice, since an interrupt lengthens one of them only."""
    slices: dict[Side, list[float]] = {side: [] for side in SIDES}
    for first in firsts:
        for side in (SIDES[first], SIDES[1 - first]):
            time.sleep(SETTLING_SECONDS)
            with of_side(side):
                seconds = opened[side].time(case, effort.slice_seconds)
            slices[side].append(statistics.median(seconds))
    return Block(tuple(slices[Side.BASE]), tuple(slices[Side.NEW]))


class Interleaved:
    """Measures both sides interleaved. `clock`: seconds, of which `at` counts from its making."""

    method = METHOD

    def __init__(
        self,
        programs: Mapping[Side, ServedProgram],
        effort: SliceEffort,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.effort = effort
        self._programs = programs
        self._order = random.Random(seed)
        self._sides = SideOrder(self._order)
        self._clock = clock
        self._started = clock()

    def _pair(self, sides: tuple[Side, ...] = SIDES) -> ProcessPair:
        return ProcessPair(self._programs, self.effort.limit, self._order, sides)

    def greet(self) -> dict[Side, Greeting]:
        """What each side can open, and its context. Raises BadInputError where a side does not
        know how to stay, ProcessLostError where it does not start."""
        with self._pair() as pair:
            return {side: pair.greet(side) for side in SIDES}

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        """Untimed, in processes of their own: proof and metering leave memory behind that a case
        would else be timed with in the first block only. Who was lost at a case gets another
        chance at it, since memory may have been short for a moment."""
        with self._pair() as pair:
            pair.wait_until_ready()
            for case in cases:
                for side in SIDES:
                    yield from self._open_on(pair, case, side, verify)

    def _open_on(self, pair: ProcessPair, case: str, side: Side, verify: bool) -> Iterator[Opened]:
        for _ in range(CHANCES):
            try:
                process = pair.ready(side)
                with of_side(side):
                    found = process.open(case, verify=verify, meter=True)
                    process.close_case(case)
            except SideError as error:
                if error.is_skip:
                    yield CaseSkip(case, side, str(error))
                else:
                    yield CaseFailure(0, case, side, str(error))
                if error.is_lost:
                    continue
            else:
                yield CaseOpening(case, side, found.seconds, found.counters)
            return

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured | BothReady]:
        """One block; see Measurer."""
        shuffled = list(cases)
        self._order.shuffle(shuffled)
        with self._pair(self._sides.next()) as pair:
            pair.wait_until_ready()
            yield BothReady()
            for case in shuffled:
                yield self._measure_case(pair, index, case)

    def _measure_case(self, pair: ProcessPair, index: int, case: str) -> Measured:
        opened: dict[Side, ServedProcess] = {}
        try:
            seconds = _open_both({side: pair.ready(side) for side in pair.sides}, case, opened)
            firsts = balanced_order(self.effort.pairs_for(seconds), self._order)
            block = _time_pairs(opened, case, self.effort, firsts)
            _close_case(case, opened)
        except SideError as error:
            _leave(case, opened)
            if error.is_skip:
                return CaseSkip(case, error.side, str(error))
            return CaseFailure(index, case, error.side, str(error))
        return CaseBlock(index, case, block, firsts, self._clock() - self._started)
