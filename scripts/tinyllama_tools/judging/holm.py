"""Holm's correction for testing several cases at once."""

from __future__ import annotations

import numpy as np

from tinyllama_tools.judging.signed_rank import Array


def holm_adjusted(p_values: Array, family: int | None = None) -> Array:
    """Adjusted p-values: those at or below alpha are rejected, with a chance of at most alpha that
    any of them is wrong (Holm, Scandinavian Journal of Statistics 6, 1979).

    `family`: number of cases, where more belong to it than have a p-value (they count as 1).
    """
    family = len(p_values) if family is None else family
    if family < len(p_values):
        raise ValueError(f"a family of {family} cases cannot have {len(p_values)} p-values")
    order = np.argsort(p_values, kind="stable")
    steps = (family - np.arange(len(p_values))) * p_values[order]
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted
