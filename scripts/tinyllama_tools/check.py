"""The outcome of one proof: what was compared with what, and how far they are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A row of the table of proofs.

    `cases`: how many comparisons it is made of. `tolerance`, `largest_error`: relative, unless
    `name` says in what unit they are. `where`: the place of the largest error.
    """

    name: str
    compared_with: str
    cases: int
    tolerance: float
    largest_error: float
    where: str = ""

    @property
    def held(self) -> bool:
        """Some cases, and all of them within the tolerance."""
        return self.cases > 0 and self.largest_error <= self.tolerance


@dataclass
class Errors:
    """Collects the comparisons of one proof."""

    cases: int = 0
    largest: float = 0.0
    where: str = ""

    def add(self, error: float, where: str, cases: int = 1) -> None:
        """The largest error among so many cases; a NaN is as wrong as can be."""
        self.cases += cases
        error = math.inf if math.isnan(error) else error
        if error > self.largest:
            self.largest, self.where = error, where

    def check(self, name: str, compared_with: str, tolerance: float) -> Check:
        """The proof that these comparisons make."""
        return Check(name, compared_with, self.cases, tolerance, self.largest, self.where)
