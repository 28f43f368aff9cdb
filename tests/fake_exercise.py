"""Runs of the exercises that nobody made, with keys replaced run by run."""

from __future__ import annotations

import copy
import functools
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fake_training import PlayedProgram, set_key
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_1 import planned_runs, sheet_of
from tinyllama_tools.commands.worksheet import MeasuredRun, Plan

Changes = Mapping[str, object]
EVERY_RUN = ""
NO_RESULTS = Path("no/results/here")


def options(number: int, *more: str) -> Namespace:
    """Of scripts/exercise, without files."""
    return parse_options([str(number), *more])


@functools.cache
def played(given: tuple[str, ...], gpu: bool) -> dict[str, Any]:
    """The summary of a made-up run."""
    return PlayedProgram(gpu=gpu)._summary(list(given))


def measured(
    planned: Plan, changes: Mapping[str, Changes] | None = None, *, gpu: bool = False
) -> dict[str, MeasuredRun]:
    """By name. `changes`: run's name, or EVERY_RUN -> keys to replace in parts that are there."""
    found = {}
    for name, given in planned.items():
        summary = copy.deepcopy(played(tuple(given), gpu))
        for key, value in [
            change for of in (EVERY_RUN, name) for change in (changes or {}).get(of, {}).items()
        ]:
            if summary.get(key.split(".")[0]) is not None:
                set_key(summary, key, value)
        found[name] = MeasuredRun(name, " ".join(given), summary, 0, "", Path(name), name)
    return found


def sheet_1(every: Changes | None = None, **runs: Changes) -> str:
    """Exercise 1's page of made-up runs."""
    return sheet_of(
        measured(planned_runs(options(1)), {EVERY_RUN: every or {}, **runs}), NO_RESULTS
    ).page
