"""Laws of time and memory over batch B and sequence S at one model size, and how sure they are.

  time = launch + linear B S + quadratic B S²
  memory = base + batch B + linear B S + quadratic B S² + table S + mask S²

Time has no term of the batch alone, since whatever is done once a sample touches all of its tokens.
Memory has what is kept a sample, and what all samples share: tables with a row a position, and the
causal mask. A law describes the grid that it was fitted to and its neighbourhood, no other model
size. Errors are relative, so that a small size counts as much as a large one: with y measured and A
the terms at each size, a fit minimises the sum of (1 - A x / y)^2. No coefficient is below 0, for
each stands for work or for tensors.

Of time, terms are taken away from the full law one at a time, least needed first, until each that
is left has a 95 % interval above 0 and lowers the corrected AIC (Hurvich and Tsai, Biometrika 76,
1989; Burnham and Anderson, Model Selection and Multimodel Inference, 2002, section 2.4). Where
there are too few cells for that, the interval decides alone.

Beyond the measured sizes a law can be wrong in a way that no residual shows: a larger size no
longer fits into a cache. How wrong is taken from the step before: what a law of the smaller sizes
is off by at the larger ones, an octave of B S, beyond what its scatter explains.

Intervals are of a seeded bootstrap over cells and rounds. A draw gives every cell another cell's
residual, with a sign of its own (residuals over sqrt(1 - leverage), so that all have the variance
of the errors), and fits again. All of a draw's errors are scaled by sqrt(f / chi-square of f), f
being the degrees of freedom: with few cells the scatter itself is badly known, and this gives the
draws the tails of the t distribution (Davison and Hinkley, Bootstrap Methods and their Application,
1997, sections 2.3 and 6.2.3). A round that is slow throughout moves all cells together and shows in
no residual. Such shifts are drawn twice: for the rounds that were measured, which the coefficients
rest on, and for as many new ones, which a prediction is about. With one round they are not known.

Memory is counted and has no noise: its ranges are how far off the law of the other sizes is at each
size, and what each coefficient becomes without any one of them. A peak is the highest of several
moments, each with a law of its own: that of a step's update, say, does not depend on the batch, and
is the highest at small sizes only. The law is of the moment that is the highest at the large sizes,
so the sizes with the smallest peaks are left out where the law of the others then has a smaller
misfit: up to half of all, and all that have the same smallest peak.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class LawRefusedError(ValueError):
    """The data supports no law; the message is the reason."""


class Term(NamedTuple):
    """coefficient x B^batch_power x S^seq_power."""

    name: str
    symbol: str
    batch_power: int
    seq_power: int

    def at(self, batch: int, seq: int) -> float:
        """What the coefficient is multiplied by."""
        return float(batch) ** self.batch_power * float(seq) ** self.seq_power


LAUNCH, BASE, BATCH = Term("launch", "", 0, 0), Term("base", "", 0, 0), Term("batch", "B", 1, 0)
LINEAR, QUADRATIC = Term("linear", "B S", 1, 1), Term("quadratic", "B S²", 1, 2)
TABLE, MASK = Term("table", "S", 0, 1), Term("mask", "S²", 0, 2)
TIME_TERMS = (LAUNCH, LINEAR, QUADRATIC)
MEMORY_TERMS = (BASE, BATCH, LINEAR, QUADRATIC, TABLE, MASK)
# relative, of counts; what differs by less is the same
SAME = 1e-3


def _grows_faster_than_the_sequence(counts: Mapping[tuple[int, int], float]) -> bool:
    """Whether, at any batch, longer sequences add more a token; true where not known."""
    known = False
    for batch in {batch for batch, _ in counts}:
        of = np.array(sorted((seq, count) for (b, seq), count in counts.items() if b == batch))
        slopes = np.diff(of[:, 1]) / np.diff(of[:, 0])
        known |= len(slopes) > 1
        if (np.diff(slopes) > SAME * np.abs(slopes[:-1])).any():
            return True
    return not known


def terms_of_work(counters: Mapping[str, Mapping[tuple[int, int], float]]) -> tuple[Term, ...]:
    """Which terms a law of time can have: those that the counted work of its cases has.

    An optimizer's update does the same at every batch and sequence, and only attention's work grows
    with the square of the sequence. Without this, noise of a few cells can feign a term whose share
    grows fastest beyond the grid.
    `counters`: of FLOPs and of bytes, each by batch and sequence; all terms where fewer than two
    sizes have any.
    """
    counts = [of for of in counters.values() if len(of) > 1]
    if not counts:
        return TIME_TERMS
    varying = [of for of in counts if (1 - SAME) * max(of.values()) > min(of.values())]
    if not varying:
        return (LAUNCH,)
    is_quadratic = any(map(_grows_faster_than_the_sequence, varying))
    return TIME_TERMS if is_quadratic else (LAUNCH, LINEAR)


@dataclass(frozen=True)
class GridPoint:
    """One size and what was measured there, once a round, in the same rounds at every size: seconds
    or bytes, above 0."""

    batch: int
    seq: int
    rounds: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    @property
    def tokens(self) -> int:
        """B S."""
        return self.batch * self.seq


def _check_sizes(points: Sequence[GridPoint], names: Sequence[str], spare: int = 0) -> None:
    """LawRefusedError unless there is a size for each term and `spare` more."""
    sizes, needed = len({(point.batch, point.seq) for point in points}), len(names) + spare
    if sizes < needed:
        raise LawRefusedError(
            f"{sizes} size{'' if sizes == 1 else 's'}: {len(names)} coefficients "
            f"({', '.join(names)}) need at least {needed} different ones"
        )


def _row(terms: Sequence[Term], batch: int, seq: int) -> Array:
    return np.array([term.at(batch, seq) for term in terms])


def non_negative_solutions(rows: Array, targets: Array) -> Array:
    """[problems, terms]: the least squares of rows [cells, terms] to targets [problems, cells], no
    coefficient below 0.

    Of all sets of terms whose unconstrained solution has nothing negative it is the one that fits
    best (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23). With three terms all
    sets can be tried, each for all targets at once; scipy.optimize.nnls, with which a test compares
    it, solves one target at a time.
    """
    count = rows.shape[1]
    found, least = np.zeros((len(targets), count)), (targets**2).sum(axis=1)
    for used in range(1, count + 1):
        for chosen in itertools.combinations(range(count), used):
            part = rows[:, chosen]
            solutions = targets @ np.linalg.pinv(part).T
            squares = ((targets - solutions @ part.T) ** 2).sum(axis=1)
            better = (solutions >= 0).all(axis=1) & (squares < least)
            least[better] = squares[better]
            found[better] = 0
            found[np.ix_(better, chosen)] = solutions[better]
    return found


# smallest over largest singular value; below it, terms differ by rounding only
RANK_TOLERANCE = 1e-8
# residuals of cells that alone decide a coefficient say nothing about the errors
LARGEST_LEVERAGE = 0.99
# sizes more than terms, where some are left out
SPARE = 2
# of a peak; what is less is the allocator's rounding
SMALLEST_MISFIT = 1e-3


class Fit:
    """LawRefusedError where the points do not decide the terms.

    `chosen`: positions of the fitted ones among the `terms` of such a law, all of which
    `coefficients` has, 0 for the others; `reasons` against some of those, by name. `is_bounded`: no
    coefficient is below 0. By point, `scaled` [points, chosen] are the rows A / y over their
    `norms`, since those of S² and of 1 differ by orders of magnitude; `residuals` measured minus
    fitted, of the measured; `leverage` 1 where a point alone decides a coefficient. By chosen term,
    `shares` the most that each is of any measured value; `increases` of the sum of squares without
    it, were the others free of sign. `freedom`: degrees that are left.
    """

    def __init__(
        self,
        points: Sequence[GridPoint],
        terms: Sequence[Term],
        *,
        is_bounded: bool,
        chosen: Sequence[int] | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        self.points, self.terms, self.is_bounded = tuple(points), tuple(terms), is_bounded
        self.chosen = [*(range(len(terms)) if chosen is None else chosen)]
        self.reasons = dict(reasons or {})
        names = [terms[position].name for position in self.chosen]
        _check_sizes(points, names)
        rows = np.array([_row(terms, p.batch, p.seq)[self.chosen] / p.value for p in points])
        self.norms = np.linalg.norm(rows, axis=0)
        self.scaled = rows / self.norms
        singular = np.linalg.svd(self.scaled, compute_uv=False)
        if singular[-1] < RANK_TOLERANCE * singular[0]:
            raise LawRefusedError(
                f"sizes too alike to tell {', '.join(names)} apart: the batch sizes or sequence "
                "lengths must differ more"
            )
        wanted = np.ones(len(points))
        if is_bounded:
            solution = non_negative_solutions(self.scaled, wanted[None, :])[0]
        else:
            solution = np.linalg.lstsq(self.scaled, wanted, rcond=None)[0]
        self.coefficients = self.of_all_terms(solution)
        self.residuals = wanted - self.scaled @ solution
        self.sum_of_squares = float(self.residuals @ self.residuals)
        self.freedom = len(points) - len(names)
        self._basis, triangle = np.linalg.qr(self.scaled)
        self._inverse = np.linalg.inv(triangle)
        self.leverage = (self._basis**2).sum(axis=1)
        self.shares = self.scaled.max(axis=0) * solution
        self.increases = solution**2 / (self._inverse**2).sum(axis=1)

    def of_all_terms(self, solutions: Array) -> Array:
        """Coefficients [..., terms] of solutions [..., chosen] for the scaled rows."""
        found: Array = np.zeros((*solutions.shape[:-1], len(self.terms)))
        found[..., self.chosen] = solutions / self.norms
        return found

    def at(self, point: GridPoint) -> float:
        """Fitted at a size."""
        return float(self.coefficients @ _row(self.terms, point.batch, point.seq))

    def relative_variance(self, point: GridPoint) -> float:
        """Of measured over predicted at a size, as far as scatter goes."""
        row = _row(self.terms, point.batch, point.seq)[self.chosen]
        reached = (row / self.at(point) / self.norms) @ self._inverse
        return self.sum_of_squares / max(self.freedom, 1) * (1 + float(reached @ reached))

    def without(self, place: int, reason: str = "") -> Fit:
        """The fit to the same points without the chosen term there."""
        left = [*self.chosen[:place], *self.chosen[place + 1 :]]
        reasons = {**self.reasons, self.terms[self.chosen[place]].name: reason}
        bounded = self.is_bounded
        return Fit(self.points, self.terms, is_bounded=bounded, chosen=left, reasons=reasons)

    def without_each(self) -> tuple[Array, Array]:
        """Of the fits without each of the points: coefficients [points, terms], none below 0, and
        the residual of the point that is left out [points]. No leverage may be 1."""
        residuals = self.residuals / (1 - self.leverage)
        moved = (self._basis * residuals[:, None]) @ self._inverse.T
        return np.maximum(self.coefficients - self.of_all_terms(moved), 0.0), residuals

    @property
    def is_sound(self) -> bool:
        """Of enough sizes for its misfit to tell something."""
        return self.freedom >= SPARE and bool((self.leverage < LARGEST_LEVERAGE).all())

    @property
    def misfit(self) -> float:
        """The largest, of the measured, of each size by the law of the others where they have one,
        else by that of all."""
        found = self.without_each()[1] if self.is_sound else self.residuals
        return max(SMALLEST_MISFIT, float(np.abs(found).max()))


DRAWS = 2000
# of a logarithm: with one degree of freedom, single draws are beyond all numbers
LARGEST_SHIFT = 20.0


def round_shifts(points: Sequence[GridPoint]) -> Array:
    """[rounds]: logarithm of how slow each round was throughout, around their mean.

    Between two rounds it is the median over the cells, which a few disturbed ones do not move.
    """
    values = np.log(np.array([point.rounds for point in points]))
    between = np.median(values[:, :, None] - values[:, None, :], axis=0)
    return between.mean(axis=1)


def drawn_shifts(shifts: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """[DRAWS] each: what the median of the rounds' normal shifts may be off by, of the measured
    rounds and of as many new ones.

    The standard deviation of `shifts` is known from these few rounds alone, so both are relative to
    the one that rounds drawn alike would have shown; with means in place of medians their
    difference would be t s sqrt(2 / rounds), with rounds - 1 degrees of freedom.
    """
    rounds = len(shifts)
    if rounds < 2:
        return np.zeros(DRAWS), np.zeros(DRAWS)
    measured, coming = generator.standard_normal((2, DRAWS, rounds))
    scale = shifts.std(ddof=1) / measured.std(axis=1, ddof=1)
    was, will_be = (
        np.clip(scale * np.median(of, axis=1), -LARGEST_SHIFT, LARGEST_SHIFT)
        for of in (measured, coming)
    )
    return was, will_be


class Draws(NamedTuple):
    """`coefficients` [draws, terms]; `noise` [draws]: logarithm of measured over law at a cell."""

    coefficients: Array
    noise: Array


def _draw(model: Fit, errors_of: Fit, seed: int) -> Draws:
    """Draws of `model`'s coefficients, none below 0, around its own fit.

    The errors are those of `errors_of`, which needs a degree of freedom; it is `model` itself
    wherever that has one.
    """
    generator = np.random.default_rng(seed)
    errors = errors_of.residuals / np.sqrt(1 - np.minimum(errors_of.leverage, LARGEST_LEVERAGE))
    errors = np.concatenate([errors, -errors])
    # one column more than cells: the error of the cell that a law is asked about
    drawn = errors[generator.integers(len(errors), size=(DRAWS, len(model.points) + 1))]
    freedom = errors_of.freedom
    drawn *= np.sqrt(freedom / generator.chisquare(freedom, size=DRAWS))[:, None]
    fitted = 1 - model.residuals
    solutions = non_negative_solutions(model.scaled, fitted + drawn[:, :-1])
    was, will_be = drawn_shifts(round_shifts(model.points), generator)
    noise = np.clip(drawn[:, -1] + will_be, -LARGEST_SHIFT, LARGEST_SHIFT)
    return Draws(model.of_all_terms(solutions) * np.exp(was)[:, None], noise)


CONFIDENCE = 0.95
ENDS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


class RangeKind(Enum):
    """What a law's ranges hold, `short` within a sentence."""

    NEW_ROUNDS = (
        "95 % interval",
        "A range is a 95 % interval of what as many new rounds would give, and beyond the fitted "
        "sizes of what a law of the smaller of them was off by.",
    )
    ONE_ROUND = (
        "range within the one round",
        "A range is of the scatter of sizes within the one round: how much rounds differ is not "
        "known, so it says nothing of another run.",
    )
    MISFIT = (
        "largest misfit",
        "A range is the largest misfit of any fitted size by the law of the others, of a "
        "coefficient what it becomes without any one of them: memory is counted, without scatter.",
    )

    def __init__(self, short: str, meaning: str) -> None:
        self.short, self.meaning = short, meaning


