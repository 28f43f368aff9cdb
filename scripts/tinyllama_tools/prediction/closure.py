"""What a step takes over the sum of its parts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.prediction.cells import StepCell, large_steps

# Of the logarithm, where fewer than two steps were measured.
ASSUMED_SCATTER = 0.1


@dataclass(frozen=True)
class Closure:
    """Measured step over the sum of its measured parts, of the large steps of each size: small
    ones wait for launches, which parts measured by themselves do as well or do not.

    `ratios`: FLOPs a token and the median ratio of each size, empty where it is assumed to be 1;
    `scatter`: standard deviation of the logarithm around these, and no less than what lies between
    the sizes; `steps`: how many say so.
    """

    ratios: tuple[tuple[float, float], ...]
    scatter: float
    steps: int

    def ratio_at(self, flops_a_token: float) -> float:
        """Of the size that is nearest in FLOPs a token."""
        nearest = min(
            self.ratios,
            key=lambda pair: abs(math.log(pair[0] / flops_a_token)),
            default=(flops_a_token, 1.0),
        )
        return nearest[1]


def _logarithms(steps: Sequence[StepCell]) -> list[float]:
    return [math.log(s.seconds / s.parts_seconds) for s in steps if s.seconds is not None]


def closure_of(steps: Sequence[StepCell]) -> Closure:
    """Of those steps that were measured themselves."""
    large = large_steps(step for step in steps if step.seconds is not None).values()
    if not large:
        return Closure((), ASSUMED_SCATTER, 0)
    medians = [statistics.median(_logarithms(found)) for found in large]
    around = [
        value - median
        for found, median in zip(large, medians, strict=True)
        for value in _logarithms(found)
    ]
    ratios = tuple(
        (statistics.median(s.flops / s.tokens for s in found), math.exp(median))
        for found, median in zip(large, medians, strict=True)
    )
    # what changes from size to size may go on changing
    trend = max(medians) - min(medians)
    scatter = max(statistics.stdev(around), trend) if len(around) > 1 else ASSUMED_SCATTER
    return Closure(ratios, scatter, len(around))
