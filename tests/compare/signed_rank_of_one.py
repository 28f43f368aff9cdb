"""The signed-rank procedures of a single sample, which the judge has for many at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyllama_tools.stats import rank_tests as signed_rank


def signed_rank_p_value(values: Sequence[float]) -> float:
    """Exact two-sided p-value for a location of zero."""
    return float(signed_rank.p_values(np.array([values]))[0])


def walsh_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Of the location; None: too few values for this confidence."""
    averages = signed_rank.walsh_averages(np.array([values]))
    ends = signed_rank.interval_ends(averages, len(values), confidence)
    return None if ends is None else (float(ends[0][0]), float(ends[1][0]))