class Coefficient(NamedTuple):
    """In seconds or bytes a unit of its term; `low` and `high`: its range, of the law's kind.

    A supported term's range is the whole range of all draws of its law. It may reach 0 where an
    unsupported term could stand for this one: the two are too alike on these sizes.
    Of a term that the data does not support (`reason` says why), value and range are those of the
    fit of all terms in a law of time, 0 in one of memory, and the law does not use them.
    """

    term: Term
    value: float
    low: float
    high: float
    reason: str = ""

    @property
    def name(self) -> str:
        return self.term.name

    @property
    def supported(self) -> bool:
        return not self.reason


UNITS = {
    "time": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps")),
    "memory": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes")),
}


@dataclass(frozen=True)
class Law:
    """Of `quantity`, time in seconds or memory in bytes.

    `coefficients`: of all terms that such a law can have. `points`: what it was fitted to;
    `residuals_percent`: measured minus fitted, of the measured, in their order.
    `draws`, each of all terms: of time two sets, those of the supported terms alone (0 elsewhere)
    and those of the fit of all, since a term that the data does not show may still be there; of
    memory one set of misfits.
    `drift`: of time, what a law of smaller sizes was off by, as a logarithm an octave of B S beyond
    its sizes. `below`: of memory, sizes that it does not describe: another moment is their peak.
    """

    quantity: str
    coefficients: tuple[Coefficient, ...]
    points: tuple[GridPoint, ...]
    residuals_percent: tuple[float, ...]
    draws: tuple[Draws, ...] = field(repr=False, compare=False)
    drift: float = 0.0
    below: tuple[GridPoint, ...] = ()

    @property
    def range_kind(self) -> RangeKind:
        """What `interval` and the coefficients' ranges hold."""
        if self.quantity == "memory":
            return RangeKind.MISFIT
        several = len(self.points[0].rounds) > 1
        return RangeKind.NEW_ROUNDS if several else RangeKind.ONE_ROUND

    @property
    def least(self) -> float:
        """The smallest of the sizes that the law does not describe; 0 where there are none."""
        return min((point.value for point in self.below), default=0.0)

    def text(self, value: float) -> str:
        """Three digits in the unit that suits the value."""
        units = UNITS[self.quantity]
        scale, unit = next((pair for pair in units if value >= pair[0]), units[-1])
        scaled = value / scale
        return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"

    @property
    def formula(self) -> str:
        """`time = 1.2 ms + 0.9 us x B S`: the supported terms."""
        parts = [
            " x ".join(filter(None, (self.text(of.value), of.term.symbol)))
            for of in self.coefficients
            if of.supported
        ]
        least = f", at least {self.text(self.least)}" if self.below else ""
        return f"{self.quantity} = {' + '.join(parts)}{least}"

    def at(self, batch: int, seq: int) -> float:
        """Seconds or bytes at a size, from the supported terms."""
        known = (of for of in self.coefficients if of.supported)
        return max(sum(of.value * of.term.at(batch, seq) for of in known), self.least)

    def interval(self, batch: int, seq: int) -> tuple[float, float]:
        """The range at a size; `range_kind` says of what. It holds at(batch, seq).

        Of time: the whole range of both sets of draws: what would be if the unsupported terms were
        0, and what would be if they were as large as they still can be.
        """
        shares = (0.0, 1.0) if self.quantity == "memory" else ENDS
        values = _row([of.term for of in self.coefficients], batch, seq)
        ends = [self.at(batch, seq)]
        for draws in self.draws:
            drawn = draws.coefficients @ values * np.exp(draws.noise)
            ends += np.quantile(drawn, shares).tolist()
        octaves = math.log2(batch * seq / max(point.tokens for point in self.points))
        wider = math.exp(self.drift * max(0.0, octaves))
        return min(ends) / wider, max(ends) * wider


