"""Grids of batch and sequence whose laws are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyllama_tools.laws import GridPoint
from tinyllama_tools.laws.terms import MEMORY_TERMS, TIME_TERMS, Term

BATCHES = (2, 4, 8, 16)
LENGTHS = (64, 128, 256, 512)
SIZES = tuple((batch, seq) for batch in BATCHES for seq in LENGTHS)
ROUNDS = 3


def law_value(terms: Sequence[Term], coefficients: Sequence[float], batch: int, seq: int) -> float:
    """Sum of coefficient x B^b x S^s, written without the code under test."""
    pairs = zip(terms, coefficients, strict=True)
    return sum(c * batch**term.batch_power * seq**term.seq_power for term, c in pairs)


def time_grid(
    coefficients: Sequence[float],
    noise: float = 0.0,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    rounds: int = ROUNDS,
) -> list[GridPoint]:
    """Seconds; `noise` is the standard deviation of their logarithms."""
    generator = np.random.default_rng(seed)
    return [
        GridPoint(
            batch,
            seq,
            tuple(
                law_value(TIME_TERMS, coefficients, batch, seq)
                * np.exp(noise * generator.standard_normal(rounds))
            ),
        )
        for batch, seq in sizes
    ]


def memory_grid(
    coefficients: Sequence[float], sizes: Sequence[tuple[int, int]] = SIZES
) -> list[GridPoint]:
    """Bytes, the same in every round."""
    return [
        GridPoint(b, s, (law_value(MEMORY_TERMS, coefficients, b, s),) * ROUNDS) for b, s in sizes
    ]
