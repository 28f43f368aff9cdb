"""What a number of observations can show: the shift that a rank test finds in 95 % of tries.

For observations that scatter normally. A sample moved by d is found at a level when all but k of
its Walsh averages (paired) or of its differences between sides (unpaired) are positive, k being the
critical value; so each sample has a shift that it needs, and the 95 % point of these over simulated
samples is the answer. This holds where the usual normal approximation does not: at the few
observations and small levels used here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tinyllama_tools.judging import rank_sum, signed_rank
from tinyllama_tools.judging.design import fewest_at, fewest_files
from tinyllama_tools.judging.signed_rank import Array

POWER = 0.95
# standard normal quantile of POWER
POWER_QUANTILE = 1.6448536269514722
# variance of the Hodges-Lehmann estimate over that of the mean, for normal values
ESTIMATE_VARIANCE = math.pi / 3
SAMPLES = 800
GRID_POINTS = 9
SEED = 20240607


def _paired_shift(count: int, level: float) -> float:
    left_out = signed_rank.critical_sum(count, level / 2)
    samples = np.random.default_rng(SEED).standard_normal((SAMPLES, count))
    return float(np.quantile(-signed_rank.walsh_averages(samples)[:, left_out], POWER))


def _unpaired_shift(count: int, level: float) -> float:
    left_out = rank_sum.critical_count(count, count, level / 2)
    base, new = np.random.default_rng(SEED).standard_normal((2, SAMPLES, count))
    return float(np.quantile(-rank_sum.differences(base, new)[:, left_out], POWER))


class Detection:
    """Shifts in standard deviations of an observation, by the number of observations (a side).

    `needed(count)` tells the shift; it is asked between `first`, the fewest observations that can
    be significant, and `last`, beyond which the shift falls with the root of their number.
    """

    def __init__(self, needed: Callable[[int], float], first: int, last: int) -> None:
        # times the root it changes little, but for the first numbers, so that few points suffice
        wide = np.geomspace(first, last, GRID_POINTS).round().astype(int)
        grid = np.union1d(wide, np.arange(first, min(first + GRID_POINTS, last)))
        scaled = [needed(int(count)) * math.sqrt(count) for count in grid]
        counts = np.arange(first, last + 1)
        shifts = np.interp(np.log(counts), np.log(grid), scaled) / np.sqrt(counts)
        self._first = first
        self._shifts: Array = np.minimum.accumulate(shifts)
        self._limit = scaled[-1]

    def shift(self, count: int) -> float:
        """Found in 95 % of tries; infinite where nothing can be significant."""
        if count < self._first:
            return math.inf
        if count - self._first < self._shifts.size:
            return float(self._shifts[count - self._first])
        return self._limit / math.sqrt(count)

    def observations(self, shift: float) -> int:
        """Fewest (a side) that show this shift in 95 % of tries."""
        position = int(np.searchsorted(-self._shifts, -shift, side="left"))
        if position < self._shifts.size:
            return self._first + position
        return math.ceil((self._limit / shift) ** 2)


@lru_cache(maxsize=64)
def paired_detection(level: float) -> Detection:
    """Of the two-sided signed-rank test, by blocks."""
    first = fewest_at(level)
    return Detection(lambda count: _paired_shift(count, level), first, max(90, 2 * first))


@lru_cache(maxsize=64)
def unpaired_detection(level: float) -> Detection:
    """Of the two-sided rank-sum test, by files a side."""
    first = fewest_files(1, level)
    return Detection(lambda count: _unpaired_shift(count, level), first, max(40, 2 * first))


def answered_after(
    estimate: float, reach: float, error: float, count: int, log_margin: float, significant: float
) -> float:
    """Observations after which a case of this estimate has an answer in 95 % of tries; infinite:
    never.

    `reach`: half-width of the interval; `error`: standard error of the estimate; both shrink with
    the root of the `count` of observations that there are. Within the margin, the interval has to
    fit in beside the estimate, which moves. Beyond it, the estimate has to stay there and to be
    significant, which it is after `significant` observations.
    """
    room = abs(estimate) - log_margin
    if room == 0:
        return math.inf
    moves = POWER_QUANTILE * error
    if room < 0:
        return count * ((reach + moves) / room) ** 2
    return max(significant, count * (moves / room) ** 2)
