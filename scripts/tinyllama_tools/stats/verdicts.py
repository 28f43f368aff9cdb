"""What can be said of a case, the rule that every comparison judges by, the design of a run;
verdicts on blocks and on stored results; and which part of a whole explains its change.

A case is `slower` where it is shown that the true change is larger than the margin, `faster` where
it is shown to be below minus the margin; else `same` where the interval lies within the margin on
both sides; else `unclear`. Alpha bounds the chance of any false `slower` or `faster` in the family
for every true change within the margin, its edge included: the tests are of the values less the
margin, and of the values plus the margin (a minimum-effect test). `same` is wrong in at most 5 % of
cases whose true change is the margin or more: two one-sided tests at 5 %, which is the interval of
90 % (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987).

A block is one fresh pair of processes. What differs between two processes of one program (address
layout, where memory came from) does not average out within a process, so blocks are the sample and
pairs of slices only make each block precise. The machine drifts from pair to pair, so only
neighbours are divided by each other.

The estimate's standard error is that from the scatter between blocks, or that from the scatter of
the pairs within them, whichever is larger. Blocks that depend on those before them say less than as
many independent ones: n blocks with an autocorrelation of r as much as n (1 - r) / (1 + r). r is
the case's own, or the mean over all cases of the look plus one standard error, whichever is larger.
Where pairs or dependence make the error larger than the exact test takes it to be, the interval is
widened to Student's with this error and as many degrees of freedom as independent blocks, and the
p-value is no smaller than Student's. A case that is `unclear` and has an r of 0.4 or more is
reported as unclear for that reason.

Cases are judged at planned numbers of blocks only, the looks; blocks beyond the last look that a
case has reached count at the next one. Each look may spend alpha / looks, so that the chance of a
false alarm is at most alpha at whichever look the run stops, and for whatever reason (Bonferroni,
the simplest spending function of Lan and DeMets, Biometrika 70, 1983, which assumes nothing about
how looks depend on each other). Both directions share alpha. Only half of it is spent: a procedure
that errs in exactly 1 of 1,000 families cannot be shown to err in at most 1 of 1,000.

The exact p-value of a look is multiplied by the number of looks; the least of these so far, in the
direction of the last estimate, is a valid p-value at whichever look the run stops. Holm then
corrects for the number of cases.

In a comparison of stored results a file is an observation, the sides are not paired, and there is
one look. Nothing removes the machine's drift between files, so only larger differences can be shown
than by `compare run`. `blocks` of a judgement are then files a side.
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
    WANTED_CONFIDENCE,
    Array,
    autocorrelations,
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
    # no error rate can be stated: one run a side, or the base failed
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
        """Whether the exit status is 1, unless --allow-missing excuses it."""
        return self in {Outcome.SLOWER, Outcome.MISSING, Outcome.FAILED}

    @property
    def colour(self) -> str:
        """The one colour that every output gives it."""
        if self.is_regression:
            return "red"
        green = self in {Outcome.FASTER, Outcome.SAME}
        return "green" if green else "yellow" if self is Outcome.UNCLEAR else "grey"


# answers: a case with one of these is measured no more
DECIDED = frozenset({Outcome.SLOWER, Outcome.FASTER, Outcome.SAME})


NO_REGRESSION, REGRESSION, BAD_INPUT, STILL_UNCLEAR = 0, 1, 2, 3
ALPHA = 1e-3
MARGIN = 0.015
LOOKS = 5
# of the interval over all looks: two one-sided tests at 5 %
CONFIDENCE = 0.90
# of the number of blocks from look to look: few looks, and at most a third measured in vain
GROWTH = 1.55
# share of alpha that may be spent, by both directions together
SPENT = 0.5
DIRECTIONS = 2
# fewer blocks have no scatter to take an interval from
FEWEST_BLOCKS = 2
# of blocks that say less than half as much as independent ones
NOTABLE_AUTOCORRELATION = 0.4


def fewest_blocks(cases: int, alpha: float, looks: int) -> int:
    """The least number of blocks with which `slower` and `same` are possible at all.

    The smallest p-value there is, 2^-n of n blocks that all lie beyond the margin, must be able to
    pass Holm's strictest step, alpha / 4 / (cases x looks), since each direction spends a quarter
    of alpha; the 5 % / looks of `same`; and the 2.5 % of the interval that the standard error is
    taken from.
    """
    level = min(SPENT * alpha / (DIRECTIONS * cases), (1 - CONFIDENCE) / 2) / looks
    level = min(level, (1 - WANTED_CONFIDENCE) / 2)
    return next(blocks for blocks in counted(1) if 2.0**-blocks <= level)


def fewest_files(cases: int, alpha: float) -> int:
    """The least number of stored files a side with which `slower` and `same` are possible at all.

    Of the C(2 n, n) ways to divide 2 n files, those with all of one side above all of the other
    have the smallest p-value there is, 1 / C(2 n, n), which must be able to pass alpha / 2 / cases,
    since both directions share alpha.
    """
    level = min(alpha / (DIRECTIONS * cases), (1 - CONFIDENCE) / 2)
    return next(files for files in counted(1) if 1 / math.comb(2 * files, files) <= level)


@dataclass(frozen=True)
class Design:
    """`cases`: of the family. `alpha`: chance of any false `slower` or `faster` in the family.
    `margin`: fraction within which a difference does not matter. `looks`: growing numbers of
    blocks at which it judges, at least fewest_blocks()."""

    cases: int
    alpha: float
    margin: float
    looks: tuple[int, ...]

    @property
    def edge(self) -> float:
        """Log-ratio of the margin: 1.02 times the time and 1 / 1.02 are equally far from 1."""
        return math.log1p(self.margin)

    @property
    def look_confidence(self) -> float:
        """Of the interval at each look, so that all looks together keep CONFIDENCE."""
        return 1 - (1 - CONFIDENCE) / len(self.looks)

    @property
    def correction(self) -> float:
        """What the p-value of a look is multiplied by before it is held against alpha."""
        return DIRECTIONS * len(self.looks) / SPENT

    @property
    def strictest_level(self) -> float:
        """What the p-value of one case at one look must not exceed to be sure of passing Holm."""
        return self.alpha / (self.cases * self.correction)


def plan_design(
    cases: int, *, alpha: float = ALPHA, margin: float = MARGIN, looks: int = LOOKS
) -> Design:
    """Looks from the fewest blocks on, each about GROWTH times the one before.

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
    """A verdict (slower, faster, same or unclear) and what it rests on. `estimate`, `low`, `high`:
    log(new / base); the interval is infinite where there are too few blocks for this `confidence`.
    `adjusted_p_value`: of a change beyond the margin in the estimate's direction, corrected for
    directions, looks and the family; None where the verdict is by the interval alone.
    `autocorrelation`: of neighbouring blocks, by which the interval was widened; 0 if it was not.

    `distance`: blocks after which an unclear case is likely to have an answer, if estimate and
    scatter stay what they are; infinite where no number is.
    """

    outcome: Outcome
    estimate: float
    low: float
    high: float
    confidence: float
    adjusted_p_value: float | None
    blocks: int
    distance: float = math.inf
    autocorrelation: float = 0.0

    @property
    def effective_blocks(self) -> float:
        """How many independent blocks would say as much."""
        return float(effective(self.blocks, self.autocorrelation))

    @property
    def is_dependent(self) -> bool:
        """Whether it is unclear because its blocks depend on each other."""
        # independent blocks reach this in 7 % of tries: autocorrelation has a standard error in it
        by_chance = 2.5 / math.sqrt(self.blocks)
        is_notable = self.autocorrelation >= max(NOTABLE_AUTOCORRELATION, by_chance)
        return self.outcome is Outcome.UNCLEAR and is_notable


