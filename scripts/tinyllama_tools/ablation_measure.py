"""Runs the cells of an ablation: once verified, then in turns, process by process."""

from __future__ import annotations

import copy
import random
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tinyllama_tools.ablation_study import OPTIMIZED, Cell, Kind, Point, RowName, Table
from tinyllama_tools.ablation_variants import SpellingBook, resolved_switches, without
from tinyllama_tools.core.app import Json
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.programs import CaseRun, SuiteCase, SuiteError, SuiteResult

# fewer decide nothing
FEWEST_TURNS = 5
Block = tuple[Table, Point]


class Program(Protocol):
    """What runs cases in a process: SuiteProgram, or a stand-in of the tests."""

    def run(
        self,
        cases: Sequence[SuiteCase],
        repetitions: int,
        *,
        verify: bool = False,
        more: Sequence[str] = (),
    ) -> SuiteResult:
        """As SuiteProgram.run()."""
        ...


@dataclass(frozen=True)
class Effort:
    """How much is measured. Cells slower than `slow_seconds` a step get fewer."""

    turns: int = 7
    steps: int = 5
    seed: int = 42
    slow_seconds: float = 2.0

    def is_slow(self, cell: Cell) -> bool:
        """Going by its verified step."""
        return cell.counters.get("verified_seconds", 0.0) > self.slow_seconds

    def turns_of(self, cell: Cell) -> int:
        """A slow cell is measured in the first turns only."""
        return min(self.turns, FEWEST_TURNS) if self.is_slow(cell) else self.turns

    def steps_of(self, cell: Cell) -> int:
        """One step of a slow cell averages over more than enough."""
        return 1 if self.is_slow(cell) else self.steps


def in_a_line(error: SuiteError) -> str:
    """Without what a program that died of a signal had said before."""
    died = re.match(r".* ended with -\d+", str(error))
    return died.group() if died else " ".join(str(error).split())


def take_over(cell: Cell, run: CaseRun) -> None:
    """What a process found, but its time. A case that was measured at all counts as measured."""
    cell.failure = run.failed
    cell.reason = "" if run.seconds else run.skipped
    cell.label = run.label or cell.label
    cell.above_peak = run.above_peak or cell.above_peak
    if run.seconds and not cell.counters:
        cell.counters = dict(run.counters)


@dataclass
class Measurement:
    """The loops. `context`: of the first process, with the peaks of all types."""

    program: Program
    book: SpellingBook
    effort: Effort
    progress: Progress
    context: Json = field(default_factory=dict)

    def plan(self, table: Table, rows: Iterable[RowName], points: Iterable[Point]) -> None:
        """Adds the cells of rows at points; a removed row only where `optimized` has its switch."""
        for point in points:
            for row in rows:
                variant = row.name
                if row.kind == Kind.removed:
                    optimized = table.get(OPTIMIZED, point)
                    held = resolved_switches(optimized.label if optimized else "") or []
                    if row.removed_switch not in held:
                        continue
                    variant = without(held, row.removed_switch)
                spelling = self.book.spelling(variant)
                table.add(Cell(row.name, point, spelling.name, reason=spelling.refusal))

    def verify(self, table: Table) -> None:
        """One iteration of each cell that has no counters yet, compared with the float64 baseline.

        All rows of a point share a process, and so its reference; where it does not come to its
        end, each gets its own.
        """
        for point in table.points():
            cells = [c for (_, at), c in table.cells.items() if at == point]
            cells = [c for c in cells if c.can_run and not c.counters]
            if not cells:
                continue
            self.progress.line(f"verifying {point.title}: {len(cells)} rows")
            try:
                self._run(cells, 1, verify=True)
            except SuiteError:
                for cell in cells:
                    self._run_alone(cell, 1, verify=True)

    def take_turns(self, tables: Iterable[Table], after_turn: Callable[[], None]) -> None:
        """Times every cell once a turn, each in a process, in an order drawn anew each turn.

        Points follow one another and rows are shuffled within a point, so that what is divided by
        each other ran within minutes.
        """
        order = random.Random(self.effort.seed)
        blocks: list[Block] = [(table, point) for table in tables for point in table.points()]
        total = sum(len(self._due(b, turn)) for turn in range(self.effort.turns) for b in blocks)
        self.progress.begin(total)
        for turn in range(self.effort.turns):
            order.shuffle(blocks)
            for block in blocks:
                cells = self._due(block, turn)
                order.shuffle(cells)
                for cell in cells:
                    self.progress.step(f"turn {turn + 1}: {block[1].title}: {cell.row}")
                    self._time(cell, turn)
            self.progress.line(f"turn {turn + 1} of {self.effort.turns} done")
            after_turn()

    def once(self, table: Table) -> None:
        """One iteration of each cell in a process of its own, for what one iteration shows."""
        cells = [cell for cell in table.cells.values() if cell.can_run and not cell.counters]
        self.progress.begin(len(cells))
        for cell in cells:
            self.progress.step(f"memory: {cell.point.title}: {cell.row}")
            self._run_alone(cell, 1, verify=False)
        self.progress.end()

    def _due(self, block: Block, turn: int) -> list[Cell]:
        table, point = block
        cells = [cell for (_, at), cell in table.cells.items() if at == point]
        return [c for c in cells if c.can_run and turn < self.effort.turns_of(c)]

    def _time(self, cell: Cell, turn: int) -> None:
        seconds = self._run_alone(cell, self.effort.steps_of(cell), verify=False)
        if seconds:
            cell.turns[turn] = statistics.median(seconds)

    def _run_alone(self, cell: Cell, repetitions: int, *, verify: bool) -> tuple[float, ...]:
        try:
            return self._run([cell], repetitions, verify=verify)[0].seconds
        except SuiteError as error:
            cell.failure = in_a_line(error)
            cell.turns.clear()
            return ()

    def _run(self, cells: Sequence[Cell], repetitions: int, *, verify: bool) -> list[CaseRun]:
        cases = list(dict.fromkeys(cell.point.case(cell.variant) for cell in cells))
        result = self.program.run(cases, repetitions, verify=verify)
        self._keep_context(result.context)
        by_name = {run.name: run for run in result.cases}
        runs = [by_name[cell.point.case(cell.variant).name] for cell in cells]
        for cell, run in zip(cells, runs, strict=True):
            take_over(cell, run)
            if verify and run.seconds:
                cell.counters["verified_seconds"] = statistics.median(run.seconds)
        return runs

    def _keep_context(self, context: Json) -> None:
        if not self.context:
            # a copy: the program remembers its own
            self.context.update(copy.deepcopy(context))
            return
        known = self.context.get("peaks", {}).get("measured", {})
        for name, peak in context.get("peaks", {}).get("measured", {}).items():
            known.setdefault(name, peak)
