"""memory(B, S) = base + B (linear S + quadratic S^2), as the workshop's exercise 2 describes it.

Least squares are those of the package `laws`, whose fit_memory_law chooses among more terms: the
exercise fills in exactly these three, whether or not its few sizes support each. The law describes
the sizes that were measured; what other sizes need follows from the suite's own formulas
(`tiny_llama_bench --dry-run`), not from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.stats.law_fits import fit_relative
from tinyllama_tools.stats.laws import BASE, LINEAR, QUADRATIC, GridPoint

TERMS = (BASE, LINEAR, QUADRATIC)


@dataclass(frozen=True)
class MemoryLaw:
    """Coefficients in bytes, bytes a token, and bytes a pair of tokens.

    `residuals_percent`: measured minus fitted, of the measured, in the order of the points.
    """

    base: float
    linear: float
    quadratic: float
    residuals_percent: tuple[float, ...]

    @classmethod
    def fitted_to(cls, points: Sequence[GridPoint]) -> MemoryLaw:
        """Least squares of relative errors over all three terms; a coefficient may be below 0.

        LawRefusedError where the points do not decide the three coefficients.
        """
        fit = fit_relative(points, TERMS, non_negative=False)
        base, linear, quadratic = (float(value) for value in fit.coefficients)
        return cls(base, linear, quadratic, tuple(100 * float(r) for r in fit.residuals))

    def parts(self, batch: int, seq: int) -> dict[str, float]:
        """Bytes of each part at a size."""
        coefficients = (self.base, self.linear, self.quadratic)
        pairs = zip(TERMS, coefficients, strict=True)
        return {term.name: value * term.at(batch, seq) for term, value in pairs}

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
