"""Fits laws of time and memory: relative errors, support, bootstrap, held-out error.

Relative errors, so that a small size counts as much as a large one: with y measured and A the terms
at each size, a fit minimises the sum of (1 - A x / y)^2.

  time = launch + linear B S + quadratic B S²
  memory = base + batch B + linear B S + quadratic B S² + table S + mask S²

No coefficient is below 0, for each stands for work or for tensors, and no term of time is fitted
that the work itself does not have. A law describes the grid that it was fitted to and its
neighbourhood; it says nothing about other model sizes.

Of time, terms are taken away from the full law one at a time, least needed first, until each that
is left
- has a 95 % interval above 0, and
- lowers the corrected AIC, n ln(RSS / n) + 2 k + 2 k (k + 1) / (n - k - 1) with k the coefficients
  and the variance (Hurvich and Tsai, Biometrika 76, 1989; Burnham and Anderson, Model Selection and
  Multimodel Inference, 2002, section 2.4). Where n < k + 2 it is not defined and the interval
  decides alone; with as few cells that interval is wide.

Beyond the measured sizes a law can be wrong in a way that no residual shows: a larger size no
longer fits into a cache. How wrong is taken from the step before: what a law of the smaller sizes
is off by at the larger ones, an octave of B S, beyond what its scatter explains.

Intervals are of a seeded bootstrap over cells and rounds. A draw gives every cell another cell's
residual, with a sign of its own (residuals over sqrt(1 - leverage), so that all have the variance
of the errors), and fits again. Residuals of a cell's median hold both its noise and the law's lack
of fit. All of a draw's errors are scaled by sqrt(f / chi-square of f), f being the degrees of
freedom: with few cells the scatter itself is badly known, and this gives the draws the tails of the
t distribution (Davison and Hinkley, Bootstrap Methods and their Application, 1997, sections 2.3 and
6.2.3 for residuals and leverage). A round that is slow throughout moves all cells together and
shows in no residual. Such shifts are drawn twice: for the rounds that were measured, which the
coefficients rest on, and for as many new ones, which a prediction is about. With one round they are
not known at all.

Memory is counted and has no noise: what a law is off by is its own misfit, and its ranges are made
of misfits: how far off the law of the other sizes is at each size, and what each coefficient
becomes without any one of them. A peak is the highest of several moments, each of which has a law
of its own: that of a step's update, say, does not depend on the batch, and is the highest at small
sizes only. The law is of the moment that is the highest at the large sizes. So the sizes with the
smallest peaks are left out where the law of the others then has a smaller misfit: up to half of
all, and all that have the same smallest peak.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tinyllama_tools.stats.laws import (
    CONFIDENCE,
    MASK,
    MEMORY_TERMS,
    TABLE,
    TIME_TERMS,
    Array,
    Coefficient,
    Draws,
    GridPoint,
    Law,
    LawRefusedError,
    Quantity,
    Term,
    check_points,
    design_matrix,
    interval_of,
    split_largest,
    term_values,
)


def non_negative_solutions(rows: Array, targets: Array) -> Array:
    """[problems, terms]: the least squares of rows [cells, terms] to targets [problems, cells].

    `rows` must be of full rank and well scaled. The solution is the unconstrained one of the terms
    that are not 0 in it, and of all sets of terms whose unconstrained solution has nothing negative
    it is the one that fits best (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter
    23). With three or four terms all sets can be tried, each for all targets in one product.
    scipy.optimize.nnls, with which a test compares it, solves one target at a time.
    """
    count = rows.shape[1]
    basis, triangle = np.linalg.qr(rows)
    # what of the targets no coefficient can reach is the same for every set of terms
    projected = targets @ basis
    best = np.linalg.solve(triangle, projected.T).T
    (bounded,) = np.nonzero((best < 0).any(axis=1))
    projected = projected[bounded]
    found = np.zeros((bounded.size, count))
    least = (projected**2).sum(axis=1)
    for used in range(1, count) if bounded.size else ():
        for chosen in itertools.combinations(range(count), used):
            part = triangle[:, chosen]
            inner, small = np.linalg.qr(part)
            solutions = np.linalg.solve(small, inner.T @ projected.T).T
            squares = ((projected - solutions @ part.T) ** 2).sum(axis=1)
            better = (solutions >= 0).all(axis=1) & (squares < least)
            least[better] = squares[better]
            found[better] = 0
            found[np.ix_(better, chosen)] = solutions[better]
    best[bounded] = found
    return best


# smallest over largest singular value; below it, terms differ by rounding only
RANK_TOLERANCE = 1e-8


@dataclass(frozen=True)
class RelativeFit:
    """`scaled` [points, terms] are the rows A / y over their `norms` [terms], since those of S² and
    of 1 differ by orders of magnitude; `residuals` [points] are measured minus fitted, of the
    measured.
    """

    terms: tuple[Term, ...]
    scaled: Array
    norms: Array
    coefficients: Array
    residuals: Array

    @property
    def freedom(self) -> int:
        """Degrees of freedom that are left."""
        return len(self.residuals) - len(self.terms)

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """Orthonormal [points, terms], and the inverse of the triangle [terms, terms]."""
        basis, triangle = np.linalg.qr(self.scaled)
        return basis, np.linalg.inv(triangle)

    @property
    def leverage(self) -> Array:
        """[points]: 1 where a point alone decides a coefficient."""
        return (self._factors[0] ** 2).sum(axis=1)

    @property
    def increases(self) -> Array:
        """[terms]: of the sum of squares, without each term, were the others free of sign."""
        return (self.coefficients * self.norms) ** 2 / (self._factors[1] ** 2).sum(axis=1)

    @property
    def largest_shares(self) -> Array:
        """[terms]: of a size's measured value, the most that each term is anywhere."""
        return (self.scaled * self.norms).max(axis=0) * self.coefficients

    @property
    def sum_of_squares(self) -> float:
        """Of the relative residuals."""
        return float(self.residuals @ self.residuals)

    def at(self, point: GridPoint) -> float:
        """Fitted at a size."""
        return float(self.coefficients @ term_values(self.terms, point.batch, point.seq))

    def relative_variance(self, point: GridPoint) -> float:
        """Of measured over predicted at a size, as far as scatter goes."""
        row = term_values(self.terms, point.batch, point.seq)
        reached = (row / self.at(point) / self.norms) @ self._factors[1]
        return self.sum_of_squares / max(self.freedom, 1) * (1 + float(reached @ reached))

    def without(
        self, points: Sequence[GridPoint], position: int, *, non_negative: bool
    ) -> RelativeFit:
        """The fit to the same points without the term there."""
        left = [term for index, term in enumerate(self.terms) if index != position]
        return fit_relative(points, left, non_negative=non_negative)

    def without_each(self) -> tuple[Array, Array]:
        """Of the fits without each of the points: coefficients [points, terms], none below 0, and
        the residual of the point that is left out [points]. No leverage may be 1.
        """
        basis, inverse = self._factors
        residuals = self.residuals / (1 - self.leverage)
        moved = (basis * residuals[:, None]) @ inverse.T / self.norms
        return np.maximum(self.coefficients - moved, 0.0), residuals


