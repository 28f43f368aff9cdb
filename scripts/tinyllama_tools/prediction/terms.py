"""seconds = launch x operators + FLOPs / rate + elementwise work / rate + traffic / efficiency.

The four terms of a part, with coefficients by non-negative least squares of relative errors, so
that a small cell counts as much as a large one.

Why these regressors:
- Products grow with tokens x width^2. Their rate is a property of the device, and no product beats
  its measured peak, so their coefficient is never below what that allows.
- Elementwise FLOPs stand for what goes operator by operator: norms, rotary, activations and the
  softmax over S^2 scores, which `bytes` (the least that any implementation must move) leave out.
- Traffic is `bytes` in seconds of the bandwidth that they see: the last-level cache's for as many
  as fit into it twice (read and written), the memory's for the rest. So a size beyond the cache
  comes out slower than the rates of cached sizes say.
- Elementwise work and traffic grow with tokens x width; beside the products they also describe
  products that reach a higher rate at a larger width.
No term grows faster than its figure: nothing is extrapolated with an exponent that was fitted.

At one size, products, elementwise work and traffic all grow with the tokens, so the cells of one
part cannot tell them apart. Two things decide then: the peak, and a weak pull of the split of time
among the terms towards that of all parts together, which differ in what they are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

TERMS = ("launch", "products", "elementwise", "traffic")
LAUNCH, PRODUCTS, ELEMENTWISE, TRAFFIC = range(len(TERMS))
# Operator by operator, tensors are moved a few times as often as the least; but each by itself fits
# into the cache, so that only the first read and the last write of a chain of operators are the
# memory's. What goes beyond is elementwise work. Without this bound, cells in the cache put other
# costs that grow with tokens here, and a size beyond the cache would pay for those at the memory's
# bandwidth: the update of medium came out 2.4 times too slow with a bound of 5.
MOST_TRAFFIC = 2.0
# A relative error of 5 % in one cell weighs as much as a share of time 25 points from that of all
# parts together: enough to decide between terms that the cells cannot tell apart, and no more.
SPLIT_WEIGHT = 0.05 / 0.25

Array = np.ndarray


@dataclass(frozen=True)
class _System:
    """rows x coefficients = targets, with each coefficient at least `least`; and, with `weight`,
    coefficients x scale = `shares`."""

    rows: Array
    targets: Array
    least: Array
    shares: Array
    weight: float = 0.0

    def _unbounded(self) -> Array:
        """Coefficients without an upper bound."""
        scale = np.abs(self.rows).mean(axis=0)
        scale[scale == 0] = 1.0
        # the unknowns are what goes beyond the least, as shares of time
        system = np.vstack((self.rows / scale, self.weight * np.eye(len(scale))))
        wanted = self.weight * (self.shares - self.least * scale)
        solution, _ = nnls(system, np.concatenate((self.targets - self.rows @ self.least, wanted)))
        return self.least + solution / scale

    def _without_traffic(self) -> _System:
        rest = self.targets - MOST_TRAFFIC * self.rows[:, TRAFFIC]
        return _System(
            self.rows[:, :TRAFFIC],
            rest,
            self.least[:TRAFFIC],
            self.shares[:TRAFFIC],
            self.weight,
        )

    def solve(self) -> Array:
        """Coefficients, that of traffic at most MOST_TRAFFIC."""
        free = self._unbounded()
        if free[TRAFFIC] <= MOST_TRAFFIC:
            return free
        # least squares are convex: the best within a bound that the free best breaks is on it
        return np.append(self._without_traffic()._unbounded(), MOST_TRAFFIC)


def _together(relative: Mapping[str, Array]) -> Array:
    """Coefficients that all parts share; each part counts the same, however many cells it has."""
    weights = {part: 1.0 / np.sqrt(len(rows)) for part, rows in relative.items()}
    rows = np.vstack([weights[part] * rows for part, rows in relative.items()])
    targets = np.concatenate([np.full(len(r), weights[part]) for part, r in relative.items()])
    nothing = np.zeros(len(TERMS))
    return _System(rows, targets, nothing, nothing).solve()


def fit_terms(cells: Mapping[str, tuple[Array, Array]], peak: float | None) -> dict[str, Array]:
    """Seconds per unit of each of TERMS, by part.

    `cells`: of each part the amounts [cells, terms] and the seconds [cells], all of the latter
    above 0. `peak`: FLOP/s that no product beats, None where it was not measured.
    """
    least = np.zeros(len(TERMS))
    if peak:
        least[PRODUCTS] = 1.0 / peak
    relative = {part: amounts / seconds[:, None] for part, (amounts, seconds) in cells.items()}
    together = np.maximum(_together(relative), least)
    found = {}
    for part, rows in relative.items():
        shares = together * rows.mean(axis=0)
        shares = shares / (shares.sum() or 1.0)
        found[part] = _System(rows, np.ones(len(rows)), least, shares, SPLIT_WEIGHT).solve()
    return found
