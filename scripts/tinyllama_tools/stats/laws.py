"""Laws of time over batch B and sequence S at one model size, and how sure they are.

  time = launch + linear B S + quadratic B S²

There is no term of the batch alone, since whatever is done once a sample touches all of its tokens.
A law describes the grid that it was fitted to and its neighbourhood, no other model size. Errors
are relative, so that a small size counts as much as a large one: with y measured and A the terms at
each size, a fit minimises the sum of (1 - A x / y)^2. No coefficient is below 0, for each stands
for work; one whose range reaches 0 may not be there at all.

Beyond the measured sizes a law can be wrong in a way that no residual shows: a larger size no
longer fits into a cache. How wrong is taken from the step before: what a law of the smaller sizes
is off by at the larger ones, an octave of B S.

Intervals are of a seeded bootstrap over cells and rounds. A draw gives every cell another cell's
residual, with a sign of its own (residuals over sqrt(1 - leverage), so that all have the variance
of the errors), and fits again. All of a draw's errors are scaled by sqrt(f / chi-square of f), f
being the degrees of freedom: with few cells the scatter itself is badly known, and this gives the
draws the tails of the t distribution (Davison and Hinkley, Bootstrap Methods and their Application,
1997, sections 2.3 and 6.2.3). A round that is slow throughout moves all cells together and shows in
no residual. Such shifts are drawn twice: for the rounds that were measured, which the coefficients
rest on, and for as many new ones, which a prediction is about. With one round they are not known.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinyllama_tools.core.text import seconds_text

Array = NDArray[np.float64]


class LawRefusedError(ValueError):
    """The data supports no law; the message is the reason."""


class Term(NamedTuple):
    """`symbol`: what the coefficient is multiplied by."""

    name: str
    symbol: str


TERMS = (Term("launch", ""), Term("linear", "B S"), Term("quadratic", "B S²"))


def terms_at(batch: int, seq: int) -> Array:
    """The value of each term's symbol."""
    tokens = float(batch * seq)
    return np.array([1.0, tokens, tokens * seq])


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
# of any measured value; a term that is less is none
ROUNDING = 1e-9
# of a law: what is off by more describes nothing
LARGEST_MISFIT = 0.5


class Fit:
    """The coefficients that describe the points best. `scaled` [points, terms] are the rows A / y
    over their `norms`, since those of S² and of 1 differ by orders of magnitude; `residuals`
    measured minus fitted, of the measured.

    LawRefusedError where the points do not decide the terms; `spare`: how many more sizes than
    terms there must be.
    """

    def __init__(self, points: Sequence[GridPoint], *, spare: int = 0) -> None:
        self.points = tuple(points)
        names = ", ".join(term.name for term in TERMS)
        sizes, needed = len({(point.batch, point.seq) for point in points}), len(TERMS) + spare
        if sizes < needed:
            raise LawRefusedError(
                f"{sizes} size{'' if sizes == 1 else 's'}: {len(TERMS)} coefficients ({names}) "
                f"need at least {needed} different ones"
            )
        rows = np.array([terms_at(point.batch, point.seq) / point.value for point in points])
        self.norms = np.linalg.norm(rows, axis=0)
        self.scaled = rows / self.norms
        singular = np.linalg.svd(self.scaled, compute_uv=False)
        if singular[-1] < RANK_TOLERANCE * singular[0]:
            raise LawRefusedError(
                f"sizes too alike to tell {names} apart: the batch sizes or sequence lengths must "
                "differ more"
            )
        wanted = np.ones(len(points))
        (solution,) = non_negative_solutions(self.scaled, wanted[None])
        solution[self.scaled.max(axis=0) * solution < ROUNDING] = 0.0
        self.coefficients: Array = solution / self.norms
        self.residuals = wanted - self.scaled @ solution


DRAWS = 2000
# of a logarithm: with one degree of freedom, single draws are beyond all numbers
LARGEST_SHIFT = 20.0
# residuals of cells that alone decide a coefficient say nothing about the errors
LARGEST_LEVERAGE = 0.99


def round_shifts(points: Sequence[GridPoint]) -> Array:
    """[rounds]: logarithm of how slow each round was throughout, around their mean.

    Between two rounds it is the median over the cells, which a few disturbed ones do not move.
    """
    values = np.log(np.array([point.rounds for point in points]))
    between = np.median(values[:, :, None] - values[:, None, :], axis=0)
    return between.mean(axis=1)


def drawn_shifts(shifts: Array, generator: np.random.Generator) -> Array:
    """[2, DRAWS]: what the median of the rounds' normal shifts may be off by, of the measured
    rounds and of as many new ones.

    The standard deviation of `shifts` is known from these few rounds alone, so both are relative to
    the one that rounds drawn alike would have shown; with means in place of medians their
    difference would be t s sqrt(2 / rounds), with rounds - 1 degrees of freedom.
    """
    rounds = len(shifts)
    if rounds < 2:
        return np.zeros((2, DRAWS))
    drawn = generator.standard_normal((2, DRAWS, rounds))
    scale = shifts.std(ddof=1) / drawn[0].std(axis=1, ddof=1)
    return np.clip(scale * np.median(drawn, axis=2), -LARGEST_SHIFT, LARGEST_SHIFT)


