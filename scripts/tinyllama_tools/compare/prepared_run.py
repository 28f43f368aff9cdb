"""Both sides of a run, built and asked what they can measure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from tinyllama_tools.compare.build_side import Builder, BuiltSide
from tinyllama_tools.compare.comparison import Json
from tinyllama_tools.compare.measurements import SIDES, Side
from tinyllama_tools.compare.run_options import is_chosen, program_arguments
from tinyllama_tools.compare.run_progress import RunProgress
from tinyllama_tools.compare.turn_process import NotResidentError, ProcessLostError
from tinyllama_tools.compare.turn_program import TurnProgram
from tinyllama_tools.compare.turns_block import SliceEffort, TakingTurns
from tinyllama_tools.compare.whole_processes import RunningWholes
from tinyllama_tools.core.app import BadInputError


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
    shared = program_arguments(options)
    arguments = {Side.BASE: shared, Side.NEW: (*shared, *(f"--slow={x}" for x in options.slow_new))}
    return {
        side: TurnProgram(
            side.value, built[side].program, arguments[side], dict(environments[side])
        )
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
        raise BadInputError(f"a side does not start: {error}") from error
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
        raise BadInputError(
            f"no case to compare ({counts}, none on both): the sides must have one in common; give "
            "other --components, --passes or --filter"
        )
    return chosen


def prepare(options: argparse.Namespace, seed: int, progress: RunProgress) -> PreparedRun:
    """Builds what has to be built.

    Raises BadInputError where a side is none, does not start, or has no case in common with the
    other.
    """
    built = _built(options, progress)
    return _chosen(_prepared(options, built, _programs(options, built), seed), options)
