"""The fallback: a build that cannot stay resident is run in short whole processes.

A block is one process of each side, in random order. Processes run seconds apart, so drift of the
machine is in the differences, and more blocks are needed than in turns.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tinyllama_tools.compare.measurements import (
    SIDES,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.compare.side_order import SideOrder
from tinyllama_tools.compare.turn_program import MOST_PADDING_BYTES, TurnProgram
from tinyllama_tools.compare.turns_block import SliceEffort
from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.programs import CaseRun, SuiteCase, SuiteError, SuiteProgram
from tinyllama_tools.stats.looks import Block

WHOLE_PROCESSES = "whole processes"


def suite_case(name: str) -> SuiteCase:
    """By its axes. Raises BadInputError for what is no name of a case."""
    axes = parse_case_name(name)
    if axes is None:
        raise BadInputError(
            f"case '{name}': must be component/pass/variant/size/dtype/batch:B/seq:S"
        )
    return SuiteCase(
        axes.size, axes.dtype, axes.batch, axes.seq, axes.variant, axes.component, axes.pass_name
    )


def _without_axes(arguments: Sequence[str]) -> tuple[str, ...]:
    """SuiteProgram names the axes of the cases it is asked for itself."""
    axes = r"--(components|passes|variants|sizes|dtypes|batch|seq|benchmark_filter)="
    return tuple(argument for argument in arguments if not re.match(axes, argument))


def _are_times(seconds: Sequence[float]) -> bool:
    return all(math.isfinite(value) and value > 0 for value in seconds)


def _no_times(seconds: Sequence[float]) -> str:
    return f"a repetition took {min(seconds)} s: must be positive and finite"


class RunningWholes:
    """Measures in whole processes; `contexts`: of the last result file of each side."""

    method = WHOLE_PROCESSES

    def __init__(
        self,
        programs: Mapping[Side, TurnProgram],
        effort: SliceEffort,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.effort = effort
        self.contexts: dict[Side, Json] = {side: {} for side in SIDES}
        self._order = random.Random(seed)
        self._side_order = SideOrder(self._order)
        # what a process with this case alone may take in a block: seconds, known once it was opened
        self._expected: dict[tuple[Side, str], float] = {}
        self._clock = clock
        self._started = clock()
        self._sides = programs
        self._programs = {
            side: SuiteProgram(_without_axes(program.arguments), program.program)
            for side, program in programs.items()
        }

    def cases(self) -> dict[Side, tuple[str, ...]]:
        """What each side lists. Raises BadInputError where it refuses the options or does not."""
        found = {}
        for side, program in self._programs.items():
            program.time_limit = self.effort.limit
            try:
                names, refusal = program.list_cases(self._sides[side].arguments)
            except SuiteError as error:
                raise BadInputError(f"{side.value}: {error}") from error
            if refusal:
                raise BadInputError(f"{side.value}: {refusal}")
            found[side] = tuple(names)
        return found

    def open_once(self, cases: Sequence[str], *, verify: bool) -> Iterator[Opened]:
        """One process a case and side, so that one that crashes takes no other with it."""
        for case in cases:
            for side in SIDES:
                began = self._clock()
                run = self._run(side, [case], 1, verify=verify)
                if isinstance(run, str):
                    yield CaseFailure(0, case, side, run)
                    continue
                (found,) = run
                if found.seconds and not _are_times(found.seconds):
                    yield CaseFailure(0, case, side, _no_times(found.seconds))
                elif found.seconds:
                    slices = self.effort.pairs * max(*found.seconds, self.effort.slice_seconds)
                    self._expected[(side, case)] = self._clock() - began + slices
                    yield CaseOpening(case, side, min(found.seconds), found.counters)
                elif found.failed:
                    yield CaseFailure(0, case, side, found.failed)
                else:
                    yield CaseSkip(case, side, found.skipped)

    def measure(self, index: int, cases: Sequence[str]) -> Iterator[Measured]:
        """One process of each side; where that does not come to its end, one for each case."""
        sides = self._side_order.next()
        first = SIDES.index(sides[0])
        runs = {side: self._run_all(side, cases) for side in sides}
        for i, case in enumerate(cases):
            yield self._pair_up(index, case, first, {side: runs[side][i] for side in SIDES})

    def _pair_up(
        self, index: int, case: str, first: int, runs: Mapping[Side, CaseRun | str]
    ) -> Measured:
        seconds: dict[Side, tuple[float, ...]] = {}
        for side, run in runs.items():
            if isinstance(run, str):
                return CaseFailure(index, case, side, run)
            if run.failed or not (run.seconds or run.skipped):
                return CaseFailure(index, case, side, run.failed or "no repetition was measured")
            if not run.seconds:
                return CaseSkip(case, side, run.skipped)
            if not _are_times(run.seconds):
                return CaseFailure(index, case, side, _no_times(run.seconds))
            seconds[side] = run.seconds
        pairs = min(map(len, seconds.values()))
        block = Block(seconds[Side.BASE][:pairs], seconds[Side.NEW][:pairs])
        return CaseBlock(index, case, block, (first,) * pairs, self._clock() - self._started)

    def _run_all(self, side: Side, cases: Sequence[str]) -> list[CaseRun | str]:
        together = self._run(side, cases, self.effort.pairs)
        if not isinstance(together, str):
            return list(together)
        if len(cases) == 1:
            return [together]
        found: list[CaseRun | str] = []
        for case in cases:
            alone = self._run(side, [case], self.effort.pairs)
            found.append(alone if isinstance(alone, str) else alone[0])
        return found

    def _run(
        self, side: Side, cases: Sequence[str], repetitions: int, *, verify: bool = False
    ) -> tuple[CaseRun, ...] | str:
        """The cases in their order, or why there are none."""
        suite_cases = [suite_case(case) for case in cases]
        more = () if verify else (f"--benchmark_min_time={self.effort.slice_seconds:g}s",)
        program = self._programs[side]
        padding = self._order.randint(0, MOST_PADDING_BYTES)
        program.environment = self._sides[side].environment_with(padding)
        program.time_limit = self._limit(side, cases)
        try:
            result = program.run(suite_cases, repetitions, verify=verify, more=more)
        except SuiteError as error:
            return str(error)
        except (ValueError, KeyError, TypeError) as error:
            return f"its result file cannot be read: {error!r}"
        self.contexts[side] = result.context
        return result.cases

    def _limit(self, side: Side, cases: Sequence[str]) -> float:
        """Seconds until a process counts as hanging: one answer's more than it should take, twice
        over. Of cases that were not opened yet, each one's limit, and one for the program's start,
        which measures peaks."""
        most = self.effort.limit * (1 + len(cases))
        expected = [self._expected.get((side, case), math.inf) for case in cases]
        return min(most, self.effort.limit + 2 * sum(expected))
