"""What a report computes of results: the order of cases, the main step with its parts and speed of
light, laws of time and memory, and predictions."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tinyllama_tools.core.app import BadInputError, problem_sizes
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import BASELINE, OPTIMIZED, STEP, CaseName, parts_of
from tinyllama_tools.data.programs import CaseCost
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.prediction import (
    PredictionCheck,
    Rates,
    RatesRefusedError,
    StepPrediction,
    calibrate_rates,
    check_against,
    predict_steps,
)
from tinyllama_tools.models.speed_of_light import SpeedOfLight, Waterfall, speed_of_light, waterfall
from tinyllama_tools.report.document import Omission
from tinyllama_tools.stats.law_fits import (
    Exponents,
    HeldOut,
    check_held_out,
    fit_exponents,
    fit_memory_law,
    fit_time_law,
)
from tinyllama_tools.stats.laws import GridPoint, Law, LawRefusedError, RangeKind, terms_of_work

Fit = Callable[[Sequence[GridPoint]], Law]
Value = Callable[[MeasuredCase], tuple[float, ...]]
Found = TypeVar("Found")
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


def main_sum_of_parts(results: ResultSet | None) -> tuple[Waterfall | None, str]:
    """The parts of the main step, or why they are not known."""
    return _of_main_step(results, waterfall)


def all_sums_of_parts(results: ResultSet) -> list[Waterfall]:
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


NO_STEP = "no training step (full_step/train) was measured to calibrate on"
NO_COSTS = "no costs of sizes that were not run were given: a grid study writes costs.json"
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
    omissions: Sequence[Omission] = field(default=())


def _asked_steps(
    costs: Sequence[CaseCost], of: CaseName, measured: Mapping[str, MeasuredCase]
) -> dict[str, CaseCost]:
    """Steps of the same dtype and variant, by name: at their problem size's own shape, and those
    that were run."""
    return {
        str(cost.name): cost
        for cost in costs
        if cost.name.component == STEP
        and (cost.name.dtype, cost.name.variant) == (of.dtype, of.variant)
        and (is_own_shape(cost.name) or str(cost.name) in measured)
    }


def _predicted(
    cost: CaseCost, one: StepPrediction, rates: Rates, case: MeasuredCase | None
) -> PredictedStep:
    check = check_against(one, case) if case is not None else None
    seconds = case.median_seconds if case is not None else None
    kind = CALIBRATED if one.name.size in rates.sizes else NOT_RUN if case is None else CHECKED
    return PredictedStep(cost, one, kind, seconds, check)


def predictions_of(
    results: ResultSet | None,
    costs: Sequence[CaseCost],
    known: Mapping[str, MeasuredCase],
) -> Predictions:
    """In the dtype and variant of the main step of `results`, which the rates come from.

    `known`: steps of the same machine by name, from wherever they were run.
    """
    step = main_step(results) if results is not None else None
    if results is None or step is None:
        return Predictions(refusal=NO_STEP)
    if not costs:
        return Predictions(refusal=NO_COSTS)
    of = step.name
    asked = _asked_steps(costs, of, known)
    if not asked:
        what = f"{of.variant} step in {of.dtype} at a size's own batch and sequence"
        return Predictions(refusal=f"costs.json has no {what}")
    try:
        rates = calibrate_rates(results, of.dtype, of.variant, costs)
        found, refused = predict_steps(rates, costs)
        steps = [
            _predicted(asked[name], one, rates, known.get(name))
            for one in found
            if (name := str(one.name)) in asked
            and (is_own_shape(one.name) or one.name.size not in rates.sizes)
        ]
    except RatesRefusedError as error:
        return Predictions(refusal=str(error))
    steps.sort(key=_order)
    omissions = [Omission("prediction", r.name, r.reason) for r in refused if r.name in asked]
    return Predictions(steps, "" if steps else "no step could be predicted", omissions)


def _order(one: PredictedStep) -> tuple[object, ...]:
    name = one.cost.name
    return (rank(name.size, tuple(sizes_by_name())), not is_own_shape(name), name.batch, name.seq)


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

    @property
    def batches(self) -> list[int]:
        """Smallest first."""
        return sorted({case.name.batch for case in self.cases})


@dataclass(frozen=True)
class HeldOutCell:
    """What a law of the other sizes says of one that was held out, with its range, in seconds or
    bytes. `error_percent`: of the measured, above 0 where too much was predicted."""

    point: GridPoint
    value: float
    low: float
    high: float
    error_percent: float

    @property
    def is_covered(self) -> bool:
        """Whether the measured value lies in the range."""
        return self.low <= self.point.value <= self.high

    @property
    def width_percent(self) -> float:
        """Of the range, of the value."""
        return 100 * (self.high - self.low) / self.value


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
    found: dict[tuple[str, ...], list[MeasuredCase]] = {}
    for case in sorted(results.cases.values(), key=lambda case: name_rank(case.name)):
        of = case.name
        key = (of.component, of.pass_name, of.variant, of.size, of.dtype)
        found.setdefault(key, []).append(case)
    return [Series(cases[0].name, tuple(cases)) for cases in found.values()]


def _exponents(points: Sequence[GridPoint]) -> Exponents | None:
    try:
        return fit_exponents(points)
    except LawRefusedError:
        # the law beside it says why
        return None


def _held_out_cells(check: HeldOut) -> tuple[HeldOutCell, ...]:
    found = []
    for point, error in zip(check.held, check.errors_percent, strict=True):
        value = check.law.at(point.batch, point.seq)
        found.append(HeldOutCell(point, value, *check.law.interval(point.batch, point.seq), error))
    return tuple(found)


def _fitted(series: Series, points: tuple[GridPoint, ...], fit: Fit) -> SeriesFit:
    try:
        # thousands of draws a law, which only its intervals need
        law = replace(fit(points), draws=())
    except LawRefusedError as error:
        return SeriesFit(series, points, refusal=str(error), exponents=_exponents(points))
    held_out, why_not = (), ""
    try:
        held_out = _held_out_cells(check_held_out(points, fit))
    except LawRefusedError as error:
        why_not = str(error)
    return SeriesFit(series, points, law, "", held_out, why_not, _exponents(points))


def _importance(series: Series) -> tuple[object, ...]:
    """For sorting: which laws to do without last."""
    of = series.name
    return (
        rank(of.variant, (OPTIMIZED, BASELINE)),
        rank(of.pass_name, WHOLE_PASSES),
        rank(of.dtype, (F32,)),
    )


def _rounds_of(case: MeasuredCase, values: tuple[float, ...]) -> tuple[int, ...]:
    """Which rounds, as far as it matters: one value each tells nothing of rounds."""
    if len(values) < 2:
        return ()
    return case.rounds or tuple(range(len(values)))


def _points_and_short(
    series: Series, value: Value
) -> tuple[tuple[GridPoint, ...], tuple[MeasuredCase, ...]]:
    """What has values of the rounds that most of the cases have, and the cases that lack some."""
    found = [(case, of) for case in series.cases if (of := value(case))]
    if not found:
        return (), ()
    counts = Counter(_rounds_of(case, of) for case, of in found)
    usual = max(counts, key=lambda rounds: (counts[rounds], len(rounds)))
    points, short = [], []
    for case, of in found:
        if _rounds_of(case, of) == usual:
            points.append(GridPoint(case.name.batch, case.name.seq, of))
        else:
            short.append(case)
    return tuple(points), tuple(short)


def _fits(
    every: Sequence[Series], value: Value, fit_of: Callable[[Series], Fit]
) -> list[SeriesFit]:
    """In the order of `every`; of more than MOST_LAWS those that matter most."""
    found: dict[str, SeriesFit] = {}
    fitted = 0
    for series in sorted(every, key=_importance):
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


def _seconds(case: MeasuredCase) -> tuple[float, ...]:
    return case.seconds


def _peak_bytes(case: MeasuredCase) -> tuple[float, ...]:
    """Counted, not measured: the same in every round."""
    peak = case.counters.get(PEAK_MEMORY)
    return (peak * MIB,) if peak else ()


def _time_fit_of(series: Series) -> Fit:
    """With the terms that the counted work has, where every case counts it."""
    counters = {
        name: {(c.name.batch, c.name.seq): c.counters[name] for c in series.cases}
        for name in WORK
        if all(name in case.counters for case in series.cases)
    }
    return partial(fit_time_law, terms=terms_of_work(counters))


def time_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of the time of every series."""
    return _fits(series_of(results), _seconds, _time_fit_of)


