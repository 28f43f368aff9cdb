"""Which of the measured cases a report speaks of first."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinyllama_tools.data.names import STEP, CaseName
from tinyllama_tools.data.parts import BASELINE, OPTIMIZED, parts_of
from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.data.results import MeasuredCase, ResultSet

F32 = "f32"
# of components that have several passes, the one that a step consists of
WHOLE_PASSES = ("train", "update", "forward_backward")
COMPONENTS = (
    "full_step",
    "model",
    "block",
    "attention",
    "ffn",
    "rms_norm",
    "rotary",
    "embedding",
    "loss",
    "optimizer",
)


@functools.cache
def sizes_by_name() -> Mapping[str, Mapping[str, int]]:
    """fixtures/problem_sizes.json, read once."""
    return problem_sizes()


def rank(value: str, order: Sequence[str]) -> tuple[int, str]:
    """For sorting: the known ones in their order, then the others by name."""
    return (order.index(value) if value in order else len(order), value)


def name_rank(name: CaseName) -> tuple[object, ...]:
    """The order of tables: by component, size, dtype, variant, pass and shape."""
    sizes = tuple(sizes_by_name())
    return (
        rank(name.component, COMPONENTS),
        rank(name.size, sizes),
        rank(name.dtype, (F32,)),
        rank(name.variant, (BASELINE, OPTIMIZED)),
        rank(name.pass_name, WHOLE_PASSES),
        name.batch,
        name.seq,
    )


def own_shape(size: str) -> tuple[int, int] | None:
    """Batch and sequence that a named problem size belongs to; None of a size without a name."""
    of = sizes_by_name().get(size)
    return (of["batch"], of["seq"]) if of else None


def is_own_shape(name: CaseName) -> bool:
    """Whether a case has the batch and sequence of its problem size."""
    return own_shape(name.size) == (name.batch, name.seq)


def steps(results: ResultSet) -> list[MeasuredCase]:
    """Every training step, in the order of tables."""
    found = [case for case in results.cases.values() if case.name.component == STEP]
    return sorted(found, key=lambda case: name_rank(case.name))


def missing_parts(results: ResultSet, step: CaseName) -> tuple[str, ...]:
    """Names of the components of a step that were not measured at its size, type and shape."""
    of = sizes_by_name().get(step.size)
    parts = parts_of(step, of["n_layers"] if of else None, results.cases)
    return parts.missing if parts.measured else (str(replace(step, component="block")),)


def main_step(results: ResultSet) -> MeasuredCase | None:
    """The step that the report looks into: one whose parts were measured too, at its problem
    size's own shape, `optimized` rather than another variant, f32, and the largest of those."""

    def preference(case: MeasuredCase) -> tuple[object, ...]:
        name = case.name
        return (
            not missing_parts(results, name),
            is_own_shape(name),
            -rank(name.variant, (OPTIMIZED, BASELINE))[0],
            -rank(name.dtype, (F32,))[0],
            case.counters.get("model_flops", 0.0),
        )

    return max(steps(results), key=preference, default=None)


def headline_steps(results: ResultSet) -> list[MeasuredCase]:
    """One a size, dtype and variant: at the size's own shape, else at the largest one measured."""
    found: dict[tuple[str, str, str], MeasuredCase] = {}

    def preference(case: MeasuredCase) -> tuple[bool, int]:
        return (is_own_shape(case.name), case.name.batch * case.name.seq)

    for case in steps(results):
        name = case.name
        key = (name.size, name.dtype, name.variant)
        if key not in found or preference(found[key]) < preference(case):
            found[key] = case
    return list(found.values())
