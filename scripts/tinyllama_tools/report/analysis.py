"""What a report computes of the cases of a result: their order, the main step, and laws of time and
memory with their held-out checks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP, CaseName, parts_of
from tinyllama_tools.report.document import Omission
from tinyllama_tools.stats.laws import (
    Exponents,
    GridPoint,
    HeldOutCell,
    Law,
    LawRefusedError,
    RangeKind,
    check_held_out,
    fit_exponents,
    fit_memory_law,
    fit_time_law,
    terms_of_work,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import MeasuredCase, ResultSet
    from tinyllama_tools.models.prediction import PredictionCheck, StepPrediction

Fit = Callable[[Sequence[GridPoint]], Law]
Item = TypeVar("Item")
F32 = "f32"
# of components that have several passes, the one that a step consists of
WHOLE_PASSES = ("train", "update", "forward_backward")
COMPONENTS = (
    *("full_step", "model", "block", "attention", "ffn", "rms_norm", "rotary", "embedding"),
    *("loss", "optimizer"),
)


@functools.cache
def sizes_by_name() -> Mapping[str, Mapping[str, int]]:
    """fixtures/problem_sizes.json, read once."""
    return problem_sizes()


def rank(value: str, order: Sequence[str]) -> tuple[int, str]:
    """For sorting: the known ones in their order, then the others by name."""
    return (order.index(value) if value in order else len(order), value)


def variant_rank(name: CaseName) -> tuple[object, ...]:
    """For sorting: `optimized` before other variants, f32 before other types."""
    return (rank(name.variant, (OPTIMIZED, BASELINE)), rank(name.dtype, (F32,)))


def name_rank(name: CaseName) -> tuple[object, ...]:
    """The order of tables: by component, size, dtype, variant, pass and shape."""
    return (
        rank(name.component, COMPONENTS),
        rank(name.size, tuple(sizes_by_name())),
        rank(name.dtype, (F32,)),
        rank(name.variant, (BASELINE, OPTIMIZED)),
        rank(name.pass_name, WHOLE_PASSES),
        name.batch,
        name.seq,
    )


def best_of_each(
    items: Iterable[Item], key: Callable[[Item], Hashable], preference: Callable[[Item], Any]
) -> list[Item]:
    """Of those with the same key the one with the least preference; keys in their order."""
    found: dict[Hashable, Item] = {}
    for item in items:
        known = found.setdefault(key(item), item)
        if preference(item) < preference(known):
            found[key(item)] = item
    return list(found.values())


def is_own_shape(name: CaseName) -> bool:
    """Whether a case has the batch and sequence of its problem size."""
    of = sizes_by_name().get(name.size)
    return of is not None and (of["batch"], of["seq"]) == (name.batch, name.seq)


def is_same_device(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two contexts are of one device with as many threads."""
    return first_difference(one, other, SAME_DEVICE) is None


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
            bool(missing_parts(results, name)),
            not is_own_shape(name),
            rank(name.variant, (OPTIMIZED, BASELINE))[0],
            rank(name.dtype, (F32,))[0],
            -case.counters.get("model_flops", 0.0),
        )

    return min(steps(results), key=preference, default=None)


def headline_steps(results: ResultSet) -> list[MeasuredCase]:
    """One a size, dtype and variant: at the size's own shape, else at the largest one measured."""
    return best_of_each(
        steps(results),
        lambda case: (case.name.size, case.name.dtype, case.name.variant),
        lambda case: (not is_own_shape(case.name), -case.name.batch * case.name.seq),
    )


NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"


@dataclass(frozen=True)
class PredictedStep:
    """`kind`: NOT_RUN; CHECKED where the step was run, but did not serve the rates; CALIBRATED.
    `measured_seconds`, `check`: None where it was not run."""

    cost: CaseCost
    prediction: StepPrediction
    kind: str
    measured_seconds: float | None = None
    check: PredictionCheck | None = None