# relative errors below it are rounding: memory is counted exactly
RESOLUTION = 1e-6
ABSENT = "the best fit has nothing of it"
NOT_LOWER = "the corrected AIC is not lower with it"
NO_WORK = "neither FLOPs nor bytes have it"


def corrected_aic(fit: Fit) -> float:
    """n ln(RSS / n) + 2 k + 2 k (k + 1) / (n - k - 1), with k the coefficients and the variance;
    infinite where there are too few cells n for it to be defined."""
    cells, parameters = len(fit.residuals), len(fit.chosen) + 1
    spare = cells - parameters - 1
    if spare < 1:
        return math.inf
    mean_square = max(fit.sum_of_squares / cells, RESOLUTION**2)
    correction = 2 * parameters * (parameters + 1) / spare
    return cells * math.log(mean_square) + 2 * parameters + correction


def _select_terms(full: Fit, seed: int) -> tuple[Fit, Draws, Draws]:
    """The fit of the supported terms with its draws, and the draws of the full one. LawRefusedError
    where the scatter hides even the last term."""
    fit, of_full = full, None
    while True:
        draws = _draw(fit, fit, seed) if fit.freedom >= 1 else None
        of_full = draws if fit is full else of_full
        aic, smaller = corrected_aic(fit), []
        for place, position in enumerate(fit.chosen):
            less = fit.without(place) if len(fit.chosen) > 1 else None
            if fit.shares[place] < RESOLUTION:
                reason = ABSENT
            elif draws is None:
                reason = "no more sizes than terms, and the others fit better"
            elif np.quantile(draws.coefficients[:, position], ENDS[0]) <= 0:
                reason = "its 95 % interval reaches 0"
            elif less is not None and corrected_aic(less) <= aic < math.inf:
                reason = NOT_LOWER
            else:
                continue
            smaller.append((math.inf if less is None else less.sum_of_squares, place, reason))
        if draws is not None and not smaller:
            # as many terms as sizes leave no residual: then the smaller law's stand for the errors
            return fit, draws, of_full or _draw(full, fit, seed)
        if len(fit.chosen) == 1:
            scatter = 100 * math.sqrt(fit.sum_of_squares / max(fit.freedom, 1))
            raise LawRefusedError(
                f"the data supports no term of the law: the sizes scatter by {scatter:.0f} % "
                "around the best that is left; measure more rounds on a quieter machine"
            )
        _, place, reason = min(smaller)
        fit = fit.without(place, reason)


