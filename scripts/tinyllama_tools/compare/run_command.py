"""Two builds, resident and in turn, until every case has its verdict or the budget is used.

Example: scripts/compare run --base origin/main --new build --budget 10m

Every case is opened once on both sides first, untimed, with its counters and (unless --verify off)
the proof of its result. Then come blocks: a fresh pair of processes each, whose slices alternate in
random order. Cases with a verdict drop out. After the first block it says how long the rest takes,
and ends at once where the budget does not reach to a verdict. Ctrl-C: what was measured is judged
and written. A case that a side fails twice is closed as failed; the others go on.

Files: comparison.json, .md, .html and blocks.jsonl (every slice) in --output, by default
results/<UTC time>_compare. Exit status: 0 no regression; 1 a regression; 2 bad input, a commit that
does not build, nothing comparable, or a budget that reaches to no verdict; 3 with --strict where
something is unclear; 130 interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.compare.attribution_tree import layers_by_size
from tinyllama_tools.compare.build_side import Builder, BuiltSide
from tinyllama_tools.compare.common_options import gate_of
from tinyllama_tools.compare.comparison import Comparison, Json
from tinyllama_tools.compare.errors import CompareError
from tinyllama_tools.compare.measurements import SIDES, Side
from tinyllama_tools.compare.outputs import print_comparison, write_comparison
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter
from tinyllama_tools.compare.run_options import add_options, is_chosen, program_arguments
from tinyllama_tools.compare.run_progress import RunProgress
from tinyllama_tools.compare.run_result import RunSides, comparison_of, took_text
from tinyllama_tools.compare.sequential_run import SequentialRun
from tinyllama_tools.compare.turn_process import (
    NotResidentError,
    ProcessLostError,
    TurnProgram,
)
from tinyllama_tools.compare.turns_block import IN_TURN, SliceEffort, TakingTurns
from tinyllama_tools.compare.whole_processes import RunningWholes
from tinyllama_tools.judging.design import Design, DesignError, plan_design
from tinyllama_tools.judging.outcome import BAD_INPUT, Outcome
from tinyllama_tools.result_files import run_folder
from tinyllama_tools.suite_run import PROBLEM_SIZES

__all__ = ["add_options", "main"]

INTERRUPTED = 130
SEEDS = 2**32
RECORDING = "blocks.jsonl"
WITHOUT_ANSWER = frozenset({Outcome.NO_VERDICT, Outcome.SKIPPED, Outcome.ADDED})


@dataclass(frozen=True)
class PreparedRun:
    """Both sides, ready to be measured."""

    measurer: TakingTurns | RunningWholes
    cases: dict[Side, tuple[str, ...]]
    contexts: dict[Side, Json]
    names: dict[Side, str]

    @property
    def shared(self) -> list[str]:
        """Cases that both sides list, in the base's order."""
        new = set(self.cases[Side.NEW])
        return [name for name in self.cases[Side.BASE] if name in new]

    def only(self, side: Side) -> list[str]:
        """Cases that this side alone lists."""
        other = set(self.cases[side.other])
        return [name for name in self.cases[side] if name not in other]


def _built(options: argparse.Namespace, progress: RunProgress) -> dict[Side, BuiltSide]:
    builder = Builder(options.build_folder, rebuild=options.rebuild, say=progress.say)
    sides = {Side.BASE: options.base, Side.NEW: options.new}
    return {side: builder.resolve(text, f"--{side.value}") for side, text in sides.items()}


def _programs(
    options: argparse.Namespace, built: Mapping[Side, BuiltSide]
) -> dict[Side, TurnProgram]:
    environments = {Side.BASE: options.environment_base, Side.NEW: options.environment_new}
    arguments = program_arguments(options)
    return {
        side: TurnProgram(side.value, built[side].program, arguments, dict(environments[side]))
        for side in SIDES
    }