@dataclass(frozen=True)
class Predictions:
    """One a problem size at its own shape, smallest first, and steps of sizes without rates that
    were run at another shape. `refusal`: why there are none; `omissions`: single steps that cannot
    be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = ()


MIB = 2**20
PEAK_MEMORY = "peak_memory_MiB"
WORK = ("hardware_flops", "elementwise_flops", "bytes")
# some 10 ms of computing each: a report is written within seconds
MOST_LAWS = 320
TOO_MANY = f"a report fits {MOST_LAWS} series at most; report fewer components or variants at once"


@dataclass(frozen=True)
class Series:
    """Cases that differ in nothing but batch and sequence. `name`: of the first of them."""

    name: CaseName
    cases: tuple[MeasuredCase, ...]

    def __str__(self) -> str:
        of = self.name
        return "/".join((of.component, of.pass_name, of.variant, of.size, of.dtype))


@dataclass(frozen=True)
class SeriesFit:
    """`law` says values and its formula; its draws are gone. `held_out`: in the order of the grid;
    empty where there are too few sizes, which `held_out_refusal` says. `refusal`: why there
    is no law; empty where there is. `exponents`: None where the sizes do not decide them.
    `short`: cases that were not measured in all rounds of the others, which `points` lacks."""

    series: Series
    points: tuple[GridPoint, ...]
    law: Law | None = None
    refusal: str = ""
    held_out: tuple[HeldOutCell, ...] = ()
    held_out_refusal: str = ""
    exponents: Exponents | None = None
    short: tuple[MeasuredCase, ...] = ()


def series_of(results: ResultSet) -> list[Series]:
    """Of all cases, in the order of tables."""
    found: dict[CaseName, list[MeasuredCase]] = {}
    for case in sorted(results.cases.values(), key=lambda case: name_rank(case.name)):
        found.setdefault(replace(case.name, batch=0, seq=0), []).append(case)
    return [Series(cases[0].name, tuple(cases)) for cases in found.values()]


def _unless_refused(fit: Callable[..., Item], *arguments: object) -> tuple[Item | None, str]:
    try:
        return fit(*arguments), ""
    except LawRefusedError as error:
        return None, str(error)


def _fitted(series: Series, points: tuple[GridPoint, ...], fit: Fit) -> SeriesFit:
    exponents, _ = _unless_refused(fit_exponents, points)
    law, refusal = _unless_refused(fit, points)
    if law is None:
        return SeriesFit(series, points, refusal=refusal, exponents=exponents)
    held, why_not = _unless_refused(check_held_out, points, fit)
    # thousands of draws a law, which only its intervals need
    return SeriesFit(series, points, replace(law, draws=()), "", held or (), why_not, exponents)


def _points_and_short(
    series: Series, value: Callable[[MeasuredCase], tuple[float, ...]]
) -> tuple[tuple[GridPoint, ...], tuple[MeasuredCase, ...]]:
    """What has values of the rounds that most of the cases have, and the cases that lack some."""
    found = [
        # one value each tells nothing of rounds
        (case, of, (case.rounds or tuple(range(len(of)))) if len(of) > 1 else ())
        for case in series.cases
        if (of := value(case))
    ]
    counts = Counter(rounds for *_, rounds in found)
    usual = max(counts, key=lambda rounds: (counts[rounds], len(rounds)), default=())
    points = (GridPoint(c.name.batch, c.name.seq, of) for c, of, rounds in found if rounds == usual)
    return tuple(points), tuple(case for case, _, rounds in found if rounds != usual)


def _fits(
    every: Sequence[Series],
    value: Callable[[MeasuredCase], tuple[float, ...]],
    fit_of: Callable[[Series], Fit],
) -> list[SeriesFit]:
    """In the order of `every`; of more than MOST_LAWS those that matter most."""

    def importance(series: Series) -> tuple[object, ...]:
        variant, dtype = variant_rank(series.name)
        return (variant, rank(series.name.pass_name, WHOLE_PASSES), dtype)

    found: dict[str, SeriesFit] = {}
    fitted = 0
    for series in sorted(every, key=importance):
        points, short = _points_and_short(series, value)
        if not points:
            continue
        if fitted < MOST_LAWS:
            one = replace(_fitted(series, points, fit_of(series)), short=short)
        else:
            one = SeriesFit(series, points, refusal=TOO_MANY)
        # a refusal costs nothing
        fitted += not one.refusal
        found[str(series)] = one
    return [found[str(series)] for series in every if str(series) in found]


def time_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of the time of every series, with the terms that the counted work has, where every case
    counts it."""

    def fit_of(series: Series) -> Fit:
        counters = {
            name: {(c.name.batch, c.name.seq): c.counters[name] for c in series.cases}
            for name in WORK
            if all(name in case.counters for case in series.cases)
        }
        return functools.partial(fit_time_law, terms=terms_of_work(counters))

    return _fits(series_of(results), lambda case: case.seconds, fit_of)


def memory_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of peak memory, of the passes that a step consists of."""

    def peak_bytes(case: MeasuredCase) -> tuple[float, ...]:
        """Counted, not measured: the same in every round."""
        peak = case.counters.get(PEAK_MEMORY)
        return (peak * MIB,) if peak else ()

    whole = [series for series in series_of(results) if series.name.pass_name in WHOLE_PASSES]
    return _fits(whole, peak_bytes, lambda _: fit_memory_law)


def range_kind(fits: Sequence[SeriesFit]) -> RangeKind:
    """What the ranges of all of them hold; of one round where any series has but one."""
    kinds = {fit.law.range_kind for fit in fits if fit.law is not None}
    if RangeKind.ONE_ROUND in kinds:
        return RangeKind.ONE_ROUND
    return kinds.pop() if kinds else RangeKind.NEW_ROUNDS


def held_out_by_size(fits: Sequence[SeriesFit]) -> dict[str, list[HeldOutCell]]:
    """Over all series of a size that have some."""
    found: dict[str, list[HeldOutCell]] = {}
    for fit in fits:
        if fit.held_out:
            found.setdefault(fit.series.name.size, []).extend(fit.held_out)
    return found


def refused(fits: Sequence[SeriesFit], what: str) -> list[Omission]:
    """To be named: series without a law or a check of it, and cases that are no part of one.
    `what`: of time or of memory."""
    law, check = f"{what} law", f"held-out check of a {what} law"
    found = [Omission(law, str(fit.series), fit.refusal) for fit in fits if fit.refusal]
    found += [
        Omission(check, str(fit.series), fit.held_out_refusal)
        for fit in fits
        if fit.held_out_refusal
    ]
    why = "not measured in the {} rounds of the other sizes, so the law is of those without it"
    return found + [
        Omission(law, str(case.name), why.format(len(fit.points[0].rounds)))
        for fit in fits
        for case in fit.short
    ]
