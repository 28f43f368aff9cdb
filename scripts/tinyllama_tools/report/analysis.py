"""What a report computes of the cases of a result: their order, the main step, laws of time and
memory with their held-out checks, predictions of steps that were not run, and the frontiers that
are shown."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tinyllama_tools.core.app import problem_sizes
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP, CaseName, parts_of
from tinyllama_tools.data.studies import AXES, Axis
from tinyllama_tools.models.prediction import (
    RatesRefusedError,
    calibrate_rates,
    check_against,
    predict_steps,
)
from tinyllama_tools.report.document import Omission, bytes_text
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
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.programs import CaseCost
    from tinyllama_tools.data.results import MeasuredCase, ResultSet
    from tinyllama_tools.models.prediction import PredictionCheck, StepPrediction
    from tinyllama_tools.report.inputs import ReportInputs

Item = TypeVar("Item")
F32 = "f32"
# of components that have several passes, the one that a step consists of
WHOLE_PASSES = ("train", "update", "forward_backward")
COMPONENTS = (
    *("full_step", "model", "block", "attention", "ffn", "rms_norm", "rotary", "embedding"),
    *("loss", "optimizer"),
)
sizes_by_name = functools.cache(problem_sizes)


def rank(value: str, order: Sequence[str]) -> tuple[int, str]:
    """For sorting: the known ones in their order, then the others by name."""
    return (order.index(value) if value in order else len(order), value)


def size_rank(name: CaseName) -> tuple[int, str]:
    return rank(name.size, tuple(sizes_by_name()))


def variant_rank(name: CaseName) -> tuple[object, ...]:
    """`optimized` before other variants, f32 before other types."""
    return (rank(name.variant, (OPTIMIZED, BASELINE)), rank(name.dtype, (F32,)))


def name_rank(name: CaseName) -> tuple[object, ...]:
    """The order of tables: by component, size, dtype, variant, pass and shape."""
    return (
        rank(name.component, COMPONENTS),
        size_rank(name),
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
    found: dict[Hashable, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return [min(alike, key=preference) for alike in found.values()]


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


def lacks_parts(results: ResultSet, step: CaseName) -> bool:
    """Whether a component of the step was not measured at its size, type and shape."""
    of = sizes_by_name().get(step.size)
    parts = parts_of(step, of["n_layers"] if of else None, results.cases)
    return bool(parts.missing) or not parts.measured


def main_step(results: ResultSet) -> MeasuredCase | None:
    """The step that the report looks into: one whose parts were measured too, at its problem
    size's own shape, `optimized` rather than another variant, f32, and the largest of those."""

    def preference(case: MeasuredCase) -> tuple[object, ...]:
        variant, dtype = (of[0] for of in variant_rank(case.name))
        flops = case.counters.get("model_flops", 0.0)
        is_other = not is_own_shape(case.name)
        return (lacks_parts(results, case.name), is_other, variant, dtype, -flops)

    return min(steps(results), key=preference, default=None)


def headline_steps(results: ResultSet) -> list[MeasuredCase]:
    """One a size, dtype and variant: at the size's own shape, else at the largest one measured."""
    return best_of_each(
        steps(results),
        lambda case: (case.name.size, case.name.dtype, case.name.variant),
        lambda case: (not is_own_shape(case.name), -case.name.batch * case.name.seq),
    )


MIB = 2**20
PEAK_MEMORY = "peak_memory_MiB"
WORK = ("hardware_flops", "elementwise_flops", "bytes")
# some 10 ms of computing each: a report is written within seconds
MOST_LAWS = 320
TOO_MANY = f"a report fits {MOST_LAWS} series at most; report fewer components or variants at once"
Fit = Callable[[Sequence[GridPoint]], Law]
Values = Callable[["MeasuredCase"], tuple[float, ...]]


@dataclass(frozen=True)
class SeriesFit:
    """Of cases that differ in nothing but batch and sequence. `name`: of the first of them. `law`
    says values and its formula; its draws are gone. `held_out`: in the order of the grid; empty
    where there are too few sizes, which `held_out_refusal` says. `refusal`: why there is no law;
    empty where there is. `exponents`: None where the sizes do not decide them. `short`: cases that
    were not measured in all rounds of the others, which `points` lacks."""

    name: CaseName
    points: tuple[GridPoint, ...]
    short: tuple[MeasuredCase, ...] = ()
    law: Law | None = None
    refusal: str = ""
    held_out: tuple[HeldOutCell, ...] = ()
    held_out_refusal: str = ""
    exponents: Exponents | None = None

    @property
    def series(self) -> str:
        of = self.name
        return "/".join((of.component, of.pass_name, of.variant, of.size, of.dtype))


def _unless_refused(fit: Callable[..., Item], *arguments: object) -> tuple[Item | None, str]:
    try:
        return fit(*arguments), ""
    except LawRefusedError as error:
        return None, str(error)


def _fitted(one: SeriesFit, fit: Fit) -> SeriesFit:
    exponents, _ = _unless_refused(fit_exponents, one.points)
    law, refusal = _unless_refused(fit, one.points)
    if law is None:
        return replace(one, refusal=refusal, exponents=exponents)
    held, why_not = _unless_refused(check_held_out, one.points, fit)
    # thousands of draws a law, which only its intervals need
    law = replace(law, draws=())
    return replace(one, law=law, held_out=held or (), held_out_refusal=why_not, exponents=exponents)


def _unfitted(cases: Sequence[MeasuredCase], values: Values) -> SeriesFit:
    """Points: what has values of the rounds that most of the cases have."""
    found = [
        # one value each tells nothing of rounds
        (case, of, (case.rounds or tuple(range(len(of)))) if len(of) > 1 else ())
        for case in cases
        if (of := values(case))
    ]
    counts = Counter(rounds for *_, rounds in found)
    usual = max(counts, key=lambda rounds: (counts[rounds], len(rounds)), default=())
    points = (GridPoint(c.name.batch, c.name.seq, of) for c, of, rounds in found if rounds == usual)
    short = (case for case, _, rounds in found if rounds != usual)
    return SeriesFit(cases[0].name, tuple(points), tuple(short))


def _fits(
    results: ResultSet, values: Values, fit_of: Callable[[Sequence[MeasuredCase]], Fit]
) -> list[SeriesFit]:
    """In the order of tables; of more than MOST_LAWS those that matter most."""
    every: dict[CaseName, list[MeasuredCase]] = {}
    for case in sorted(results.cases.values(), key=lambda case: name_rank(case.name)):
        every.setdefault(replace(case.name, batch=0, seq=0), []).append(case)

    def importance(name: CaseName) -> tuple[object, ...]:
        variant, dtype = variant_rank(name)
        return (variant, rank(name.pass_name, WHOLE_PASSES), dtype)

    found: dict[CaseName, SeriesFit] = {}
    fitted = 0
    for name in sorted(every, key=importance):
        one = _unfitted(every[name], values)
        if not one.points:
            continue
        if fitted < MOST_LAWS:
            found[name] = _fitted(one, fit_of(every[name]))
        else:
            found[name] = replace(one, refusal=TOO_MANY)
        # a refusal costs nothing
        fitted += not found[name].refusal
    return [found[name] for name in every if name in found]


def time_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of the time of every series, with the terms that the counted work has, where every case
    counts it."""

    def fit_of(cases: Sequence[MeasuredCase]) -> Fit:
        counters = {
            name: {(c.name.batch, c.name.seq): c.counters[name] for c in cases}
            for name in WORK
            if all(name in case.counters for case in cases)
        }
        return functools.partial(fit_time_law, terms=terms_of_work(counters))

    return _fits(results, lambda case: case.seconds, fit_of)


def memory_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of peak memory, of the passes that a step consists of."""

    def peak_bytes(case: MeasuredCase) -> tuple[float, ...]:
        """Counted, not measured: the same in every round."""
        peak = case.counters.get(PEAK_MEMORY)
        return (peak * MIB,) if peak and case.name.pass_name in WHOLE_PASSES else ()

    return _fits(results, peak_bytes, lambda _: fit_memory_law)


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
            found.setdefault(fit.name.size, []).extend(fit.held_out)
    return found


def refused(fits: Sequence[SeriesFit], what: str) -> list[Omission]:
    """To be named: series without a law or a check of it, and cases that are no part of one.
    `what`: of time or of memory."""
    law, check = f"{what} law", f"held-out check of a {what} law"
    found = [Omission(law, fit.series, fit.refusal) for fit in fits if fit.refusal]
    found += [Omission(check, f.series, f.held_out_refusal) for f in fits if f.held_out_refusal]
    why = "not measured in the {} rounds of the other sizes, so the law is of those without it"
    return found + [
        Omission(law, str(case.name), why.format(len(fit.points[0].rounds)))
        for fit in fits
        for case in fit.short
    ]


NOT_RUN, CHECKED, CALIBRATED = "prediction", "prediction, checked", "calibrated on this size"
NO_STEP = "no training step (full_step/train) was measured to calibrate on"
NO_COSTS = "no costs of sizes that were not run were given: a grid study writes costs.json"


