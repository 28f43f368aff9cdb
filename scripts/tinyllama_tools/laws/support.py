"""Which terms the data supports: those that a fit is worse without and whose interval excludes 0.

From the full law, terms are taken away one at a time, least needed first, until each that is left
- has a 95 % interval above 0 (bootstrap.py), and
- lowers the corrected AIC, n ln(RSS / n) + 2 k + 2 k (k + 1) / (n - k - 1) with k the coefficients
  and the variance (Hurvich and Tsai, Biometrika 76, 1989; Burnham and Anderson, Model Selection and
  Multimodel Inference, 2002, section 2.4). Where n < k + 2 it is not defined and the interval
  decides alone; with as few cells that interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.laws.bootstrap import Draws, draw
from tinyllama_tools.laws.points import GridPoint, LawRefusedError
from tinyllama_tools.laws.relative_fit import RelativeFit, fit_relative
from tinyllama_tools.laws.terms import Array

CONFIDENCE = 0.95
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


def interval_of(values: Array, share: float = CONFIDENCE) -> tuple[float, float]:
    """The middle 95 % of draws, or another share."""
    outside = (1 - share) / 2
    low, high = np.quantile(values, [outside, 1 - outside])
    return float(low), float(high)


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
