"""Two builds, resident and in turn, until every case has its verdict or the budget is used.

Example: scripts/compare run --base origin/main --new build --budget 10m

Every case is opened once on both sides first, untimed, with its counters and (unless --verify off)
the proof of its result. Then come blocks: a fresh pair of processes each, whose slices alternate in
random order. Cases with a verdict drop out. After the first block it says how long the rest takes,
and ends at once where the budget does not reach to a verdict. Ctrl-C: what was measured is judged
and written. A case that a side fails twice is closed as failed; the others go on.

Files: comparison.json, .md, .html and blocks.jsonl (every slice) in --output, by default
results/<UTC time>_compare; a recording that is there already is not written over. Exit status: 0 no
regression; 1 a regression; 2 bad input, a commit that does not build, nothing comparable, a budget
that reaches to no verdict, or files that cannot be written; 3 with --strict where something is
unclear; 130 interrupted (Ctrl-C, SIGTERM or SIGHUP).
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.compare.attribution_tree import layers_by_size
from tinyllama_tools.compare.common_options import gate_of
from tinyllama_tools.compare.comparison import Comparison
from tinyllama_tools.compare.gate import Gate
from tinyllama_tools.compare.measurements import Side
from tinyllama_tools.compare.outputs import print_comparison, write_comparison
from tinyllama_tools.compare.prepared_run import PreparedRun, prepare
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter, refuse_existing
from tinyllama_tools.compare.run_options import add_options, settings_of
from tinyllama_tools.compare.run_progress import RunProgress
from tinyllama_tools.compare.run_result import comparison_of, took_text
from tinyllama_tools.compare.run_sides import RunSides
from tinyllama_tools.compare.run_warnings import environment_warnings
from tinyllama_tools.compare.sequential_run import BUDGET_USED, RunRecord, SequentialRun
from tinyllama_tools.compare.turns_block import IN_TURN
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, run_folder
from tinyllama_tools.data.programs import PROBLEM_SIZES
from tinyllama_tools.stats.verdicts import REGRESSION, Design, DesignError, Outcome, plan_design

__all__ = ["add_options", "main", "read_options"]

SEEDS = 2**32
RECORDING = "blocks.jsonl"
WITHOUT_ANSWER = frozenset({Outcome.NO_VERDICT, Outcome.SKIPPED, Outcome.ADDED})


def _header(options: argparse.Namespace, prepared: PreparedRun, seed: int) -> RecordingHeader:
    is_in_turn = prepared.measurer.method == IN_TURN
    now = datetime.datetime.now(datetime.timezone.utc)
    return RecordingHeader(
        base=prepared.names[Side.BASE],
        new=prepared.names[Side.NEW],
        method=prepared.measurer.method,
        pairs=options.pairs,
        slice_seconds=options.slice if is_in_turn else 0.0,
        seed=seed,
        started=now.isoformat(timespec="seconds"),
        base_context=prepared.contexts[Side.BASE],
        new_context=prepared.contexts[Side.NEW],
        settings=settings_of(options),
    )


def _layers(options: argparse.Namespace) -> dict[str, int]:
    path = options.problem_sizes or PROBLEM_SIZES
    try:
        return layers_by_size(path)
    except (OSError, ValueError, KeyError) as error:
        raise BadInputError(f"--problem-sizes {path}: cannot be read: {error!r}") from error


def _design(options: argparse.Namespace, cases: int) -> Design:
    try:
        return plan_design(cases, alpha=options.alpha, margin=options.margin, looks=options.looks)
    except DesignError as error:
        raise BadInputError(str(error)) from error


@dataclass(frozen=True)
class FinishedRun:
    """`is_interrupted`: somebody ended it. `trouble`: what ended it too early, such as a recording
    that cannot be written any more. Either way what was measured is judged."""

    comparison: Comparison
    record: RunRecord
    is_interrupted: bool = False
    trouble: str = ""


def _measured(
    options: argparse.Namespace,
    prepared: PreparedRun,
    recording: Path,
    progress: RunProgress,
    seed: int,
) -> FinishedRun:
    layers = _layers(options)
    design = _design(options, len(prepared.shared))
    is_interrupted, trouble = False, ""
    with RecordingWriter(recording, _header(options, prepared, seed)) as writer:
        run = SequentialRun(
            prepared.measurer,
            prepared.shared,
            design,
            options.budget,
            keep=writer.add,
            progress=progress,
        )
        try:
            run.run(verify=options.verify == "before")
        except KeyboardInterrupt:
            is_interrupted = True
            run.judge()
        except (BadInputError, OSError) as error:
            trouble = f"ended after {run.record.blocks} blocks: {error}"
            run.judge()
    where = "" if trouble else f"; every slice is in {recording}"
    progress.say(f"{took_text(run.record)}{where}")
    comparison = comparison_of(
        run.record,
        design,
        _sides(options, prepared, layers),
        pairs=options.pairs,
        seed=seed,
        allowed=options.allow_missing,
    )
    return FinishedRun(comparison, run.record, is_interrupted, trouble)


def _sides(
    options: argparse.Namespace, prepared: PreparedRun, layers: Mapping[str, int]
) -> RunSides:
    return RunSides(
        base=prepared.names[Side.BASE],
        new=prepared.names[Side.NEW],
        base_context=prepared.contexts[Side.BASE],
        new_context=prepared.contexts[Side.NEW],
        method=prepared.measurer.method,
        layers=layers,
        only_base=prepared.only(Side.BASE),
        only_new=prepared.only(Side.NEW),
        warnings=_warnings(options),
        settings=settings_of(options),
    )


def _warnings(options: argparse.Namespace) -> list[str]:
    added = dict(options.environment_base), dict(options.environment_new)
    found = environment_warnings(*added, os.environ)
    if options.verify == "off":
        found.append("--verify off: results were not compared with the float64 baseline")
    return found


def _refuse_without_answer(comparison: Comparison, run: RunRecord) -> None:
    """BadInputError where nothing is known of any case."""
    if any(case.outcome not in WITHOUT_ANSWER for case in comparison.cases):
        return
    late = [record for record in run.cases.values() if not record.given_up]
    if run.ended == BUDGET_USED and late:
        raise BadInputError(
            f"no verdict: blocks became slower, so that --budget held "
            f"{max(len(record.blocks) for record in late)} of the "
            f"{comparison.design['looks'][0]} that the first verdicts need; give a larger "
            "--budget, fewer cases or a quieter machine"
        )
    reasons = "; ".join(f"{case.name}: {case.note}" for case in comparison.cases)
    raise BadInputError(f"nothing comparable: no case was measured on both sides: {reasons}")


def _status(finished: FinishedRun, gate: Gate) -> int:
    """A regression that is known already is one, whatever else could not be found out."""
    status = gate.status(finished.comparison)
    if status == REGRESSION:
        return status
    if finished.record.refusal:
        raise BadInputError(finished.record.refusal)
    _refuse_without_answer(finished.comparison, finished.record)
    return status


def _reported(
    options: argparse.Namespace, finished: FinishedRun, folder: Path, progress: RunProgress
) -> int:
    """Prints first: what was found is then known even where the folder takes no more."""
    gate = gate_of(options)
    troubles = [finished.trouble] if finished.trouble else []
    # whoever reads no further does not keep the files from being written
    try:
        print_comparison(finished.comparison, options.format, gate)
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        troubles.append(f"standard output cannot be written: {error}")
    try:
        for path in write_comparison(finished.comparison, folder, gate):
            progress.say(str(path))
    except BadInputError as error:
        troubles.append(str(error))
    if finished.is_interrupted:
        for trouble in troubles:
            progress.say(trouble)
        return INTERRUPTED
    if troubles:
        raise BadInputError("; ".join(troubles))
    return _status(finished, gate)


def _run(options: argparse.Namespace) -> int:
    progress = RunProgress()
    folder = options.output or run_folder("compare")
    recording = options.record or folder / RECORDING
    # before anything is built
    refuse_existing(recording)
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    prepared = prepare(options, seed, progress)
    finished = _measured(options, prepared, recording, progress, seed)
    return _reported(options, finished, folder, progress)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes; the exit status. BadInputError for bad input, and where the run
    could not answer."""
    return _run(read_options(arguments))
