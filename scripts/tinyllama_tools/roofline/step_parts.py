"""A measured training step and the measured cases that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tinyllama_tools.reading.case_name import STEP, TRAIN, CaseName, parse_case_name
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.result_set import MeasuredCase, ResultSet
from tinyllama_tools.reading.whole_and_parts import parts_of

# What is left of the step when its parts are taken away.
REST = "rest"


@dataclass(frozen=True)
class StepPart:
    """`count` times in a step. `case`: None where it was not measured."""

    name: CaseName
    count: int
    case: MeasuredCase | None

    @property
    def component(self) -> str:
        """The part's name in a picture."""
        return self.name.component

    @property
    def seconds(self) -> float | None:
        """Of all `count` together."""
        return None if self.case is None else self.count * self.case.median_seconds


@dataclass(frozen=True)
class MeasuredStep:
    """`size`: as in fixtures/problem_sizes.json."""

    case: MeasuredCase
    size: Mapping[str, int]
    parts: tuple[StepPart, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the parts that were not measured."""
        return tuple(str(part.name) for part in self.parts if part.case is None)

    @property
    def rest_seconds(self) -> float:
        """The step less its measured parts; below 0 where they do work that the step shares."""
        return self.case.median_seconds - sum(part.seconds or 0.0 for part in self.parts)


def _parts(result_set: ResultSet, step: CaseName, layers: int) -> tuple[StepPart, ...]:
    """In the step's order, those that were not measured among them."""
    missing = parts_of(step, layers, result_set.cases).missing
    # asked again as if they were there, which says how often the step has them and where
    every = parts_of(step, layers, {*result_set.cases, *missing}).measured
    named = ((parse_case_name(part.case), part.count) for part in every)
    return tuple(
        StepPart(name, count, result_set.cases.get(str(name)))
        for name, count in named
        if name is not None
    )


def measured_steps(result_set: ResultSet) -> list[CaseName]:
    """Every training step that was measured."""
    names = (case.name for case in result_set.cases.values())
    return [name for name in names if name.is_training_step]


def read_step(
    result_set: ResultSet, step: CaseName, sizes: Mapping[str, Mapping[str, int]]
) -> MeasuredStep:
    """BadInputError for a case that is no training step or was not measured, and for a size that
    is not among `sizes`."""
    if not step.is_training_step:
        raise BadInputError(f"{step}: is no training step; name a case of {STEP}/{TRAIN}")
    case = result_set.cases.get(str(step))
    if case is None:
        known = ", ".join(map(str, measured_steps(result_set))) or "none"
        raise BadInputError(f"{step}: was not measured; the measured steps are: {known}")
    size = sizes.get(step.size)
    if size is None:
        raise BadInputError(
            f"{step}: the dimensions of size '{step.size}' are not known; known are "
            f"{', '.join(sizes)}: measure a size of fixtures/problem_sizes.json"
        )
    return MeasuredStep(case, size, _parts(result_set, step, size["n_layers"]))
