"""Verdicts on cases measured in blocks, at looks that are planned before anything is measured, and
which part of a whole explains its change.

A block is one fresh pair of processes. What differs between two processes of one program (address
layout, where memory came from) does not average out within a process, so blocks are the sample and
pairs of slices only make each block precise. The machine drifts from pair to pair, so only
neighbours are divided by each other.

Variance: what the blocks' scatter says, or what the pairs within them say, whichever is larger. In
the second case the interval is stretched by the ratio of the two standard errors, and the p-value
is no smaller than Student's with the larger one (blocks - 1 degrees of freedom).

Only planned looks judge: blocks beyond the last look that a case has reached wait for the next one.
At each look the exact p-value is multiplied by the number of looks; the least of these so far is a
p-value whenever one stops. Looks whose estimate points the other way than the last one do not
count, which can only raise it. Holm then corrects for the cases.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import special

from tinyllama_tools.data.names import wholes_among
from tinyllama_tools.stats.rank_tests import (
    Array,
    BlockSummary,
    hodges_lehmann,
    holm_adjusted,
    interval_ends,
    middle,
    p_values,
    signed_rank_tail,
    standard_errors,
    walsh_averages,
)
from tinyllama_tools.stats.verdicts import CONFIDENCE, Design, Judgement, Outcome, verdict_of

# standard normal quantile of 95 %
POWER_QUANTILE = 1.6448536269514722
# variance of the Hodges-Lehmann estimate over that of the mean, for normal values
ESTIMATE_VARIANCE = math.pi / 3
SEED = 20240607
Name = TypeVar("Name")


class Look(NamedTuple):
    """Of several cases, a value each: what the blocks of one look say. `error`: standard error of
    the estimate as the verdict sees it, the larger of the two."""

    estimate: Array
    low: Array
    high: Array
    p_value: Array
    error: Array


def look_at(log_ratios: Array, errors: Array, confidence: float) -> Look:
    """Judges rows (cases x blocks) of log-ratios and of their standard errors."""
    blocks = log_ratios.shape[1]
    averages, tail = walsh_averages(log_ratios), signed_rank_tail(blocks)
    estimate = middle(averages)
    # a design has no look at fewer blocks than its interval needs
    low, high = interval_ends(averages, tail, confidence)
    of_estimate = math.sqrt(ESTIMATE_VARIANCE / blocks)
    scatter = standard_errors(averages, tail, blocks - 1) / of_estimate
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
    return Look(estimate, low, high, p_value, of_estimate * np.maximum(within, scatter))


# of the fewest blocks at which anything is significant, which an estimate takes on top of what the
# normal approximation says: it is too hopeful at so few blocks and so small levels
ON_TOP = 0.6


def answered_after(
    estimate: float, reach: float, error: float, blocks: int, design: Design
) -> float:
    """Blocks after which an unclear case of this estimate has an answer in some 95 % of tries;
    infinite: never.

    `reach`: half-width of the interval; `error`: standard error of the estimate; both shrink with
    the root of the number of blocks. Within the margin, the interval has to fit in beside the
    estimate, which moves. Beyond it, the estimate has to stay there and to be significant.
    """
    room = abs(estimate) - math.log1p(design.margin)
    if room == 0:
        return math.inf
    moves = POWER_QUANTILE * error
    if room < 0:
        return blocks * ((reach + moves) / room) ** 2
    significant = moves - float(special.ndtri(design.strictest_level / 2)) * error
    shown = ON_TOP * design.looks[0] + blocks * (significant / estimate) ** 2
    return max(shown, blocks * (moves / room) ** 2)


def _judgement(look: Look, row: int, blocks: int, adjusted_p: float, design: Design) -> Judgement:
    estimate, low, high, _, error = (float(values[row]) for values in look)
    outcome = verdict_of(estimate, low, high, adjusted_p, design.alpha, design.margin)
    distance = float(blocks)
    if outcome is Outcome.UNCLEAR:
        distance = answered_after(estimate, (high - low) / 2, error, blocks, design)
    interval = (estimate, low, high, design.look_confidence)
    return Judgement(outcome, *interval, adjusted_p, blocks, distance)


def judge_family(
    cases: Mapping[Name, Sequence[BlockSummary] | Array], design: Design
) -> dict[Name, Judgement | None]:
    """Judges each case at the last planned look that it has reached; None: none reached yet. Its
    blocks may be the rows of an array.

    Cases of the design without a verdict count in Holm's correction as if they showed nothing.
    Raises ValueError for more cases than the design is for.
    """
    if len(cases) > design.cases:
        raise ValueError(f"{len(cases)} cases, but the design is for {design.cases}")
    names = list(cases)
    counts = np.array([len(blocks) for blocks in cases.values()])
    # a difference is shown one way only, so each direction has p-values of its own
    least = {1: np.ones(len(names)), -1: np.ones(len(names))}
    last: dict[int, tuple[Look, int, int]] = {}
    for count in design.looks:
        reached = np.flatnonzero(counts >= count)
        if reached.size == 0:
            break
        blocks = np.array([cases[names[case]][:count] for case in reached])
        look = look_at(blocks[..., 0], blocks[..., 1], design.look_confidence)
        corrected = np.minimum(1.0, design.correction * look.p_value)
        # an estimate of exactly 0 points nowhere
        so_far = np.ones(reached.size)
        for sign, found in least.items():
            there = np.sign(look.estimate) == sign
            found[reached[there]] = np.minimum(found[reached[there]], corrected[there])
            so_far[there] = found[reached[there]]
        look = look._replace(p_value=so_far)
        last |= {case: (look, row, count) for row, case in enumerate(reached.tolist())}
    judgements: dict[Name, Judgement | None] = dict.fromkeys(names)
    p_values_so_far = np.array([look.p_value[row] for look, row, _ in last.values()])
    adjusted = holm_adjusted(p_values_so_far, design.cases).tolist()
    for (case, reached_last), p_value in zip(last.items(), adjusted, strict=True):
        judgements[names[case]] = _judgement(*reached_last, p_value, design)
    return judgements


class Costs(NamedTuple):
    """Wall-clock seconds: of a block whatever its cases (start and end of the two processes), of
    each case in a block (opening, warm-up, slices), and of all proofs before the first block."""

    block: float
    cases: Mapping[str, float]
    opening: float = 0.0

    def of(self, cases: Iterable[str]) -> float:
        """Seconds of one block with these cases."""
        return self.block + sum(self.cases[case] for case in cases)


BOOTSTRAPS = 1000
# of the change, which a part must explain to be blamed for it
LEAST_SHARE = 0.5


@dataclass(frozen=True)
class PartChange:
    """What one part contributes to the change of a whole. `count`: how often the whole contains it.

    `seconds`: count x (new - base) of the part. `share`: seconds / the whole's change, with `low`
    to `high` at 95 %.
    """

    case: str
    count: int
    seconds: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Attribution:
    """Which parts explain a case's change. `parts`: largest share first. `unexplained`: what is
    left of 1. `culprit`: the part that the change is attributed to, None where none stands out.
    `missing`: parts that were not measured."""

    parts: tuple[PartChange, ...]
    unexplained: float
    culprit: str | None
    missing: tuple[str, ...] = ()


def attribute(
    whole: Sequence[BlockSummary],
    parts: Mapping[str, tuple[int, Sequence[BlockSummary]]],
    missing: tuple[str, ...] = (),
) -> Attribution:
    """Shares of the whole's change by part; `parts`: by case, how often the whole contains it, and
    its blocks.

    Changes are Hodges-Lehmann estimates over blocks; intervals are the percentile bootstrap over
    blocks (Efron, Annals of Statistics 7, 1979), seeded, whole and parts drawn independently. The
    culprit is the part with the largest share if that is at least one half, and the low end of its
    interval, corrected for the number of parts (Bonferroni), is above 0 and above every other
    part's share. Raises ValueError for a whole that did not change.
    """
    generator = np.random.default_rng(SEED)

    def change(blocks: Sequence[BlockSummary]) -> tuple[float, Array]:
        """New - base in seconds, and of samples drawn with replacement.

        From the paired log-ratio, which drift within the block does not touch as it does the
        medians. The hyperbolic sine only changes its sign when the sides are swapped.
        """
        ratio = np.array([block.log_ratio for block in blocks])
        level = np.sqrt([block.base_seconds * block.new_seconds for block in blocks])
        values = 2 * level * np.sinh(ratio / 2)
        drawn = values[generator.integers(0, values.size, (BOOTSTRAPS, values.size))]
        return hodges_lehmann(values), middle(walsh_averages(drawn))

    total, of_whole = change(whole)
    if total == 0:
        raise ValueError("the whole changed by 0 seconds: there is nothing to attribute")
    # a drawn whole of exactly 0 explains nothing, either way
    of_whole[of_whole == 0] = np.inf
    found, shares = [], {}
    for name, (count, blocks) in parts.items():
        seconds, drawn = change(blocks)
        shares[name] = count * drawn / of_whole
        ends = np.quantile(shares[name], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
        found.append(PartChange(name, count, count * seconds, count * seconds / total, *ends))
    found.sort(key=lambda part: -part.share)
    culprit = None
    if found and found[0].share >= LEAST_SHARE:
        # the largest of several shares was picked, so it must stand out from as many
        low = np.quantile(shares[found[0].case], (1 - CONFIDENCE) / 2 / len(found))
        if low > max([0.0, *(other.share for other in found[1:])]):
            culprit = found[0].case
    unexplained = 1 - sum(part.share for part in found)
    return Attribution(tuple(found), unexplained, culprit, missing)


# fewer blocks have no scatter to take an interval from
FEWEST_BLOCKS = 2


def attributions(
    cases: Mapping[str, Sequence[BlockSummary]], layers: Mapping[str, int]
) -> dict[str, Attribution]:
    """Of every case that changed at all and has parts among the others, by its name.

    `cases`: blocks by case name. `layers`: of each size. A whole or part with fewer than two blocks
    counts as not measured.
    """
    known = {name: blocks for name, blocks in cases.items() if len(blocks) >= FEWEST_BLOCKS}
    found = {}
    for whole, parts in wholes_among(known, layers):
        # a whole whose blocks say exactly 0 has no change to divide
        with contextlib.suppress(ValueError):
            measured = {part.case: (part.count, known[part.case]) for part in parts.measured}
            found[whole] = attribute(known[whole], measured, parts.missing)
    return found