# of the largest B S of a grid; cells from there on are held out
HELD_SHARE = 0.5


def _split_largest(points: Sequence[GridPoint]) -> tuple[list[GridPoint], list[GridPoint]]:
    """The cells below half of the largest B S, and the others."""
    limit = HELD_SHARE * max(point.tokens for point in points)
    return [p for p in points if p.tokens < limit], [p for p in points if p.tokens >= limit]


DEFAULT_SEED = 1


def _drift(points: Sequence[GridPoint], chosen: Sequence[int], seed: int) -> float:
    """Root mean square of the logarithm of predicted over measured, an octave of B S beyond the
    largest size of the law that predicts, less what that law's scatter explains; 0 where too few
    sizes are left to tell.
    """
    kept, held = _split_largest(points)
    try:
        fit, *_ = _select_terms(Fit(kept, TIME_TERMS, is_bounded=True, chosen=chosen), seed)
    except LawRefusedError:
        return 0.0
    largest = max(point.tokens for point in kept)
    squares = []
    for point in held:
        error, octaves = math.log(fit.at(point) / point.value), math.log2(point.tokens / largest)
        squares.append((error**2 - fit.relative_variance(point)) / octaves**2)
    return math.sqrt(max(0.0, sum(squares) / len(squares)))


def _percent(residuals: Array) -> tuple[float, ...]:
    return tuple((100 * residuals).tolist())