def effective(blocks: int, autocorrelation: Array | float) -> Array | float:
    """How many independent blocks tell as much of the mean: n (1 - r) / (1 + r)."""
    return blocks * (1 - autocorrelation) / (1 + autocorrelation)


def verdict_of(
    estimate: float, low: float, high: float, edge: float, *, is_beyond: bool
) -> Outcome:
    """The rule of every verdict. Estimate, interval and `edge`, the margin, are log-ratios.
    `is_beyond`: whether a change beyond the margin was shown."""
    if is_beyond and abs(estimate) > edge:
        return Outcome.SLOWER if estimate > 0 else Outcome.FASTER
    return Outcome.SAME if max(-low, high) <= edge else Outcome.UNCLEAR


def judge_by_interval(estimate: float, low: float, high: float, *, margin: float) -> Judgement:
    """By the 95 % interval of log(new / base) alone: `slower` or `faster` where all of it lies
    beyond the margin, `same` where all of it lies within. Nothing is corrected for the number of
    cases: each verdict by itself is wrong in up to 5 %."""
    edge = math.log1p(margin)
    outcome = verdict_of(estimate, low, high, edge, is_beyond=max(low, -high) > edge)
    return Judgement(outcome, estimate, low, high, WANTED_CONFIDENCE, None, 0)


