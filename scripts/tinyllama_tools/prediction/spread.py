"""What the range of a prediction means, and how wide it is.

The range is meant to hold the measured time in 95 of 100 predictions. It comes from predicting
what was measured: each size is left out in turn, the rates are calibrated on the other sizes, and
the steps of the one left out are predicted, those of at least half its largest B S, since these
resemble the steps of sizes that were not run. The error of a prediction is the logarithm of
predicted over measured time. Its variance is described as

    base^2 + (growth x distance)^2

- base: the scatter at the large calibrated steps themselves, of fitted against measured times or
  of step over sum of parts, whichever is larger;
- distance: the logarithm of how far the step's FLOPs lie beyond the calibrated ones, those a token
  (the size of the model) and the tokens (B S) each by itself, and both added;
- growth: what the errors of the sizes left out show beyond the base, per unit of distance, and no
  less than lets a factor of 10 in FLOPs add once more the base.

How many degrees of freedom that has is the number of sizes less one: two sizes, each predicted from
the other, are one comparison, whose error may be small by chance. Student's quantile for that alone
is 12.7, which makes every range useless. So an assumed growth is pooled with what was seen, as if
ASSUMED_DEGREES further sizes had shown it, and the quantile has those degrees and the measured
ones. With one size there is only the assumption, and the range is called assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from tinyllama_tools.prediction.cells import StepCell, large_steps

COVERAGE = 0.95
# Off by 20 % for each factor of 10 in FLOPs: about twice what tiny and small, predicted from each
# other, show on the reference machine.
ASSUMED_OFF = 1.2
ASSUMED_GROWTH = math.log(ASSUMED_OFF) / math.log(10.0)
ASSUMED_DEGREES = 3
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
    """Of the logarithm of predicted over true time; `held_out`: what `growth` comes from beside
    the assumption, empty where it is assumed alone."""

    base: float
    growth: float
    quantile: float
    held_out: tuple[HeldOutStep, ...] = ()

    @property
    def is_assumed(self) -> bool:
        """Whether no measurement shows how errors grow with size."""
        return not self.held_out

    @property
    def words(self) -> str:
        """What the range may be called."""
        return "assumed range" if self.is_assumed else f"{100 * COVERAGE:.0f} % interval"

    def factor(self, distance: float) -> float:
        """The range goes from the prediction over this to the prediction times this."""
        return math.exp(self.quantile * math.hypot(self.base, self.growth * distance))


@dataclass(frozen=True)
class CalibratedRange:
    """Smallest and largest of what the large calibrated steps have: FLOPs a token (of all steps),
    tokens, and `least_flops` of the whole step."""

    flops_a_token: tuple[float, float]
    tokens: tuple[float, float]
    least_flops: float

    def distance(self, flops: float, tokens: float) -> float:
        """Of a step, 0 inside; `flops` are model_flops.

        Few tokens of a large model make no small step, so they count only as far as the step has
        less to do than any large calibrated one.
        """
        smaller = min(_beyond(self.tokens[0], tokens), _beyond(self.least_flops, flops))
        a_token, (least, most) = flops / tokens, self.flops_a_token
        larger = _beyond(a_token, most) + _beyond(least, a_token) + _beyond(tokens, self.tokens[1])
        return larger + smaller


def _beyond(value: float, end: float) -> float:
    return max(math.log(value / end), 0.0)


def range_of(steps: Sequence[StepCell]) -> CalibratedRange:
    """Of at least one step."""
    a_token = [step.flops / step.tokens for step in steps]
    large = [step for found in large_steps(steps).values() for step in found]
    tokens = [step.tokens for step in large]
    return CalibratedRange(
        (min(a_token), max(a_token)),
        (min(tokens), max(tokens)),
        min(step.flops for step in large),
    )


def _growth_seen(base: float, held_out: Sequence[HeldOutStep]) -> float | None:
    """Per unit of distance; None where the sizes left out are too near to show it."""
    squares = np.mean([held.error**2 for held in held_out]) if held_out else 0.0
    distances = np.mean([held.distance**2 for held in held_out]) if held_out else 0.0
    if distances < LEAST_DISTANCE**2:
        return None
    return math.sqrt(max(float(squares) - base**2, 0.0) / float(distances))


def spread_of(base: float, held_out: Sequence[HeldOutStep]) -> Spread:
    """`base`: as above; `held_out`: every step of a size left out, empty with one size."""
    seen, degrees = _growth_seen(base, held_out), ASSUMED_DEGREES
    squares = ASSUMED_DEGREES * ASSUMED_GROWTH**2
    if seen is None:
        base = max(base, math.sqrt(np.mean([h.error**2 for h in held_out])) if held_out else 0.0)
        held_out = ()
    else:
        sizes = len({held.size for held in held_out})
        squares += (sizes - 1) * seen**2
        degrees += sizes - 1
    growth = max(math.sqrt(squares / degrees), base / math.log(10.0))
    quantile = float(student.ppf((1 + COVERAGE) / 2, degrees))
    return Spread(base, growth, quantile, tuple(held_out))
