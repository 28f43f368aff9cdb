"""The latency and bandwidth of a collective: t = alpha + bytes / bandwidth, fitted to its sizes.

alpha is the time that no byte can save, in s; bandwidth is in bytes/s and holds for the collective
as a whole (nccl-tests' algorithm bandwidth), at the number of ranks that was measured. Least
squares of relative errors, so that 1 KiB counts as much as the largest bucket
(scipy.optimize.curve_fit with sigma = t, whose covariance gives Student intervals over sizes). The
model: R. Hockney, The communication challenge for MPP, Parallel Computing 20 (1994).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from tinyllama_tools.data.names import OPERATIONS
from tinyllama_tools.scaling.scaling_result import CollectiveRow
from tinyllama_tools.stats.rank_tests import WANTED_CONFIDENCE

Array = NDArray[np.float64]
FEWEST_SIZES = 3


class FitRefusedError(ValueError):
    """What was measured decides no latency and bandwidth; the message says why and what to do."""


@dataclass(frozen=True)
class Range:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class AlphaBeta:
    """`alpha` in s, `bandwidth` in bytes/s, at `ranks` ranks and from `sizes` sizes of `smallest`
    to `largest` bytes. `scatter`: largest misfit of a size, percent of its time.
    `held_out`: size in bytes and error in percent where that size is predicted from the others."""

    operation: str
    ranks: int
    alpha: float
    bandwidth: float
    alpha_range: Range
    bandwidth_range: Range
    sizes: int
    smallest: int
    largest: int
    scatter: float
    held_out: tuple[tuple[int, float], ...] = ()

    def seconds(self, size: float) -> float:
        """Of one call on so many bytes."""
        return self.alpha + size / self.bandwidth

    @property
    def worst_held_out(self) -> float | None:
        """Percent; None where there are too few sizes to leave one out."""
        return max((abs(error) for _, error in self.held_out), default=None)

    @property
    def median_held_out(self) -> float | None:
        """Percent."""
        errors = [abs(error) for _, error in self.held_out]
        return statistics.median(errors) if errors else None


def _model(size: Array, alpha: float, per_byte: float) -> Array:
    return alpha + per_byte * size


def _least_squares(sizes: Array, seconds: Array) -> tuple[Array, Array]:
    """alpha and s/byte, and their covariance. Scaled, since they differ by nine digits."""
    largest, longest = sizes.max(), seconds.max()
    found, covariance = optimize.curve_fit(
        _model, sizes / largest, seconds / longest, p0=(0.01, 1.0), sigma=seconds / longest
    )
    scale = np.array([longest, longest / largest])
    return found * scale, covariance * np.outer(scale, scale)


def _refuse_negative(found: Array, what: str) -> None:
    names = ("latency", "time a byte")
    for name, value in zip(names, found, strict=True):
        if not (math.isfinite(value) and value > 0):
            raise FitRefusedError(
                f"{what}: the fit has a {name} of {value:.3g} s, must be above 0; measure more "
                "rounds, on a machine with nothing else to do"
            )


def _held_out(sizes: Array, seconds: Array) -> tuple[tuple[int, float], ...]:
    """Each size from the others; without those of which the others decide nothing."""
    errors = []
    for i, size in enumerate(sizes):
        rest = np.arange(len(sizes)) != i
        if rest.sum() < FEWEST_SIZES:
            continue
        found, _ = _least_squares(sizes[rest], seconds[rest])
        predicted = float(_model(np.array([size]), *found)[0])
        errors.append((int(size), 100 * (predicted / float(seconds[i]) - 1)))
    return tuple(errors)


def fit_alpha_beta(operation: str, ranks: int, seconds_of: Mapping[int, float]) -> AlphaBeta:
    """`seconds_of`: seconds of a call by its bytes.

    FitRefusedError where there are fewer than three sizes, and where a term would not be positive.
    """
    what = f"{operation}, {ranks} ranks"
    if len(seconds_of) < FEWEST_SIZES:
        raise FitRefusedError(
            f"{what}: {len(seconds_of)} sizes, at least {FEWEST_SIZES} are needed; raise "
            "--max-bytes"
        )
    sizes = np.array(sorted(seconds_of), dtype=np.float64)
    seconds = np.array([seconds_of[int(size)] for size in sizes])
    found, covariance = _least_squares(sizes, seconds)
    _refuse_negative(found, what)
    quantile = float(stats.t.ppf((1 + WANTED_CONFIDENCE) / 2, len(sizes) - 2))
    reach = quantile * np.sqrt(np.diag(covariance))
    alpha, per_byte = (float(value) for value in found)
    slow, fast = per_byte + float(reach[1]), per_byte - float(reach[1])
    return AlphaBeta(
        operation,
        ranks,
        alpha,
        1 / per_byte,
        Range(max(0.0, alpha - float(reach[0])), alpha + float(reach[0])),
        Range(1 / slow, 1 / fast if fast > 0 else math.inf),
        len(sizes),
        int(sizes[0]),
        int(sizes[-1]),
        100 * float(np.max(np.abs(_model(sizes, *found) / seconds - 1))),
        _held_out(sizes, seconds),
    )


def fit_collectives(rows: Sequence[CollectiveRow]) -> tuple[list[AlphaBeta], list[str]]:
    """One fit for each operation and number of ranks above 1; and the refusals."""
    fits, refused = [], []
    ranks = sorted({row.name.ranks for row in rows if row.name.ranks > 1})
    for operation in OPERATIONS:
        for number in ranks:
            chosen = [r for r in rows if (r.name.operation, r.name.ranks) == (operation, number)]
            if not chosen:
                continue
            try:
                seconds_of = {row.name.bytes: row.median_seconds for row in chosen}
                fits.append(fit_alpha_beta(operation, number, seconds_of))
            except FitRefusedError as error:
                refused.append(str(error))
    return fits, refused
