"""What the blocks of one look say about several cases at once.

Variance: what the blocks' scatter says, or what the pairs within them say, whichever is larger. In
the second case the interval is stretched by the ratio of the two standard errors, and the p-value
is no smaller than Student's with the larger one (blocks - 1 degrees of freedom).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from tinyllama_tools.judging import signed_rank
from tinyllama_tools.judging.power import ESTIMATE_VARIANCE
from tinyllama_tools.judging.signed_rank import Array


@dataclass
class Look:
    """Of several cases, one value each: what the blocks of one look say."""

    estimate: Array
    low: Array
    high: Array
    p_value: Array
    scatter: Array
    uncertainty: Array
    """Standard deviation of a block as the verdict sees it: the larger of the two."""


def look_at(log_ratios: Array, errors: Array, confidence: float) -> Look:
    """Judges rows (cases x blocks) of log-ratios and of their standard errors."""
    blocks = log_ratios.shape[1]
    averages = signed_rank.walsh_averages(log_ratios)
    estimate = signed_rank.middle(averages)
    unbounded = np.full(len(log_ratios), np.inf)
    low, high = signed_rank.interval_ends(averages, blocks, confidence) or (-unbounded, unbounded)
    of_estimate = math.sqrt(ESTIMATE_VARIANCE / blocks)
    between = signed_rank.standard_errors(averages, blocks)
    scatter = unbounded if between is None else between / of_estimate
    # the estimate is not moved by a single wild block, so neither is its error
    within = np.median(errors, axis=1)
    p_value = signed_rank.p_values(log_ratios)
    wider = np.flatnonzero(within > scatter)
    if wider.size:
        error = within[wider] * of_estimate
        student = 2 * special.stdtr(blocks - 1, -np.abs(estimate[wider]) / error)
        p_value[wider] = np.maximum(p_value[wider], student)
        reach = error * special.stdtrit(blocks - 1, (1 + confidence) / 2)
        # nothing can be stretched where blocks agree to the last digit
        some = scatter[wider] > 0
        stretch = np.divide(within[wider], scatter[wider], out=np.ones(wider.size), where=some)
        least = np.where(some, 0.0, reach)
        below = np.maximum((estimate[wider] - low[wider]) * stretch, least)
        above = np.maximum((high[wider] - estimate[wider]) * stretch, least)
        low[wider], high[wider] = estimate[wider] - below, estimate[wider] + above
    return Look(estimate, low, high, p_value, scatter, np.maximum(within, scatter))
