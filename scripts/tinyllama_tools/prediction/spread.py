"""What the interval of a prediction means, and how wide it is.

The interval is meant to hold the measured time in 95 of 100 predictions. It comes from predicting
what was measured: each size is left out in turn, the rates are calibrated on the other sizes, and
the steps of the one left out are predicted, those of at least half its largest B S, since these
resemble the steps of sizes that were not run. The error of a prediction is the logarithm of
predicted over measured time. Its variance is described as

    base^2 + (growth x distance)^2

- base: the scatter at the calibrated steps themselves, of fitted against measured times or of step
  over sum of parts, whichever is larger;
- distance: the logarithm of how far the step's FLOPs lie beyond the calibrated ones, those a token
  (the size of the model) and the tokens (B S) each by itself, and both added;
- growth: what the errors of the sizes left out show beyond the base, per unit of distance, and no
  less than lets a factor of 10 in FLOPs add once more the base.

The quantile is Student's, with two degrees of freedom a size that was left out. With one size
measured nothing shows how rates change with size: the growth is assumed, and said to be, and the
quantile is that of two sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from tinyllama_tools.prediction.cells import StepCell

COVERAGE = 0.95
FREEDOM_A_SIZE = 2
FEWEST_SIZES = 2
# Off by 30 % for each factor of 10 in FLOPs.
ASSUMED_OFF = 1.3
ASSUMED_GROWTH = math.log(ASSUMED_OFF) / math.log(10.0)
# Sizes less than 10 % apart do not show how errors grow with size.
LEAST_DISTANCE = 0.1


@dataclass(frozen=True)
class HeldOutStep:
    """`error`: logarithm of predicted over measured; `distance`: beyond the steps of the others."""

    size: str
    error: float
    distance: float


@dataclass(frozen=True)
class Spread:
    """Of the logarithm of predicted over true time; `held_out`: what `growth` comes from, empty
    where it is assumed."""

    base: float
    growth: float
    quantile: float
    held_out: tuple[HeldOutStep, ...] = ()

    def factor(self, distance: float) -> float:
        """The interval goes from the prediction over this to the prediction times this."""
        return math.exp(self.quantile * math.hypot(self.base, self.growth * distance))


@dataclass(frozen=True)
class CalibratedRange:
    """Smallest and largest of what the calibrated steps have: FLOPs a token, and tokens."""

    flops_a_token: tuple[float, float]
    tokens: tuple[float, float]

    def distance(self, flops: float, tokens: float) -> float:
        """Of a step, 0 inside; `flops` are model_flops."""
        return _beyond(flops / tokens, self.flops_a_token) + _beyond(tokens, self.tokens)


def _beyond(value: float, ends: tuple[float, float]) -> float:
    return max(math.log(value / ends[1]), math.log(ends[0] / value), 0.0)


def large_steps(steps: Sequence[StepCell]) -> list[StepCell]:
    """Those of at least half the largest B S."""
    most = max((step.tokens for step in steps), default=0)
    return [step for step in steps if 2 * step.tokens >= most]


def range_of(steps: Sequence[StepCell]) -> CalibratedRange:
    """Of at least one step; of the tokens from half of the most on."""
    a_token = [step.flops / step.tokens for step in steps]
    tokens = [step.tokens for step in large_steps(steps)]
    return CalibratedRange((min(a_token), max(a_token)), (max(tokens) / 2, max(tokens)))


def _quantile(sizes: int) -> float:
    return float(student.ppf((1 + COVERAGE) / 2, FREEDOM_A_SIZE * sizes))


def spread_of(base: float, held_out: Sequence[HeldOutStep]) -> Spread:
    """`base`: as above; `held_out`: every step of a size left out, empty with one size."""
    squares = np.mean([h.error**2 for h in held_out]) if held_out else 0.0
    distances = np.mean([h.distance**2 for h in held_out]) if held_out else 0.0
    if distances < LEAST_DISTANCE**2:
        base = max(base, math.sqrt(squares))
        return Spread(base, ASSUMED_GROWTH, _quantile(FEWEST_SIZES))
    beyond = math.sqrt(max(float(squares) - base**2, 0.0) / distances)
    sizes = len({h.size for h in held_out})
    growth = max(beyond, base / math.log(10.0))
    return Spread(base, growth, _quantile(sizes), tuple(held_out))
