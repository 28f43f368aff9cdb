"""What can be said of a case, the rule that every comparison judges by, the design of a run, and
verdicts on stored results.

A case is `slower` or `faster` where its corrected p-value passes alpha and its estimate lies beyond
the margin; else `same` where the interval lies within the margin on both sides; else `unclear`.

Of `looks` planned numbers of blocks each may spend alpha / looks, so whoever stops at any of them
for any reason has made a false alarm with a chance of at most alpha (Bonferroni, the simplest
spending function of Lan and DeMets, Biometrika 70, 1983, which asks for nothing about how looks
depend on each other). Only a quarter of alpha is spent: a procedure that errs in exactly 1 of 1,000
families cannot be shown to err in at most 1 of 1,000. The price is two blocks.

Of stored results a file is an observation, the sides are not paired, and there is one look. Nothing
removes the machine's drift between files, so differences have to be larger than those that
`compare run` shows. Of a judgement, `blocks` are then files a side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count as counted

import numpy as np

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.stats.rank_tests import (
    MOST_BLOCKS,
    holm_adjusted,
    interval_ends,
    rank_sum_p_value,
    rank_sum_tail,
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
    judgements = {}
    for name, (base, new), p in zip(cases, logs, holm_adjusted(p_values).tolist(), strict=True):
        ordered = np.sort(np.subtract.outer(new, base), axis=None)[np.newaxis]
        ends = interval_ends(ordered, rank_sum_tail(base.size, new.size), CONFIDENCE)
        estimate = float(np.median(ordered))
        low, high = (float(end[0]) for end in ends) if ends else (-math.inf, math.inf)
        outcome = verdict_of(estimate, low, high, p, alpha, margin)
        files = math.floor(2 / (1 / base.size + 1 / new.size))
        judgements[name] = Judgement(outcome, estimate, low, high, CONFIDENCE, p, files)
    return judgements