def fit_relative(
    points: Sequence[GridPoint], terms: Sequence[Term], *, non_negative: bool
) -> RelativeFit:
    """All terms are fitted; LawRefusedError where the points do not decide them."""
    check_points(points, [term.name for term in terms])
    values = np.array([point.value for point in points])
    rows = design_matrix(terms, points) / values[:, None]
    norms = np.linalg.norm(rows, axis=0)
    scaled = rows / norms
    singular = np.linalg.svd(scaled, compute_uv=False)
    if singular[-1] < RANK_TOLERANCE * singular[0]:
        batches, lengths = (
            ", ".join(map(str, sorted(set(of))))
            for of in zip(*((point.batch, point.seq) for point in points), strict=True)
        )
        raise LawRefusedError(
            f"sizes too alike to tell {', '.join(term.name for term in terms)} apart (batches "
            f"{batches}; sequences {lengths}): the batch sizes or sequence lengths must differ more"
        )
    wanted = np.ones(len(points))
    if non_negative:
        solution = non_negative_solutions(scaled, wanted[None, :])[0]
    else:
        solution, *_ = np.linalg.lstsq(scaled, wanted, rcond=None)
    return RelativeFit(tuple(terms), scaled, norms, solution / norms, wanted - scaled @ solution)


DRAWS = 2000
# residuals of cells that alone decide a coefficient say nothing about the errors
LARGEST_LEVERAGE = 0.99
# of a logarithm: with one degree of freedom, single draws are beyond all numbers
LARGEST_SHIFT = 20.0


