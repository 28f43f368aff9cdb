"""How many operators a case of a size that nobody ran dispatches.

Operators depend on the layers and the variant, not on the width. A part is one layer's or stands
alone, so its count is that of the measured sizes. Two counts do change: the optimizer's, which
starts some operators for every weight tensor unless one operator serves them all, and that of parts
that work in chunks of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

OPTIMIZER = "optimizer"
# Four projections of attention, three of the feed-forward network and two norms; the embedding, the
# final norm and the LM head (model/).
WEIGHTS_A_LAYER, WEIGHTS_BESIDE = 9, 3


def weight_tensors(layers: int) -> int:
    """Parameters of a model that are tensors of their own."""
    return WEIGHTS_A_LAYER * layers + WEIGHTS_BESIDE


@dataclass(frozen=True)
class CountedCell:
    """A measured count and what it may depend on."""

    operators: float
    tokens: int
    layers: int


@dataclass(frozen=True)
class OperatorRule:
    """operators = fixed + a_weight x weight tensors + a_token x B S."""

    fixed: float
    a_weight: float = 0.0
    a_token: float = 0.0

    def at(self, tokens: int, layers: int) -> float:
        """Of one iteration."""
        return self.fixed + self.a_weight * weight_tensors(layers) + self.a_token * tokens


def _line(drivers: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Fixed part and slope, neither below 0, by least squares of relative errors."""
    columns = np.column_stack((np.ones_like(drivers), drivers / drivers.max()))
    relative = columns / np.maximum(counts, 1.0)[:, None]
    (fixed, slope), _ = nnls(relative, counts / np.maximum(counts, 1.0))
    return float(fixed), float(slope / drivers.max())


def operator_rule(component: str, cells: Sequence[CountedCell]) -> OperatorRule:
    """Of one component's cells, at least one.

    At a single number of layers an optimizer with at least one operator a weight is taken to have
    so many for each, and one with fewer to serve all weights at once.
    """
    counts = np.array([cell.operators for cell in cells], dtype=float)
    if component != OPTIMIZER:
        tokens = np.array([cell.tokens for cell in cells], dtype=float)
        if np.ptp(counts) == 0 or np.ptp(tokens) == 0:
            return OperatorRule(float(np.median(counts)))
        fixed, slope = _line(tokens, counts)
        return OperatorRule(fixed, a_token=slope)
    weights = np.array([weight_tensors(cell.layers) for cell in cells], dtype=float)
    if np.ptp(weights) > 0:
        fixed, slope = _line(weights, counts)
        return OperatorRule(fixed, a_weight=slope)
    count = float(np.median(counts))
    if count < weights[0]:
        return OperatorRule(count)
    return OperatorRule(0.0, a_weight=count / float(weights[0]))
