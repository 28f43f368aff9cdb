"""What a law is fitted to: measured sizes, checked, and the reasons why no law can be had."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# of the largest B S of a grid; cells from there on are held out
HELD_SHARE = 0.5


class LawRefusedError(ValueError):
    """The data supports no law; the message is the reason."""


@dataclass(frozen=True)
class GridPoint:
    """One size and what was measured there, once a round: seconds or bytes, above 0."""

    batch: int
    seq: int
    rounds: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    @property
    def tokens(self) -> int:
        """B S."""
        return self.batch * self.seq

    def __str__(self) -> str:
        return f"batch {self.batch}, sequence {self.seq}"


def _check_point(point: GridPoint) -> None:
    if point.batch < 1 or point.seq < 1:
        raise LawRefusedError(f"{point}: batch and sequence must be 1 or more")
    if not point.rounds:
        raise LawRefusedError(f"{point}: nothing was measured; leave this size out")
    for number, value in enumerate(point.rounds, start=1):
        if not math.isfinite(value) or value <= 0:
            raise LawRefusedError(
                f"{point}: {value:g} in round {number} is not a positive, finite number; "
                "measure this size again or leave it out"
            )


def _check_rounds(points: Sequence[GridPoint]) -> None:
    usual, _ = Counter(len(point.rounds) for point in points).most_common(1)[0]
    for point in points:
        if len(point.rounds) != usual:
            raise LawRefusedError(
                f"{point}: number of rounds {len(point.rounds)}, of the others {usual}; every size "
                "needs the same rounds, so finish the study or leave this size out"
            )


def check_points(points: Sequence[GridPoint], terms: Sequence[str], spare: int = 0) -> None:
    """Raises LawRefusedError unless there are sound values at enough different sizes.

    That is one for each term and `spare` more, from which the scatter can be told.
    """
    for point in points:
        _check_point(point)
    sizes = len({(point.batch, point.seq) for point in points})
    needed = len(terms) + spare
    if sizes < needed:
        names = ", ".join(terms)
        more = f" and {spare} more to tell the scatter" if spare else ""
        counted = f"{sizes} size" if sizes == 1 else f"{sizes} sizes"
        raise LawRefusedError(
            f"{counted}: {len(terms)} coefficients ({names}){more} need at least {needed} "
            "different ones"
        )
    _check_rounds(points)


def split_largest(
    points: Sequence[GridPoint],
) -> tuple[tuple[GridPoint, ...], tuple[GridPoint, ...]]:
    """The cells below half of the largest B S, and the others."""
    limit = HELD_SHARE * max(point.tokens for point in points)
    kept = tuple(point for point in points if point.tokens < limit)
    held = tuple(point for point in points if point.tokens >= limit)
    return kept, held
