"""The speed of light and the closure of the steps that a report looks into."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.speed_of_light import SpeedOfLight, Waterfall, speed_of_light, waterfall
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.selection import headline_steps, main_step

Found = TypeVar("Found")


def _of_main_step(
    results: ResultSet | None, analyse: Callable[[ResultSet, CaseName], Found]
) -> tuple[Found | None, str]:
    if results is None:
        return None, "no result of the suite was given"
    step = main_step(results)
    if step is None:
        return None, f"{results.title} has no training step (full_step/train)"
    try:
        return analyse(results, step.name), ""
    except BadInputError as error:
        return None, str(error)


def main_light(results: ResultSet | None) -> tuple[SpeedOfLight | None, str]:
    """The speed of light of the main step, or why there is none."""
    return _of_main_step(results, speed_of_light)


def main_closure(results: ResultSet | None) -> tuple[Waterfall | None, str]:
    """The parts of the main step, or why they are not known."""
    return _of_main_step(results, waterfall)


def all_closures(results: ResultSet) -> list[Waterfall]:
    """Of a set's headline steps, as far as their parts are known."""
    found = []
    for step in headline_steps(results):
        # the main step's refusal is told where its parts are shown
        with contextlib.suppress(BadInputError):
            found.append(waterfall(results, step.name))
    return found


def all_lights(results: ResultSet) -> tuple[list[SpeedOfLight], list[Omission]]:
    """Of a set's headline steps, and those of which it is refused."""
    found, refused = [], []
    for step in headline_steps(results):
        try:
            found.append(speed_of_light(results, step.name))
        except BadInputError as error:
            reason = str(error).removeprefix(f"{step.name}: ")
            refused.append(Omission("speed of light", str(step.name), reason))
    return found, refused
