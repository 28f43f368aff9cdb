"""What else the coefficients could be: a seeded bootstrap over cells and rounds.

A draw gives every cell another cell's residual, with a sign of its own (residuals over
sqrt(1 - leverage), so that all have the variance of the errors), and fits again. Residuals of a
cell's median hold both its noise and the law's lack of fit. All of a draw's errors are scaled by
sqrt(f / chi-square of f), f being the degrees of freedom: with few cells the scatter itself is
badly known, and this gives the draws the tails of the t distribution (Davison and Hinkley,
Bootstrap Methods and their Application, 1997, sections 2.3 and 6.2.3 for residuals and leverage).

A round that is slow throughout moves all cells together and shows in no residual, so the rounds'
common shifts are drawn too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.laws.non_negative import non_negative_solutions
from tinyllama_tools.laws.points import GridPoint
from tinyllama_tools.laws.relative_fit import RelativeFit
from tinyllama_tools.laws.terms import Array

DRAWS = 2000
# residuals of cells that a coefficient alone decides say nothing about the errors
LARGEST_LEVERAGE = 0.99


@dataclass(frozen=True)
class Draws:
    """`coefficients` [draws, terms]; `noise` [draws]: logarithm of measured over law at a cell."""

    coefficients: Array
    noise: Array


def round_shifts(points: Sequence[GridPoint]) -> Array:
    """[rounds]: logarithm of how slow each round was throughout, around their mean."""
    values = np.log(np.array([point.rounds for point in points]))
    shifts = np.median(values - np.median(values, axis=1, keepdims=True), axis=0)
    return shifts - shifts.mean()


def _drawn_shifts(shifts: Array, generator: np.random.Generator) -> Array:
    """[DRAWS]: the mean shift of rounds drawn anew, widened for their small number."""
    rounds = len(shifts)
    if rounds < 2 or not shifts.any():
        return np.zeros(DRAWS)
    chosen = generator.integers(rounds, size=(DRAWS, rounds))
    return shifts[chosen].mean(axis=1) * math.sqrt(rounds / (rounds - 1))


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
    basis, _ = np.linalg.qr(errors_of.scaled)
    leverage = np.minimum(np.einsum("ij,ij->i", basis, basis), LARGEST_LEVERAGE)
    errors = errors_of.residuals / np.sqrt(1 - leverage)
    errors = np.concatenate([errors, -errors])
    # one column more than cells: the error of the cell that a law is asked about
    drawn = errors[generator.integers(len(errors), size=(DRAWS, len(points) + 1))]
    freedom = errors_of.freedom
    drawn *= np.sqrt(freedom / generator.chisquare(freedom, size=DRAWS))[:, None]
    fitted = model.scaled @ (model.coefficients * model.norms)
    solutions = non_negative_solutions(model.scaled, fitted + drawn[:, :-1])
    shifts = _drawn_shifts(round_shifts(points), generator)
    coefficients = solutions / model.norms * np.exp(shifts)[:, None]
    return Draws(coefficients, drawn[:, -1])
