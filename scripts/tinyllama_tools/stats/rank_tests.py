"""Exact rank tests with estimates and intervals, Holm's correction, and ratios of two sides that
are interleaved.

Paired: if base and new are interchangeable, each difference could as well have had the other sign,
so all 2^n sign patterns are equally likely, whatever the distribution (Wilcoxon, Biometrics
Bulletin 1, 1945). The p-value is exact, with ties (mid-ranks) and zeros (Pratt, JASA 54, 1959) too.
The number of positive Walsh averages (means of two values, each with itself included) is the
signed-rank sum, so the ordered Walsh averages at its critical value bound the location.

Unpaired: every choice of which values are the new ones is equally likely, so the p-value of their
rank sum is exact, with ties too (Mann, Whitney, Annals of Mathematical Statistics 18, 1947). The
number of positive differences new - base is the Mann-Whitney count, so the ordered differences at
its critical value bound the shift.

Intervals: Hollander, Wolfe, Chicken, Nonparametric Statistical Methods, 3rd edition, chapters 3, 4.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

# up to so many values, probabilities of the exact test (2^-values and more) have all their digits
MOST_BLOCKS = 1000
Array = NDArray[np.float64]


def _sign_flips(ranks: Iterable[int], largest: int) -> Array:
    """By w up to `largest`: P(sum of the ranks of positive values = w), where every sign is a fair
    coin. `ranks`: in growing order. For each rank, the distribution so far is added to itself,
    moved by that rank.
    """
    ranks = tuple(ranks)
    if len(ranks) > MOST_BLOCKS:
        raise ValueError(f"{len(ranks)} values: at most {MOST_BLOCKS} in an exact test")
    mass, used = np.zeros(largest + 1), 1
    mass[0] = 0.5 ** len(ranks)
    for rank in ranks:
        fits = min(used, mass.size - rank)
        if fits <= 0:
            break
        # numpy reads all of the right side before it writes, although they overlap
        mass[rank : rank + fits] += mass[:fits]
        used = rank + fits
    return mass


@lru_cache(maxsize=512)
def signed_rank_tail(count: int) -> Array:
    """By w: P(sum of the ranks of positive values <= w) for `count` values without ties."""
    return np.cumsum(_sign_flips(range(1, count + 1), count * (count + 1) // 2))


@lru_cache(maxsize=4096)
def _tail_of_ties(doubled_ranks: tuple[int, ...], doubled_sum: int) -> float:
    """P(sum <= doubled_sum / 2). Mid-ranks may end in .5, so that all are doubled here."""
    return float(_sign_flips(doubled_ranks, doubled_sum).sum())


def _doubled_ranks(values: Array) -> NDArray[np.int64]:
    """Twice the mid-ranks. Not by scipy.stats.rankdata, since importing that takes longer than all
    else that a command does at its start."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (2 * np.cumsum(counts) - counts + 1)[places]


def _tails_with_ties(rows: Array) -> list[float]:
    doubled = np.array([_doubled_ranks(row) for row in np.abs(rows)])
    negative = (doubled * (rows < 0)).sum(axis=1).tolist()
    # Pratt: zeros are ranked with the others, but their ranks are in no sum
    doubled[rows == 0] = 0
    doubled.sort(axis=1)
    kept = (tuple(rank for rank in ranks if rank) for ranks in doubled.tolist())
    return [_tail_of_ties(*found) for found in zip(kept, negative, strict=True)]


def p_values(rows: Array) -> Array:
    """Exact signed-rank p-value of each row (cases x values), of a location of zero or less: small
    where values are positive."""
    count = rows.shape[1]
    ordered = np.take_along_axis(rows, np.argsort(np.abs(rows), axis=1), axis=1)
    tails = signed_rank_tail(count)[(ordered < 0) @ np.arange(1, count + 1)]
    sizes = np.abs(ordered)
    tied = (sizes[:, 0] == 0) | np.any(sizes[:, 1:] == sizes[:, :-1], axis=1)
    if tied.any():
        tails[tied] = _tails_with_ties(rows[tied])
    return tails


def autocorrelations(rows: Array) -> Array:
    """Of each row of four values or more, in order of time: the correlation of a value with the
    next one, 0 where all are the same. The usual estimate, whose mean over n values is
    rho - (1 + 3 rho) / n (Kendall, Biometrika 41, 1954), is corrected for that bias."""
    count = rows.shape[1]
    apart = rows - rows.mean(axis=1, keepdims=True)
    squares = (apart**2).sum(axis=1)
    lagged = (apart[:, 1:] * apart[:, :-1]).sum(axis=1)
    usual = np.divide(
        lagged, squares, out=np.full(len(rows), -1 / count), where=np.ptp(rows, axis=1) > 0
    )
    return (count * usual + 1) / (count - 3)


