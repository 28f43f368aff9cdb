"""Laws of time over batch B and sequence S at one model size, and how sure they are.

  time = launch + linear B S + quadratic B S²

There is no term of the batch alone, since whatever is done once a sample touches all of its tokens.
A law describes the grid that it was fitted to and its neighbourhood, no other model size. Errors
are relative, so that a small size counts as much as a large one: with y measured and A the terms at
each size, a fit minimises the sum of (1 - A x / y)^2. No coefficient is below 0, for each stands
for work; one whose range reaches 0 may not be there at all.

Beyond the measured sizes a law can be wrong in a way that no residual shows: a larger size no
longer fits into a cache. How wrong is estimated within the grid: by what a law of the smaller sizes
is off at the larger ones, for each doubling of B S.

Intervals are Student's, and have two sources of error. First, the scatter of the cells around the
fit. It is that of linear least squares without bounds, whose intervals are wider than with bounds,
and hold also where a coefficient is 0. Second, shifts: a round that is slow throughout moves all
cells together and shows in no residual. The shifts of the measured rounds are in the coefficients;
a prediction has those of as many new rounds as well. From one round they are not known.

The two sources have different degrees of freedom, as few as one, so each has a half-width of its
own, and the range is the root of the sum of their squares. It holds the true value at least as
often as it says. One quantile for both (Welch, Satterthwaite) would not: where two rounds happen to
be alike, it would have the many degrees of freedom of the scatter.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import stdtrit

from tinyllama_tools.core.text import count_of, seconds_text

Array = NDArray[np.float64]


class LawRefusedError(ValueError):
    """The data supports no law; the message is the reason."""


# by name, what the coefficient is multiplied by
TERMS = {"launch": "", "linear": "B S", "quadratic": "B S²"}


def terms_at(batch: int, seq: int) -> Array:
    """What each coefficient is multiplied by."""
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


COVERAGE = 0.95
# of a logarithm; with one degree of freedom it could be more than exp() has numbers for
LARGEST_WIDTH = 20.0
# what reports say of the ranges
RANGES = (
    "A range is the 95 % interval of what as many new runs would measure. Beyond the fitted "
    "sizes it is widened by what a law of the smaller ones was off at the larger ones. Where there "
    "is one run, only the scatter of its sizes is in it, which says nothing of another run."
)


def shift_variance(points: Sequence[GridPoint]) -> float:
    """Variance of the logarithm of a median over the rounds, as far as rounds are slow or fast
    throughout; 0 where there is a single one.

    How far two rounds are apart is the median over the cells, so that a few disturbed ones do not
    matter. The median of normal values has at most pi / 2 times the variance of their mean.
    """
    values = np.log(np.array([point.rounds for point in points]))
    rounds = values.shape[1]
    if rounds < 2:
        return 0.0
    between = np.median(values[:, :, None] - values[:, None, :], axis=0)
    return float(between.mean(axis=1).var(ddof=1)) * math.pi / 2 / rounds


def half_width(variance: float, freedom: int) -> float:
    """Of the interval of an error whose variance was estimated with these degrees of freedom."""
    return float(stdtrit(freedom, (1 + COVERAGE) / 2)) * math.sqrt(variance) if variance else 0.0


class Coefficient(NamedTuple):
    """In seconds a unit of its term; `low` and `high`: its range."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """`points`: what it was fitted to; `residuals`: (measured - fitted) / measured, in their order.
    `values`: of the coefficients; `free`: of those of the fit without bounds; `variance`: of the
    relative errors around that fit; `covariance` [terms, terms]: of its coefficients, for errors of
    variance 1. `drift`: what a law of smaller sizes was off by, as a logarithm, for each doubling
    of B S beyond its sizes."""

    points: tuple[GridPoint, ...]
    values: Array
    residuals: Array
    free: Array
    variance: float
    covariance: Array
    drift: float = 0.0

    def _half_width(self, scatter: float, shifts: float) -> float:
        """Of a figure whose variance is `scatter` times that of a cell's error, plus `shifts` times
        that of the rounds' shifts."""
        by_scatter = half_width(self.variance * scatter, len(self.points) - len(TERMS))
        rounds = len(self.points[0].rounds)
        by_shifts = half_width(shift_variance(self.points) * shifts, rounds - 1)
        return math.hypot(by_scatter, by_shifts)

    @property
    def coefficients(self) -> list[Coefficient]:
        """With their ranges, which are extended to hold the value, and end at 0."""
        found = []
        for name, value, free, scatter in zip(
            TERMS, self.values, self.free, self.covariance.diagonal(), strict=True
        ):
            half = self._half_width(scatter, value**2)
            ends = max(0.0, min(value, free - half)), max(value, free + half)
            found.append(Coefficient(name, float(value), *map(float, ends)))
        return found

    @property
    def formula(self) -> str:
        """`time = 1.2 ms + 0.9 us x B S`."""
        parts = (
            " x ".join(filter(None, (seconds_text(float(value)), symbol)))
            for value, symbol in zip(self.values, TERMS.values(), strict=True)
            if value > 0
        )
        return f"time = {' + '.join(parts)}"

    def at(self, batch: int, seq: int) -> float:
        """Seconds at a size."""
        return float(self.values @ terms_at(batch, seq))

    def interval(self, batch: int, seq: int) -> tuple[float, float]:
        """The range of seconds at a size, around at(batch, seq)."""
        value, terms = self.at(batch, seq), terms_at(batch, seq)
        # 1: the scatter of the new cell itself; 2: shifts of the measured and of the new rounds
        half = self._half_width(terms @ self.covariance @ terms / value**2 + 1, 2)
        doublings = math.log2(batch * seq / max(point.tokens for point in self.points))
        wider = math.exp(min(half, LARGEST_WIDTH) + self.drift * max(0.0, doublings))
        return value / wider, value * wider


