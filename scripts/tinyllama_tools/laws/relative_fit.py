"""Least squares of relative errors: a small size counts as much as a large one.

With y measured and A the terms at each size, it minimises the sum of (1 - A x / y)^2: the problem
X x = 1 with rows X = A / y. Columns are divided by their norms, since those of S² and of 1 differ
by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tinyllama_tools.laws.non_negative import non_negative_solutions
from tinyllama_tools.laws.points import GridPoint, LawRefusedError, check_points
from tinyllama_tools.laws.terms import Array, Term, design_matrix

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