def round_shifts(points: Sequence[GridPoint]) -> Array:
    """[rounds]: logarithm of how slow each round was throughout, around their mean.

    Between two rounds it is the median over the cells, which a few disturbed ones do not move.
    """
    values = np.log(np.array([point.rounds for point in points]))
    between = np.median(values[:, :, None] - values[:, None, :], axis=0)
    return between.mean(axis=1)


def _clipped(logarithms: Array) -> Array:
    return np.clip(logarithms, -LARGEST_SHIFT, LARGEST_SHIFT)


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
    was, will_be = (_clipped(scale * np.median(of, axis=1)) for of in (measured, coming))
    return was, will_be


def draw(
    model: RelativeFit, errors_of: RelativeFit, points: Sequence[GridPoint], seed: int
) -> Draws:
    """Draws of `model`'s coefficients, none below 0, around its own fit.

    The errors are those of `errors_of`, which needs a degree of freedom; it is `model` itself
    wherever that has one.
    """
    generator = np.random.default_rng(seed)
    errors = errors_of.residuals / np.sqrt(1 - np.minimum(errors_of.leverage, LARGEST_LEVERAGE))
    errors = np.concatenate([errors, -errors])
    # one column more than cells: the error of the cell that a law is asked about
    drawn = errors[generator.integers(len(errors), size=(DRAWS, len(points) + 1))]
    freedom = errors_of.freedom
    drawn *= np.sqrt(freedom / generator.chisquare(freedom, size=DRAWS))[:, None]
    fitted = model.scaled @ (model.coefficients * model.norms)
    solutions = non_negative_solutions(model.scaled, fitted + drawn[:, :-1])
    was, will_be = drawn_shifts(round_shifts(points), generator)
    coefficients = solutions / model.norms * np.exp(was)[:, None]
    return Draws(coefficients, _clipped(drawn[:, -1] + will_be))


# relative errors below it are rounding: memory is counted exactly
RESOLUTION = 1e-6
ABSENT = "the best fit has nothing of it"
NOT_LOWER = "the corrected AIC is not lower with it"
NO_WORK = "neither FLOPs nor bytes have it"


class Selection(NamedTuple):
    """The fit of the supported terms with its draws, the draws of all terms, and why the terms
    that are left out are not supported, by name.
    """

    fit: RelativeFit
    draws: Draws
    all_draws: Draws
    reasons: dict[str, str]


def corrected_aic(fit: RelativeFit) -> float:
    """Infinite where there are too few cells for it to be defined."""
    cells, parameters = len(fit.residuals), len(fit.terms) + 1
    spare = cells - parameters - 1
    if spare < 1:
        return math.inf
    mean_square = max(fit.sum_of_squares / cells, RESOLUTION**2)
    correction = 2 * parameters * (parameters + 1) / spare
    return cells * math.log(mean_square) + 2 * parameters + correction


