"""memory(B, S) = base + B (linear S + quadratic S^2), fitted to measured peaks.

The law describes the sizes that were measured; what other sizes need follows from the suite's own
formulas (`tiny_llama_bench --dry-run`), not from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COEFFICIENTS = 3


@dataclass(frozen=True)
class MemoryPoint:
    """A measured peak in bytes at one batch size and sequence length."""

    batch: int
    seq: int
    peak_bytes: float


@dataclass(frozen=True)
class MemoryLaw:
    """Coefficients in bytes, bytes a token, and bytes a pair of tokens.

    `residuals_percent`: measured minus fitted, of the measured, in the order of the points.
    """

    base: float
    linear: float
    quadratic: float
    residuals_percent: tuple[float, ...]

    def parts(self, batch: int, seq: int) -> dict[str, float]:
        """Bytes of each part at a size."""
        return {
            "base": self.base,
            "linear": batch * seq * self.linear,
            "quadratic": batch * seq * seq * self.quadratic,
        }

    def at(self, batch: int, seq: int) -> float:
        """Fitted bytes at a size."""
        return sum(self.parts(batch, seq).values())

    def shares_percent(self, batch: int, seq: int) -> dict[str, float]:
        """Share of each part at a size."""
        whole = self.at(batch, seq)
        return {name: 100 * part / whole for name, part in self.parts(batch, seq).items()}

    @property
    def largest_residual_percent(self) -> float:
        """By magnitude."""
        return max(abs(residual) for residual in self.residuals_percent)


def fit_memory_law(points: Sequence[MemoryPoint]) -> MemoryLaw:
    """Least squares of relative errors, so that a small size counts as much as a large one.

    Raises ValueError where the points do not decide the three coefficients (at least three sizes,
    with two batch sizes or sequence lengths apart) or a peak is not positive.
    """
    if any(point.peak_bytes <= 0 for point in points):
        raise ValueError("a peak of 0 bytes or less: was nothing measured?")
    rows = np.array([[1.0, p.batch * p.seq, p.batch * p.seq**2] for p in points])
    peaks = np.array([p.peak_bytes for p in points], dtype=float)
    if len(points) < COEFFICIENTS:
        raise ValueError(f"{len(points)} sizes: three coefficients need at least {COEFFICIENTS}")
    # columns of like magnitude: S^2 alone would make the rank a matter of rounding
    scale = np.abs(rows).max(axis=0)
    weighted = rows / scale / peaks[:, None]
    solution, _, rank, _ = np.linalg.lstsq(weighted, np.ones(len(points)), rcond=None)
    if rank < COEFFICIENTS:
        raise ValueError("sizes too alike: the batch sizes or sequence lengths must differ more")
    base, linear, quadratic = (float(value) for value in solution / scale)
    residuals = 100 * (1 - weighted @ solution)
    return MemoryLaw(base, linear, quadratic, tuple(float(r) for r in residuals))
