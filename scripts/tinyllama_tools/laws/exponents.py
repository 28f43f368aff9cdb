"""Exponents of growth: value ~ B^batch S^seq, by least squares of logarithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.laws.points import GridPoint, LawRefusedError, check_points
from tinyllama_tools.laws.support import CONFIDENCE

# of the variance of logarithms: what is left when a value does not vary at all
_NOTHING = 1e-24


@dataclass(frozen=True)
class Estimate:
    """With its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Exponents:
    """`r_squared`: the share of the logarithms' variance that they explain; 1 where none is."""

    batch: Estimate
    seq: Estimate
    r_squared: float


def fit_exponents(points: Sequence[GridPoint]) -> Exponents:
    """Of medians, with intervals by the t distribution.

    LawRefusedError with the reason where the sizes do not decide both exponents.
    """
    # here, since scripts/exercise has numpy alone and imports this package
    from scipy import stats

    check_points(points, ("constant", "batch", "sequence"), spare=1)
    batches = np.log([point.batch for point in points])
    lengths = np.log([point.seq for point in points])
    rows = np.column_stack([np.ones(len(points)), batches, lengths])
    if np.linalg.matrix_rank(rows, tol=1e-8) < rows.shape[1]:
        raise LawRefusedError(
            "sizes too alike to tell the exponents of batch and sequence apart: both must vary, "
            "and not together"
        )
    values = np.log([point.value for point in points])
    solution, *_ = np.linalg.lstsq(rows, values, rcond=None)
    residuals = values - rows @ solution
    freedom = len(points) - rows.shape[1]
    variance = float(residuals @ residuals) / freedom
    errors = np.sqrt(variance * np.diag(np.linalg.inv(rows.T @ rows)))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * errors
    total = float(((values - values.mean()) ** 2).sum())
    r_squared = 1.0 if total < _NOTHING else 1 - freedom * variance / total
    batch, seq = (
        Estimate(float(solution[i]), float(solution[i] - reach[i]), float(solution[i] + reach[i]))
        for i in (1, 2)
    )
    return Exponents(batch, seq, r_squared)