def fit_time_law(
    points: Sequence[GridPoint], seed: int = DEFAULT_SEED, terms: Sequence[Term] = TIME_TERMS
) -> Law:
    """Seconds. `terms`: those of TIME_TERMS that the work has.

    LawRefusedError with the reason where the data supports no law.
    """
    # fewer terms need no fewer sizes: of one size nothing can be told
    _check_sizes(points, [term.name for term in TIME_TERMS])
    chosen = [TIME_TERMS.index(term) for term in terms]
    full = Fit(points, TIME_TERMS, is_bounded=True, chosen=chosen)
    fit, *draws = _select_terms(full, seed)
    # [ends, sets of draws, terms]
    ends = np.quantile([of.coefficients for of in draws], ENDS, axis=1)
    coefficients = []
    for position, term in enumerate(TIME_TERMS):
        is_used = position in fit.chosen
        value = float((fit if is_used else full).coefficients[position])
        known = [value, *ends[:, 0 if is_used else 1 :, position].ravel().tolist()]
        reason = fit.reasons.get(term.name, "" if is_used else NO_WORK)
        coefficients.append(Coefficient(term, value, min(known), max(known), reason))
    drift, residuals = _drift(points, chosen, seed), _percent(fit.residuals)
    return Law("time", tuple(coefficients), fit.points, residuals, tuple(draws), drift)