class PredictedStep(NamedTuple):
    """`kind`: NOT_RUN; CHECKED where the step was run, but did not serve the rates; CALIBRATED.
    `measured_seconds`, `check`: None where it was not run."""

    cost: CaseCost
    prediction: StepPrediction
    kind: str
    measured_seconds: float | None = None
    check: PredictionCheck | None = None


class Predictions(NamedTuple):
    """One a problem size at its own shape, smallest first, and steps of sizes without rates that
    were run at another shape. `refusal`: why there are none; `omissions`: single steps that cannot
    be predicted."""

    steps: Sequence[PredictedStep] = ()
    refusal: str = ""
    omissions: Sequence[Omission] = ()


def predictions_of(
    results: ResultSet | None, costs: Sequence[CaseCost], known: Mapping[str, MeasuredCase]
) -> Predictions:
    """In the dtype and variant of the main step of `results`, which the rates come from: of steps
    at their problem size's own shape, and of those that were run.

    `known`: steps of the same machine by name, from wherever they were run.
    """
    step = main_step(results) if results is not None else None
    if results is None or step is None:
        return Predictions(refusal=NO_STEP)
    if not costs:
        return Predictions(refusal=NO_COSTS)
    of = step.name
    asked = {
        str(cost.name): cost
        for cost in costs
        if (cost.name.component, cost.name.dtype, cost.name.variant) == (STEP, of.dtype, of.variant)
        and (is_own_shape(cost.name) or str(cost.name) in known)
    }
    if not asked:
        what = f"{of.variant} step in {of.dtype} at a size's own batch and sequence"
        return Predictions(refusal=f"costs.json has no {what}")
    try:
        rates = calibrate_rates(results, of.dtype, of.variant)
        every, refused = predict_steps(rates, costs)
    except RatesRefusedError as error:
        return Predictions(refusal=str(error))
    found = []
    for one in every:
        name, is_calibrated = str(one.name), one.name.size in rates.sizes
        if name not in asked or (is_calibrated and not is_own_shape(one.name)):
            continue
        case = known.get(name)
        kind = CALIBRATED if is_calibrated else NOT_RUN if case is None else CHECKED
        measured = (case.median_seconds, check_against(one, case)) if case is not None else ()
        found.append(PredictedStep(asked[name], one, kind, *measured))

    def order(of: CaseName) -> tuple[object, ...]:
        return (size_rank(of), not is_own_shape(of), of.batch, of.seq)

    found.sort(key=lambda step: order(step.cost.name))
    omissions = [Omission("prediction", r.name, r.reason) for r in refused if r.name in asked]
    return Predictions(found, "" if found else "no step could be predicted", omissions)


class Frontier(NamedTuple):
    """The points of one axis of a frontier.json. `kind`: of the second one of an axis, whether it
    was tried; empty of the first."""

    file: Json
    axis: Axis
    kind: str = ""

    @property
    def points(self) -> list[Json]:
        return self.file[self.axis.key]

    @property
    def id(self) -> str:
        """Of its table, and the beginning of its figures'."""
        return f"frontier_{self.axis.given}{self.kind and f'_{self.kind}'}"

    @property
    def title(self) -> str:
        return f"{self.axis.title.capitalize()} within {bytes_text(self.file['limit_bytes'])}"


def _is_tried(points: Sequence[Json]) -> bool:
    return any(point.get("confirmed") for point in points)


def chosen(inputs: ReportInputs) -> list[Frontier]:
    """The frontier over sequences and that over batches: the newest that is not known to be of
    another device than the analysed one, where there is none the newest of all; a study's own comes
    before one without a date. Behind them, of each axis, the next one of that device that was tried
    where the first was not, or the reverse: tries go up to a limit that they are given."""
    context = inputs.main.context if inputs.main is not None else {}
    device = (context.get("device") or {}).get("name") or ""

    def is_same(file: Json) -> bool:
        return file.get("device", "") in {"", device} or not device

    def preference(file: Json) -> tuple[bool, bool, str]:
        is_own = any(study.frontier is file for study in inputs.studies)
        date = file.get("date", "")
        return (is_same(file), bool(date) or is_own, date)

    found: dict[str, Frontier] = {}
    beside: dict[str, Frontier] = {}
    # of equals the first stays first
    for file in sorted(inputs.frontiers, key=preference, reverse=True):
        for given, of in AXES.items():
            points = file.get(of.key)
            if not points:
                continue
            first = found.setdefault(given, Frontier(file, of))
            if is_same(file) and _is_tried(points) != _is_tried(first.points):
                kind = "tried" if _is_tried(points) else "not_tried"
                beside.setdefault(given, Frontier(file, of, kind))
    return [of[given] for of in (found, beside) for given in AXES if given in of]
