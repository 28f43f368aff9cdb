"""Everything a report is made from, read and checked, and what follows from it, computed once."""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tinyllama_tools.core.app import SUITE_FILE, BadInputError, Json, problem_sizes
from tinyllama_tools.data.json_files import MEASURE_AGAIN, bad_file, read_json
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import STEP, TRAIN, CaseName
from tinyllama_tools.data.parts import BASELINE, OPTIMIZED, parts_of
from tinyllama_tools.data.profiles import BadProfileError, check_summary
from tinyllama_tools.data.programs import CaseCost, read_case_costs
from tinyllama_tools.data.results import (
    MeasuredCase,
    ResultSet,
    add_products,
    read_result_set,
    refuse_other_run,
)
from tinyllama_tools.data.studies import (
    CHECK,
    COSTS,
    FRONTIER,
    PRODUCTS,
    SCHEMA_VERSION,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.models.ablations import Study as AblationStudy
from tinyllama_tools.models.ablations import read_study as read_ablation
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
from tinyllama_tools.report.document import Omission, case_text, not_foreseen
from tinyllama_tools.report.sources import (
    STUDY_FILE,
    FrontierFile,
    Kind,
    ScalingRun,
    Source,
    is_grid_study,
    read_frontier,
    read_scaling_run,
)
from tinyllama_tools.stats.law_fits import (
    Exponents,
    HeldOut,
    check_held_out,
    fit_exponents,
    fit_memory_law,
    fit_time_law,
)
from tinyllama_tools.stats.laws import GridPoint, Law, LawRefusedError, RangeKind, terms_of_work

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
Fit = Callable[[Sequence[GridPoint]], Law]
Value = Callable[[MeasuredCase], tuple[float, ...]]


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


@dataclass(frozen=True)
class GridStudy:
    """A folder of scripts/study --grid. `description`: its study.json; `frontier`: None
    where there is none; `results`: None where no round could be used; `check`: steps of a bigger
    size, which are no part of `results` so that nothing is calibrated on them."""

    folder: Path
    description: Mapping[str, Any]
    results: ResultSet | None
    costs: Sequence[CaseCost] = ()
    frontier: FrontierFile | None = None
    check: ResultSet | None = None


@dataclass(frozen=True)
class TrainingRun:
    """A performance_summary.json of tiny_llama_train."""

    path: Path
    summary: Json

    @property
    def step_name(self) -> CaseName:
        """The case of the suite that does the same."""
        of = self.summary["configuration"]
        axes = (of["variant"], of["size"], of["dtype"], of["batch_size"], of["seq_len"])
        return CaseName(STEP, TRAIN, *axes)

    @property
    def name(self) -> str:
        """`tiny, baseline, f32, batch 8 x sequence 128`."""
        return case_text(self.step_name)


@dataclass(frozen=True)
class Ablation:
    """An ablation.json."""

    path: Path
    study: AblationStudy


@dataclass(frozen=True)
class ReportInputs:
    """`sets`: every result of the suite, grid studies' included; the first one is what the report
    analyses. `frontiers`: those of studies come last.
    `absent`: kinds of which there was none."""

    sources: tuple[Source, ...] = ()
    sets: tuple[ResultSet, ...] = ()
    studies: tuple[GridStudy, ...] = ()
    trainings: tuple[TrainingRun, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    frontiers: tuple[FrontierFile, ...] = ()
    scalings: tuple[ScalingRun, ...] = ()
    absent: tuple[Kind, ...] = ()
    omissions: tuple[Omission, ...] = field(default=())

    @property
    def main(self) -> ResultSet | None:
        """What is analysed; the others are compared with it."""
        return self.sets[0] if self.sets else None

    @property
    def costs(self) -> Sequence[CaseCost]:
        """Of the first study of the same machine that has some: what fits is the machine's."""
        return next((s.costs for s in self.studies if s.costs and self._is_of_main(s.results)), ())

    def _is_of_main(self, results: ResultSet | None) -> bool:
        if self.main is None:
            return True
        return results is not None and is_same_device(results.context, self.main.context)

    @property
    def check_cases(self) -> tuple[MeasuredCase, ...]:
        """Steps of the same machine that were measured to check predictions by."""
        return tuple(
            case
            for study in self.studies
            if study.check is not None and self._is_of_main(study.check)
            for case in study.check.cases.values()
        )

    @cached_property
    def time_fits(self) -> list[SeriesFit]:
        """Laws of time of the first result."""
        return time_fits(self.main) if self.main is not None else []

    @cached_property
    def memory_fits(self) -> list[SeriesFit]:
        """Laws of peak memory of the first result."""
        return memory_fits(self.main) if self.main is not None else []

    @cached_property
    def light(self) -> tuple[SpeedOfLight | None, str]:
        """Of the main step; or None and why."""
        return main_light(self.main)

    @cached_property
    def lights(self) -> tuple[list[SpeedOfLight], list[Omission]]:
        """Of one step a size, dtype and variant of the first result; and of which it is refused."""
        return all_lights(self.main) if self.main is not None else ([], [])

    @cached_property
    def sums_of_parts(self) -> list[Waterfall]:
        """Of one step a size, dtype and variant of the first result."""
        return all_sums_of_parts(self.main) if self.main is not None else []

    @cached_property
    def sum_of_parts(self) -> tuple[Waterfall | None, str]:
        """Of the main step; or None and why."""
        return main_sum_of_parts(self.main)

    @property
    def known_steps(self) -> dict[str, MeasuredCase]:
        """Training steps on the first result's device, by name: of training runs, which know no
        more than the time, of every result, and of checks; the later instead of the earlier."""
        if self.main is None:
            return {}
        found = {}
        for run in reversed(self.trainings):
            seconds = run.summary["summary"]["median_step_seconds"]
            if seconds and is_same_device(run.summary["context"], self.main.context):
                found[str(run.step_name)] = MeasuredCase(run.step_name, (seconds,), {})
        for results in reversed(self.sets):
            if is_same_device(results.context, self.main.context):
                found |= {n: c for n, c in results.cases.items() if c.name.component == STEP}
        return found | {str(case.name): case for case in self.check_cases}

    @cached_property
    def predictions(self) -> Predictions:
        """Of steps that were not run."""
        return predictions_of(self.main, self.costs, self.known_steps)

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be used."""
        kinds = (self.sets, self.trainings, self.ablations, self.frontiers, self.scalings)
        return not any(kinds)


# counters of a case that its costs must agree with: neither depends on how it was run
COUNTED = ("parameters", "model_flops", "bytes")
# of files whose folder says more than their name
COMMON_NAMES = (SUITE_FILE, "round_1.json", "peers.json")


class _Reading:
    """Collects what could not be read beside what could."""

    def __init__(self) -> None:
        self.omissions: list[Omission] = []

    def attempt(self, path: Path, read: Callable[[], Found]) -> Found | None:
        """What `read` returns, None where it refuses, which is then an error of the report."""
        try:
            return read()
        except (BadInputError, BadProfileError, ValueError, OSError) as error:
            self.error(path, str(error))
        except Exception as error:
            # a fault of ours in reading one file must not cost the reader the others
            self.error(path, not_foreseen(error))
        return None

    def error(self, path: Path, reason: str) -> None:
        """The reason without the path, which stands beside it."""
        self.omissions.append(
            Omission("file", str(path), reason.removeprefix(f"{path}: "), is_error=True)
        )


def read_rounds(paths: Sequence[Path], reading: _Reading) -> ResultSet | None:
    """All rounds as one set. Where one cannot be used, or is of another device, torch or commit
    than the first that can, it is left out by name and the others stay."""
    try:
        return read_result_set(paths)
    except BadInputError:
        pass
    kept: list[Path] = []
    for path in paths:
        # beside the first alone: each file is read twice, not as often as there are files
        beside = [*kept[:1], path]
        if reading.attempt(path, lambda beside=beside: read_result_set(beside)) is not None:
            kept.append(path)
    return read_result_set(kept) if kept else None


def _with_products(results: ResultSet, path: Path) -> ResultSet:
    return add_products(results, read_result_set([path]))


def _read_check(path: Path, results: ResultSet) -> ResultSet:
    check = read_result_set([path])
    refuse_other_run(results.context, results.paths[0], check.context, path)
    return check


def _read_costs(path: Path, results: ResultSet | None) -> tuple[CaseCost, ...]:
    """BadInputError, too, where they are not of the cases that were measured."""
    costs = tuple(read_case_costs(read_json(path)[0]))
    for cost in costs:
        case = results.cases.get(str(cost.name)) if results is not None else None
        for name in COUNTED if case is not None else ():
            counted, predicted = case.counters.get(name), getattr(cost, name)
            if counted is not None and counted != float(predicted):
                raise bad_file(
                    path,
                    f"{cost.name}: {name} is {predicted:,}, the rounds have {counted:,.0f}",
                    "these are costs of another program or size; make the study again",
                )
    return costs


def _read_description(path: Path) -> Json:
    document, _ = read_json(path)
    if not is_grid_study(document):
        raise bad_file(path, "is no study of a grid", "make one: scripts/study tiny small")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        rule = f"must be {SCHEMA_VERSION}"
        raise bad_file(path, f"schema_version is {version!r}, {rule}", "make the study again")
    return document


def read_grid_study(folder: Path, reading: _Reading) -> GridStudy | None:
    """What the folder holds; files that are not there are missing parts, not errors."""
    description_path = folder / STUDY_FILE
    description = reading.attempt(description_path, lambda: _read_description(description_path))
    if description is None:
        return None
    rounds = rounds_of(folder)
    results = read_rounds(rounds, reading) if rounds else None
    if not rounds:
        reading.error(folder, why_no_round(folder))

    def beside(name: str, read: Callable[[Path], Found]) -> Found | None:
        path = folder / name
        return reading.attempt(path, lambda: read(path)) if path.exists() else None

    check = None
    if results is not None:
        measured = results
        results = beside(PRODUCTS, lambda path: _with_products(measured, path)) or measured
        check = beside(CHECK, lambda path: _read_check(path, measured))
    costs = beside(COSTS, lambda path: _read_costs(path, results))
    frontier = beside(FRONTIER, read_frontier)
    return GridStudy(folder, description, results, costs or (), frontier, check)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"holds {text}, which is no number of JSON; {MEASURE_AGAIN}")


def _read_training(path: Path) -> TrainingRun:
    _, data = read_json(path)
    return TrainingRun(path, check_summary(json.loads(data, parse_constant=_no_number), path))


def _read_ablation(path: Path) -> Ablation:
    return Ablation(path, read_ablation(path))


def analysed_first(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """The first that has a training step with its parts comes first, else the first that has a
    step; the others keep their order."""

    def lacks(results: ResultSet) -> int:
        step = main_step(results)
        if step is None:
            return 2
        return 1 if missing_parts(results, step.name) else 0

    best = min(sets, key=lacks, default=None)
    return [*([best] if best is not None else []), *(one for one in sets if one is not best)]


def with_own_titles(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """Results of one device, commit and day are told apart by their file, too."""
    titles = Counter(results.title for results in sets)
    found: list[ResultSet] = []
    for results in sets:
        if titles[results.title] > 1:
            path = results.paths[0]
            place = path.name if path.name not in COMMON_NAMES else path.parent.name
            results = replace(results, title=f"{results.title} · {place}")
        found.append(results)
    return found


def read_inputs(
    sources: Sequence[Source], absent: Sequence[Kind] = (), unknown: Sequence[Omission] = ()
) -> ReportInputs:
    """Reads every source. `unknown`: what was named but is no result."""
    reading = _Reading()
    sets: list[ResultSet] = []
    studies, trainings, ablations, frontiers, scalings = [], [], [], [], []
    for source in dict.fromkeys(sources):
        path = source.path
        if source.kind == Kind.STUDY:
            study = read_grid_study(path, reading)
            if study is not None:
                studies.append(study)
                sets += [study.results] if study.results is not None else []
        elif source.kind == Kind.SUITE:
            result = reading.attempt(path, lambda path=path: read_result_set([path]))
            sets += [result] if result is not None else []
        elif source.kind == Kind.TRAINING:
            training = reading.attempt(path, lambda path=path: _read_training(path))
            trainings += [training] if training is not None else []
        elif source.kind == Kind.FRONTIER:
            frontier = reading.attempt(path, lambda path=path: read_frontier(path))
            frontiers += [frontier] if frontier is not None else []
        elif source.kind == Kind.SCALING:
            scaling = reading.attempt(path, lambda path=path: read_scaling_run(path))
            scalings += [scaling] if scaling is not None else []
        else:
            ablation = reading.attempt(path, lambda path=path: _read_ablation(path))
            ablations += [ablation] if ablation is not None else []
    return ReportInputs(
        tuple(sources),
        tuple(with_own_titles(analysed_first(sets))),
        tuple(studies),
        tuple(trainings),
        tuple(ablations),
        (*frontiers, *(study.frontier for study in studies if study.frontier)),
        tuple(scalings),
        tuple(absent),
        (*unknown, *reading.omissions),
    )
