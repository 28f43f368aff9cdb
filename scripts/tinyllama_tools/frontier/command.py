"""scripts/frontier: predicts the out-of-memory frontier and, where asked for, confirms it."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.ablation_progress import Progress
from tinyllama_tools.compare.interrupts import ended_as_by_ctrl_c
from tinyllama_tools.frontier.asking import Asker, ask_program, free_memory
from tinyllama_tools.frontier.axis import BY_SEQ, Axis
from tinyllama_tools.frontier.confirmation import Confirmation, confirm
from tinyllama_tools.frontier.options import (
    DEFAULT_DTYPES,
    DEFAULT_SEQS,
    DEFAULT_VARIANTS,
    parse_options,
)
from tinyllama_tools.frontier.overhead import Overhead, measured_overhead
from tinyllama_tools.frontier.page import bytes_text, details, facts, overview, page
from tinyllama_tools.frontier.points import Frontier
from tinyllama_tools.frontier.prediction import Found, Grid, Room, predict_lines, room_for
from tinyllama_tools.frontier.tries import SAFE_SHARE, MortalProgram, Trial
from tinyllama_tools.profile_text import shown
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.result_files import run_folder, write_whole
from tinyllama_tools.suite_run import SuiteError, problem_sizes

JSON_FILE, PAGE_FILE = "frontier.json", "frontier.md"
UNSETTLED, BAD, INTERRUPTED = 1, 2, 130
NONE_IN_STUDY = Overhead(1.0, "none: no training step was measured beside it")


def write_frontier(
    folder: Path, program: Path, device: str = "auto", memory_limit: int | None = None
) -> Path:
    """Writes the predicted frontier of all sizes to the folder's frontier.json.

    `memory_limit`: bytes, without it what is free now. The overhead is that of the rounds in the
    folder, where they have training steps. Needs the standard library only. Raises SuiteError where
    the program cannot be asked, OSError where the file cannot be written.
    """
    try:
        overhead = measured_overhead([folder])
    except BadInputError:
        overhead = NONE_IN_STUDY
    asker = ask_program(program, device)
    room = room_for(asker, memory_limit, overhead.factor)
    grid = Grid(tuple(problem_sizes()), DEFAULT_VARIANTS, DEFAULT_DTYPES, DEFAULT_SEQS)
    found = predict_lines(asker, BY_SEQ, grid, room)
    frontier = Frontier(BY_SEQ, room, overhead, tuple(found), (None,) * len(found))
    path = folder / JSON_FILE
    write_whole(path, json.dumps(frontier.document(), indent=1) + "\n")
    return path


def safe_room(asker: Asker, room: Room) -> Room:
    """The room for tries: the limit, lowered where tries could use up the machine's memory."""
    free = free_memory(asker)
    most = int(SAFE_SHARE * free.memory_budget_bytes)
    if room.limit_bytes <= most:
        return room
    given = "" if room.source != "--memory-limit" else f"below the {bytes_text(room.limit_bytes)} "
    source = (
        f"{100 * SAFE_SHARE:.0f} % of the {bytes_text(free.memory_budget_bytes)} "
        f"{free.memory_budget_source}, {given}{'asked for, ' if given else ''}so that no try uses "
        "up the machine's memory"
    )
    return Room(most, source, room.overhead)


def confirm_all(
    axis: Axis, found: Sequence[Found], trial: Trial, progress: Progress
) -> tuple[list[Confirmation | None], bool]:
    """Of every line that memory ends, and whether it came to its end; what an interruption left
    untried has None."""
    confirmed: list[Confirmation | None] = []
    wanted = [one for one in found if not one.remark]
    progress.begin(len(wanted))
    try:
        for one in found:
            if one.remark:
                confirmed.append(None)
                continue
            line = one.line
            progress.step(f"{line.size} {line.variant} {line.dtype} {axis.given} {line.given}")
            attempt = functools.partial(trial.attempt, axis, line)
            confirmed.append(confirm(one.largest, attempt, axis.smallest))
    except KeyboardInterrupt:
        progress.line("interrupted")
    finally:
        progress.end()
    is_complete = len(confirmed) == len(found)
    return confirmed + [None] * (len(found) - len(confirmed)), is_complete


def write_results(frontier: Frontier, folder: Path) -> None:
    """frontier.json and frontier.md."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / JSON_FILE, json.dumps(frontier.document(), indent=1) + "\n")
    write_whole(folder / PAGE_FILE, page(frontier))


def run(options: argparse.Namespace, command: str, progress: Progress) -> int:
    """Predicts, confirms, writes; the exit status."""
    program = options.build_folder / "benchmarks" / "tiny_llama_bench"
    asker = ask_program(program, options.device)
    overhead = measured_overhead(options.measured)
    room = room_for(asker, options.memory_limit, overhead.factor)
    if options.confirm:
        room = safe_room(asker, room)
    grid = Grid(options.sizes, options.variants, options.dtypes, options.given)
    found = predict_lines(asker, options.axis, grid, room)
    untried = (None,) * len(found)
    frontier = Frontier(options.axis, room, overhead, tuple(found), untried, command)
    print("\n".join([*facts(frontier), "", *overview(frontier), ""]), flush=True)
    is_complete = True
    if options.confirm:
        suite = MortalProgram(
            (f"--device={options.device}",), program, time_limit=options.max_seconds
        )
        trial = Trial(suite, asker, room.limit_bytes, options.max_seconds)
        confirmed, is_complete = confirm_all(options.axis, found, trial, progress)
        frontier = replace(frontier, confirmed=tuple(confirmed))
        print("\n".join([*details(frontier), ""]), flush=True)
    folder = run_folder("frontier", options.results)
    write_results(frontier, folder)
    print(f"{shown(folder / PAGE_FILE)}\n{shown(folder / JSON_FILE)}", flush=True)
    if not is_complete:
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
