"""What a step takes over the sum of its parts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.prediction.cells import StepCell

# Of the logarithm, where fewer than two steps were measured.
ASSUMED_SCATTER = 0.1


@dataclass(frozen=True)
class Closure:
    """`ratio`: the median of measured step over the sum of its measured parts; `scatter`: standard
    deviation of its logarithm; `steps`: how many say so, 0 where the ratio is assumed to be 1."""

    ratio: float
    scatter: float
    steps: int


def closure_of(steps: Sequence[StepCell]) -> Closure:
    """Of those steps that were measured themselves."""
    logs = [math.log(s.seconds / s.parts_seconds) for s in steps if s.seconds is not None]
    if not logs:
        return Closure(1.0, ASSUMED_SCATTER, 0)
    scatter = statistics.stdev(logs) if len(logs) > 1 else ASSUMED_SCATTER
    return Closure(math.exp(statistics.median(logs)), scatter, len(logs))
