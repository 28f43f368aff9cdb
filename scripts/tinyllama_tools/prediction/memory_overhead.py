"""What a step's measured peak memory has beyond the cost formulas, and how well that is known.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tinyllama_tools.reading.result_set import MeasuredCase

MIB = 2**20
# Blocks are rounded, so that even a formula which met every step is no better than this.
LEAST_MISFIT = 0.001
MEASURED, PREDICTED = "peak_memory_MiB", "predicted_memory_MiB"


@dataclass(frozen=True)
class MemoryOverhead:
    """overhead = fixed_bytes + share x what the formulas say, neither below 0: scratch memory of
    libraries, and an allocator's rounding.

    `least`, `most`: measured memory over what this says, the largest misfits (LEAST_MISFIT or
    beyond). With several sizes each is predicted from the others. `steps`, `sizes`: what it was
    measured on; with no step nothing is known and none is assumed.
    """

    fixed_bytes: float = 0.0
    share: float = 0.0
    least: float = 1.0
    most: float = 1.0
    steps: int = 0
    sizes: tuple[str, ...] = ()

    def peak_bytes(self, predicted_bytes: float) -> float:
        """Of a step, from what the formulas say."""
        return self.fixed_bytes + (1.0 + self.share) * predicted_bytes

    def interval(self, predicted_bytes: float) -> tuple[float, float]:
        """As far off as the worst measured step was: no statement of probability."""
        peak = self.peak_bytes(predicted_bytes)
        return self.least * peak, self.most * peak

    def most_bytes(self, predicted_bytes: float) -> float:
        """What a step may take; one that is said to fit has to fit with it."""
        return self.interval(predicted_bytes)[1]

    def formula_bytes(self, limit_bytes: float) -> float:
        """What the formulas may say of a step that is to fit the limit; below 0 where none does."""
        return (limit_bytes / self.most - self.fixed_bytes) / (1.0 + self.share)

    def in_words(self) -> str:
        """`measured on 32 steps of tiny and small: 0.1 MiB + 0.02 % beyond the formulas, ...`."""
        if not self.steps:
            return "not measured, so none is assumed"
        steps = f"{self.steps} step{'s' if self.steps > 1 else ''} of {', '.join(self.sizes)}"
        return (
            f"measured on {steps}: {self.fixed_bytes / MIB:.1f} MiB + {100 * self.share:.2f} % "
            f"beyond the formulas, within {100 * (self.least - 1):+.2f} % to "
            f"{100 * (self.most - 1):+.2f} % of it by the largest misfits"
        )


@dataclass(frozen=True)
class _Step:
    size: str
    predicted: float
    measured: float


def _of_sizes(steps: Sequence[_Step], keep: Callable[[str], bool]) -> list[_Step]:
    return [step for step in steps if keep(step.size)]


def _squares(steps: Sequence[_Step], fixed: float, share: float) -> float:
    """Of relative errors."""
    return math.fsum(
        ((step.measured - fixed) / step.predicted - 1.0 - share) ** 2 for step in steps
    )


def _fit(steps: Sequence[_Step]) -> tuple[float, float]:
    """Fixed bytes and share by least squares of relative errors, neither below 0.

    With beyond = (measured - predicted) / predicted, this is the line beyond = fixed / predicted
    + share; where the best line has a coefficient below 0, the best of those on the bounds is it.
    """
    inverse = [1.0 / step.predicted for step in steps]
    beyond = [step.measured / step.predicted - 1.0 for step in steps]
    count = len(steps)
    mean_x, mean_y = math.fsum(inverse) / count, math.fsum(beyond) / count
    spread = math.fsum((x - mean_x) ** 2 for x in inverse)
    # a single size of step, or sizes that are alike, cannot tell the two apart
    if spread > (1e-6 * mean_x) ** 2:
        products = zip(inverse, beyond, strict=True)
        fixed = math.fsum((x - mean_x) * (y - mean_y) for x, y in products) / spread
        share = mean_y - fixed * mean_x
        if fixed >= 0 and share >= 0:
            return fixed, share
    alone = math.fsum(x * y for x, y in zip(inverse, beyond, strict=True))
    only_fixed = max(alone / math.fsum(x * x for x in inverse), 0.0) if spread else 0.0
    bounds = [(0.0, max(mean_y, 0.0)), (only_fixed, 0.0)]
    return min(bounds, key=lambda pair: _squares(steps, *pair))


def _misfits(steps: Sequence[_Step], sizes: Sequence[str]) -> list[float]:
    """Measured over fitted, each size's from the other sizes where there are others."""
    found = []
    for size in sizes:
        others = _of_sizes(steps, lambda name, of=size: name != of) or steps
        fixed, share = _fit(others)
        own = _of_sizes(steps, lambda name, of=size: name == of)
        found += [step.measured / (fixed + (1.0 + share) * step.predicted) for step in own]
    return found


def _steps_of(cases: Iterable[MeasuredCase]) -> list[_Step]:
    """Training steps with both figures."""
    found = []
    for case in cases:
        if not case.name.is_training_step:
            continue
        predicted, measured = (case.counters.get(key, math.nan) for key in (PREDICTED, MEASURED))
        if math.isfinite(predicted) and math.isfinite(measured) and predicted > 0 < measured:
            found.append(_Step(case.name.size, predicted * MIB, measured * MIB))
    return found


def memory_overhead(cases: Iterable[MeasuredCase]) -> MemoryOverhead:
    """Of the training steps among them."""
    steps = _steps_of(cases)
    if not steps:
        return MemoryOverhead()
    ordered = sorted(steps, key=lambda step: step.predicted)
    sizes = tuple(dict.fromkeys(step.size for step in ordered))
    fixed, share = _fit(steps)
    within = [step.measured / (fixed + (1.0 + share) * step.predicted) for step in steps]
    every = [*within, *_misfits(steps, sizes)]
    least, most = min(1 - LEAST_MISFIT, *every), max(1 + LEAST_MISFIT, *every)
    return MemoryOverhead(fixed, share, least, most, len(steps), sizes)
