"""Verdicts on cases measured in blocks, at looks that are planned before anything is measured.

What was measured in turns: pairs of slices, grouped by the pair of processes they came from.

A block is one fresh pair of processes. What differs between two processes of one program (address
layout, where memory came from) does not average out within a process, so blocks are the sample and
pairs only make each block precise.

One block as one observation: how much slower its pairs were, and how sure that is.

The machine drifts from pair to pair, so only neighbours are divided by each other.

What the blocks of one look say about several cases at once.

Variance: what the blocks' scatter says, or what the pairs within them say, whichever is larger. In
the second case the interval is stretched by the ratio of the two standard errors, and the p-value
is no smaller than Student's with the larger one (blocks - 1 degrees of freedom).

What a number of observations can show: the shift that a rank test finds in 95 % of tries.

For observations that scatter normally. A sample moved by d is found at a level when all but k of
its Walsh averages (paired) or of its differences between sides (unpaired) are positive, k being the
critical value; so each sample has a shift that it needs, and the 95 % point of these over simulated
samples is the answer. This holds where the usual normal approximation does not: at the few
observations and small levels used here.

The verdicts on a family of cases that were measured in blocks, at planned looks.

Only planned looks judge: blocks beyond the last look that a case has reached wait for the next one.
At each look the exact p-value is multiplied by the number of looks; the least of these so far is a
p-value whenever one stops. Looks whose estimate points the other way than the last one do not
count, which can only raise it. Holm then corrects for the cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from tinyllama_tools.stats.rank_tests import (
    Array,
    critical_count,
    critical_sum,
    differences,
    holm_adjusted,
    interval_ends,
    middle,
    p_values,
    standard_errors,
    walsh_averages,
)
from tinyllama_tools.stats.verdicts import (
    Design,
    DesignError,
    Evidence,
    Judgement,
    Limits,
    Outcome,
    fewest_at,
    fewest_files,
    verdict,
)


@dataclass(frozen=True)
class Block:
    """Seconds of an iteration, slice by slice: base[i] and new[i] were neighbours in time."""

    base: tuple[float, ...]
    new: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.base) != len(self.new) or not self.base:
            raise ValueError(
                f"{len(self.base)} slices against {len(self.new)}: as many on both sides, "
                "at least 1"
            )


# of a log-ratio: what differs by less is a matter of rounding, and ties must stay ties when both
# sides are measured in another unit
DECIMALS = 12


@dataclass(frozen=True)
class BlockSummary:
    """`log_ratio`: log(new / base), the Hodges-Lehmann estimate over the block's pairs.

    `standard_error`: of it, from the scatter between the pairs; 0 where a single pair says nothing.
    `base_seconds`, `new_seconds`: of an iteration, medians over the slices.
    """

    log_ratio: float
    standard_error: float
    base_seconds: float
    new_seconds: float


def summarise_pairs(base: Array, new: Array) -> tuple[Array, Array]:
    """Log-ratio and standard error of each row (blocks x pairs of positive seconds)."""
    # a difference of logs changes just its sign when the sides are swapped; a ratio's log may not
    log_ratios = np.log(new) - np.log(base)
    averages = walsh_averages(log_ratios)
    pairs = log_ratios.shape[1]
    errors = standard_errors(averages, pairs)
    if errors is None:
        spread = log_ratios.std(axis=1, ddof=1) if pairs > 1 else np.zeros(len(log_ratios))
        errors = spread / np.sqrt(pairs)
    return np.round(middle(averages), DECIMALS), errors


def summarise(block: Block) -> BlockSummary:
    """Raises ValueError for a slice that is no positive, finite time."""
    base, new = np.array([block.base]), np.array([block.new])
    for seconds in (*block.base, *block.new):
        if not (np.isfinite(seconds) and seconds > 0):
            raise ValueError(f"{seconds} seconds in a slice: must be positive and finite")
    log_ratios, errors = summarise_pairs(base, new)
    return BlockSummary(
        log_ratio=float(log_ratios[0]),
        standard_error=float(errors[0]),
        base_seconds=float(np.median(base)),
        new_seconds=float(np.median(new)),
    )


@dataclass
class Look:
    """Of several cases, one value each: what the blocks of one look say."""

    estimate: Array
    low: Array
    high: Array
    p_value: Array
    scatter: Array
    uncertainty: Array
    """Standard deviation of a block as the verdict sees it: the larger of the two."""


def look_at(log_ratios: Array, errors: Array, confidence: float) -> Look:
    """Judges rows (cases x blocks) of log-ratios and of their standard errors."""
    blocks = log_ratios.shape[1]
    averages = walsh_averages(log_ratios)
    estimate = middle(averages)
    unbounded = np.full(len(log_ratios), np.inf)
    low, high = interval_ends(averages, blocks, confidence) or (-unbounded, unbounded)
    of_estimate = math.sqrt(ESTIMATE_VARIANCE / blocks)
    between = standard_errors(averages, blocks)
    scatter = unbounded if between is None else between / of_estimate
    # the estimate is not moved by a single wild block, so neither is its error
    within = np.median(errors, axis=1)
    p_value = p_values(log_ratios)
    wider = np.flatnonzero(within > scatter)
    if wider.size:
        error = within[wider] * of_estimate
        student = 2 * special.stdtr(blocks - 1, -np.abs(estimate[wider]) / error)
        p_value[wider] = np.maximum(p_value[wider], student)
        reach = error * special.stdtrit(blocks - 1, (1 + confidence) / 2)
        # nothing can be stretched where blocks agree to the last digit
        some = scatter[wider] > 0
        stretch = np.divide(within[wider], scatter[wider], out=np.ones(wider.size), where=some)
        least = np.where(some, 0.0, reach)
        below = np.maximum((estimate[wider] - low[wider]) * stretch, least)
        above = np.maximum((high[wider] - estimate[wider]) * stretch, least)
        low[wider], high[wider] = estimate[wider] - below, estimate[wider] + above
    return Look(estimate, low, high, p_value, scatter, np.maximum(within, scatter))


POWER = 0.95
# standard normal quantile of POWER
POWER_QUANTILE = 1.6448536269514722
# variance of the Hodges-Lehmann estimate over that of the mean, for normal values
ESTIMATE_VARIANCE = math.pi / 3
SAMPLES = 800
GRID_POINTS = 9
SEED = 20240607


def _paired_shift(count: int, level: float) -> float:
    left_out = critical_sum(count, level / 2)
    samples = np.random.default_rng(SEED).standard_normal((SAMPLES, count))
    return float(np.quantile(-walsh_averages(samples)[:, left_out], POWER))


def _unpaired_shift(count: int, level: float) -> float:
    left_out = critical_count(count, count, level / 2)
    base, new = np.random.default_rng(SEED).standard_normal((2, SAMPLES, count))
    return float(np.quantile(-differences(base, new)[:, left_out], POWER))


class Detection:
    """Shifts in standard deviations of an observation, by the number of observations (a side).

    `needed(count)` tells the shift; it is asked between `first`, the fewest observations that can
    be significant, and `last`, beyond which the shift falls with the root of their number.
    """

    def __init__(self, needed: Callable[[int], float], first: int, last: int) -> None:
        # times the root it changes little, but for the first numbers, so that few points suffice
        wide = np.geomspace(first, last, GRID_POINTS).round().astype(int)
        grid = np.union1d(wide, np.arange(first, min(first + GRID_POINTS, last)))
        scaled = [needed(int(count)) * math.sqrt(count) for count in grid]
        counts = np.arange(first, last + 1)
        shifts = np.interp(np.log(counts), np.log(grid), scaled) / np.sqrt(counts)
        self._first = first
        self._shifts: Array = np.minimum.accumulate(shifts)
        self._limit = scaled[-1]

    def shift(self, count: int) -> float:
        """Found in 95 % of tries; infinite where nothing can be significant."""
        if count < self._first:
            return math.inf
        if count - self._first < self._shifts.size:
            return float(self._shifts[count - self._first])
        return self._limit / math.sqrt(count)

    def observations(self, shift: float) -> int:
        """Fewest (a side) that show this shift in 95 % of tries."""
        position = int(np.searchsorted(-self._shifts, -shift, side="left"))
        if position < self._shifts.size:
            return self._first + position
        return math.ceil((self._limit / shift) ** 2)


@lru_cache(maxsize=64)
def paired_detection(level: float) -> Detection:
    """Of the two-sided signed-rank test, by blocks."""
    first = fewest_at(level)
    return Detection(lambda count: _paired_shift(count, level), first, max(90, 2 * first))


@lru_cache(maxsize=64)
def unpaired_detection(level: float) -> Detection:
    """Of the two-sided rank-sum test, by files a side."""
    first = fewest_files(1, level)
    return Detection(lambda count: _unpaired_shift(count, level), first, max(40, 2 * first))


def answered_after(
    estimate: float, reach: float, error: float, count: int, log_margin: float, significant: float
) -> float:
    """Observations after which a case of this estimate has an answer in 95 % of tries; infinite:
    never.

    `reach`: half-width of the interval; `error`: standard error of the estimate; both shrink with
    the root of the `count` of observations that there are. Within the margin, the interval has to
    fit in beside the estimate, which moves. Beyond it, the estimate has to stay there and to be
    significant, which it is after `significant` observations.
    """
    room = abs(estimate) - log_margin
    if room == 0:
        return math.inf
    moves = POWER_QUANTILE * error
    if room < 0:
        return count * ((reach + moves) / room) ** 2
    return max(significant, count * (moves / room) ** 2)


__all__ = ["Evidence", "Judgement", "judge_family", "judge_rows"]


class _Reached(NamedTuple):
    """The last look that a case has reached, the case's row in it, and its p-value over those
    looks that point the same way."""

    blocks: int
    look: Look
    row: int
    p_value: float


def _last_looks(
    log_ratios: Sequence[Array], errors: Sequence[Array], design: Design
) -> dict[int, _Reached]:
    """By position of a case; cases that have reached no look are left out."""
    blocks = np.array([len(case) for case in log_ratios])
    # a difference is shown one way only, so each direction has p-values of its own
    slower, faster = np.ones((2, len(log_ratios)))
    found: dict[int, _Reached] = {}
    for count in design.looks:
        reached = np.flatnonzero(blocks >= count)
        if reached.size == 0:
            break
        rows = np.stack([log_ratios[case][:count] for case in reached])
        spread = np.stack([errors[case][:count] for case in reached])
        look = look_at(rows, spread, design.look_confidence)
        corrected = np.minimum(1.0, design.correction * look.p_value)
        for one_sided, sign in ((slower, 1), (faster, -1)):
            points_there = sign * look.estimate > 0
            least = np.minimum(one_sided[reached], corrected)
            one_sided[reached] = np.where(points_there, least, one_sided[reached])
        p_value = np.where(look.estimate > 0, slower[reached], faster[reached])
        # an estimate of exactly 0 points nowhere
        p_value[look.estimate == 0] = 1.0
        for row, case in enumerate(reached.tolist()):
            found[case] = _Reached(count, look, row, float(p_value[row]))
    return found


def _smallest_difference(blocks: int, uncertainty: float, design: Design) -> float:
    shown = paired_detection(design.strictest_level).shift(blocks) * uncertainty
    estimated = math.sqrt(ESTIMATE_VARIANCE / blocks) * uncertainty
    limits = Limits(design.alpha, design.margin)
    return limits.smallest_difference(shown, POWER_QUANTILE * estimated)


def _distance(last: _Reached, uncertainty: float, design: Design) -> float:
    """Of an unclear case, in blocks."""
    look, row = last.look, last.row
    estimate = float(look.estimate[row])
    shown = abs(estimate) / uncertainty if uncertainty else math.inf
    return answered_after(
        estimate,
        float(look.high[row] - look.low[row]) / 2,
        math.sqrt(ESTIMATE_VARIANCE / last.blocks) * uncertainty,
        last.blocks,
        Limits(design.alpha, design.margin).log_margin,
        paired_detection(design.strictest_level).observations(shown) if shown else math.inf,
    )


def _look_after(blocks: int, distance: float, design: Design) -> int | None:
    """The planned look, after so many blocks, that comes late enough."""
    later = [count for count in design.looks if count > blocks]
    return next((count for count in later if count >= distance), None)


def _judgement(last: _Reached, adjusted_p_value: float, design: Design) -> Judgement:
    look, row = last.look, last.row
    estimate, low, high = float(look.estimate[row]), float(look.low[row]), float(look.high[row])
    uncertainty = float(look.uncertainty[row])
    limits = Limits(design.alpha, design.margin)
    outcome = verdict(adjusted_p_value, estimate, low, high, limits)
    is_open = outcome is Outcome.UNCLEAR
    distance = _distance(last, uncertainty, design) if is_open else last.blocks
    evidence = Evidence(
        estimate=estimate,
        low=low,
        high=high,
        confidence=design.look_confidence,
        p_value=last.p_value,
        blocks=last.blocks,
        scatter=float(look.scatter[row]),
        smallest_difference=_smallest_difference(last.blocks, uncertainty, design),
        distance=distance,
        blocks_needed=_look_after(last.blocks, distance, design) if is_open else last.blocks,
    )
    return Judgement(outcome, evidence, adjusted_p_value)


def judge_rows(
    log_ratios: Sequence[Array], errors: Sequence[Array], design: Design
) -> list[Judgement | None]:
    """As judge_family(), from arrays: a case's log(new / base) of its blocks, and their standard
    errors."""
    if len(log_ratios) > design.cases:
        raise DesignError(f"{len(log_ratios)} cases, but the design is for {design.cases}")
    found = _last_looks(log_ratios, errors, design)
    judgements: list[Judgement | None] = [None] * len(log_ratios)
    if found:
        adjusted = holm_adjusted(np.array([last.p_value for last in found.values()]), design.cases)
        for (case, last), adjusted_p_value in zip(found.items(), adjusted, strict=True):
            judgements[case] = _judgement(last, float(adjusted_p_value), design)
    return judgements


def judge_family(
    cases: Mapping[str, Sequence[BlockSummary]], design: Design
) -> dict[str, Judgement | None]:
    """Judges each case at the last planned look that it has reached; None: none reached yet.

    Cases of the design without a verdict count in Holm's correction as if they showed nothing.
    Raises DesignError for more cases than the design is for.
    """
    log_ratios = [np.array([block.log_ratio for block in blocks]) for blocks in cases.values()]
    errors = [np.array([block.standard_error for block in blocks]) for blocks in cases.values()]
    return dict(zip(cases, judge_rows(log_ratios, errors, design), strict=True))
