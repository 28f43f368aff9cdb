"""A fitted law: its coefficients, what it says at any size, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tinyllama_tools.laws.bootstrap import Draws
from tinyllama_tools.laws.formula import Quantity, formula_text
from tinyllama_tools.laws.points import GridPoint
from tinyllama_tools.laws.support import CONFIDENCE, interval_of
from tinyllama_tools.laws.terms import Term, term_values


class RangeKind(Enum):
    """What a law's ranges hold. `short`: within a sentence; `of_values` and `of_coefficients`: in
    full, of what is predicted and of the coefficients."""

    NEW_ROUNDS = (
        "95 % interval",
        "The range is a 95 % interval of what as many new rounds would give: what a whole round is "
        "slower by is in it, and beyond the fitted sizes what a law of the smaller of them was off "
        "by.",
        "From and to are 95 % intervals; what a whole round is slower by is in them.",
    )
    ONE_ROUND = (
        "range within the one round",
        "The range is of the scatter of sizes within the one round: how much rounds differ is not "
        "known, so it says nothing of another run.",
        "From and to are of the scatter of sizes within the one round: how much rounds differ is "
        "not known.",
    )
    MISFIT = (
        "largest misfit",
        "The range is the largest misfit of any fitted size by the law of the others: memory is "
        "counted and has no scatter.",
        "From and to are what a coefficient becomes without any one of the sizes: memory is "
        "counted and has no scatter.",
    )

    def __init__(self, short: str, of_values: str, of_coefficients: str) -> None:
        self.short = short
        self.of_values = of_values
        self.of_coefficients = of_coefficients


@dataclass(frozen=True)
class Coefficient:
    """In seconds or bytes a unit of its term; `low` and `high`: its range, of the law's kind.

    A supported term's range is the whole range of all draws of its law. It may reach 0 where an
    unsupported term could stand for this one: the two are too alike on these sizes.
    Of a term that the data does not support (`supported` is false, `reason` says why), value and
    range are those of the fit of all terms in a law of time, 0 in one of memory, and the law does
    not use them.
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

    `points`: what it was fitted to. `residuals_percent`: measured minus fitted, of the measured, in
    the order of the points.
    `draws`, each of all terms: of time two sets, those of the supported terms alone (0 elsewhere)
    and those of the fit of all, since a term that the data does not show may still be there; of
    memory one set of misfits.
    `drift`: of time, what a law of smaller sizes was off by, as a logarithm an octave of B S beyond
    its sizes (time_fit.py).
    `below`: of memory, sizes that it does not describe: another moment is their peak
    (memory_fit.py).
    """

    quantity: Quantity
    terms: tuple[Term, ...]
    coefficients: tuple[Coefficient, ...]
    points: tuple[GridPoint, ...]
    residuals_percent: tuple[float, ...]
    draws: tuple[Draws, ...] = field(repr=False, compare=False)
    drift: float = 0.0
    below: tuple[GridPoint, ...] = ()

    @property
    def range_kind(self) -> RangeKind:
        """What `interval` and the coefficients' ranges hold."""
        if self.quantity is Quantity.MEMORY:
            return RangeKind.MISFIT
        several = len(self.points[0].rounds) > 1
        return RangeKind.NEW_ROUNDS if several else RangeKind.ONE_ROUND

    @property
    def least(self) -> float:
        """The smallest of the sizes that the law does not describe; 0 where there are none."""
        return min((point.value for point in self.below), default=0.0)

    @property
    def formula(self) -> str:
        """`time = 1.2 ms + 0.9 us x B S`: the supported terms."""
        pairs = zip(self.terms, self.coefficients, strict=True)
        text = formula_text(self.quantity, [(t, c.value) for t, c in pairs if c.supported])
        return f"{text}, at least {self.quantity.text(self.least)}" if self.below else text

    def at(self, batch: int, seq: int) -> float:
        """Seconds or bytes at a size, from the supported terms."""
        pairs = zip(self.terms, self.coefficients, strict=True)
        value = sum(c.value * term.at(batch, seq) for term, c in pairs if c.supported)
        return max(value, self.least)

    def interval(self, batch: int, seq: int) -> tuple[float, float]:
        """The range at a size; `range_kind` says of what. It holds at(batch, seq).

        Of time: the whole range of both sets of draws: what would be if the unsupported terms were
        0, and what would be if they were as large as they still can be.
        """
        share = 1.0 if self.range_kind is RangeKind.MISFIT else CONFIDENCE
        values = term_values(self.terms, batch, seq)
        ends = [self.at(batch, seq)]
        for draws in self.draws:
            ends += interval_of(draws.coefficients @ values * np.exp(draws.noise), share)
        largest = max(point.tokens for point in self.points)
        octaves = max(0.0, math.log2(batch * seq / largest))
        wider = math.exp(self.drift * octaves)
        return min(ends) / wider, max(ends) * wider
