"""A fitted law: its coefficients, what it says at any size, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tinyllama_tools.laws.bootstrap import Draws
from tinyllama_tools.laws.formula import Quantity, formula_text
from tinyllama_tools.laws.points import GridPoint
from tinyllama_tools.laws.support import interval_of
from tinyllama_tools.laws.terms import Term, term_values

# e^20; with one degree of freedom, single draws are beyond all numbers
LARGEST_NOISE = 20.0


@dataclass(frozen=True)
class Coefficient:
    """In seconds or bytes a unit of its term, with its 95 % interval.

    A supported term's interval is the whole range of both sets of draws of its law. It may reach 0
    where an unsupported term could stand for this one: the two are too alike on these sizes.
    Of a term that the data does not support (`supported` is false, `reason` says why), value and
    interval are those of the fit of all terms, and the law does not use them.
    """

    name: str
    value: float
    low: float
    high: float
    supported: bool
    reason: str = ""


@dataclass(frozen=True)
class Law:
    """Of time in seconds or memory in bytes, over batch and sequence at one model size.

    `residuals_percent`: measured minus fitted, of the measured, in the order of the points.
    `draws` are two sets, each of all terms: those of the supported terms alone (0 elsewhere) and
    those of the fit of all, since a term that the data does not show may still be there.
    """

    quantity: Quantity
    terms: tuple[Term, ...]
    coefficients: tuple[Coefficient, ...]
    points: tuple[GridPoint, ...]
    residuals_percent: tuple[float, ...]
    draws: tuple[Draws, ...] = field(repr=False, compare=False)

    @property
    def formula(self) -> str:
        """`time = 1.2 ms + 0.9 us x B S`: the supported terms."""
        pairs = zip(self.terms, self.coefficients, strict=True)
        return formula_text(self.quantity, [(t, c.value) for t, c in pairs if c.supported])

    def at(self, batch: int, seq: int) -> float:
        """Seconds or bytes at a size, from the supported terms."""
        pairs = zip(self.terms, self.coefficients, strict=True)
        return sum(c.value * term.at(batch, seq) for term, c in pairs if c.supported)

    def interval(self, batch: int, seq: int) -> tuple[float, float]:
        """95 % prediction interval of what would be measured there in as many rounds.

        The whole range of both sets of draws: what would be if the unsupported terms were 0, and
        what would be if they were as large as they still can be. It holds at(batch, seq).
        """
        values = term_values(self.terms, batch, seq)
        ends = [self.at(batch, seq)]
        for draws in self.draws:
            noise = np.clip(draws.noise, -LARGEST_NOISE, LARGEST_NOISE)
            ends += interval_of(draws.coefficients @ values * np.exp(noise))
        return min(ends), max(ends)
