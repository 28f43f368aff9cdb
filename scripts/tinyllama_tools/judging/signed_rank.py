"""Location of paired differences by signed ranks: exact test, Hodges-Lehmann estimate, interval.

The test flips signs: if base and new are interchangeable, each difference could as well have had
the other sign, so all 2^n sign patterns are equally likely, whatever the distribution (Wilcoxon,
Biometrics Bulletin 1, 1945). Its p-value is exact, with ties (mid-ranks) and zeros (Pratt, JASA 54,
1959) too. Estimate and interval come from the same ranks: the number of positive Walsh averages
(means of two values, each with itself included) is the signed-rank sum, so the ordered Walsh
averages at its critical value bound the location (Hollander, Wolfe, Chicken, Nonparametric
Statistical Methods, 3rd edition, sections 3.1 to 3.3).

Functions on `rows` judge many samples of equal size at once; they are the only implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from tinyllama_tools.judging.design import MOST_BLOCKS

Array = NDArray[np.float64]


def _sign_flips(ranks: Sequence[int], largest: int) -> Array:
    """At w up to `largest`: P(sum of the ranks of positive values = w), every sign a fair coin.

    One rank after the other, the distribution of the sum is added to itself moved by that rank.
    """
    if len(ranks) > MOST_BLOCKS:
        raise ValueError(f"{len(ranks)} values: at most {MOST_BLOCKS} in an exact test")
    mass = np.zeros(largest + 1)
    mass[0] = 0.5 ** len(ranks)
    used = 1
    for rank in ranks:
        fits = min(used, mass.size - rank)
        if fits <= 0:
            continue  # too large for any of these sums
        # numpy reads all of the right side before it writes, although they overlap
        mass[rank : rank + fits] += mass[:fits]
        used = max(used, rank + fits)
    return mass


@lru_cache(maxsize=512)
def lower_tail(count: int) -> Array:
    """At w: P(sum of the ranks of positive values <= w) for `count` values without ties."""
    return np.cumsum(_sign_flips(range(1, count + 1), count * (count + 1) // 2))


@lru_cache(maxsize=4096)
def _tail_of_ties(doubled_ranks: tuple[int, ...], doubled_sum: int) -> float:
    """P(sum <= doubled_sum / 2); doubled, mid-ranks are whole numbers."""
    return float(_sign_flips(doubled_ranks, doubled_sum).sum())


def _p_values_of_ties(rows: Array) -> Array:
    doubled = np.rint(2 * stats.rankdata(np.abs(rows), axis=1)).astype(np.int64)
    # zeros take part in ranking and are then left out
    doubled[rows == 0] = 0
    of_positive = np.where(rows > 0, doubled, 0).sum(axis=1)
    # the distribution is symmetric: only the smaller tail is computed
    smaller = np.minimum(of_positive, doubled.sum(axis=1) - of_positive)
    doubled.sort(axis=1)
    tails = [
        _tail_of_ties(tuple(rank for rank in ranks if rank), doubled_sum)
        for ranks, doubled_sum in zip(doubled.tolist(), smaller.tolist(), strict=True)
    ]
    return np.minimum(1.0, 2.0 * np.array(tails))


def p_values(rows: Array) -> Array:
    """Exact two-sided p-value of each row (cases x values) for a location of zero."""
    count = rows.shape[1]
    magnitudes = np.abs(rows)
    order = np.argsort(magnitudes, axis=1)
    ordered = np.take_along_axis(magnitudes, order, axis=1)
    positive = np.take_along_axis(rows, order, axis=1) > 0
    of_positive = positive @ np.arange(1, count + 1)
    smaller = np.minimum(of_positive, count * (count + 1) // 2 - of_positive)
    found = np.minimum(1.0, 2.0 * lower_tail(count)[smaller])
    tied = (ordered[:, 0] == 0) | np.any(ordered[:, 1:] == ordered[:, :-1], axis=1)
    if tied.any():
        found[tied] = _p_values_of_ties(rows[tied])
    return found


@lru_cache(maxsize=512)
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(count)


def walsh_averages(rows: Array) -> Array:
    """Ordered means of all pairs in a row, values with themselves included: n (n + 1) / 2."""
    first, second = _pairs(rows.shape[1])
    averages = rows[:, first]
    averages += rows[:, second]
    averages *= 0.5
    averages.sort(axis=1)
    return averages


def middle(ordered: Array) -> Array:
    """Median of each row of ordered values."""
    size = ordered.shape[1]
    return 0.5 * (ordered[:, (size - 1) // 2] + ordered[:, size // 2])


@lru_cache(maxsize=4096)
def critical_sum(count: int, level: float) -> int:
    """Largest k with P(signed-rank sum <= k) <= `level` (one-sided), -1 where there is none."""
    return int(np.searchsorted(lower_tail(count), level, side="right")) - 1


def interval_ends(ordered: Array, count: int, confidence: float) -> tuple[Array, Array] | None:
    """Of each row of ordered Walsh averages; None: too few values for this confidence."""
    left_out = critical_sum(count, (1 - confidence) / 2)
    if left_out < 0:
        return None
    return ordered[:, left_out], ordered[:, -1 - left_out]


def standard_errors(ordered: Array, count: int) -> Array | None:
    """Standard error of the Hodges-Lehmann estimate, from the width of its 95 % interval.

    Lehmann, Annals of Mathematical Statistics 34 (1963): the width estimates the estimate's own
    variance without a density, and bears wild values as the estimate does. The width is divided by
    Student's quantile at the interval's true confidence. None below 6 values, where no interval
    has 95 %.
    """
    left_out = critical_sum(count, 0.025)
    if left_out < 0:
        return None
    outside = float(lower_tail(count)[left_out])
    quantile = -special.stdtrit(count - 1, outside)
    return (ordered[:, -1 - left_out] - ordered[:, left_out]) / (2 * quantile)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Median of the Walsh averages (Hodges, Lehmann, Annals of Mathematical Statistics 34, 1963).

    Raises ValueError for no values or values that are not finite.
    """
    row = np.asarray(values, dtype=np.float64)[np.newaxis, :]
    if row.size == 0 or not np.all(np.isfinite(row)):
        raise ValueError(f"{list(values)}: at least one value, all of them finite")
    return float(middle(walsh_averages(row))[0])
