"""The terms of the laws: powers of the batch and of the sequence, and what each stands for.

Time has no term of the batch alone, since whatever is done once a sample touches all of its tokens.
Memory has one: what is kept a sample, such as sums over its tokens. It also has what all samples
share: tables with a row a position, and the causal mask with one a pair of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinyllama_tools.laws.points import GridPoint

Array = NDArray[np.float64]


SUPERSCRIPTS = {2: "²", 3: "³"}


@dataclass(frozen=True)
class Term:
    """coefficient x B^batch_power x S^seq_power."""

    name: str
    batch_power: int
    seq_power: int

    def at(self, batch: int, seq: int) -> float:
        """What the coefficient is multiplied by."""
        return float(batch) ** self.batch_power * float(seq) ** self.seq_power

    @property
    def symbol(self) -> str:
        """`B S²`; empty for the constant."""
        powers = (("B", self.batch_power), ("S", self.seq_power))
        return " ".join(
            name if power == 1 else f"{name}{SUPERSCRIPTS[power]}"
            for name, power in powers
            if power
        )


LAUNCH = Term("launch", 0, 0)
BASE = Term("base", 0, 0)
BATCH = Term("batch", 1, 0)
LINEAR = Term("linear", 1, 1)
QUADRATIC = Term("quadratic", 1, 2)
TABLE = Term("table", 0, 1)
MASK = Term("mask", 0, 2)

TIME_TERMS = (LAUNCH, LINEAR, QUADRATIC)
MEMORY_TERMS = (BASE, BATCH, LINEAR, QUADRATIC, TABLE, MASK)


def term_values(terms: Sequence[Term], batch: int, seq: int) -> Array:
    """[terms] of one size."""
    return np.array([term.at(batch, seq) for term in terms])


def design_matrix(terms: Sequence[Term], points: Sequence[GridPoint]) -> Array:
    """[points, terms]."""
    return np.array([term_values(terms, point.batch, point.seq) for point in points])
