"""What the parts of a report have in common: the order of cases, the steps that are looked into,
and a colour for each variant and a marker for each component.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP, CaseName, parts_of
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.prediction import is_own_shape
from tinyllama_tools.report.document import COLOURS

Found = TypeVar("Found")

# the pass that a step consists of, where a component has several
WHOLE_PASSES = ("train", "update", "forward_backward")
COMPONENTS = (
    *("full_step", "model", "block", "attention", "ffn", "rms_norm", "rotary", "embedding"),
    *("loss", "optimizer"),
)


def rank(value: str, *order: str) -> tuple[int, str]:
    """For sorting: the known ones in their order, then the others by name."""
    return (order.index(value) if value in order else len(order), value)


# plotly's names, of markers that are told apart among thousands
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon"),
    *("star", "hourglass", "hexagram"),
)


# a figure that shows cases says this
HOLLOW = "Hollow: the case was disturbed (!)."


def symbol_of(component: str, case: MeasuredCase | None = None) -> str:
    """The marker of a component, the same in every figure; hollow where the case was disturbed."""
    symbol = SYMBOLS[min(rank(component, *COMPONENTS)[0], len(SYMBOLS) - 1)]
    return f"{symbol}-open" if case is not None and case.disturbance else symbol


def variant_colours(results: ResultSet) -> dict[str, str]:
    """By variant, in the order of tables; the same in every figure."""
    names = {case.name.variant for case in results.cases.values()}
    ordered = sorted(names, key=lambda name: rank(name, BASELINE, OPTIMIZED))
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(ordered)}


def variant_rank(name: CaseName) -> tuple[object, ...]:
    """`optimized` before other variants, f32 before other types."""
    return (rank(name.variant, OPTIMIZED, BASELINE), rank(name.dtype, "f32"))


def name_rank(name: CaseName) -> tuple[object, ...]:
    """The order of tables."""
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
    """For each key, in the order of the items, the item with the least preference."""
    found: dict[Hashable, list[Found]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return [min(alike, key=preference) for alike in found.values()]


def in_order(results: ResultSet) -> list[MeasuredCase]:
    """Every case, in the order of tables."""
    return sorted(results.cases.values(), key=lambda case: name_rank(case.name))


def steps(results: ResultSet) -> list[MeasuredCase]:
    """Every training step, in the order of tables."""
    return [case for case in in_order(results) if case.name.component == STEP]


def lacks_parts(results: ResultSet, step: CaseName) -> bool:
    """Whether a component of the step was not measured at its size, type and shape."""
    size = problem_sizes().get(step.size)
    parts = parts_of(step, size["n_layers"] if size else None, results.cases)
    return bool(parts.missing) or not parts.measured


def _preference(results: ResultSet, case: MeasuredCase) -> tuple[object, ...]:
    """In this order: the parts were measured too; its problem size's own shape; `optimized`; f32;
    the largest."""
    variant, dtype = (place for place, _ in variant_rank(case.name))
    flops = case.counters.get("model_flops", 0.0)
    is_other = not is_own_shape(case.name)
    return (lacks_parts(results, case.name), is_other, variant, dtype, -flops)


def headline_steps(results: ResultSet) -> list[MeasuredCase]:
    """One for each size, dtype and variant, in the order of tables."""
    return best_of_each(
        steps(results),
        lambda case: (case.name.size, case.name.dtype, case.name.variant),
        lambda case: _preference(results, case),
    )


def main_step(results: ResultSet) -> MeasuredCase | None:
    """The step that the report looks into."""
    return min(steps(results), key=lambda case: _preference(results, case), default=None)
