"""Every optimisation added to the baseline and removed from `optimized`, measured in turn."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.ablation_files import RESULT, publish, read_study, write_study
from tinyllama_tools.ablation_measure import Measurement
from tinyllama_tools.ablation_options import (
    effort_of,
    parse_options,
    program_arguments,
)
from tinyllama_tools.ablation_page import terminal_text
from tinyllama_tools.ablation_peers import PeersError, compile_rows, newest_peers, read_times
from tinyllama_tools.ablation_run import run_study
from tinyllama_tools.ablation_study import Study
from tinyllama_tools.ablation_variants import SpellingBook, ask_program, planned_rows
from tinyllama_tools.core.app import PROJECT, RESULTS, changed_files, run_folder
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.programs import SuiteError, SuiteProgram

# Long sequences are worth waiting for: memory needs one iteration only.
MOST_MEMORY_SECONDS = 120.0
FAILED, BAD, INTERRUPTED = 1, 2, 130


def complain(text: object) -> int:
    """Says what is wrong and returns the exit status for it."""
    print(f"scripts/ablation: {text}", file=sys.stderr)
    return BAD


def add_compiled(study: Study, options: argparse.Namespace) -> None:
    """torch.compile's rows from a result of scripts/peers; one that will not do is noted."""
    path = options.peers or newest_peers(study.context)
    if path is None:
        return
    try:
        study.peers = compile_rows(path, study.main)
    except PeersError as error:
        study.notes.append(f"torch.compile: {error}")


def start_study(options: argparse.Namespace, command: Sequence[str]) -> Study:
    """What is known before anything ran."""
    study = Study(planned_rows(options.switches, options.combinations))
    now = datetime.datetime.now(datetime.timezone.utc)
    study.meta = {
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["scripts/ablation", *command]),
        "turns": options.turns,
        "turns_done": 0,
        "steps": options.steps,
        "seed": options.seed,
    }
    if options.quick:
        study.notes.append("a smoke test with a minute model: its numbers mean nothing")
    return study


def measure(study: Study, options: argparse.Namespace, folder: Path) -> int:
    """Fills the study; 130 after Ctrl-C, 2 where the program cannot be used at all."""
    started = time.monotonic()
    arguments = program_arguments(options, options.max_seconds_per_case)
    program = SuiteProgram(arguments, options.build_folder / "benchmarks/tiny_llama_bench")
    book = SpellingBook(lambda variant: ask_program(program, variant))
    measurement = Measurement(program, book, effort_of(options), Progress())

    def save() -> None:
        study.context = measurement.context
        study.meta["took"] = duration(time.monotonic() - started)
        write_study(study, folder)

    status = 0
    try:
        run_study(study, measurement, options, save, MOST_MEMORY_SECONDS)
    except KeyboardInterrupt:
        study.notes.append("interrupted: what is missing was not measured")
        status = INTERRUPTED
    except SuiteError as error:
        study.notes.append(f"ended early: {error}")
        status = complain(error)
    measurement.progress.end()
    add_compiled(study, options)
    save()
    return status


def show(study: Study, options: argparse.Namespace, files: Sequence[Path], status: int) -> None:
    """The tables on the terminal, and where everything is. Only a whole run is published."""
    print(terminal_text(study))
    is_whole = status in {0, FAILED}
    published = publish(study, RESULTS, options.publish) if options.publish and is_whole else []
    for path in (*files, *published):
        print(path)


def rewrite(options: argparse.Namespace) -> int:
    """--from: tables of an earlier result."""
    try:
        study = read_study(options.source)
        if options.peers:
            add_compiled(study, options)
        # a published result has its page elsewhere
        is_run = options.source.name == RESULT
        folder = options.output or (options.source.parent if is_run else run_folder("ablation"))
        folder.mkdir(parents=True, exist_ok=True)
        write_study(study, folder)
        show(study, options, (folder,), 0)
    except (OSError, ValueError) as error:
        return complain(error)
    return FAILED if study.has_failed else 0


def refusal(options: argparse.Namespace) -> str:
    """Why these options cannot be followed, before hours are spent on them."""
    if options.publish:
        changed = changed_files(PROJECT)
        if changed:
            return f"--publish: commit first, these files are changed:\n{changed}"
    if options.peers:
        try:
            read_times(options.peers)
        except PeersError as error:
            return f"--peers {error}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes and prints."""
    command = sys.argv[1:] if arguments is None else list(arguments)
    options = parse_options(command)
    refused = refusal(options)
    if refused:
        return complain(refused)
    if options.source:
        return rewrite(options)
    try:
        folder = options.output or run_folder("ablation", RESULTS)
        folder.mkdir(parents=True, exist_ok=True)
        study = start_study(options, command)
        status = measure(study, options, folder)
        show(study, options, (folder,), status)
    except OSError as error:
        return complain(error)
    return status or (FAILED if study.has_failed else 0)


if __name__ == "__main__":
    sys.exit(main())
