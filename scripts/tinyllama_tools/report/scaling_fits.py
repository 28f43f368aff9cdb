"""Laws over batch and sequence of every series of cases, with their held-out checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinyllama_tools.laws import (
    Exponents,
    GridPoint,
    HeldOut,
    Law,
    LawRefusedError,
    check_held_out,
    fit_exponents,
    fit_memory_law,
    fit_time_law,
)
from tinyllama_tools.reading.case_name import CaseName
from tinyllama_tools.reading.result_set import MeasuredCase, ResultSet
from tinyllama_tools.reading.whole_and_parts import BASELINE, OPTIMIZED
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.selection import F32, WHOLE_PASSES, name_rank, rank

MIB = 2**20
PEAK_MEMORY = "peak_memory_MiB"
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
    """What a law of the other sizes says of one that was held out, with its 95 % interval, in
    seconds or bytes. `error_percent`: of the measured, above 0 where too much was foretold."""

    point: GridPoint
    value: float
    low: float
    high: float
    error_percent: float

    @property
    def is_covered(self) -> bool:
        """Whether the measured value lies in the interval."""
        return self.low <= self.point.value <= self.high

    @property
    def width_percent(self) -> float:
        """Of the interval, of the value."""
        return 100 * (self.high - self.low) / self.value


@dataclass(frozen=True)
class SeriesFit:
    """`law` says values and its formula; its draws are gone. `held_out`: in the order of the grid;
    empty where there are too few sizes, which `held_out_refusal` says. `refusal`: why there
    is no law; empty where there is. `exponents`: None where the sizes do not decide them."""

    series: Series
    points: tuple[GridPoint, ...]
    law: Law | None = None
    refusal: str = ""
    held_out: tuple[Foretold, ...] = ()
    held_out_refusal: str = ""
    exponents: Exponents | None = None


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


def _fits(every: Sequence[Series], value: Value, fit: Fit) -> list[SeriesFit]:
    """In the order of `every`; of more than MOST_LAWS those that matter most."""
    found: dict[str, SeriesFit] = {}
    fitted = 0
    for series in sorted(every, key=_importance):
        measured = [(case.name, value(case)) for case in series.cases]
        points = tuple(GridPoint(name.batch, name.seq, of) for name, of in measured if of)
        if not points:
            continue
        if fitted < MOST_LAWS:
            one = _fitted(series, points, fit)
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


def time_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of the time of every series."""
    return _fits(series_of(results), _seconds, fit_time_law)


def memory_fits(results: ResultSet) -> list[SeriesFit]:
    """Laws of peak memory, of the passes that a step consists of."""
    whole = [series for series in series_of(results) if series.name.pass_name in WHOLE_PASSES]
    return _fits(whole, _peak_bytes, fit_memory_law)


def refused(fits: Sequence[SeriesFit], what: str) -> list[Omission]:
    """The series without a law, to be named. `what`: of time or of memory."""
    return [Omission(f"{what} law", str(fit.series), fit.refusal) for fit in fits if fit.refusal]