_pairs = lru_cache(maxsize=512)(np.triu_indices)


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


def hodges_lehmann(values: Sequence[float]) -> float:
    """Median of the Walsh averages (Hodges, Lehmann, Annals of Math. Statistics 34, 1963)."""
    return float(middle(walsh_averages(np.array([values])))[0])


@lru_cache(maxsize=256)
def _rank_sums(doubled_ranks: tuple[int, ...], chosen: int) -> Array:
    """By s: P(sum of `chosen` ranks drawn without replacement = s / 2)."""
    ways = np.zeros((chosen + 1, sum(sorted(doubled_ranks)[-chosen:]) + 1))
    ways[0, 0] = 1.0
    for rank in doubled_ranks:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank]
    return ways[chosen] / ways[chosen].sum()


def rank_sum_p_value(base: Array, new: Array) -> float:
    """Exact p-value of new values being no larger than those of the base: small where they are."""
    ranks = _doubled_ranks(np.concatenate([base, new]))
    mass = _rank_sums(tuple(np.sort(ranks).tolist()), new.size)
    return float(mass[int(ranks[base.size :].sum()) :].sum())


@lru_cache(maxsize=256)
def rank_sum_tail(base: int, new: int) -> Array:
    """By k: P(Mann-Whitney count <= k) without ties."""
    mass = _rank_sums(tuple(range(2, 2 * (base + new) + 1, 2)), new)
    return np.cumsum(mass[new * (new + 1) :: 2])


def critical_value(tail: Array, level: float) -> int:
    """Largest k with P(statistic <= k) <= `level` (one-sided), -1 where there is none."""
    return int(np.searchsorted(tail, level, side="right")) - 1


def interval_ends(ordered: Array, tail: Array, confidence: float) -> tuple[Array, Array] | None:
    """Of each row of ordered Walsh averages or differences; `tail`: the distribution of their
    statistic. None where there are too few values for this confidence."""
    left_out = critical_value(tail, (1 - confidence) / 2)
    return None if left_out < 0 else (ordered[:, left_out], ordered[:, -1 - left_out])


def standard_errors(ordered: Array, tail: Array, degrees: int) -> Array | None:
    """Standard error of each row's estimate, from the width of its 95 % interval.

    Lehmann, Annals of Mathematical Statistics 34 (1963): the width estimates the estimate's own
    variance without a density, and outliers move it as little as they move the estimate. It is
    divided by Student's quantile at the interval's true confidence. None where there are too few
    values for 95 %.
    """
    left_out = critical_value(tail, 0.025)
    if left_out < 0:
        return None
    quantile = -special.stdtrit(degrees, tail[left_out])
    return (ordered[:, -1 - left_out] - ordered[:, left_out]) / (2 * quantile)


def holm_adjusted(p_values: Array, family: int) -> Array:
    """Adjusted p-values: where those at or below alpha count as shown, the chance that any of them
    is wrong is at most alpha (Holm, Scandinavian Journal of Statistics 6, 1979).

    `family`: the number of cases; those without a p-value count as if it were 1.
    """
    order = np.argsort(p_values, kind="stable")
    steps = (family - np.arange(len(p_values))) * p_values[order]
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


WANTED_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, both included; holds the true value with probability `confidence`."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Median:
    """Of several values; `interval`: None where there is a single one."""

    median: float
    interval: Interval | None

    def text(self, digits: int = 2) -> str:
        """`1.23 (1.20 to 1.26)`, `1.23 (1.10 to 1.40 at 75 %)` below 95 %, or `1.23` alone."""
        if self.interval is None:
            return f"{self.median:.{digits}f}"
        low, high, confidence = astuple(self.interval)
        sure = "" if confidence >= WANTED_CONFIDENCE else f" at {100 * confidence:.0f} %"
        return f"{self.median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}{sure})"


# below it no difference is shown; the range of five values has it, that of four has not
DECISIVE_CONFIDENCE = 0.9


