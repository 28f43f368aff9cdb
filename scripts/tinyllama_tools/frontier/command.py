"""scripts/frontier: predicts the out-of-memory frontier and, where asked for, confirms it."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tinyllama_tools.ablation_progress import Progress
from tinyllama_tools.compare.interrupts import INTERRUPTED, ended_as_by_ctrl_c
from tinyllama_tools.frontier.asking import Asker, ask_program, free_memory
from tinyllama_tools.frontier.axis import AXES
from tinyllama_tools.frontier.confirmation import Confirmation, Try, confirm
from tinyllama_tools.frontier.options import (
    DEFAULT_BATCHES,
    DEFAULT_DTYPES,
    DEFAULT_SEQS,
    DEFAULT_VARIANTS,
    parse_options,
)
from tinyllama_tools.frontier.overhead import Overhead, measured_overheads, tightest
from tinyllama_tools.frontier.page import details, facts, overview, page
from tinyllama_tools.frontier.points import Frontier, Origin, document_of
from tinyllama_tools.frontier.prediction import Found, Grid, Room, predict_lines, room_for
from tinyllama_tools.frontier.tries import MortalProgram, Trial
from tinyllama_tools.grid_files import FRONTIER
from tinyllama_tools.profile_text import shown
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.result_files import head_commit, run_folder, write_whole
from tinyllama_tools.suite_run import PROJECT, SuiteError, problem_sizes

PAGE_FILE = "frontier.md"
UNSETTLED, BAD = 1, 2


def origin_of(asker: Asker, overhead: Overhead, command: str) -> Origin:
    """Now, on the device that the program answers for; that of the overhead and the checkout's
    commit where the program does not say. One question about the smallest step."""
    answer = free_memory(asker)
    device = answer.device_name or overhead.device
    commit = answer.git_commit or head_commit(PROJECT)
    now = datetime.datetime.now(datetime.timezone.utc)
    return Origin(device, commit, now.isoformat(timespec="seconds"), command)


def _less_overhead(room: Room, overheads: Sequence[Overhead]) -> tuple[Room, Overhead]:
    """The room with the overhead that leaves the least of it."""
    overhead = tightest(overheads, room.limit_bytes)
    return replace(room, overhead=overhead.model), overhead


def write_frontier(
    folder: Path, program: Path, device: str = "auto", memory_limit: int | None = None
) -> Path:
    """Writes the predicted frontier of all sizes, over sequences and over batches, to the folder's
    frontier.json.

    `memory_limit`: bytes, without it the safe share of what is free now. The overhead is that of
    the rounds in the folder, where they have training steps. Needs the standard library only.
    Raises SuiteError where the program cannot be asked, OSError where the file cannot be written.
    """
    try:
        overheads = measured_overheads([folder])
    except BadInputError as error:
        overheads = (Overhead(source=f"none is known: {error}"),)
    asker = ask_program(program, device)
    room, overhead = _less_overhead(room_for(asker, memory_limit), overheads)
    origin = origin_of(asker, overhead, "scripts/study")
    frontiers = []
    for axis in AXES.values():
        given = DEFAULT_SEQS if axis.given == "seq" else DEFAULT_BATCHES
        grid = Grid(tuple(problem_sizes()), DEFAULT_VARIANTS, DEFAULT_DTYPES, given)
        found = predict_lines(asker, axis, grid, room)
        untried = (None,) * len(found)
        frontiers.append(Frontier(axis, room, overhead, tuple(found), untried, origin))
    path = folder / FRONTIER
    write_whole(path, json.dumps(document_of(*frontiers), indent=1) + "\n")
    return path


def write_results(frontier: Frontier, folder: Path) -> None:
    """frontier.json and frontier.md."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FRONTIER, json.dumps(document_of(frontier), indent=1) + "\n")
    write_whole(folder / PAGE_FILE, page(frontier))


