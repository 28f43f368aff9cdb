"""The order of a report: of cases in its tables, of steps by what they are looked into for."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP, CaseName, parts_of
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.prediction import is_own_shape
from tinyllama_tools.report.document import COLOURS

Found = TypeVar("Found")

# of components that have several passes, the one that a step consists of
WHOLE_PASSES = ("train", "update", "forward_backward")
COMPONENTS = (
    *("full_step", "model", "block", "attention", "ffn", "rms_norm", "rotary", "embedding"),
    *("loss", "optimizer"),
)


def rank(value: str, *order: str) -> tuple[int, str]:
    """For sorting: the known ones in their order, then the others by name."""
    return (order.index(value) if value in order else len(order), value)


# plotly's names; thousands of points stay apart
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon"),
    *("star", "hourglass", "circle-open"),
)


def symbol_of(component: str) -> str:
    """The marker of a component, the same in every figure."""
    return SYMBOLS[min(rank(component, *COMPONENTS)[0], len(SYMBOLS) - 1)]


def variant_colours(results: ResultSet) -> dict[str, str]:
    """Of every variant, in the order of tables, the same in every figure."""
    names = {case.name.variant for case in results.cases.values()}
    ordered = sorted(names, key=lambda name: rank(name, BASELINE, OPTIMIZED))
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(ordered)}


def variant_rank(name: CaseName) -> tuple[object, ...]:
    """`optimized` before other variants, f32 before other types."""
    return (rank(name.variant, OPTIMIZED, BASELINE), rank(name.dtype, "f32"))


def name_rank(name: CaseName) -> tuple[object, ...]:
    """The order of tables: by component, size, dtype, variant, pass and shape."""
    return (
        rank(name.component, *COMPONENTS),
        rank(name.size, *problem_sizes()),
        rank(name.dtype, "f32"),
        rank(name.variant, BASELINE, OPTIMIZED),
        rank(name.pass_name, *WHOLE_PASSES),
        name.batch,
        name.seq,
    )


def best_of_each(
    items: Iterable[Found], key: Callable[[Found], Hashable], preference: Callable[[Found], Any]
) -> list[Found]:
    """Of those with the same key the one with the least preference; keys in their order."""
    found: dict[Hashable, list[Found]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return [min(alike, key=preference) for alike in found.values()]


def steps(results: ResultSet) -> list[MeasuredCase]:
    """Every training step, in the order of tables."""
    found = [case for case in results.cases.values() if case.name.component == STEP]
    return sorted(found, key=lambda case: name_rank(case.name))


def lacks_parts(results: ResultSet, step: CaseName) -> bool:
    """Whether a component of the step was not measured at its size, type and shape."""
    of = problem_sizes().get(step.size)
    parts = parts_of(step, of["n_layers"] if of else None, results.cases)
    return bool(parts.missing) or not parts.measured


def _preference(results: ResultSet, case: MeasuredCase) -> tuple[object, ...]:
    """Before others: one whose parts were measured too, at its problem size's own shape,
    `optimized` rather than another variant, f32, and the largest of those."""
    variant, dtype = (of[0] for of in variant_rank(case.name))
    flops = case.counters.get("model_flops", 0.0)
    is_other = not is_own_shape(case.name)
    return (lacks_parts(results, case.name), is_other, variant, dtype, -flops)


def headline_steps(results: ResultSet) -> list[MeasuredCase]:
    """One a size, dtype and variant, in the order of tables."""
    return best_of_each(
        steps(results),
        lambda case: (case.name.size, case.name.dtype, case.name.variant),
        lambda case: _preference(results, case),
    )


def main_step(results: ResultSet) -> MeasuredCase | None:
    """The step that the report looks into."""
    return min(steps(results), key=lambda case: _preference(results, case), default=None)
