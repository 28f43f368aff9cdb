"""Fits the laws of time and memory over batch and sequence at one model size.

  time = launch + linear B S + quadratic B S^2
  memory = base + batch B + linear B S + quadratic B S^2

No coefficient is below 0, for each stands for work or tensors. These laws describe the grid that
they were fitted to and its neighbourhood; they say nothing about other model sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyllama_tools.laws.bootstrap import Draws
from tinyllama_tools.laws.formula import Quantity
from tinyllama_tools.laws.law import Coefficient, Law
from tinyllama_tools.laws.points import GridPoint
from tinyllama_tools.laws.relative_fit import fit_relative
from tinyllama_tools.laws.support import Selection, interval_of, select_terms
from tinyllama_tools.laws.terms import MEMORY_TERMS, TIME_TERMS, Term

DEFAULT_SEED = 1


def _of_all_terms(terms: Sequence[Term], selection: Selection) -> Draws:
    """The draws of the supported terms, with 0 for the others."""
    drawn = np.zeros((len(selection.draws.coefficients), len(terms)))
    drawn[:, [terms.index(term) for term in selection.fit.terms]] = selection.draws.coefficients
    return Draws(drawn, selection.draws.noise)


def _fit_law(
    quantity: Quantity, terms: tuple[Term, ...], points: Sequence[GridPoint], seed: int
) -> Law:
    full = fit_relative(points, terms, non_negative=True)
    selection = select_terms(points, full, seed)
    kept = dict(zip(selection.fit.terms, selection.fit.coefficients, strict=True))
    draws = (_of_all_terms(terms, selection), selection.all_draws)
    coefficients = []
    for position, (term, of_all) in enumerate(zip(terms, full.coefficients, strict=True)):
        supported = term in kept
        value = float(kept.get(term, of_all))
        ends = [value]
        for found in draws if supported else draws[1:]:
            ends += interval_of(found.coefficients[:, position])
        reason = selection.reasons.get(term.name, "")
        coefficients.append(Coefficient(term.name, value, min(ends), max(ends), supported, reason))
    residuals = tuple(100 * float(residual) for residual in selection.fit.residuals)
    return Law(quantity, terms, tuple(coefficients), tuple(points), residuals, draws)


def fit_time_law(points: Sequence[GridPoint], seed: int = DEFAULT_SEED) -> Law:
    """Seconds; LawRefusedError with the reason where the data supports no law."""
    return _fit_law(Quantity.TIME, TIME_TERMS, points, seed)


def fit_memory_law(points: Sequence[GridPoint], seed: int = DEFAULT_SEED) -> Law:
    """Bytes; LawRefusedError with the reason where the data supports no law."""
    return _fit_law(Quantity.MEMORY, MEMORY_TERMS, points, seed)