@dataclass
class Confirming:
    """Tries every line that memory ends, and writes what is known after each one.

    `is_interrupted`: somebody ended it; what was tried of the line in hand is kept.
    """

    frontier: Frontier
    trial: Trial
    folder: Path
    is_interrupted: bool = False
    _has_answer: bool = False

    def _attempt(self, one: Found, value: int) -> Try:
        """Where the program can no longer be asked, what was confirmed before is not lost."""
        try:
            answer = self.trial.attempt(self.frontier.axis, one.line, value)
        except KeyboardInterrupt:
            self.is_interrupted = True
            return Try(value, None, "interrupted")
        except SuiteError as error:
            if not self._has_answer:
                raise
            return Try(value, None, str(error))
        self._has_answer = True
        return answer

    def _keep(self, place: int, confirmation: Confirmation) -> None:
        confirmed = list(self.frontier.confirmed)
        confirmed[place] = confirmation
        self.frontier = replace(self.frontier, confirmed=tuple(confirmed))
        write_results(self.frontier, self.folder)

    def run(self, progress: Progress) -> Frontier:
        """The frontier with its confirmations. SuiteError where not even the first try starts."""
        axis = self.frontier.axis
        wanted = [(i, one) for i, one in enumerate(self.frontier.found) if not one.remark]
        progress.begin(len(wanted))
        try:
            for place, one in wanted:
                line = one.line
                progress.step(f"{line.size} {line.variant} {line.dtype} {axis.given} {line.given}")
                found = confirm(
                    one.largest, lambda value, of=one: self._attempt(of, value), axis.smallest
                )
                self._keep(place, found)
                if self.is_interrupted:
                    break
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            progress.end()
        if self.is_interrupted:
            progress.line("interrupted")
        return self.frontier


def run(options: argparse.Namespace, command: str, progress: Progress) -> int:
    """Predicts, writes, confirms; the exit status."""
    program = options.build_folder / "benchmarks" / "tiny_llama_bench"
    asker = ask_program(program, options.device)
    overheads = measured_overheads(options.measured)
    room = room_for(asker, options.memory_limit, is_tried=options.confirm)
    room, overhead = _less_overhead(room, overheads)
    grid = Grid(options.sizes, options.variants, options.dtypes, options.given)
    found = tuple(predict_lines(asker, options.axis, grid, room))
    origin = origin_of(asker, overhead, command)
    frontier = Frontier(options.axis, room, overhead, found, (None,) * len(found), origin)
    print("\n".join([*facts(frontier), "", *overview(frontier), ""]), flush=True)
    folder = run_folder("frontier", options.results)
    write_results(frontier, folder)
    is_interrupted = False
    if options.confirm:
        suite = MortalProgram(
            (f"--device={options.device}",), program, time_limit=options.max_seconds
        )
        confirming = Confirming(
            frontier, Trial(suite, asker, room.limit_bytes, options.max_seconds), folder
        )
        frontier = confirming.run(progress)
        is_interrupted = confirming.is_interrupted
        print("\n".join([*details(frontier), ""]), flush=True)
    print(f"{shown(folder / PAGE_FILE)}\n{shown(folder / FRONTIER)}", flush=True)
    if is_interrupted:
        return INTERRUPTED
    has_open = any(one is not None and one.largest is None for one in frontier.confirmed)
    return UNSETTLED if has_open else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; 2 with one line where nothing can be predicted at all."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse_options(given)
    try:
        with ended_as_by_ctrl_c():
            return run(options, shlex.join(["scripts/frontier", *given]), Progress(sys.stderr))
    except KeyboardInterrupt:
        print("scripts/frontier: interrupted before the first prediction", file=sys.stderr)
        return INTERRUPTED
    except (BadInputError, SuiteError, OSError) as error:
        print(f"scripts/frontier: {error}", file=sys.stderr)
        return BAD


if __name__ == "__main__":
    sys.exit(main())