# of a peak; what is off by more describes nothing
LARGEST_MISFIT = 0.5
# of the smallest peak; what is above it by less is the same
FLAT = 1e-2


def _select_memory(points: Sequence[GridPoint]) -> Fit:
    """From all terms those that would be below 0 are taken away, the furthest first, and then the
    least needed ones until the corrected AIC would rise."""
    try:
        fit = Fit(points, MEMORY_TERMS, is_bounded=False)
    except LawRefusedError:
        # without those that all samples share, where the sizes do not decide them
        unknown = {term.name: "the sizes do not tell it from the others" for term in (TABLE, MASK)}
        known = range(MEMORY_TERMS.index(TABLE))
        fit = Fit(points, MEMORY_TERMS, is_bounded=False, chosen=known, reasons=unknown)
    while len(fit.chosen) > 1:
        is_absent = fit.shares.min() < RESOLUTION
        place = int((fit.shares if is_absent else fit.increases).argmin())
        smaller = fit.without(place, ABSENT if is_absent else NOT_LOWER)
        if not is_absent and corrected_aic(fit) < corrected_aic(smaller):
            break
        fit = smaller
    return fit


def _flat(points: Sequence[GridPoint]) -> int:
    """How many of them have the smallest peak."""
    least = min(point.value for point in points)
    return sum(point.value <= (1 + FLAT) * least for point in points)


