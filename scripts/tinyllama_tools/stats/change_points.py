"""Steps in a series of times whose neighbours are alike: likelihood ratios in AR(1) noise.

The noise of a value is phi times that of the value before it and a part of its own. The gain is
twice the log-likelihood that is won by another level, from some value on (a step) or over a stretch
that ends again, each maximised over phi from 0 to 0.8: how alike neighbours are is thus taken from
the series itself. Circular binary segmentation (Olshen, Venkatraman, Lucito, Wigler, Biostatistics
5, 2004) takes the best place and looks again in what lies between.

The bounds are on the maximum over all places, so that the search is paid for. Of series without a
change whose noise has phi = 0.6, at most 5 % exceed one of them, at any number of values; of those
with less, fewer. tests/compare/test_change_points.py simulates it.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.stats import median_abs_deviation

Array = NDArray[np.float64]
Places = NDArray[np.int64]
# in fewer, not even a step that is four times the scatter is found in half of all series
FEWEST_VALUES = 11
SHORTEST_SEGMENT = 3
AUTOCORRELATIONS = np.linspace(0.0, 0.8, 9)
# on the gain; of series without a change at phi = 0.6, 4 % exceed the first and 1 % the second
STEP_BOUND, STRETCH_BOUND = 13.0, 23.0
NEIGHBOURHOOD = 5
FURTHEST_SCATTERS = 3.0
# assumed of a series whose values are alike to the last digit: a thousandth of the time
LEAST_SCATTER = 1e-3


def without_outliers(logs: Array) -> Array:
    """With the median of the values around it in place of each value that lies far from them."""
    deviation = median_abs_deviation(np.diff(logs), scale="normal") / np.sqrt(2)
    around = median_filter(logs, size=NEIGHBOURHOOD, mode="nearest")
    furthest = FURTHEST_SCATTERS * max(float(deviation), LEAST_SCATTER)
    return np.where(np.abs(logs - around) > furthest, around, logs)


@lru_cache(maxsize=64)
def _stretches(count: int) -> tuple[Places, Places]:
    """Of all that could be a change: the index of its first value, and that of the value after its
    last one, which is `count` for a step."""
    first, end = np.meshgrid(
        np.arange(SHORTEST_SEGMENT, count - SHORTEST_SEGMENT + 1),
        np.arange(2 * SHORTEST_SEGMENT, count + 1),
        indexing="ij",
    )
    is_whole = (end - first >= SHORTEST_SEGMENT) & (
        (end == count) | (count - end >= SHORTEST_SEGMENT)
    )
    return first[is_whole], end[is_whole]


def _gains(values: Array) -> Array:
    """The gain of each of _stretches().

    For one phi, least squares of the differences values[t] - phi values[t - 1] (the first one is
    weighted with sqrt(1 - phi^2)) on a constant, and on another level in the stretch beside it:
    1 at its first value, 1 - phi within, -phi at the value after it.
    """
    count = values.size
    first, end = _stretches(count)
    ends_again, within = end < count, end - 1 - first
    without, best = np.inf, np.full(first.size, np.inf)
    for phi in AUTOCORRELATIONS:
        weight, rest = np.sqrt(1 - phi**2), 1 - phi
        # with a zero in the end, for steps: no value comes after them
        y = np.concatenate([[weight * values[0]], values[1:] - phi * values[:-1], [0.0]])
        sums = np.concatenate([[0.0], np.cumsum(y)])
        constant = weight**2 + (count - 1) * rest**2
        mean = (weight * y[0] + rest * (sums[count] - y[0])) / constant
        squares = y @ y - constant * mean**2 + count * LEAST_SCATTER**2
        level_y = y[first] + rest * (sums[end] - sums[first + 1]) - phi * y[end]
        level_constant = rest * (1 + rest * within - phi * ends_again)
        level = 1 + rest**2 * within + phi**2 * ends_again
        won = (level_y - level_constant * mean) ** 2 / (level - level_constant**2 / constant)
        # since the first value has another variance than the differences
        own = np.log(1 - phi**2)
        without = min(without, count * np.log(squares) - own)
        best = np.minimum(best, count * np.log(squares - won) - own)
    return without - best


def _best_change(values: Array) -> list[int]:
    """Where the level changes most, if beyond the bounds: one index of a step, two of a stretch."""
    first, end = _stretches(values.size)
    beyond = _gains(values) - np.where(end < values.size, STRETCH_BOUND, STEP_BOUND)
    best = int(np.argmax(beyond))
    found = (int(first[best]), int(end[best]))
    return [index for index in found if index < values.size] if beyond[best] > 0 else []


def change_indices(values: Sequence[float], margin: float) -> list[int]:
    """Indices of the first values after each change, in order; none of fewer than FEWEST_VALUES.

    `values`: positive. `margin`: the least change of the segments' medians, as a fraction.
    """
    logs = np.log(np.asarray(values, dtype=float))
    if len(logs) < FEWEST_VALUES:
        return []
    calm, points, todo = without_outliers(logs), list[int](), [(0, len(logs))]
    while todo:
        begin, end = todo.pop()
        if end - begin >= FEWEST_VALUES:
            found = [begin + index for index in _best_change(calm[begin:end])]
            todo += pairwise([begin, *found, end]) if found else []
            points += found
    points.sort()
    while points:
        medians = [float(np.median(logs[a:b])) for a, b in pairwise([0, *points, len(logs)])]
        sizes = [abs(after - before) for before, after in pairwise(medians)]
        if min(sizes) >= np.log1p(margin):
            break
        del points[int(np.argmin(sizes))]
    return points