def _prepared(
    options: argparse.Namespace,
    built: Mapping[Side, BuiltSide],
    programs: Mapping[Side, TurnProgram],
    seed: int,
) -> PreparedRun:
    """In turn where both sides can; else in whole processes."""
    effort = SliceEffort(options.pairs, options.slice, options.limit)
    names = {side: built[side].name for side in SIDES}
    turns = TakingTurns(programs, effort, seed)
    try:
        greetings = turns.greet()
    except NotResidentError:
        wholes = RunningWholes(programs, effort, seed)
        return PreparedRun(wholes, wholes.cases(), wholes.contexts, names)
    except ProcessLostError as error:
        raise CompareError(f"a side does not start: {error}") from error
    return PreparedRun(
        turns,
        {side: greetings[side].cases for side in SIDES},
        {side: greetings[side].context for side in SIDES},
        names,
    )


def _chosen(prepared: PreparedRun, options: argparse.Namespace) -> PreparedRun:
    cases = {
        side: tuple(name for name in names if is_chosen(name, options))
        for side, names in prepared.cases.items()
    }
    chosen = PreparedRun(prepared.measurer, cases, prepared.contexts, prepared.names)
    if not chosen.shared:
        counts = ", ".join(f"{len(cases[side])} on the {side.value} side" for side in SIDES)
        raise CompareError(
            f"no case to compare ({counts}, none on both): the sides must have one in common; give "
            "other --components, --passes or --filter"
        )
    return chosen


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
    )


def _layers(options: argparse.Namespace) -> dict[str, int]:
    path = options.problem_sizes or PROBLEM_SIZES
    try:
        return layers_by_size(path)
    except (OSError, ValueError, KeyError) as error:
        raise CompareError(f"--problem-sizes {path}: cannot be read: {error!r}") from error


def _design(options: argparse.Namespace, cases: int) -> Design:
    try:
        return plan_design(cases, alpha=options.alpha, margin=options.margin, looks=options.looks)
    except DesignError as error:
        raise CompareError(str(error)) from error


def _measured(
    options: argparse.Namespace,
    prepared: PreparedRun,
    folder: Path,
    progress: RunProgress,
    seed: int,
) -> tuple[Comparison, bool]:
    """The comparison, and whether it was interrupted."""
    layers = _layers(options)
    design = _design(options, len(prepared.shared))
    path = options.record or folder / RECORDING
    interrupted = False
    with RecordingWriter(path, _header(options, prepared, seed)) as writer:
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
            interrupted = True
            run.judge()
    progress.say(f"{took_text(run.record)}; every slice is in {path}")
    comparison = comparison_of(
        run.record,
        design,
        _sides(options, prepared, layers),
        pairs=options.pairs,
        seed=seed,
        allowed=options.allow_missing,
    )
    return comparison, interrupted


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
    )


def _warnings(options: argparse.Namespace) -> list[str]:
    if options.verify == "off":
        return ["--verify off: results were not compared with the float64 baseline"]
    return []


def _refuse_if_nothing_was_compared(comparison: Comparison) -> None:
    """What was measured has been written by then."""
    if all(case.outcome is Outcome.SKIPPED for case in comparison.cases):
        reasons = "; ".join(f"{case.name}: {case.note}" for case in comparison.cases)
        raise CompareError(f"nothing comparable: no case was measured on both sides: {reasons}")
    if all(case.outcome in WITHOUT_ANSWER for case in comparison.cases):
        blocks = max(case.blocks for case in comparison.cases)
        raise CompareError(
            f"no verdict: blocks became slower, so that --budget held {blocks} of the "
            f"{comparison.design['looks'][0]} that the first verdicts need; give a larger "
            "--budget, fewer cases or a quieter machine"
        )


def _run(options: argparse.Namespace) -> int:
    progress = RunProgress()
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    built = _built(options, progress)
    prepared = _chosen(_prepared(options, built, _programs(options, built), seed), options)
    folder = options.output or run_folder("compare")
    comparison, interrupted = _measured(options, prepared, folder, progress, seed)
    gate = gate_of(options)
    for path in write_comparison(comparison, folder, gate):
        progress.say(str(path))
    print_comparison(comparison, options.format, gate)
    if interrupted:
        return INTERRUPTED
    _refuse_if_nothing_was_compared(comparison)
    return gate.status(comparison)


def main(arguments: Sequence[str]) -> int:
    """Measures, writes and prints; the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except CompareError as error:
        print(f"scripts/compare run: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        # before anything was measured
        return INTERRUPTED