def judge_unpaired(
    cases: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> dict[str, Judgement]:
    """Judges each case by its seconds in (base files, new files), with Holm over the cases.

    Exact rank-sum test of a shift beyond the margin, in the direction of the estimate;
    Hodges-Lehmann shift of log seconds with its exact interval, which is infinite where there are
    too few files for it. `blocks`: files a side; where the sides are not equal, their harmonic
    mean, since so many a side would say as much.
    """
    edge, found = math.log1p(margin), []
    for base, new in (map(np.log, sides) for sides in cases.values()):
        ordered = np.sort(np.subtract.outer(new, base), axis=None)[np.newaxis]
        ends = interval_ends(ordered, rank_sum_tail(base.size, new.size), CONFIDENCE)
        estimate = float(np.median(ordered))
        low, high = (float(end[0]) for end in ends) if ends else (-math.inf, math.inf)
        faster, slower = (base, new + edge), (base, new - edge)
        p = rank_sum_p_value(*slower) if estimate > 0 else rank_sum_p_value(*faster[::-1])
        files = math.floor(2 / (1 / base.size + 1 / new.size))
        found.append((estimate, low, high, min(1.0, DIRECTIONS * p), files))
    adjusted = holm_adjusted(np.array([p for *_, p, _ in found]), len(cases)).tolist()
    return {
        name: Judgement(verdict_of(*ends, edge, is_beyond=p <= alpha), *ends, CONFIDENCE, p, files)
        for name, (*ends, _, files), p in zip(cases, found, adjusted, strict=True)
    }


# standard normal quantile of 95 %
POWER_QUANTILE = 1.6448536269514722
# variance of the Hodges-Lehmann estimate over that of the mean, for normal values
ESTIMATE_VARIANCE = math.pi / 3
SEED = 20240607
Name = TypeVar("Name")


class Look(NamedTuple):
    """What the blocks of one look say, in a value for each case. `slower`, `faster`: p-values of a
    change beyond the margin. `error`: standard error of the estimate; `autocorrelation`: of
    neighbouring blocks, which is in that."""

    estimate: Array
    low: Array
    high: Array
    slower: Array
    faster: Array
    error: Array
    autocorrelation: Array


def independent_rows(log_ratios: Array) -> float:
    """How many rows without common noise would say as much as these k: k² over the sum of all
    squared correlations between them; 1 where all move together."""
    centred = log_ratios - log_ratios.mean(axis=1, keepdims=True)
    size = np.sqrt((centred**2).sum(axis=1))
    moving = centred[size > 0] / size[size > 0, None]
    rows = len(moving)
    return rows**2 / float(((moving @ moving.T) ** 2).sum()) if rows else 1.0


def dependence(log_ratios: Array) -> Array:
    """Of each row of blocks in order of time, the autocorrelation by which its error is widened: 0
    at least, else its own, or the mean of all rows plus a standard error, whichever is larger. The
    mean of all, since it is the machine that makes blocks depend on each other, and one case has
    too few of them to show it."""
    own = autocorrelations(log_ratios)
    error = 1 / math.sqrt(log_ratios.shape[1] * independent_rows(log_ratios))
    return np.clip(np.maximum(own, own.mean() + error), 0.0, 0.99)


def look_at(log_ratios: Array, errors: Array, confidence: float, edge: float) -> Look:
    """Judges rows (cases x blocks) of log-ratios and of their standard errors."""
    blocks = log_ratios.shape[1]
    averages, tail = walsh_averages(log_ratios), signed_rank_tail(blocks)
    estimate = middle(averages)
    # not None: a design has no look at fewer blocks than the interval needs
    low, high = interval_ends(averages, tail, confidence)
    # the estimate's standard error over that of one block
    share = math.sqrt(ESTIMATE_VARIANCE / blocks)
    scatter = standard_errors(averages, tail, blocks - 1) / share
    # the median, since a single outlier among the blocks does not move the estimate either
    block_error = np.maximum(np.median(errors, axis=1), scatter)
    depends = dependence(log_ratios)
    independent = effective(blocks, depends)
    degrees = np.maximum(independent, FEWEST_BLOCKS) - 1
    error = share * block_error * np.sqrt(blocks / independent)
    slower, faster = p_values(log_ratios - edge), p_values(-log_ratios - edge)
    wider = np.flatnonzero((block_error > scatter) | (depends > 0))
    if wider.size:
        middles, own_error, freedom = estimate[wider], error[wider], degrees[wider]
        for found, beyond in ((slower, middles - edge), (faster, -middles - edge)):
            # infinite where the error is 0, which leaves the exact p-value as it is
            quotient = np.divide(
                beyond, own_error, out=np.full(wider.size, np.inf), where=own_error > 0
            )
            found[wider] = np.maximum(found[wider], special.stdtr(freedom, -quotient))
        reach = own_error * special.stdtrit(freedom, (1 + confidence) / 2)
        usual = share * scatter[wider] * special.stdtrit(blocks - 1, (1 + confidence) / 2)
        # where blocks agree to the last digit the interval has no width that could be stretched
        stretch = np.divide(reach, usual, out=np.ones(wider.size), where=usual > 0)
        least = np.where(usual > 0, 0.0, reach)
        low[wider] = middles - np.maximum((middles - low[wider]) * stretch, least)
        high[wider] = middles + np.maximum((high[wider] - middles) * stretch, least)
    return Look(estimate, low, high, slower, faster, error, depends)


def answered_after(
    estimate: float, reach: float, error: float, blocks: int, design: Design
) -> float:
    """Blocks after which an unclear case of this estimate has an answer in some 95 % of tries;
    infinite where no number is enough.

    `reach`: half-width of the interval; `error`: standard error of the estimate; both shrink with
    the root of the number of blocks. Of an estimate within the margin, the interval has to fit
    between the margins, wherever the estimate moves to. Of one beyond, the distance from the margin
    has to become significant; the blocks of the first look are added to that, since the normal
    approximation is too optimistic for few blocks.
    """
    room = abs(estimate) - design.edge
    if room == 0:
        return math.inf
    moves = POWER_QUANTILE * error
    if room < 0:
        return blocks * ((reach + moves) / room) ** 2
    significant = moves - float(special.ndtri(design.strictest_level)) * error
    return design.looks[0] + blocks * (significant / room) ** 2


def _judgement(look: Look, row: int, blocks: int, adjusted_p: float, design: Design) -> Judgement:
    estimate, low, high, _, _, error, depends = (float(values[row]) for values in look)
    is_beyond = adjusted_p <= design.alpha
    outcome = verdict_of(estimate, low, high, design.edge, is_beyond=is_beyond)
    distance = float(blocks)
    if outcome is Outcome.UNCLEAR:
        distance = answered_after(estimate, (high - low) / 2, error, blocks, design)
    interval = (estimate, low, high, design.look_confidence)
    return Judgement(outcome, *interval, adjusted_p, blocks, distance, depends)


def judge_family(cases: Mapping[Name, Array], design: Design) -> dict[Name, Judgement | None]:
    """Judges each case, a row a block in order of time, at the last planned look that it has
    reached; None: none reached yet.

    Cases of the design without a verdict count in Holm's correction as if they showed nothing.
    """
    names = list(cases)
    counts = np.array([len(blocks) for blocks in cases.values()])
    # the smallest p-value of the looks so far, by direction
    slower, faster = np.ones(len(names)), np.ones(len(names))
    last: dict[int, tuple[Look, int, int]] = {}
    for count in design.looks:
        reached = np.flatnonzero(counts >= count)
        if reached.size == 0:
            break
        blocks = np.array([cases[names[case]][:count] for case in reached])
        ratios, errors = blocks[..., LOG_RATIO], blocks[..., ERROR]
        look = look_at(ratios, errors, design.look_confidence, design.edge)
        for so_far, found in ((slower, look.slower), (faster, look.faster)):
            so_far[reached] = np.minimum(so_far[reached], design.correction * found)
        last |= {case: (look, row, count) for row, case in enumerate(reached.tolist())}
    judgements: dict[Name, Judgement | None] = dict.fromkeys(names)
    p_values_so_far = np.array(
        [
            (slower if look.estimate[row] > 0 else faster)[case]
            for case, (look, row, _) in last.items()
        ]
    )
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
    whole: Array, parts: Mapping[str, tuple[int, Array]], missing: tuple[str, ...] = ()
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
        """New - base in seconds, and the same of samples drawn with replacement.

        It is the geometric mean of both times 2 sinh(log-ratio / 2): drift within a block changes
        the ratio of its pairs less than it changes the difference of its medians, and swapping the
        sides changes only the sign.
        """
        level = np.sqrt(blocks[:, BASE_SECONDS] * blocks[:, NEW_SECONDS])
        values = 2 * level * np.sinh(blocks[:, LOG_RATIO] / 2)
        drawn = values[generator.integers(0, values.size, (BOOTSTRAPS, values.size))]
        return hodges_lehmann(values), middle(walsh_averages(drawn))

    total, drawn_totals = change(whole)
    # where the whole did not change, no part has a share in that
    drawn_totals[drawn_totals == 0] = np.inf
    found, shares = [], {}
    for name, (count, blocks) in parts.items():
        seconds, drawn = change(blocks)
        shares[name] = count * drawn / drawn_totals
        ends = np.quantile(
            shares[name], [(1 - WANTED_CONFIDENCE) / 2, (1 + WANTED_CONFIDENCE) / 2]
        ).tolist()
        found.append(PartChange(name, count, count * seconds, count * seconds / total, *ends))
    found.sort(key=lambda part: -part.share)
    culprit = None
    if found and found[0].share >= LEAST_SHARE:
        # corrected for their number, since the largest of them was picked
        low = np.quantile(shares[found[0].case], (1 - WANTED_CONFIDENCE) / 2 / len(found))
        if low > max([0.0, *(other.share for other in found[1:])]):
            culprit = found[0].case
    unexplained = 1 - sum(part.share for part in found)
    return Attribution(tuple(found), unexplained, culprit, missing)


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
