"""Shift between two independent samples by ranks: exact test, estimate and interval.

If the sides are interchangeable, every choice of which values are the new ones is equally likely,
so the p-value of the sum of their ranks is exact, with ties (mid-ranks) too (Wilcoxon 1945; Mann,
Whitney, Annals of Mathematical Statistics 18, 1947). The number of positive differences new - base
is the Mann-Whitney count, so the ordered differences at its critical value bound the shift
(Hollander, Wolfe, Chicken, Nonparametric Statistical Methods, 3rd edition, sections 4.1 to 4.3).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tinyllama_tools.judging.signed_rank import Array


@lru_cache(maxsize=256)
def _mass(doubled_ranks: tuple[int, ...], chosen: int) -> Array:
    """At s: P(sum of `chosen` ranks drawn without replacement = s / 2)."""
    ways = np.zeros((chosen + 1, sum(sorted(doubled_ranks)[-chosen:]) + 1))
    ways[0, 0] = 1.0
    for rank in doubled_ranks:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank]
    return ways[chosen] / ways[chosen].sum()


def p_value(base: Array, new: Array) -> float:
    """Exact and two-sided (the smaller tail doubled) for no shift between the two samples."""
    ranks = np.rint(2 * stats.rankdata(np.concatenate([base, new]))).astype(np.int64)
    mass = _mass(tuple(np.sort(ranks).tolist()), new.size)
    found = int(ranks[base.size :].sum())
    return float(min(1.0, 2 * min(mass[: found + 1].sum(), mass[found:].sum())))


@lru_cache(maxsize=256)
def _lower_tail(base: int, new: int) -> Array:
    """At k: P(Mann-Whitney count <= k) without ties."""
    mass = _mass(tuple(range(2, 2 * (base + new) + 1, 2)), new)
    return np.cumsum(mass[new * (new + 1) :: 2])


def critical_count(base: int, new: int, level: float) -> int:
    """Largest k with P(count <= k) <= `level` (one-sided), -1 where there is none."""
    return int(np.searchsorted(_lower_tail(base, new), level, side="right")) - 1


def confidence_without(base: int, new: int, left_out: int) -> float:
    """Of the interval that leaves out this many differences at each end."""
    return 1 - 2 * float(_lower_tail(base, new)[left_out])


def differences(base: Array, new: Array) -> Array:
    """Ordered new - base of all pairs, row by row (samples x values)."""
    found = (new[:, :, np.newaxis] - base[:, np.newaxis, :]).reshape(len(base), -1)
    found.sort(axis=1)
    return found


def interval_ends(
    ordered: NDArray[np.float64], base: int, new: int, confidence: float
) -> tuple[float, float] | None:
    """Of one sample's ordered differences; None: too few values for this confidence."""
    left_out = critical_count(base, new, (1 - confidence) / 2)
    if left_out < 0:
        return None
    return float(ordered[left_out]), float(ordered[-1 - left_out])