def memory_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of peak memory, of the passes that a step consists of."""
    whole = [series for series in series_of(results) if series.name.pass_name in WHOLE_PASSES]
    return _fits(whole, _peak_bytes, lambda _: fit_memory_law)


def range_kind(fits: Sequence[SeriesFit]) -> RangeKind:
    """What the ranges of all of them hold; of one round where any series has but one."""
    kinds = {fit.law.range_kind for fit in fits if fit.law is not None}
    if RangeKind.ONE_ROUND in kinds:
        return RangeKind.ONE_ROUND
    return kinds.pop() if kinds else RangeKind.NEW_ROUNDS


def refused(fits: Sequence[SeriesFit], what: str) -> list[Omission]:
    """To be named: series without a law or a check of it, and cases that are no part of one.
    `what`: of time or of memory."""
    kind = f"{what} law"
    found = [Omission(kind, str(fit.series), fit.refusal) for fit in fits if fit.refusal]
    found += [
        Omission(f"held-out check of a {kind}", str(fit.series), fit.held_out_refusal)
        for fit in fits
        if fit.held_out_refusal
    ]
    for fit in fits:
        rounds = f"the {len(fit.points[0].rounds)} rounds of the other sizes"
        why = f"not measured in {rounds}, so the law is of those without it"
        found += [Omission(kind, str(case.name), why) for case in fit.short]
    return found


def is_same_device(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two contexts are of one device with as many threads."""
    return first_difference(one, other, SAME_DEVICE) is None
