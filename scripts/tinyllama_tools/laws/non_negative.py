"""Least squares without negative coefficients, of few terms and for thousands of targets at once.

The solution is the unconstrained one of the terms that are not 0 in it, and of all sets of terms
whose unconstrained solution has nothing negative it is the one that fits best (Lawson and Hanson,
Solving Least Squares Problems, 1974, chapter 23). With three or four terms all sets can be tried,
each for all targets in one product. scipy.optimize.nnls, with which a test compares it, solves one
target at a time.
"""

from __future__ import annotations

import itertools

import numpy as np

from tinyllama_tools.laws.terms import Array


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
