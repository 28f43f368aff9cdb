"""How often the 95 % interval of a case's time covers what it claims to, in results with many
repetitions of each case (--benchmark_repetitions=30).

A case's repetitions, in their order, make groups of as many as a run has by default. A group's
interval is the one that such a run writes (repetitions_interval, core/statistics.cpp).
Both intervals of two groups should hold the time that a run of both would say, the median of their
repetitions: in 95 % of pairs, at least LEAST_COVERED.
"""

import itertools
import statistics
from collections.abc import Iterable, Sequence

from tinyllama_tools.calibrate.rates import BROKEN, HELD
from tinyllama_tools.core.app import Json
from tinyllama_tools.stats.rank_tests import ends_of_median

REPETITIONS, LEAST_COVERED = 3, 0.90


def coverage_row(cases: Iterable[Sequence[float]]) -> Json:
    """Of the times of each case's repetitions; those with fewer than two groups say nothing.
    `disjoint`: pairs of intervals without a common value; `half_width`: the median of half an
    interval over its time."""
    counted = pairs = covered = disjoint = 0
    half_widths = []
    for times in cases:
        starts = range(0, len(times) - REPETITIONS + 1, REPETITIONS)
        groups = [(g := times[start : start + REPETITIONS], *ends_of_median(g)) for start in starts]
        counted += len(groups) > 1
        for (one, low, high), (other, *ends) in itertools.combinations(groups, 2):
            time = statistics.median([*one, *other])
            pairs += 1
            covered += max(low, ends[0]) <= time <= min(high, ends[1])
            disjoint += max(low, ends[0]) > min(high, ends[1])
        if len(groups) > 1:
            half_widths += [(high - low) / 2 / statistics.median(g) for g, low, high in groups]
    return {
        "cases": counted,
        "pairs": pairs,
        "covered": covered,
        "disjoint": disjoint,
        "half_width": statistics.median(half_widths) if half_widths else None,
        "standing": HELD if covered >= LEAST_COVERED * pairs else BROKEN,
    }
