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

Intervals are Student's, of two sources. The scatter of the cells around the fit, as of linear least
squares without the bounds, which are wider than theirs and hold where a bound is met as well. And
shifts: a round that is slow throughout moves all cells together and shows in no residual. They
count once for the rounds that were measured, which the coefficients rest on, and for a prediction
once more, for as many new ones. With one round they are not known. Each source has its own degrees
of freedom, as few as one, so each has a half-width of its own, and the range the root of the sum of
their squares. That holds at least what it says, which the quantile of Welch and Satterthwaite does
not: where the one deviation of two rounds comes out small by chance, it takes the scatter's.
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

from tinyllama_tools.core.text import seconds_text

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
# of a logarithm: with one degree of freedom, ranges may be beyond all numbers
LARGEST_WIDTH = 20.0
# what the ranges of laws hold
RANGES = (
    "A range is a 95 % interval of what as many new rounds would give, and beyond the fitted sizes "
    "of what a law of the smaller of them was off by. Of one round it is of the scatter of its "
    "sizes alone, which says nothing of another run."
)


def shift_variance(points: Sequence[GridPoint]) -> float:
    """Of the logarithm that the median of the rounds is off by, since each round was slow or fast
    throughout; 0 of a single one.

    Between two rounds it is the median over the cells, which a few disturbed ones do not move. The
    median of normal values has at most pi / 2 times the variance of their mean.
    """
    values = np.log(np.array([point.rounds for point in points]))
    rounds = values.shape[1]
    if rounds < 2:
        return 0.0
    between = np.median(values[:, :, None] - values[:, None, :], axis=0)
    return float(between.mean(axis=1).var(ddof=1)) * math.pi / 2 / rounds


def half_width(variance: float, freedom: int) -> float:
    """Of an interval of an error whose variance is known with these degrees of freedom."""
    return float(stdtrit(freedom, (1 + COVERAGE) / 2)) * math.sqrt(variance) if variance else 0.0


class Coefficient(NamedTuple):
    """In seconds a unit of its term; `low` and `high`: its range."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """`points`: what it was fitted to; `residuals`: measured minus fitted, of the measured, in
    their order. `values`: of the coefficients; `free`: of the best ones without bounds; `variance`:
    of the errors around those, and `covariance` [terms, terms] what errors of variance 1 make of
    them. `drift`: what a law of smaller sizes was off by, as a logarithm an octave of B S beyond
    its sizes."""

    points: tuple[GridPoint, ...]
    values: Array
    residuals: Array
    free: Array
    variance: float
    covariance: Array
    drift: float = 0.0

    def _half_width(self, scatter: float, shifts: float) -> float:
        """Of so many times the variance of a cell's scatter and of the rounds' shifts."""
        of_cells = half_width(self.variance * scatter, len(self.points) - len(TERMS))
        rounds = len(self.points[0].rounds)
        return math.hypot(of_cells, half_width(shift_variance(self.points) * shifts, rounds - 1))

    @property
    def coefficients(self) -> list[Coefficient]:
        """With their ranges, which hold them and nothing below 0."""
        found = []
        for name, value, free, of in zip(
            TERMS, self.values, self.free, self.covariance.diagonal(), strict=True
        ):
            off = self._half_width(of, value**2)
            ends = max(0.0, min(value, free - off)), max(value, free + off)
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
        """The range at a size, which holds at(batch, seq)."""
        value, terms = self.at(batch, seq), terms_at(batch, seq)
        # of the law there and of the cell itself, in the rounds measured and in the new ones
        off = self._half_width(terms @ self.covariance @ terms / value**2 + 1, 2)
        octaves = math.log2(batch * seq / max(point.tokens for point in self.points))
        wider = math.exp(min(off, LARGEST_WIDTH) + self.drift * max(0.0, octaves))
        return value / wider, value * wider


# largest over smallest singular value; above it, terms differ by rounding only
LARGEST_CONDITION = 1e8
# of any measured value; a term that is less is none
ROUNDING = 1e-9
# of a law: what is off by more describes nothing
LARGEST_MISFIT = 0.5


def _fit(points: Sequence[GridPoint], spare: int = 0) -> Law:
    """The coefficients that describe the points best. LawRefusedError where the points do not
    decide the terms; `spare`: how many more sizes than terms there must be."""
    names = ", ".join(TERMS)
    sizes, needed = len({(point.batch, point.seq) for point in points}), len(TERMS) + spare
    if sizes < needed:
        raise LawRefusedError(
            f"{sizes} size{'' if sizes == 1 else 's'}: {len(TERMS)} coefficients ({names}) "
            f"need at least {needed} different ones"
        )
    rows = np.array([terms_at(point.batch, point.seq) / point.value for point in points])
    # those of S² and of 1 differ by orders of magnitude
    norms, wanted = np.linalg.norm(rows, axis=0), np.ones(len(points))
    scaled = rows / norms
    if np.linalg.cond(scaled) > LARGEST_CONDITION:
        raise LawRefusedError(
            f"sizes too alike to tell {names} apart: the batch sizes or sequence lengths must "
            "differ more"
        )
    solution, _ = nnls(scaled, wanted)
    solution[scaled.max(axis=0) * solution < ROUNDING] = 0.0
    inverse = np.linalg.pinv(scaled)
    free = inverse @ wanted
    variance = ((wanted - scaled @ free) ** 2).sum() / max(1, len(points) - len(TERMS))
    covariance = inverse @ inverse.T / np.outer(norms, norms)
    own = (solution / norms, wanted - scaled @ solution, free / norms, float(variance), covariance)
    return Law(tuple(points), *own)


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
        law = _fit(kept)
    except LawRefusedError:
        return 0.0
    said = [law.at(p.batch, p.seq) / p.value for p in held]
    octaves = np.log2([p.tokens for p in held]) - math.log2(max(p.tokens for p in kept))
    return math.sqrt(np.mean((np.log(said) / octaves) ** 2))


def fit_time_law(points: Sequence[GridPoint]) -> Law:
    """LawRefusedError with the reason where the data supports no law."""
    law = _fit(points, spare=1)
    misfit = float(np.abs(law.residuals).max())
    if misfit > LARGEST_MISFIT:
        raise LawRefusedError(
            f"no law describes these sizes: the best is off by {100 * misfit:.0f} %; "
            "measure more rounds on a quieter machine"
        )
    return replace(law, drift=_drift(points))


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