def _draw(fit: Fit, seed: int) -> tuple[Array, Array]:
    """[DRAWS, terms]: coefficients around the fit, none below 0; and [DRAWS]: measured over law at
    a cell."""
    generator = np.random.default_rng(seed)
    used = fit.scaled[:, fit.coefficients > 0]
    basis, _ = np.linalg.qr(used)
    leverage = (basis**2).sum(axis=1)
    errors = fit.residuals / np.sqrt(1 - np.minimum(leverage, LARGEST_LEVERAGE))
    errors = np.concatenate([errors, -errors])
    # one column more than cells: the error of the cell that a law is asked about
    drawn = errors[generator.integers(len(errors), size=(DRAWS, len(fit.points) + 1))]
    freedom = len(fit.points) - used.shape[1]
    drawn *= np.sqrt(freedom / generator.chisquare(freedom, size=DRAWS))[:, None]
    solutions = non_negative_solutions(fit.scaled, 1 - fit.residuals + drawn[:, :-1])
    was, will_be = drawn_shifts(round_shifts(fit.points), generator)
    noise = np.clip(drawn[:, -1] + will_be, -LARGEST_SHIFT, LARGEST_SHIFT)
    return solutions / fit.norms * np.exp(was)[:, None], np.exp(noise)


# of 95 %
ENDS = (0.025, 0.975)
# what the ranges of laws hold
RANGES = (
    "A range is a 95 % interval of what as many new rounds would give, and beyond the fitted sizes "
    "of what a law of the smaller of them was off by. Of one round it is of the scatter of its "
    "sizes alone, which says nothing of another run."
)


class Coefficient(NamedTuple):
    """In seconds a unit of its term; `low` and `high`: its range."""

    term: Term
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """`points`: what it was fitted to; `residuals_percent`: measured minus fitted, of the measured,
    in their order. `draws`: of coefficients, and of measured over law. `drift`: what a law of
    smaller sizes was off by, as a logarithm an octave of B S beyond its sizes."""

    coefficients: tuple[Coefficient, ...]
    points: tuple[GridPoint, ...]
    residuals_percent: list[float]
    draws: tuple[Array, Array]
    drift: float

    @property
    def formula(self) -> str:
        """`time = 1.2 ms + 0.9 us x B S`."""
        there = (of for of in self.coefficients if of.value > 0)
        parts = (" x ".join(filter(None, (seconds_text(of.value), of.term.symbol))) for of in there)
        return f"time = {' + '.join(parts)}"

    def at(self, batch: int, seq: int) -> float:
        """Seconds at a size."""
        return float(np.dot([of.value for of in self.coefficients], terms_at(batch, seq)))

    def interval(self, batch: int, seq: int) -> tuple[float, float]:
        """The range at a size, which holds at(batch, seq)."""
        coefficients, noise = self.draws
        drawn = coefficients @ terms_at(batch, seq) * noise
        ends = [self.at(batch, seq), *np.quantile(drawn, ENDS).tolist()]
        octaves = math.log2(batch * seq / max(point.tokens for point in self.points))
        wider = math.exp(self.drift * max(0.0, octaves))
        return min(ends) / wider, max(ends) * wider


# of the largest B S of a grid; cells from there on are held out
HELD_SHARE = 0.5


def _split_largest(points: Sequence[GridPoint]) -> tuple[list[GridPoint], list[GridPoint]]:
    """The cells below half of the largest B S, and the others."""
    limit = HELD_SHARE * max(point.tokens for point in points)
    return [p for p in points if p.tokens < limit], [p for p in points if p.tokens >= limit]


def _drift(points: Sequence[GridPoint]) -> float:
    """Root mean square of the logarithm of predicted over measured, an octave of B S beyond the
    largest size of the law that predicts; 0 where too few sizes are left to tell."""
    kept, held = _split_largest(points)
    try:
        fit = Fit(kept)
    except LawRefusedError:
        return 0.0
    said = [fit.coefficients @ terms_at(p.batch, p.seq) / p.value for p in held]
    octaves = np.log2([p.tokens for p in held]) - math.log2(max(p.tokens for p in kept))
    return math.sqrt(np.mean((np.log(said) / octaves) ** 2))


def fit_time_law(points: Sequence[GridPoint], seed: int = 1) -> Law:
    """LawRefusedError with the reason where the data supports no law."""
    fit = Fit(points, spare=1)
    misfit = float(np.abs(fit.residuals).max())
    if misfit > LARGEST_MISFIT:
        raise LawRefusedError(
            f"no law describes these sizes: the best is off by {100 * misfit:.0f} %; "
            "measure more rounds on a quieter machine"
        )
    draws = _draw(fit, seed)
    ends = np.quantile(draws[0], ENDS, axis=0)
    # rounding must not put a value outside its own range
    low, high = np.minimum(ends[0], fit.coefficients), np.maximum(ends[1], fit.coefficients)
    found = np.stack([fit.coefficients, low, high], axis=1).tolist()
    residuals = (100 * fit.residuals).tolist()
    coefficients = tuple(Coefficient(of, *values) for of, values in zip(TERMS, found, strict=True))
    return Law(coefficients, fit.points, residuals, draws, _drift(points))


@dataclass(frozen=True)
class HeldOutCell:
    """What a law of the other sizes says of one that was held out, with its range, in seconds.
    `error_percent`: of the measured, above 0 where too much was predicted; `width_percent`: of the
    range, of the value. The cells are of the same rounds, so a range for new rounds holds more of
    them than of new ones."""

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


def check_held_out(points: Sequence[GridPoint]) -> tuple[HeldOutCell, ...]:
    """Fits to the cells below half of the largest B S and predicts the others.

    LawRefusedError where the kept cells support no law.
    """
    kept, held = _split_largest(points)
    try:
        law = fit_time_law(kept)
    except LawRefusedError as error:
        raise LawRefusedError(f"of the {len(kept)} sizes that are not held out, {error}") from error
    return tuple(
        HeldOutCell(p, law.at(p.batch, p.seq), *law.interval(p.batch, p.seq)) for p in held
    )
