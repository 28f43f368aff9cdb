"""Runs of the exercises that nobody made, with keys replaced run by run."""

from __future__ import annotations

import copy
import functools
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.worksheet import MeasuredRun, PlannedRun
from training_stand_in import PlayedProgram, set_key

Changes = Mapping[str, object]
EVERY_RUN = ""


def options(number: int, *more: str) -> Namespace:
    """Of scripts/exercise, without files."""
    return parse_options([str(number), *more])


@functools.cache
def played(given: tuple[str, ...], gpu: bool) -> dict[str, Any]:
    """The summary of a made-up run."""
    return PlayedProgram(gpu=gpu)._summary(list(given))


def measured(
    planned: Sequence[PlannedRun],
    changes: Mapping[str, Changes] | None = None,
    *,
    gpu: bool = False,
) -> dict[str, MeasuredRun]:
    """By name. `changes`: run's name, or EVERY_RUN -> keys to replace where there."""
    found = {}
    for run in planned:
        summary = copy.deepcopy(played(run.options, gpu))
        for name in (EVERY_RUN, run.name):
            replace(summary, (changes or {}).get(name, {}))
        command = " ".join(run.options)
        found[run.name] = MeasuredRun(run.name, command, summary, 0, "", Path(run.name), run.name)
    return found


def replace(summary: dict[str, Any], changes: Changes) -> None:
    """Of those profilers that the run had on."""
    for key, value in changes.items():
        if summary.get(key.split(".")[0]) is not None:
            set_key(summary, key, value)