def _reason_against(
    position: int, fit: RelativeFit, draws: Draws | None, smaller: RelativeFit | None
) -> str:
    """Why the term is not supported; empty if it is."""
    if fit.largest_shares[position] < RESOLUTION:
        return ABSENT
    if draws is None:
        return "no more sizes than terms, and the others fit better"
    if interval_of(draws.coefficients[:, position])[0] <= 0:
        return "its 95 % interval reaches 0"
    with_it = corrected_aic(fit)
    if smaller is not None and math.isfinite(with_it) and corrected_aic(smaller) <= with_it:
        return NOT_LOWER
    return ""


def select_terms(points: Sequence[GridPoint], full: RelativeFit, seed: int) -> Selection:
    """LawRefusedError where the scatter hides even the last term."""
    fit, all_draws = full, None
    reasons: dict[str, str] = {}
    while True:
        draws = draw(fit, fit, points, seed) if fit.freedom >= 1 else None
        if fit is full:
            all_draws = draws
        positions = range(len(fit.terms))
        smaller = [
            fit.without(points, p, non_negative=True) if len(fit.terms) > 1 else None
            for p in positions
        ]
        against = [_reason_against(p, fit, draws, smaller[p]) for p in positions]
        if draws is not None and not any(against):
            # as many terms as sizes leave no residual: then the smaller law's stand for the errors
            return Selection(fit, draws, all_draws or draw(full, fit, points, seed), reasons)
        weak = [(of.sum_of_squares, p) for p, of in enumerate(smaller) if of and against[p]]
        if not weak:
            scatter = 100 * math.sqrt(fit.sum_of_squares / max(fit.freedom, 1))
            raise LawRefusedError(
                f"the data supports no term of the law: the sizes scatter by {scatter:.0f} % "
                "around the best that is left; measure more rounds on a quieter machine"
            )
        _, position = min(weak)
        reasons[fit.terms[position].name] = against[position]
        fit = smaller[position]


DEFAULT_SEED = 1


def _drift(points: Sequence[GridPoint], terms: Sequence[Term], seed: int) -> float:
    """Root mean square of the logarithm of predicted over measured, an octave of B S beyond the
    largest size of the law that predicts, less what that law's scatter explains; 0 where too few
    sizes are left to tell.
    """
    kept, held = split_largest(points)
    try:
        fit = select_terms(kept, fit_relative(kept, terms, non_negative=True), seed).fit
    except LawRefusedError:
        return 0.0
    largest = max(point.tokens for point in kept)
    squares = []
    for point in held:
        error, octaves = math.log(fit.at(point) / point.value), math.log2(point.tokens / largest)
        squares.append((error**2 - fit.relative_variance(point)) / octaves**2)
    return math.sqrt(max(0.0, sum(squares) / len(squares)))


def _of_all_terms(rows: Array, terms: Sequence[Term], every: Sequence[Term]) -> Array:
    """[rows, every]: coefficients [rows, terms] with 0 for those that are not among `terms`."""
    found: Array = np.zeros((len(rows), len(every)))
    found[:, [every.index(term) for term in terms]] = rows
    return found


def fit_time_law(
    points: Sequence[GridPoint], seed: int = DEFAULT_SEED, terms: Sequence[Term] = TIME_TERMS
) -> Law:
    """Seconds. `terms`: those of TIME_TERMS that the work has.

    LawRefusedError with the reason where the data supports no law.
    """
    # fewer terms need no fewer sizes: of one size nothing can be told
    check_points(points, [term.name for term in TIME_TERMS])
    full = fit_relative(points, terms, non_negative=True)
    fit, *sets, reasons = select_terms(points, full, seed)
    draws = tuple(
        Draws(_of_all_terms(of.coefficients, by.terms, TIME_TERMS), of.noise)
        for of, by in zip(sets, (fit, full), strict=True)
    )
    kept, tried = (dict(zip(by.terms, by.coefficients, strict=True)) for by in (fit, full))
    coefficients = []
    for position, term in enumerate(TIME_TERMS):
        value = float(kept.get(term, tried.get(term, 0.0)))
        ends = [value]
        for of in draws if term in kept else draws[1:]:
            ends += interval_of(of.coefficients[:, position])
        reason = reasons.get(term.name, "" if term in tried else NO_WORK)
        coefficients.append(
            Coefficient(term.name, value, min(ends), max(ends), term in kept, reason)
        )
    return Law(
        Quantity.TIME,
        TIME_TERMS,
        tuple(coefficients),
        tuple(points),
        tuple(100 * float(residual) for residual in fit.residuals),
        draws,
        drift=_drift(points, terms, seed),
    )


