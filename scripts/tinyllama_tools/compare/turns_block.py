"""Two resident processes that take turns in short slices, so that drift hits both alike.

A block is one fresh pair of processes. Within it the cases come in random order, and of each pair
of slices either side begins, half of the pairs each. Whatever else one side must do before the
other (start, open a case, close it) one side does first in this block and the other in the next.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from tinyllama_tools.compare.measurements import (
    SIDES,
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.compare.side_order import SideOrder
from tinyllama_tools.compare.turn_process import (
    CaseFailedError,
    CaseSkippedError,
    ProcessLostError,
    TurnProcess,
    start_all,
)
from tinyllama_tools.compare.turn_program import MOST_PADDING_BYTES, Greeting, TurnProgram
from tinyllama_tools.stats.looks import Block

IN_TURN = "in turn"
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
        programs: Mapping[Side, TurnProgram],
        limit: float,
        order: random.Random,
        sides: tuple[Side, ...] = SIDES,
    ) -> None:
        self.sides = sides
        self._programs = programs
        self._limit = limit
        self._order = order
        self.greetings: dict[Side, Greeting] = {}
        self._processes: dict[Side, TurnProcess] = {}
        # why a side is not started once more: each try may take as long as the limit
        self._cannot_start: dict[Side, str] = {}

    def __enter__(self) -> ProcessPair:
        self._start(self.sides)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def ready(self, side: Side) -> TurnProcess:
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


Opening = Mapping[Side, TurnProcess]


def _close_case(case: str, opened: dict[Side, TurnProcess]) -> None:
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


def _open_both(processes: Opening, case: str, opened: dict[Side, TurnProcess]) -> float:
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


class TakingTurns:
    """Measures in turn. `clock`: seconds, of which `at` counts from this object's making."""

    method = IN_TURN

    def __init__(
        self,
        programs: Mapping[Side, TurnProgram],
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
        """What each side can open, and its context. Raises NotResidentError where a side does not
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
        opened: dict[Side, TurnProcess] = {}
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
