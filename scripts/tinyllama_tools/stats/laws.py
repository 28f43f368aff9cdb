"""Laws of time and memory over batch and sequence: terms, points and coefficients.

Terms are powers of the batch and of the sequence. Time has none of the batch alone, since whatever
is done once a sample touches all of its tokens. Memory has one: what is kept a sample, such as sums
over its tokens. It also has what all samples share: tables with a row a position, and the causal
mask with one a pair of positions.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

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


# relative, of counts; what differs by less is the same
_SAME = 1e-3


def terms_of_work(counters: Mapping[str, Mapping[tuple[int, int], float]]) -> tuple[Term, ...]:
    """Which terms a law of time can have: those that the counted work of its cases has.

    An optimizer's update does the same at every batch and sequence, and only attention's work grows
    with the square of the sequence. Without this, noise of a few cells can feign a term whose share
    grows fastest beyond the grid.
    `counters`: of FLOPs and of bytes, each by batch and sequence; all terms where fewer than two
    sizes have any.
    """

    def grows_faster_than_the_sequence(counts: Mapping[tuple[int, int], float]) -> bool:
        """Whether, at any batch, longer sequences add more a token; true where not known."""
        known = False
        for batch in {batch for batch, _ in counts}:
            lengths = sorted(seq for of, seq in counts if of == batch)
            slopes = [
                (counts[batch, after] - counts[batch, before]) / (after - before)
                for before, after in itertools.pairwise(lengths)
            ]
            known |= len(slopes) > 1
            if any(b > a + _SAME * abs(a) for a, b in itertools.pairwise(slopes)):
                return True
        return not known

    counts = [of for of in counters.values() if len(of) > 1]
    if not counts:
        return TIME_TERMS
    ends = [(min(of.values()), max(of.values()), of) for of in counts]
    varying = [of for least, most, of in ends if most - least > _SAME * most]
    if not varying:
        return (LAUNCH,)
    is_quadratic = any(map(grows_faster_than_the_sequence, varying))
    return TIME_TERMS if is_quadratic else (LAUNCH, LINEAR)


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


def check_points(points: Sequence[GridPoint], terms: Sequence[str], spare: int = 0) -> None:
    """Raises LawRefusedError unless there are sound values at enough different sizes, each of the
    same rounds: one for each term and `spare` more, from which the scatter can be told.
    """
    for point in points:
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
    sizes = len({(point.batch, point.seq) for point in points})
    needed = len(terms) + spare
    if sizes < needed:
        more = f" and {spare} more to tell the scatter" if spare else ""
        raise LawRefusedError(
            f"{sizes} size{'' if sizes == 1 else 's'}: {len(terms)} coefficients "
            f"({', '.join(terms)}){more} need at least {needed} different ones"
        )
    usual = statistics.mode(len(point.rounds) for point in points)
    for point in points:
        if len(point.rounds) != usual:
            raise LawRefusedError(
                f"{point}: number of rounds {len(point.rounds)}, of the others {usual}; every size "
                "needs the same rounds, so finish the study or leave this size out"
            )


def split_largest(
    points: Sequence[GridPoint],
) -> tuple[tuple[GridPoint, ...], tuple[GridPoint, ...]]:
    """The cells below half of the largest B S, and the others."""
    limit = HELD_SHARE * max(point.tokens for point in points)
    kept = tuple(point for point in points if point.tokens < limit)
    held = tuple(point for point in points if point.tokens >= limit)
    return kept, held


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))


class Quantity(Enum):
    """What a law is about; seconds and bytes are its units."""

    TIME = "time"
    MEMORY = "memory"

    def text(self, value: float) -> str:
        """Three digits in the unit that suits the value."""
        units = _SECONDS if self is Quantity.TIME else _BYTES
        scale, unit = next((pair for pair in units if value >= pair[0]), units[-1])
        scaled = value / scale
        return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


CONFIDENCE = 0.95


def interval_of(values: Array, share: float = CONFIDENCE) -> tuple[float, float]:
    """The middle 95 % of draws, or another share."""
    outside = (1 - share) / 2
    low, high = np.quantile(values, [outside, 1 - outside])
    return float(low), float(high)


@dataclass(frozen=True)
class Draws:
    """`coefficients` [draws, terms]; `noise` [draws]: logarithm of measured over law at a cell."""

    coefficients: Array
    noise: Array


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
    its sizes (law_fits.py).
    `below`: of memory, sizes that it does not describe: another moment is their peak.
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
        parts = [
            self.quantity.text(of.value) + (f" x {term.symbol}" if term.symbol else "")
            for term, of in pairs
            if of.supported
        ]
        least = f", at least {self.quantity.text(self.least)}" if self.below else ""
        return f"{self.quantity.value} = {' + '.join(parts)}{least}"

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