def _select_moment(points: Sequence[GridPoint]) -> Fit:
    """Without so many of the smallest peaks as make the misfit smallest."""
    best = _select_memory(points)
    ordered = sorted(points, key=lambda point: point.value)
    for below in range(1, max(len(points) // 2, _flat(points)) + 1):
        if best.misfit <= SMALLEST_MISFIT:
            break
        smallest = ordered[:below]
        try:
            fit = _select_memory([point for point in points if point not in smallest])
        except LawRefusedError:
            break
        # a moment that is higher than the peak, by more than the misfit allows for, is none
        is_moment = all(fit.at(p) <= (1 + fit.misfit) * p.value for p in smallest)
        if fit.is_sound and is_moment and fit.misfit < best.misfit:
            best = fit
    return best


def fit_memory_law(points: Sequence[GridPoint]) -> Law:
    """Bytes; LawRefusedError with the reason where the data supports no law."""
    fit = _select_moment(points)
    off = float(np.abs(fit.residuals).max())
    if off > LARGEST_MISFIT:
        raise LawRefusedError(
            f"no law of memory describes these sizes: the best is off by {100 * off:.0f} %; "
            "compare the measured peaks with the predicted ones"
        )
    if off > FLAT and _flat(fit.points) > len(fit.points) / 2:
        raise LawRefusedError(
            f"sizes with more than the smallest peak: {len(points) - _flat(points)} of "
            f"{len(points)}, too few to tell how it grows from there; measure larger ones"
        )
    # the law, and that with any one size left out, each with the largest misfit up and down
    rows = np.array([fit.coefficients, *(fit.without_each()[0] if fit.is_sound else [])])
    misfit = math.log1p(fit.misfit)
    draws = Draws(np.repeat(rows, 2, axis=0), np.tile([-misfit, misfit], len(rows)))
    coefficients = tuple(
        Coefficient(term, *map(float, (of[0], of.min(), of.max())), fit.reasons.get(term.name, ""))
        for term, of in zip(MEMORY_TERMS, rows.T, strict=True)
    )
    below = tuple(point for point in points if point not in fit.points)
    return Law("memory", coefficients, fit.points, _percent(fit.residuals), (draws,), below=below)


@dataclass(frozen=True)
class HeldOutCell:
    """What a law of the other sizes says of one that was held out, with its range (`range_kind`),
    in seconds or bytes. `error_percent`: of the measured, above 0 where too much was predicted;
    `width_percent`: of the range, of the value. The cells are of the same rounds, so a range for
    new rounds holds more of them than of new ones."""

    point: GridPoint
    value: float
    low: float
    high: float

    @property
    def error_percent(self) -> float:
        return 100 * (self.value - self.point.value) / self.point.value

    @property
    def is_covered(self) -> bool:
        return self.low <= self.point.value <= self.high

    @property
    def width_percent(self) -> float:
        return 100 * (self.high - self.low) / self.value


def check_held_out(
    points: Sequence[GridPoint], fit: Callable[[Sequence[GridPoint]], Law]
) -> tuple[HeldOutCell, ...]:
    """Fits to the cells below half of the largest B S and predicts the others.

    LawRefusedError where the kept cells support no law.
    """
    kept, held = _split_largest(points)
    try:
        law = fit(kept)
    except LawRefusedError as error:
        raise LawRefusedError(f"of the {len(kept)} sizes that are not held out, {error}") from error
    return tuple(
        HeldOutCell(p, law.at(p.batch, p.seq), *law.interval(p.batch, p.seq)) for p in held
    )


# of the variance of logarithms: what is left when a value does not vary at all
NOTHING = 1e-24


class Estimate(NamedTuple):
    """With its 95 % interval."""

    value: float
    low: float
    high: float


class Exponents(NamedTuple):
    """`r_squared`: the share of the logarithms' variance that they explain; 1 where none is."""

    batch: Estimate
    seq: Estimate
    r_squared: float


def fit_exponents(points: Sequence[GridPoint]) -> Exponents:
    """Of medians, with intervals by the t distribution.

    LawRefusedError with the reason where the sizes do not decide both exponents.
    """
    # here, since commands that fit no exponents start without it in half the time
    from scipy.special import stdtrit

    _check_sizes(points, ("constant", "batch", "sequence"), spare=1)
    rows = np.log([(math.e, point.batch, point.seq) for point in points])
    if np.linalg.matrix_rank(rows, tol=1e-8) < rows.shape[1]:
        raise LawRefusedError(
            "sizes too alike to tell the exponents of batch and sequence apart: both must vary, "
            "and not together"
        )
    values = np.log([point.value for point in points])
    solution, *_ = np.linalg.lstsq(rows, values, rcond=None)
    residuals = values - rows @ solution
    freedom = len(points) - rows.shape[1]
    squares = float(residuals @ residuals)
    errors = np.sqrt(squares / freedom * np.diag(np.linalg.inv(rows.T @ rows)))
    reach = stdtrit(freedom, (1 + CONFIDENCE) / 2) * errors
    total = float(((values - values.mean()) ** 2).sum())
    _, batch, seq = (
        Estimate(*map(float, of))
        for of in zip(solution, solution - reach, solution + reach, strict=True)
    )
    return Exponents(batch, seq, 1.0 if total < NOTHING else 1 - squares / total)