# largest over smallest singular value; above it, only rounding tells the terms apart
LARGEST_CONDITION = 1e8
# a term that is nowhere more than this share of the measured value is 0
ROUNDING = 1e-9
# a law with a larger relative residual is refused
LARGEST_MISFIT = 0.5


def _fit(points: Sequence[GridPoint], spare: int = 0) -> Law:
    """The coefficients that describe the points best. LawRefusedError where the points do not
    decide the terms; `spare`: how many more sizes than terms there must be."""
    names = ", ".join(TERMS)
    cells, needed = len({(point.batch, point.seq) for point in points}), len(TERMS) + spare
    if cells < needed:
        raise LawRefusedError(
            f"only {count_of(cells, 'cell')} of batch and sequence: a law of {len(TERMS)} "
            f"coefficients ({names}) needs {needed} or more"
        )
    rows = np.array([terms_at(point.batch, point.seq) / point.value for point in points])
    # scaled, since the columns of S² and of 1 differ by orders of magnitude
    norms, wanted = np.linalg.norm(rows, axis=0), np.ones(len(points))
    scaled = rows / norms
    if np.linalg.cond(scaled) > LARGEST_CONDITION:
        raise LawRefusedError(
            f"the measured batches and sequences are too alike to tell {names} apart: products "
            "B S and B S² must not grow together; measure more sequences"
        )
    solution, _ = nnls(scaled, wanted)
    solution[scaled.max(axis=0) * solution < ROUNDING] = 0.0
    inverse = np.linalg.pinv(scaled)
    free = inverse @ wanted
    variance = ((wanted - scaled @ free) ** 2).sum() / max(1, len(points) - len(TERMS))
    covariance = inverse @ inverse.T / np.outer(norms, norms)
    residuals = wanted - scaled @ solution
    fitted = (solution / norms, residuals, free / norms, float(variance), covariance)
    return Law(tuple(points), *fitted)


# cells with this share of the largest B S of a grid, or more, are held out
HELD_SHARE = 0.5


def _split_largest(points: Sequence[GridPoint]) -> tuple[list[GridPoint], list[GridPoint]]:
    """The cells below half of the largest B S, and the others."""
    limit = HELD_SHARE * max(point.tokens for point in points)
    return [p for p in points if p.tokens < limit], [p for p in points if p.tokens >= limit]


def _drift(points: Sequence[GridPoint]) -> float:
    """Root mean square of log(predicted / measured) of the largest cells by a law of the others,
    for each doubling of B S beyond its own largest; 0 where too few cells are left for a law."""
    kept, held = _split_largest(points)
    try:
        law = _fit(kept)
    except LawRefusedError:
        return 0.0
    ratios = [law.at(p.batch, p.seq) / p.value for p in held]
    doublings = np.log2([p.tokens for p in held]) - math.log2(max(p.tokens for p in kept))
    return math.sqrt(np.mean((np.log(ratios) / doublings) ** 2))


def fit_time_law(points: Sequence[GridPoint]) -> Law:
    """LawRefusedError with the reason where the data supports no law."""
    law = _fit(points, spare=1)
    misfit = float(np.abs(law.residuals).max())
    if misfit > LARGEST_MISFIT:
        raise LawRefusedError(
            f"the best fit of launch + a B S + b B S² is off by {100 * misfit:.0f} % at one cell, "
            f"and must be within {100 * LARGEST_MISFIT:.0f} %: the times scatter, or jump where a "
            "cell outgrows a cache; measure on a quieter machine"
        )
    return replace(law, drift=_drift(points))


@dataclass(frozen=True)
class HeldOutCell:
    """A cell that was held out, and what a law of the other sizes predicts there: `value` and its
    range, in seconds. All cells are of the same rounds, so that the ranges, which are meant for new
    rounds, hold more of them than 95 %."""

    point: GridPoint
    value: float
    low: float
    high: float

    @property
    def error_percent(self) -> float:
        """(predicted - measured) / measured."""
        return 100 * (self.value - self.point.value) / self.point.value

    @property
    def is_covered(self) -> bool:
        return self.low <= self.point.value <= self.high

    @property
    def width_percent(self) -> float:
        """Width of the range over the prediction."""
        return 100 * (self.high - self.low) / self.value


def check_held_out(points: Sequence[GridPoint]) -> tuple[HeldOutCell, ...]:
    """Fits to the cells below half of the largest B S and predicts the others.

    LawRefusedError where the kept cells support no law.
    """
    kept, held = _split_largest(points)
    try:
        law = fit_time_law(kept)
    except LawRefusedError as error:
        what = f"of the {len(kept)} cells that are not held out"
        raise LawRefusedError(f"{what}: {error}") from error
    return tuple(
        HeldOutCell(p, law.at(p.batch, p.seq), *law.interval(p.batch, p.seq)) for p in held
    )
