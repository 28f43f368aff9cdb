"""One block as one observation: how much slower its pairs were, and how sure that is.

The machine drifts from pair to pair, so only neighbours are divided by each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinyllama_tools.judging.blocks import Block
from tinyllama_tools.judging.signed_rank import Array, middle, standard_errors, walsh_averages

# of a log-ratio: what differs by less is a matter of rounding, and ties must stay ties when both
# sides are measured in another unit
DECIMALS = 12


@dataclass(frozen=True)
class BlockSummary:
    """`log_ratio`: log(new / base), the Hodges-Lehmann estimate over the block's pairs.

    `standard_error`: of it, from the scatter between the pairs; 0 where a single pair says nothing.
    `base_seconds`, `new_seconds`: of an iteration, medians over the slices.
    """

    log_ratio: float
    standard_error: float
    base_seconds: float
    new_seconds: float


def summarise_pairs(base: Array, new: Array) -> tuple[Array, Array]:
    """Log-ratio and standard error of each row (blocks x pairs of positive seconds)."""
    # a difference of logs changes just its sign when the sides are swapped; a ratio's log may not
    log_ratios = np.log(new) - np.log(base)
    averages = walsh_averages(log_ratios)
    pairs = log_ratios.shape[1]
    errors = standard_errors(averages, pairs)
    if errors is None:
        spread = log_ratios.std(axis=1, ddof=1) if pairs > 1 else np.zeros(len(log_ratios))
        errors = spread / np.sqrt(pairs)
    return np.round(middle(averages), DECIMALS), errors


def summarise(block: Block) -> BlockSummary:
    """Raises ValueError for a slice that is no positive, finite time."""
    base, new = np.array([block.base]), np.array([block.new])
    for seconds in (*block.base, *block.new):
        if not (np.isfinite(seconds) and seconds > 0):
            raise ValueError(f"{seconds} seconds in a slice: must be positive and finite")
    log_ratios, errors = summarise_pairs(base, new)
    return BlockSummary(
        log_ratio=float(log_ratios[0]),
        standard_error=float(errors[0]),
        base_seconds=float(np.median(base)),
        new_seconds=float(np.median(new)),
    )