@dataclass(frozen=True)
class Quotient(Median):
    """Of two times."""

    @property
    def shows_difference(self) -> bool:
        """Whether 1 is outside of the interval; without one, nothing is shown."""
        found = self.interval
        if found is None or found.confidence < DECISIVE_CONFIDENCE:
            return False
        return not found.low <= 1 <= found.high

    def marked_text(self) -> str:
        """As text(), with `~` before it where no difference was shown."""
        return self.text() if self.shows_difference else f"~ {self.text()}"


@dataclass(frozen=True)
class Estimate(Median):
    """A median over `rounds`, each of which runs every way of doing a step, in an order drawn anew,
    so that a figure of a round compares what was run within a short time. The interval is
    median_interval(); fewer than six rounds cannot reach 95 %."""

    rounds: int


def median_interval(values: Sequence[float]) -> Interval | None:
    """Of the median, whatever the distribution: the narrowest interval of 95 % or more between two
    of the ordered values; where none has that, their range with its true confidence; None for a
    single value.

    How many values lie below the median is binomial with probability 1/2.
    """
    count = len(values)
    if count < 2:
        return None
    ordered = sorted(values)
    below = [math.comb(count, k) for k in range(count // 2)]
    confidences = [1 - 2 * sum(below[: k + 1]) / 2**count for k in range(count // 2)]
    left_out = max(0, sum(c >= WANTED_CONFIDENCE for c in confidences) - 1)
    return Interval(ordered[left_out], ordered[-1 - left_out], confidences[left_out])


def ends_of_median(times: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of two or more times: Student's t over their logarithms,
    widened where it would not hold the median."""
    logarithms = [math.log(value) for value in times]
    middle, count = statistics.fmean(logarithms), len(times)
    quantile = float(special.stdtrit(count - 1, (1 + WANTED_CONFIDENCE) / 2))
    half = quantile * statistics.stdev(logarithms) / math.sqrt(count)
    time = statistics.median(times)
    return min(time, math.exp(middle - half)), max(time, math.exp(middle + half))


Ends = tuple[float, float]


def quotient_of_medians(a: float, ends_a: Ends | None, b: float, ends_b: Ends | None) -> Quotient:
    """a / b of two independent medians, from the ends of their 95 % intervals; without an interval
    where either has none.

    On a logarithmic scale a / b is as far from its lower end as a from its lower and b from its
    upper end, the squares of both distances added up; likewise above (Zou, Donner, Statistics in
    Medicine 27, 2008)."""
    if ends_a is None or ends_b is None:
        return Quotient(a / b, None)
    below = math.hypot(math.log(a / ends_a[0]), math.log(ends_b[1] / b))
    above = math.hypot(math.log(ends_a[1] / a), math.log(b / ends_b[0]))
    ends = (a / b * math.exp(-below), a / b * math.exp(above))
    return Quotient(a / b, Interval(*ends, WANTED_CONFIDENCE))


# Of a log-ratio: smaller differences are rounding errors. Rounded, equal ratios stay ties also
# where both sides are given in another unit.
DECIMALS = 12


# What is kept of one case in one block, a row of an array: log(new / base), the Hodges-Lehmann
# estimate over the block's pairs; its standard error, from the scatter between the pairs, 0 of a
# single pair, which has none; and seconds of an iteration, medians over the slices.
LOG_RATIO, ERROR, BASE_SECONDS, NEW_SECONDS = range(4)


def summarise_pairs(base: Array, new: Array) -> tuple[Array, Array]:
    """Log-ratio and standard error of each row (blocks x pairs of positive seconds)."""
    # not np.log(new / base): when the sides are swapped, nothing but the sign may change
    log_ratios = np.log(new) - np.log(base)
    averages = walsh_averages(log_ratios)
    pairs = log_ratios.shape[1]
    errors = standard_errors(averages, signed_rank_tail(pairs), pairs - 1)
    if errors is None:
        spread = log_ratios.std(axis=1, ddof=1) if pairs > 1 else np.zeros(len(log_ratios))
        errors = spread / np.sqrt(pairs)
    return np.round(middle(averages), DECIMALS), errors


def summarise(base: Sequence[float], new: Sequence[float]) -> Array:
    """The row of a block's slices, in seconds of an iteration: base[i] and new[i] were neighbours
    in time."""
    # with dtype, since of whole numbers beyond 64 bits numpy makes arrays of Python objects
    old, changed = (np.array(seconds, dtype=float) for seconds in (base, new))
    (log_ratio,), (error,) = summarise_pairs(old[None], changed[None])
    return np.array([log_ratio, error, np.median(old), np.median(changed)])
