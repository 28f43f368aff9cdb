"""Where the times of a case changed for good. Advisory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import ruptures
from scipy.ndimage import median_filter
from scipy.stats import mannwhitneyu

if TYPE_CHECKING:
    from tinyllama_tools.commands.history_store import Machine, Series, StoredResult


# with fewer, no rank-sum test reaches 0.05 / files
FEWEST_FILES = 11
SHORTEST_SEGMENT = 3
PENALTY = 6.0
CHANCE = 0.05
MARGIN = 0.03
NEIGHBOURHOOD = 5
FURTHEST_SCATTERS = 3.0
# of a series that repeats itself to the last digit; a thousandth of the time
LEAST_SCATTER = 1e-3
# median absolute deviation to standard deviation, of normal noise
MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class ChangePoint:
    """One change of one case on one machine.

    `before`, `after`: the files of the segments on its two sides, in order; the change lies between
    before[-1] and after[0], whose commit it names. Seconds are the segments' medians.
    """

    machine: Machine
    case: str
    before: tuple[StoredResult, ...]
    after: tuple[StoredResult, ...]
    seconds_before: float
    seconds_after: float

    @property
    def ratio(self) -> float:
        """Seconds after over before: 1.05 is 5 % slower."""
        return self.seconds_after / self.seconds_before

    @property
    def remark(self) -> str:
        """What other than the named commit may be behind it; empty where nothing is known."""
        last, first = self.before[-1], self.after[0]
        remarks = []
        if not first.commit:
            remarks.append("its file names no commit")
        elif first.commit == last.commit and not first.dirty:
            remarks.append("no commit lies between: the machine or its settings changed")
        if first.dirty:
            remarks.append("measured with uncommitted changes")
        if first.torch_version != last.torch_version:
            remarks.append(f"libtorch {last.torch_version} before, {first.torch_version} after")
        return "; ".join(remarks)


def scatter_of(logs: np.ndarray) -> float:
    """Standard deviation of one file, from the differences of neighbours; never 0."""
    steps = np.diff(logs)
    deviation = MAD_TO_DEVIATION * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)
    return max(float(deviation), LEAST_SCATTER)


def change_indices(seconds: Sequence[float], margin: float = MARGIN) -> list[int]:
    """Indices of the first values after each change, in order; none of fewer than FEWEST_FILES.

    `margin`: the least change of the segments' medians, as a fraction. Seconds are positive.
    """
    if len(seconds) < FEWEST_FILES:
        return []
    logs = np.log(np.asarray(seconds, dtype=float))
    scatter = scatter_of(logs)
    around = median_filter(logs, size=NEIGHBOURHOOD, mode="nearest")
    calm = np.where(np.abs(logs - around) > FURTHEST_SCATTERS * scatter, around, logs)
    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST_SEGMENT)
    penalty = PENALTY * scatter**2 * np.log(len(logs))
    # the last is the end of the series
    proposed = search.fit(calm.reshape(-1, 1)).predict(pen=penalty)[:-1]
    confirmed = _confirmed(logs, proposed)
    return _beyond(logs, confirmed, np.log1p(margin))


def find_change_points(series: Iterable[Series], margin: float = MARGIN) -> list[ChangePoint]:
    """The change points of all series, those of the newest files first."""
    found = [point for one in series for point in _points_of(one, margin)]
    return sorted(found, key=lambda point: point.after[0].place, reverse=True)


def _points_of(series: Series, margin: float) -> list[ChangePoint]:
    seconds = [point.seconds for point in series.points]
    indices = change_indices(seconds, margin)
    segments = list(pairwise([0, *indices, len(seconds)]))
    files = [tuple(p.result for p in series.points[a:b]) for a, b in segments]
    medians = [float(np.median(seconds[a:b])) for a, b in segments]
    return [
        ChangePoint(series.machine, series.case, *pair, *seconds_of_both)
        for pair, seconds_of_both in zip(pairwise(files), pairwise(medians), strict=True)
    ]


def _around(logs: np.ndarray, points: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each point, the values of the segments before and after it."""
    parts = [logs[a:b] for a, b in pairwise([0, *points, len(logs)])]
    return list(pairwise(parts))


def _confirmed(logs: np.ndarray, proposed: Sequence[int]) -> list[int]:
    points = list(proposed)
    while points:
        chances = [float(mannwhitneyu(a, b).pvalue) for a, b in _around(logs, points)]
        weakest = int(np.argmax(chances))
        if chances[weakest] <= CHANCE / len(logs):
            break
        del points[weakest]
    return points


def _beyond(logs: np.ndarray, points: list[int], least: float) -> list[int]:
    points = list(points)
    while points:
        sizes = [abs(float(np.median(b) - np.median(a))) for a, b in _around(logs, points)]
        smallest = int(np.argmin(sizes))
        if sizes[smallest] >= least:
            break
        del points[smallest]
    return points
