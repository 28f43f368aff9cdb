"""Fits laws of time and memory: relative errors, support, bootstrap, held-out error.

Least squares without negative coefficients, of few terms and for thousands of targets at once.

The solution is the unconstrained one of the terms that are not 0 in it, and of all sets of terms
whose unconstrained solution has nothing negative it is the one that fits best (Lawson and Hanson,
Solving Least Squares Problems, 1974, chapter 23). With three or four terms all sets can be tried,
each for all targets in one product. scipy.optimize.nnls, with which a test compares it, solves one
target at a time.

Least squares of relative errors: a small size counts as much as a large one.

With y measured and A the terms at each size, it minimises the sum of (1 - A x / y)^2: the problem
X x = 1 with rows X = A / y. Columns are divided by their norms, since those of S² and of 1 differ
by orders of magnitude.

Fits the law of time over batch and sequence at one model size.

  time = launch + linear B S + quadratic B S²

No coefficient is below 0, for each stands for work, and no term is fitted that the work itself does
not have (work.py). The law describes the grid that it was fitted to and its neighbourhood; it says
nothing about other model sizes.

Beyond the measured sizes a law can be wrong in a way that no residual shows: a larger size no
longer fits into a cache. How wrong is taken from the step before: what a law of the smaller sizes
is off by at the larger ones, an octave of B S, beyond what its scatter explains.

Fits the law of memory over batch and sequence at one model size.

  memory = base + batch B + linear B S + quadratic B S² + table S + mask S²

No coefficient is below 0, for each stands for tensors. Memory is counted and has no noise: what a
law is off by is its own misfit, and its ranges are made of misfits: how far off the law of the
other sizes is at each size, and what each coefficient becomes without any one of them.

A peak is the highest of several moments, each of which has a law of its own: that of a step's
update, say, does not depend on the batch, and is the highest at small sizes only. The law is of
the moment that is the highest at the large sizes. So the sizes with the smallest peaks are left out
where the law of the others then has a smaller misfit: up to half of all, and all that have the same
smallest peak.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

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


def _unconstrained(triangle: Array, projected: Array) -> Array:
    """[problems, columns of the triangle]."""
    basis, small = np.linalg.qr(triangle)
    return np.linalg.solve(small, basis.T @ projected.T).T


def non_negative_solutions(rows: Array, targets: Array) -> Array:
    """[problems, terms]: the least squares of rows [cells, terms] to targets [problems, cells].

    `rows` must be of full rank and well scaled.
    """
    count = rows.shape[1]
    basis, triangle = np.linalg.qr(rows)
    # what of the targets no coefficient can reach is the same for every set of terms
    projected = targets @ basis
    best = np.linalg.solve(triangle, projected.T).T
    (bounded,) = np.nonzero((best < 0).any(axis=1))
    if bounded.size == 0:
        return best
    projected = projected[bounded]
    found = np.zeros((bounded.size, count))
    least = (projected**2).sum(axis=1)
    for used in range(1, count):
        for chosen in itertools.combinations(range(count), used):
            part = triangle[:, chosen]
            solutions = _unconstrained(part, projected)
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
    """`scaled` [points, terms] are the rows X over `norms` [terms]; `residuals` [points] are
    measured minus fitted, of the measured.
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
        basis, _ = self._factors
        return (basis**2).sum(axis=1)

    @property
    def increases(self) -> Array:
        """[terms]: of the sum of squares, without each term, were the others free of sign."""
        _, inverse = self._factors
        return (self.coefficients * self.norms) ** 2 / (inverse**2).sum(axis=1)

    def relative_variance(self, row: Array) -> float:
        """Of measured over predicted at a size whose terms are `row`, as far as scatter goes."""
        _, inverse = self._factors
        predicted = float(self.coefficients @ row)
        reached = (row / predicted / self.norms) @ inverse
        scatter = self.sum_of_squares / max(self.freedom, 1)
        return scatter * (1 + float(reached @ reached))

    def without_each(self) -> tuple[Array, Array]:
        """Of the fits without each of the points: coefficients [points, terms], none below 0, and
        the residual of the point that is left out [points]. No leverage may be 1.
        """
        basis, inverse = self._factors
        residuals = self.residuals / (1 - self.leverage)
        moved = (basis * residuals[:, None]) @ inverse.T / self.norms
        return np.maximum(self.coefficients - moved, 0.0), residuals

    @property
    def largest_shares(self) -> Array:
        """[terms]: of a size's measured value, the most that each term is anywhere."""
        return (self.scaled * self.norms).max(axis=0) * self.coefficients

    @property
    def sum_of_squares(self) -> float:
        """Of the relative residuals."""
        return float(self.residuals @ self.residuals)