# of a peak; what is less is the allocator's rounding
SMALLEST_MISFIT = 1e-3
# of a peak; what is off by more describes nothing
LARGEST_MISFIT = 0.5
# sizes more than terms, where some are left out
SPARE = 2
# of the smallest peak; what is above it by less is the same
FLAT = 1e-2
TOO_ALIKE = "the sizes do not tell it from the others"


@dataclass(frozen=True)
class _Selected:
    """`reasons`: against the terms that are left out, by name."""

    points: tuple[GridPoint, ...]
    fit: RelativeFit
    reasons: dict[str, str]

    @property
    def is_sound(self) -> bool:
        """Of enough sizes for its misfit to tell something."""
        return self.fit.freedom >= SPARE and bool((self.fit.leverage < LARGEST_LEVERAGE).all())

    @property
    def misfit(self) -> float:
        """The largest, of the measured, of each size by the law of the others where they have one,
        else by that of all.
        """
        found = self.fit.without_each()[1] if self.is_sound else self.fit.residuals
        return max(SMALLEST_MISFIT, float(np.abs(found).max()))


def _select(points: tuple[GridPoint, ...]) -> _Selected:
    """From all terms those that would be below 0 are taken away, the furthest first, and then the
    least needed ones until the corrected AIC would rise.
    """
    try:
        fit = fit_relative(points, MEMORY_TERMS, non_negative=False)
    except LawRefusedError:
        # without those that all samples share, where the sizes do not decide them
        fewer = [term for term in MEMORY_TERMS if term not in (TABLE, MASK)]
        fit = fit_relative(points, fewer, non_negative=False)
    reasons = {term.name: TOO_ALIKE for term in MEMORY_TERMS if term not in fit.terms}
    while len(fit.terms) > 1:
        is_absent = fit.largest_shares.min() < RESOLUTION
        position = int((fit.largest_shares if is_absent else fit.increases).argmin())
        smaller = fit.without(points, position, non_negative=False)
        if not is_absent and corrected_aic(fit) < corrected_aic(smaller):
            break
        reasons[fit.terms[position].name] = ABSENT if is_absent else NOT_LOWER
        fit = smaller
    return _Selected(points, fit, reasons)


def _flat(points: Sequence[GridPoint]) -> int:
    """How many of them have the smallest peak."""
    least = min(point.value for point in points)
    return sum(point.value <= (1 + FLAT) * least for point in points)


