"""Laws over batch and sequence of every series of cases, with their held-out checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.parts import BASELINE, OPTIMIZED
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.selection import F32, WHOLE_PASSES, name_rank, rank
from tinyllama_tools.stats.law_fits import (
    Exponents,
    HeldOut,
    check_held_out,
    fit_exponents,
    fit_memory_law,
    fit_time_law,
)
from tinyllama_tools.stats.laws import GridPoint, Law, LawRefusedError, RangeKind, terms_of_work

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
class Foretold:
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
    held_out: tuple[Foretold, ...] = ()
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


def _foretold(check: HeldOut) -> tuple[Foretold, ...]:
    found = []
    for point, error in zip(check.held, check.errors_percent, strict=True):
        value = check.law.at(point.batch, point.seq)
        found.append(Foretold(point, value, *check.law.interval(point.batch, point.seq), error))
    return tuple(found)


def _fitted(series: Series, points: tuple[GridPoint, ...], fit: Fit) -> SeriesFit:
    try:
        # thousands of draws a law, which only its intervals need
        law = replace(fit(points), draws=())
    except LawRefusedError as error:
        return SeriesFit(series, points, refusal=str(error), exponents=_exponents(points))
    held_out, why_not = (), ""
    try:
        held_out = _foretold(check_held_out(points, fit))
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