def _refuse_alike(points: Sequence[GridPoint], terms: Sequence[Term]) -> None:
    batches = ", ".join(str(batch) for batch in sorted({p.batch for p in points}))
    lengths = ", ".join(str(seq) for seq in sorted({p.seq for p in points}))
    names = ", ".join(term.name for term in terms)
    raise LawRefusedError(
        f"sizes too alike to tell {names} apart (batches {batches}; sequences {lengths}): the "
        "batch sizes or sequence lengths must differ more"
    )


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
        _refuse_alike(points, terms)
    wanted = np.ones(len(points))
    if non_negative:
        solution = non_negative_solutions(scaled, wanted[None, :])[0]
    else:
        solution, *_ = np.linalg.lstsq(scaled, wanted, rcond=None)
    return RelativeFit(tuple(terms), scaled, norms, solution / norms, wanted - scaled @ solution)


# relative errors below it are rounding: memory is counted exactly
RESOLUTION = 1e-6
ABSENT = "the best fit has nothing of it"
NOT_LOWER = "the corrected AIC is not lower with it"


@dataclass(frozen=True)
class Selection:
    """The fit of the supported terms with its draws, the draws of all terms, and why the terms
    that are left out are not supported, by name.
    """

    fit: RelativeFit
    draws: Draws
    all_draws: Draws
    reasons: dict[str, str]


def corrected_aic(fit: RelativeFit) -> float | None:
    """None where there are too few cells for it to be defined."""
    cells, parameters = len(fit.residuals), len(fit.terms) + 1
    spare = cells - parameters - 1
    if spare < 1:
        return None
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
    if smaller is not None:
        with_it, without_it = corrected_aic(fit), corrected_aic(smaller)
        if with_it is not None and without_it is not None and without_it <= with_it:
            return NOT_LOWER
    return ""


def _without(points: Sequence[GridPoint], fit: RelativeFit, position: int) -> RelativeFit:
    left = [term for index, term in enumerate(fit.terms) if index != position]
    return fit_relative(points, left, non_negative=True)


def select_terms(points: Sequence[GridPoint], full: RelativeFit, seed: int) -> Selection:
    """LawRefusedError where the scatter hides even the last term."""
    fit, reasons, all_draws = full, {}, None
    while True:
        draws = draw(fit, fit, points, seed) if fit.freedom >= 1 else None
        if fit is full:
            all_draws = draws
        positions = range(len(fit.terms))
        smaller = [_without(points, fit, p) if len(fit.terms) > 1 else None for p in positions]
        against = {p: _reason_against(p, fit, draws, smaller[p]) for p in positions}
        weak = [position for position in positions if against[position]]
        if not weak and draws is not None:
            # as many terms as sizes leave no residual: then the smaller law's stand for the errors
            all_draws = all_draws or draw(full, fit, points, seed)
            return Selection(fit, draws, all_draws, reasons)
        candidates = [(smaller[p].sum_of_squares, p) for p in weak if smaller[p] is not None]
        if not candidates:
            scatter = 100 * math.sqrt(fit.sum_of_squares / max(fit.freedom, 1))
            raise LawRefusedError(
                f"the data supports no term of the law: the sizes scatter by {scatter:.0f} % "
                "around the best that is left; measure more rounds on a quieter machine"
            )
        _, position = min(candidates)
        reasons[fit.terms[position].name] = against[position]
        fit = smaller[position]


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
    model: RelativeFit,
    errors_of: RelativeFit,
    points: Sequence[GridPoint],
    seed: int,
) -> Draws:
    """Draws of `model`'s coefficients, none below 0, around its own fit.

    The errors are those of `errors_of`, which needs a degree of freedom; it is `model` itself
    wherever that has one.
    """
    generator = np.random.default_rng(seed)
    leverage = np.minimum(errors_of.leverage, LARGEST_LEVERAGE)
    errors = errors_of.residuals / np.sqrt(1 - leverage)
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


