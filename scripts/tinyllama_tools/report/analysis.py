"""What follows from a result: the order of cases, the main step, laws of time with their held-out
checks, and predictions of steps that were not run."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP, CaseName, parts_of
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.prediction import Rates, StepPrediction, is_own_shape
from tinyllama_tools.report.document import Omission
from tinyllama_tools.stats.laws import (
    GridPoint,
    HeldOutCell,
    Law,
    LawRefusedError,
    check_held_out,
    fit_time_law,
)

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


@dataclass(frozen=True)
class SeriesFit:
    """Of cases that differ in nothing but batch and sequence. `name`: of the first of them. `law`:
    None where it is refused; `held_out`: in the order of the grid, empty where that is refused.
    `refused`: what cannot be said, and why."""

    name: CaseName
    points: tuple[GridPoint, ...]
    law: Law | None = None
    held_out: tuple[HeldOutCell, ...] = ()
    refused: tuple[Omission, ...] = ()

    @property
    def series(self) -> str:
        of = self.name
        return "/".join((of.component, of.pass_name, of.variant, of.size, of.dtype))


def fitted(cases: Sequence[MeasuredCase]) -> SeriesFit:
    """Of what was measured in the rounds that most of the cases have."""
    usual, _ = Counter(case.rounds for case in cases).most_common(1)[0]
    of_usual = [case for case in cases if case.rounds == usual]
    points = tuple(GridPoint(c.name.batch, c.name.seq, c.seconds) for c in of_usual)
    others = f"the {len(points[0].rounds)} rounds of the other sizes"
    why = f"not measured in {others}, so the law is of those without it"
    short = [case.name for case in cases if case.rounds != usual]
    refused = [Omission("time law", str(name), why) for name in short]
    fit = SeriesFit(cases[0].name, points)
    try:
        fit = replace(fit, law=fit_time_law(points))
        fit = replace(fit, held_out=check_held_out(points))
    except LawRefusedError as error:
        what = "held-out check of a time law" if fit.law else "time law"
        refused.insert(0, Omission(what, fit.series, str(error)))
    return replace(fit, refused=tuple(refused))


def held_out_by_size(fits: Sequence[SeriesFit]) -> dict[str, list[HeldOutCell]]:
    """Over all series of a size that have some."""
    found: dict[str, list[HeldOutCell]] = {}
    for fit in fits:
        if fit.held_out:
            found.setdefault(fit.name.size, []).extend(fit.held_out)
    return found


NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"


class PredictedStep(NamedTuple):
    """`kind`: NOT_RUN; CHECKED where the step was run, but did not serve the rates; CALIBRATED.
    `measured`: None where it was not run."""

    prediction: StepPrediction
    kind: str
    measured: MeasuredCase | None

    @property
    def name(self) -> CaseName:
        """Of the step."""
        return self.prediction.cost.name


class Predictions(NamedTuple):
    """One a problem size at its own shape, smallest first, and steps of sizes without rates that
    were run at another shape. `refusal`: why there are none; `omissions`: single steps that cannot
    be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = ()
    rates: Rates | None = None
