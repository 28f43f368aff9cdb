"""Fits the law of memory over batch and sequence at one model size.

  memory = base + batch B + linear B S + quadratic B S² + table S + mask S²

No coefficient is below 0, for each stands for tensors. Memory is counted and has no noise: what a
law is off by is its own misfit, and its ranges are made of misfits: how far off the law of the
other sizes is at each size, and what each coefficient becomes without any one of them.

A peak is the highest of several moments, each of which has a law of its own: that of a step's
update, say, does not depend on the batch, and is the highest at small sizes only. The law is of
the moment that is the highest at the large sizes. So the sizes with the smallest peaks are left out
where the law of the others then has a smaller misfit: up to half of all, and all that have the same
smallest peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.laws.bootstrap import LARGEST_LEVERAGE, Draws
from tinyllama_tools.laws.formula import Quantity
from tinyllama_tools.laws.law import Coefficient, Law
from tinyllama_tools.laws.points import GridPoint, LawRefusedError
from tinyllama_tools.laws.relative_fit import RelativeFit, fit_relative
from tinyllama_tools.laws.support import ABSENT, NOT_LOWER, RESOLUTION, corrected_aic
from tinyllama_tools.laws.terms import MASK, MEMORY_TERMS, TABLE, Array, term_values

# of a peak; what is less is the allocator's rounding
SMALLEST_MISFIT = 1e-3
# of a peak; what is off by more describes nothing
LARGEST_MISFIT = 0.5
# sizes more than terms, where some are left out
SPARE = 2
# of the smallest peak; what is above it by less is the same
FLAT = 1e-2
TOO_ALIKE = "the sizes do not tell it from the others"


@dataclass(frozen=True)
class _Selected:
    """`reasons`: against the terms that are left out, by name."""

    points: tuple[GridPoint, ...]
    fit: RelativeFit
    reasons: dict[str, str]

    @property
    def is_sound(self) -> bool:
        """Of enough sizes for its misfit to tell something."""
        return self.fit.freedom >= SPARE and bool((self.fit.leverage < LARGEST_LEVERAGE).all())

    @property
    def misfit(self) -> float:
        """The largest, of the measured, of each size by the law of the others where they have one,
        else by that of all.
        """
        of_all = np.abs(self.fit.residuals)
        found = np.abs(self.fit.without_each()[1]) if self.is_sound else of_all
        return max(SMALLEST_MISFIT, float(found.max()))

    def is_above(self, point: GridPoint) -> bool:
        """Whether the law says more than was measured, and more than its misfit allows for."""
        said = self.fit.coefficients @ term_values(self.fit.terms, point.batch, point.seq)
        return float(said) > (1 + self.misfit) * point.value


def _of_all_terms(points: Sequence[GridPoint]) -> RelativeFit:
    """Without those that all samples share, where the sizes do not decide them."""
    try:
        return fit_relative(points, MEMORY_TERMS, non_negative=False)
    except LawRefusedError:
        fewer = [term for term in MEMORY_TERMS if term not in (TABLE, MASK)]
        return fit_relative(points, fewer, non_negative=False)


def _score(fit: RelativeFit) -> float:
    """Lower is better; there are too few sizes where the corrected AIC is not defined."""
    score = corrected_aic(fit)
    return math.inf if score is None else score


def _select(points: tuple[GridPoint, ...]) -> _Selected:
    """From all terms those that would be below 0 are taken away, the furthest first, and then the
    least needed ones until the corrected AIC would rise.
    """
    fit = _of_all_terms(points)
    reasons = {term.name: TOO_ALIKE for term in MEMORY_TERMS if term not in fit.terms}
    while len(fit.terms) > 1:
        is_absent = fit.largest_shares.min() < RESOLUTION
        position = int((fit.largest_shares if is_absent else fit.increases).argmin())
        left = [term for index, term in enumerate(fit.terms) if index != position]
        smaller = fit_relative(points, left, non_negative=False)
        if not is_absent and _score(fit) < _score(smaller):
            break
        reasons[fit.terms[position].name] = ABSENT if is_absent else NOT_LOWER
        fit = smaller
    return _Selected(points, fit, reasons)


def _flat(points: Sequence[GridPoint]) -> int:
    """How many of them have the smallest peak."""
    least = min(point.value for point in points)
    return sum(point.value <= (1 + FLAT) * least for point in points)


def _select_moment(points: tuple[GridPoint, ...]) -> _Selected:
    """Without so many of the smallest peaks as make the misfit smallest."""
    best = _select(points)
    ordered = sorted(points, key=lambda point: point.value)
    for below in range(1, max(len(points) // 2, _flat(points)) + 1):
        if best.misfit <= SMALLEST_MISFIT:
            break
        smallest = ordered[:below]
        try:
            found = _select(tuple(point for point in points if point not in smallest))
        except LawRefusedError:
            break
        # a moment that is higher than the peak is none
        is_moment = found.is_sound and not any(map(found.is_above, smallest))
        if is_moment and found.misfit < best.misfit:
            best = found
    return best


def _refuse_what_describes_nothing(points: tuple[GridPoint, ...], selected: _Selected) -> None:
    off = float(np.abs(selected.fit.residuals).max())
    if off > LARGEST_MISFIT:
        raise LawRefusedError(
            f"no law of memory describes these sizes: the best is off by {100 * off:.0f} %; "
            "compare the measured peaks with the predicted ones"
        )
    flat = _flat(selected.points)
    if off > FLAT and flat > len(selected.points) / 2:
        least = Quantity.MEMORY.text(min(point.value for point in points))
        above = len(points) - _flat(points)
        raise LawRefusedError(
            f"sizes with a peak above {least}: {above} of {len(points)}, too few to tell how it "
            "grows from there; measure larger ones"
        )


def _ranges(selected: _Selected) -> Draws:
    """The law with any one size left out, each with the largest misfit up and down."""
    fit = selected.fit
    rows = [fit.coefficients, *(fit.without_each()[0] if selected.is_sound else [])]
    of_all: Array = np.zeros((len(rows), len(MEMORY_TERMS)))
    of_all[:, [MEMORY_TERMS.index(term) for term in fit.terms]] = rows
    misfit = math.log1p(selected.misfit)
    return Draws(np.repeat(of_all, 2, axis=0), np.tile([-misfit, misfit], len(rows)))


def fit_memory_law(points: Sequence[GridPoint]) -> Law:
    """Bytes; LawRefusedError with the reason where the data supports no law."""
    selected = _select_moment(tuple(points))
    _refuse_what_describes_nothing(tuple(points), selected)
    ranges = _ranges(selected)
    kept = dict(zip(selected.fit.terms, selected.fit.coefficients, strict=True))
    coefficients = []
    for term, of_term in zip(MEMORY_TERMS, ranges.coefficients.T, strict=True):
        value, low, high = float(kept.get(term, 0.0)), float(of_term.min()), float(of_term.max())
        reason = selected.reasons.get(term.name, "")
        coefficients.append(Coefficient(term.name, value, low, high, term in kept, reason))
    return Law(
        Quantity.MEMORY,
        MEMORY_TERMS,
        tuple(coefficients),
        selected.points,
        tuple(100 * float(residual) for residual in selected.fit.residuals),
        (ranges,),
        below=tuple(point for point in points if point not in selected.points),
    )