# of the variance of logarithms: what is left when a value does not vary at all
_NOTHING = 1e-24


@dataclass(frozen=True)
class Estimate:
    """With its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Exponents:
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
    batches = np.log([point.batch for point in points])
    lengths = np.log([point.seq for point in points])
    rows = np.column_stack([np.ones(len(points)), batches, lengths])
    if np.linalg.matrix_rank(rows, tol=1e-8) < rows.shape[1]:
        raise LawRefusedError(
            "sizes too alike to tell the exponents of batch and sequence apart: both must vary, "
            "and not together"
        )
    values = np.log([point.value for point in points])
    solution, *_ = np.linalg.lstsq(rows, values, rcond=None)
    residuals = values - rows @ solution
    freedom = len(points) - rows.shape[1]
    variance = float(residuals @ residuals) / freedom
    errors = np.sqrt(variance * np.diag(np.linalg.inv(rows.T @ rows)))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * errors
    total = float(((values - values.mean()) ** 2).sum())
    r_squared = 1.0 if total < _NOTHING else 1 - freedom * variance / total
    batch, seq = (
        Estimate(float(solution[i]), float(solution[i] - reach[i]), float(solution[i] + reach[i]))
        for i in (1, 2)
    )
    return Exponents(batch, seq, r_squared)


DEFAULT_SEED = 1
NO_WORK = "neither FLOPs nor bytes have it"


def _time_law_of_all_terms(draws: Draws, terms: Sequence[Term]) -> Draws:
    """With 0 for those that are not among `terms`."""
    drawn = np.zeros((len(draws.coefficients), len(TIME_TERMS)))
    drawn[:, [TIME_TERMS.index(term) for term in terms]] = draws.coefficients
    return Draws(drawn, draws.noise)


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
        row = term_values(fit.terms, point.batch, point.seq)
        error = math.log(float(fit.coefficients @ row) / point.value)
        octaves = math.log2(point.tokens / largest)
        squares.append((error**2 - fit.relative_variance(row)) / octaves**2)
    return math.sqrt(max(0.0, sum(squares) / len(squares)))


def _coefficients(
    selection: Selection, full: dict[Term, float], draws: tuple[Draws, Draws]
) -> tuple[Coefficient, ...]:
    """Of all terms of time; `full`: of the fit of all terms that were tried."""
    kept = dict(zip(selection.fit.terms, selection.fit.coefficients, strict=True))
    found = []
    for position, term in enumerate(TIME_TERMS):
        value = float(kept.get(term, full.get(term, 0.0)))
        ends = [value]
        for of in draws if term in kept else draws[1:]:
            ends += interval_of(of.coefficients[:, position])
        reason = selection.reasons.get(term.name, "" if term in full else NO_WORK)
        found.append(Coefficient(term.name, value, min(ends), max(ends), term in kept, reason))
    return tuple(found)


def fit_time_law(
    points: Sequence[GridPoint], seed: int = DEFAULT_SEED, terms: Sequence[Term] = TIME_TERMS
) -> Law:
    """Seconds. `terms`: those of TIME_TERMS that the work has.

    LawRefusedError with the reason where the data supports no law.
    """
    # fewer terms need no fewer sizes: of one size nothing can be told
    check_points(points, [term.name for term in TIME_TERMS])
    full = fit_relative(points, terms, non_negative=True)
    selection = select_terms(points, full, seed)
    draws = (
        _time_law_of_all_terms(selection.draws, selection.fit.terms),
        _time_law_of_all_terms(selection.all_draws, full.terms),
    )
    tried = dict(zip(full.terms, (float(value) for value in full.coefficients), strict=True))
    return Law(
        Quantity.TIME,
        TIME_TERMS,
        _coefficients(selection, tried, draws),
        tuple(points),
        tuple(100 * float(residual) for residual in selection.fit.residuals),
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
        of_all = np.abs(self.fit.residuals)
        found = np.abs(self.fit.without_each()[1]) if self.is_sound else of_all
        return max(SMALLEST_MISFIT, float(found.max()))

    def is_above(self, point: GridPoint) -> bool:
        """Whether the law says more than was measured, and more than its misfit allows for."""
        said = self.fit.coefficients @ term_values(self.fit.terms, point.batch, point.seq)
        return float(said) > (1 + self.misfit) * point.value


def _memory_law_of_all_terms(points: Sequence[GridPoint]) -> RelativeFit:
    """Without those that all samples share, where the sizes do not decide them."""
    try:
        return fit_relative(points, MEMORY_TERMS, non_negative=False)
    except LawRefusedError:
        fewer = [term for term in MEMORY_TERMS if term not in (TABLE, MASK)]
        return fit_relative(points, fewer, non_negative=False)


def _score(fit: RelativeFit) -> float:
    """Lower is better; there are too few sizes where the corrected AIC is not defined."""
    score = corrected_aic(fit)
    return math.inf if score is None else score


def _select(points: tuple[GridPoint, ...]) -> _Selected:
    """From all terms those that would be below 0 are taken away, the furthest first, and then the
    least needed ones until the corrected AIC would rise.
    """
    fit = _memory_law_of_all_terms(points)
    reasons = {term.name: TOO_ALIKE for term in MEMORY_TERMS if term not in fit.terms}
    while len(fit.terms) > 1:
        is_absent = fit.largest_shares.min() < RESOLUTION
        position = int((fit.largest_shares if is_absent else fit.increases).argmin())
        left = [term for index, term in enumerate(fit.terms) if index != position]
        smaller = fit_relative(points, left, non_negative=False)
        if not is_absent and _score(fit) < _score(smaller):
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
        # a moment that is higher than the peak is none
        is_moment = found.is_sound and not any(map(found.is_above, smallest))
        if is_moment and found.misfit < best.misfit:
            best = found
    return best


def _refuse_what_describes_nothing(points: tuple[GridPoint, ...], selected: _Selected) -> None:
    off = float(np.abs(selected.fit.residuals).max())
    if off > LARGEST_MISFIT:
        raise LawRefusedError(
            f"no law of memory describes these sizes: the best is off by {100 * off:.0f} %; "
            "compare the measured peaks with the predicted ones"
        )
    flat = _flat(selected.points)
    if off > FLAT and flat > len(selected.points) / 2:
        least = Quantity.MEMORY.text(min(point.value for point in points))
        above = len(points) - _flat(points)
        raise LawRefusedError(
            f"sizes with a peak above {least}: {above} of {len(points)}, too few to tell how it "
            "grows from there; measure larger ones"
        )


def _ranges(selected: _Selected) -> Draws:
    """The law with any one size left out, each with the largest misfit up and down."""
    fit = selected.fit
    rows = [fit.coefficients, *(fit.without_each()[0] if selected.is_sound else [])]
    of_all: Array = np.zeros((len(rows), len(MEMORY_TERMS)))
    of_all[:, [MEMORY_TERMS.index(term) for term in fit.terms]] = rows
    misfit = math.log1p(selected.misfit)
    return Draws(np.repeat(of_all, 2, axis=0), np.tile([-misfit, misfit], len(rows)))


def fit_memory_law(points: Sequence[GridPoint]) -> Law:
    """Bytes; LawRefusedError with the reason where the data supports no law."""
    selected = _select_moment(tuple(points))
    _refuse_what_describes_nothing(tuple(points), selected)
    ranges = _ranges(selected)
    kept = dict(zip(selected.fit.terms, selected.fit.coefficients, strict=True))
    coefficients = []
    for term, of_term in zip(MEMORY_TERMS, ranges.coefficients.T, strict=True):
        value, low, high = float(kept.get(term, 0.0)), float(of_term.min()), float(of_term.max())
        reason = selected.reasons.get(term.name, "")
        coefficients.append(Coefficient(term.name, value, low, high, term in kept, reason))
    return Law(
        Quantity.MEMORY,
        MEMORY_TERMS,
        tuple(coefficients),
        selected.points,
        tuple(100 * float(residual) for residual in selected.fit.residuals),
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
        statistics.median(abs(error) for error in errors),
        covered,
        statistics.median(widths),
    )