def _select_moment(points: tuple[GridPoint, ...]) -> _Selected:
    """Without so many of the smallest peaks as make the misfit smallest."""
    best = _select(points)
    ordered = sorted(points, key=lambda point: point.value)
    for below in range(1, max(len(points) // 2, _flat(points)) + 1):
        if best.misfit <= SMALLEST_MISFIT:
            break
        smallest = ordered[:below]
        try:
            found = _select(tuple(point for point in points if point not in smallest))
        except LawRefusedError:
            break
        # a moment that is higher than the peak, by more than the misfit allows for, is none
        most = 1 + found.misfit
        is_moment = found.is_sound and all(found.fit.at(p) <= most * p.value for p in smallest)
        if is_moment and found.misfit < best.misfit:
            best = found
    return best


def fit_memory_law(points: Sequence[GridPoint]) -> Law:
    """Bytes; LawRefusedError with the reason where the data supports no law."""
    selected = _select_moment(tuple(points))
    fit = selected.fit
    off = float(np.abs(fit.residuals).max())
    if off > LARGEST_MISFIT:
        raise LawRefusedError(
            f"no law of memory describes these sizes: the best is off by {100 * off:.0f} %; "
            "compare the measured peaks with the predicted ones"
        )
    if off > FLAT and _flat(selected.points) > len(selected.points) / 2:
        least = Quantity.MEMORY.text(min(point.value for point in points))
        above = len(points) - _flat(points)
        raise LawRefusedError(
            f"sizes with a peak above {least}: {above} of {len(points)}, too few to tell how it "
            "grows from there; measure larger ones"
        )
    # the law, and that with any one size left out, each with the largest misfit up and down
    rows = np.array([fit.coefficients, *(fit.without_each()[0] if selected.is_sound else [])])
    rows = _of_all_terms(rows, fit.terms, MEMORY_TERMS)
    misfit = math.log1p(selected.misfit)
    ranges = Draws(np.repeat(rows, 2, axis=0), np.tile([-misfit, misfit], len(rows)))
    coefficients = tuple(
        Coefficient(
            term.name,
            float(of_term[0]),
            float(of_term.min()),
            float(of_term.max()),
            term in fit.terms,
            selected.reasons.get(term.name, ""),
        )
        for term, of_term in zip(MEMORY_TERMS, rows.T, strict=True)
    )
    return Law(
        Quantity.MEMORY,
        MEMORY_TERMS,
        coefficients,
        selected.points,
        tuple(100 * float(residual) for residual in fit.residuals),
        (ranges,),
        below=tuple(point for point in points if point not in selected.points),
    )


@dataclass(frozen=True)
class HeldOut:
    """`law` is of the kept points.

    `errors_percent`: predicted minus measured, of the measured, in the order of `held`;
    `median_percent` of their absolutes. `covered`: how many of `held` lie in the law's range
    (`law.range_kind` says of what), whose median width is `median_width_percent` of the prediction.
    Held-out cells are of the same rounds, so a range for new rounds holds more of them than of new
    ones.
    """

    law: Law
    held: tuple[GridPoint, ...]
    errors_percent: tuple[float, ...]
    median_percent: float
    covered: int
    median_width_percent: float


def check_held_out(
    points: Sequence[GridPoint], fit: Callable[[Sequence[GridPoint]], Law]
) -> HeldOut:
    """Fits to the cells below half of the largest B S and predicts the others.

    LawRefusedError where the kept cells support no law.
    """
    if not points:
        raise LawRefusedError("0 sizes: none to hold out")
    kept, held = split_largest(points)
    try:
        law = fit(kept)
    except LawRefusedError as error:
        raise LawRefusedError(f"of the {len(kept)} sizes that are not held out, {error}") from error
    errors, widths, covered = [], [], 0
    for point in held:
        predicted = law.at(point.batch, point.seq)
        low, high = law.interval(point.batch, point.seq)
        errors.append(100 * (predicted - point.value) / point.value)
        widths.append(100 * (high - low) / predicted)
        covered += low <= point.value <= high
    return HeldOut(
        law,
        held,
        tuple(errors),
        statistics.median(map(abs, errors)),
        covered,
        statistics.median(widths),
    )


# of the variance of logarithms: what is left when a value does not vary at all
_NOTHING = 1e-24


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
    # here, since scripts/exercise has numpy alone and imports this package
    from scipy import stats

    check_points(points, ("constant", "batch", "sequence"), spare=1)
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
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * errors
    total = float(((values - values.mean()) ** 2).sum())
    _, batch, seq = (
        Estimate(*map(float, of))
        for of in zip(solution, solution - reach, solution + reach, strict=True)
    )
    return Exponents(batch, seq, 1.0 if total < _NOTHING else 1 - squares / total)
