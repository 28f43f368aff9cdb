"""What can be said of a case, the rule that every comparison judges by, the design of a run;
verdicts on blocks and on stored results; and which part of a whole explains its change.

A case is `slower` or `faster` where its corrected p-value passes alpha and its estimate lies beyond
the margin; else `same` where the interval lies within the margin on both sides; else `unclear`.

A block is one fresh pair of processes. What differs between two processes of one program (address
layout, where memory came from) does not average out within a process, so blocks are the sample and
pairs of slices only make each block precise. The machine drifts from pair to pair, so only
neighbours are divided by each other.

Variance: what the blocks' scatter says, or what the pairs within them say, whichever is larger. In
the second case the interval is stretched by the ratio of the two standard errors, and the p-value
is no smaller than Student's with the larger one (blocks - 1 degrees of freedom).

Only planned looks judge: blocks beyond the last look that a case has reached wait for the next one.
Of `looks` planned numbers of blocks each may spend alpha / looks, so whoever stops at any of them
for any reason has made a false alarm with a chance of at most alpha (Bonferroni, the simplest
spending function of Lan and DeMets, Biometrika 70, 1983, which asks for nothing about how looks
depend on each other). Only a quarter of alpha is spent: a procedure that errs in exactly 1 of 1,000
families cannot be shown to err in at most 1 of 1,000. The price is two blocks.

The exact p-value of a look is multiplied by the number of looks; the least of these so far is a
p-value whenever one stops. Looks whose estimate points the other way than the last one do not
count, which can only raise it. Holm then corrects for the cases.

Of stored results a file is an observation, the sides are not paired, and there is one look. Nothing
removes the machine's drift between files, so differences have to be larger than those that
`compare run` shows. Of a judgement, `blocks` are then files a side.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count as counted
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import special

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import wholes_among
from tinyllama_tools.stats.rank_tests import (
    BASE_SECONDS,
    ERROR,
    LOG_RATIO,
    MOST_BLOCKS,
    NEW_SECONDS,
    Array,
    hodges_lehmann,
    holm_adjusted,
    interval_ends,
    middle,
    p_values,
    rank_sum_p_value,
    rank_sum_tail,
    signed_rank_tail,
    standard_errors,
    walsh_averages,
)


class Outcome(str, Enum):
    """The values are the words that people and JSON read."""

    SLOWER = "slower"
    FASTER = "faster"
    # equivalence shown: the interval lies within the margin on both sides
    SAME = "same"
    UNCLEAR = "unclear"
    # not what an error rate could be stated from: one run a side, or the base's own failure
    NO_VERDICT = "no verdict"
    # in the base only; in the new only (the base does not have it, or skips it)
    MISSING = "missing"
    ADDED = "added"
    # measured in the base, failed in the new: wrong result, crash, hang
    FAILED = "failed"
    # not measured on a side, with that side's reason, and no fault of the new
    SKIPPED = "skipped"

    @property
    def is_regression(self) -> bool:
        """Whether it fails the gate, unless it was allowed by name."""
        return self in {Outcome.SLOWER, Outcome.MISSING, Outcome.FAILED}

    @property
    def colour(self) -> str:
        """The one colour that every output gives it."""
        if self.is_regression:
            return "red"
        green = self in {Outcome.FASTER, Outcome.SAME}
        return "green" if green else "yellow" if self is Outcome.UNCLEAR else "grey"


# a case with one of these needs no more data
DECIDED = frozenset({Outcome.SLOWER, Outcome.FASTER, Outcome.SAME})


NO_REGRESSION, REGRESSION, BAD_INPUT, STILL_UNCLEAR = 0, 1, 2, 3
ALPHA = 1e-3
MARGIN = 0.03
LOOKS = 6
CONFIDENCE = 0.95
# of the number of blocks from look to look: few looks, and at most a quarter measured in vain
GROWTH = 1.27
# share of alpha that looks may spend
SPENT = 0.25


def fewest_blocks(cases: int, alpha: float, looks: int) -> int:
    """At which `slower` and `same` are possible at all.

    The smallest p-value, 2^(1 - n) where all n blocks point the same way, has to pass the strictest
    step, alpha / 4 / (cases x looks), as a quarter of alpha is spent; and an interval over n blocks
    reaches a confidence of 1 - 2^(1 - n) at most.
    """
    level = min(SPENT * alpha / cases, 1 - CONFIDENCE) / looks
    return next(blocks for blocks in counted(1) if 2.0 ** (1 - blocks) <= level)


def fewest_files(cases: int, alpha: float) -> int:
    """A side, of stored results, at which `slower` and `same` are possible at all.

    Of C(2 n, n) ways to divide 2 n files, the two that separate the sides have the smallest p-value
    there is: 2 / C(2 n, n) <= alpha / cases.
    """
    level = min(alpha / cases, 1 - CONFIDENCE)
    return next(files for files in counted(1) if 2 / math.comb(2 * files, files) <= level)


@dataclass(frozen=True)
class Design:
    """`cases`: of the family. `alpha`: chance of any false `slower` or `faster` in the family.
    `margin`: fraction below which a difference does not matter. `looks`: growing numbers of blocks
    at which it judges, at least fewest_blocks()."""

    cases: int
    alpha: float
    margin: float
    looks: tuple[int, ...]

    @property
    def look_confidence(self) -> float:
        """Of the interval at each look, so that all looks together keep CONFIDENCE."""
        return 1 - (1 - CONFIDENCE) / len(self.looks)

    @property
    def correction(self) -> float:
        """What the p-value of a look is multiplied by before it is held against alpha."""
        return len(self.looks) / SPENT

    @property
    def strictest_level(self) -> float:
        """What the p-value of one case at one look must not exceed to be sure of passing Holm."""
        return self.alpha / (self.cases * self.correction)


def plan_design(
    cases: int, *, alpha: float = ALPHA, margin: float = MARGIN, looks: int = LOOKS
) -> Design:
    """Looks from the fewest blocks on, each about 1.27 times the one before.

    Raises BadInputError for so many looks that the last ones pass what the exact test can take.
    """
    planned = [fewest_blocks(cases, alpha, looks)]
    while len(planned) < looks and planned[-1] <= MOST_BLOCKS:
        planned.append(math.ceil(GROWTH * planned[-1]))
    if planned[-1] > MOST_BLOCKS:
        raise BadInputError(
            f"{looks} looks: look {len(planned)} would come after {planned[-1]} blocks, and the "
            f"exact test takes at most {MOST_BLOCKS}; plan fewer looks or a larger alpha"
        )
    return Design(cases, alpha, margin, tuple(planned))


@dataclass(frozen=True)
class Judgement:
    """A verdict (slower, faster, same or unclear) and what it stands on. `estimate`, `low`, `high`:
    log(new / base); an interval that too few blocks cannot give at this `confidence` is infinite.
    `adjusted_p_value`: corrected for looks and for the family.

    `distance`: blocks after which an unclear case is likely to have an answer, if estimate and
    scatter stay what they are; infinite: never.
    """

    outcome: Outcome
    estimate: float
    low: float
    high: float
    confidence: float
    adjusted_p_value: float
    blocks: int
    distance: float = math.inf


def verdict_of(
    estimate: float, low: float, high: float, adjusted_p: float, alpha: float, margin: float
) -> Outcome:
    """The rule that every comparison judges by. Estimate and interval are log-ratios, so that a
    case 3 % slower is as far off as its mirror image."""
    edge = math.log1p(margin)
    if adjusted_p <= alpha and abs(estimate) > edge:
        return Outcome.SLOWER if estimate > 0 else Outcome.FASTER
    return Outcome.SAME if max(-low, high) <= edge else Outcome.UNCLEAR


def judge_unpaired(
    cases: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> dict[str, Judgement]:
    """Judges each case from the seconds of its (base files, new files), with Holm over the cases.

    Exact two-sided rank-sum test; Hodges-Lehmann shift of log seconds with its exact interval,
    which is infinite where there are too few files for 95 %. `blocks`: of unequal sides, the
    harmonic mean, as much information as so many files a side.
    """
    logs = [tuple(np.log(side) for side in sides) for sides in cases.values()]
    p_values = np.array([rank_sum_p_value(base, new) for base, new in logs])
    adjusted = holm_adjusted(p_values, len(cases)).tolist()
    judgements = {}
    for name, (base, new), p in zip(cases, logs, adjusted, strict=True):
        ordered = np.sort(np.subtract.outer(new, base), axis=None)[np.newaxis]
        ends = interval_ends(ordered, rank_sum_tail(base.size, new.size), CONFIDENCE)
        estimate = float(np.median(ordered))
        low, high = (float(end[0]) for end in ends) if ends else (-math.inf, math.inf)
        outcome = verdict_of(estimate, low, high, p, alpha, margin)
        files = math.floor(2 / (1 / base.size + 1 / new.size))
        judgements[name] = Judgement(outcome, estimate, low, high, CONFIDENCE, p, files)
    return judgements


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


def judge_family(cases: Mapping[Name, Array], design: Design) -> dict[Name, Judgement | None]:
    """Judges each case, a row a block, at the last planned look that it has reached; None: none
    reached yet.

    Cases of the design without a verdict count in Holm's correction as if they showed nothing.
    """
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
        look = look_at(blocks[..., LOG_RATIO], blocks[..., ERROR], design.look_confidence)
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
    whole: Array,
    parts: Mapping[str, tuple[int, Array]],
    missing: tuple[str, ...] = (),
) -> Attribution:
    """Shares of the whole's change by part; `parts`: by case, how often the whole contains it, and
    its blocks.

    Changes are Hodges-Lehmann estimates over blocks; intervals are the percentile bootstrap over
    blocks (Efron, Annals of Statistics 7, 1979), seeded, whole and parts drawn independently. The
    culprit is the part with the largest share if that is at least one half, and the low end of its
    interval, corrected for the number of parts (Bonferroni), is above 0 and above every other
    part's share.
    """
    generator = np.random.default_rng(SEED)

    def change(blocks: Array) -> tuple[float, Array]:
        """New - base in seconds, and of samples drawn with replacement.

        From the paired log-ratio, which drift within the block does not touch as it does the
        medians. The hyperbolic sine only changes its sign when the sides are swapped.
        """
        level = np.sqrt(blocks[:, BASE_SECONDS] * blocks[:, NEW_SECONDS])
        values = 2 * level * np.sinh(blocks[:, LOG_RATIO] / 2)
        drawn = values[generator.integers(0, values.size, (BOOTSTRAPS, values.size))]
        return hodges_lehmann(values), middle(walsh_averages(drawn))

    total, of_whole = change(whole)
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
    cases: Mapping[str, Array], changed: Collection[str], layers: Mapping[str, int]
) -> dict[str, Attribution]:
    """Of every case that changed and has parts among the others, by its name.

    `cases`: blocks by case name. `layers`: of each size. A part with fewer than two blocks counts
    as not measured.
    """
    known = {name: blocks for name, blocks in cases.items() if len(blocks) >= FEWEST_BLOCKS}
    found = {}
    for whole, parts in wholes_among(known, layers):
        if whole in changed:
            measured = {part.case: (part.count, known[part.case]) for part in parts.measured}
            found[whole] = attribute(known[whole], measured, parts.missing)
    return found
