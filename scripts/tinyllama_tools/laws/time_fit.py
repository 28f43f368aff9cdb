"""Fits the law of time over batch and sequence at one model size.

  time = launch + linear B S + quadratic B S²

No coefficient is below 0, for each stands for work, and no term is fitted that the work itself does
not have (work.py). The law describes the grid that it was fitted to and its neighbourhood; it says
nothing about other model sizes.

Beyond the measured sizes a law can be wrong in a way that no residual shows: a larger size no
longer fits into a cache. How wrong is taken from the step before: what a law of the smaller sizes
is off by at the larger ones, an octave of B S, beyond what its scatter explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tinyllama_tools.laws.bootstrap import Draws
from tinyllama_tools.laws.formula import Quantity
from tinyllama_tools.laws.law import Coefficient, Law
from tinyllama_tools.laws.points import (
    GridPoint,
    LawRefusedError,
    check_points,
    split_largest,
)
from tinyllama_tools.laws.relative_fit import fit_relative
from tinyllama_tools.laws.support import Selection, interval_of, select_terms
from tinyllama_tools.laws.terms import TIME_TERMS, Term, term_values

DEFAULT_SEED = 1
NO_WORK = "neither FLOPs nor bytes have it"


def _of_all_terms(draws: Draws, terms: Sequence[Term]) -> Draws:
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
        _of_all_terms(selection.draws, selection.fit.terms),
        _of_all_terms(selection.all_draws, full.terms),
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
