"""What a step's measured peak memory has beyond the cost formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from tinyllama_tools.prediction.cells import STEP
from tinyllama_tools.reading.result_set import MeasuredCase

MIB = 2**20
MEASURED, PREDICTED = "peak_memory_MiB", "predicted_memory_MiB"


@dataclass(frozen=True)
class MemoryOverhead:
    """overhead = fixed_bytes + share x what the formulas say, neither below 0: scratch memory of
    libraries, and an allocator's rounding. `steps`: how many it was measured on, 0: assumed none.
    """

    fixed_bytes: float = 0.0
    share: float = 0.0
    steps: int = 0

    def peak_bytes(self, predicted_bytes: float) -> float:
        """Of a step, from what the formulas say."""
        return self.fixed_bytes + (1.0 + self.share) * predicted_bytes


def memory_overhead(cases: Iterable[MeasuredCase]) -> MemoryOverhead:
    """Of the training steps among them, by least squares of relative errors."""
    pairs = [
        (case.counters[PREDICTED] * MIB, case.counters[MEASURED] * MIB)
        for case in cases
        if case.name.component == STEP and {MEASURED, PREDICTED} <= set(case.counters)
    ]
    pairs = [(p, m) for p, m in pairs if math.isfinite(p) and math.isfinite(m) and p > 0]
    if not pairs:
        return MemoryOverhead()
    predicted, measured = np.array(pairs).T
    beyond = (measured - predicted) / predicted
    if len(pairs) == 1:
        return MemoryOverhead(share=max(float(beyond[0]), 0.0), steps=1)
    # in units of the largest step, so that both columns are of like magnitude
    scale = predicted.max()
    (fixed, share), _ = nnls(np.column_stack((scale / predicted, np.ones_like(predicted))), beyond)
    return MemoryOverhead(float(fixed * scale), float(share), len(pairs))
