"""What else the coefficients could be: a seeded bootstrap over cells and rounds.

A draw gives every cell another cell's residual, with a sign of its own (residuals over
sqrt(1 - leverage), so that all have the variance of the errors), and fits again. Residuals of a
cell's median hold both its noise and the law's lack of fit. All of a draw's errors are scaled by
sqrt(f / chi-square of f), f being the degrees of freedom: with few cells the scatter itself is
badly known, and this gives the draws the tails of the t distribution (Davison and Hinkley,
Bootstrap Methods and their Application, 1997, sections 2.3 and 6.2.3 for residuals and leverage).

A round that is slow throughout moves all cells together and shows in no residual. Such shifts are
drawn twice: for the rounds that were measured, which the coefficients rest on, and for as many new
ones, which a prediction is about. With one round they are not known at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.laws.non_negative import non_negative_solutions
from tinyllama_tools.laws.points import GridPoint
from tinyllama_tools.laws.relative_fit import RelativeFit
from tinyllama_tools.laws.terms import Array

DRAWS = 2000
# residuals of cells that alone decide a coefficient say nothing about the errors
LARGEST_LEVERAGE = 0.99
# of a logarithm: with one degree of freedom, single draws are beyond all numbers
LARGEST_SHIFT = 20.0


@dataclass(frozen=True)
class Draws:
    """`coefficients` [draws, terms]; `noise` [draws]: logarithm of measured over law at a cell."""

    coefficients: Array
    noise: Array


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
