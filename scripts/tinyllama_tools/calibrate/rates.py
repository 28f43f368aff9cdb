"""Error rates of the comparison: runs cut from recordings in their order of time, and what a change
of known size is called in families drawn from one. Both are judged as by `compare run`.

What is recorded is cut, never shuffled: what favours a side, or lasts for several blocks, is in the
runs as it was. Draws follow from the seed alone, whatever the number of processes.
"""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context

import numpy as np
from scipy.stats import binomtest

from tinyllama_tools.compare.blocks import Costs
from tinyllama_tools.core.app import Json
from tinyllama_tools.stats.rank_tests import (
    BASE_SECONDS,
    LOG_RATIO,
    NEW_SECONDS,
    Array,
    middle,
    walsh_averages,
)
from tinyllama_tools.stats.verdicts import (
    DECIDED,
    Design,
    Judgement,
    Outcome,
    judge_family,
    plan_design,
)


@dataclass(frozen=True)
class PairedBlocks:
    """`values[case, i]`: the summary of block i, in which every case was measured."""

    cases: tuple[str, ...]
    values: Array
    costs: Costs

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self.values.shape[1]


# of a case that has reached no look
NOT_JUDGED = Judgement(Outcome.UNCLEAR, 0.0, -math.inf, math.inf, 0.0, 1.0, blocks=0)


def judge_looks(rows: Sequence[Array], design: Design) -> list[Judgement]:
    """The verdict on every case (a row a block) after the planned looks that its blocks reach. As
    in `compare run`, a case that has its verdict is measured no further."""
    found = [NOT_JUDGED] * len(rows)
    for look in design.looks:
        still_open = [case for case, verdict in enumerate(found) if verdict.outcome not in DECIDED]
        if not still_open or look > min(map(len, rows)):
            break
        taken = {case: row[: found[case].blocks] for case, row in enumerate(rows)}
        judged = judge_family(taken | {case: rows[case][:look] for case in still_open}, design)
        for case in still_open:
            found[case] = judged[case]
    return found


def consecutive_runs(values: Array, design: Design) -> list[list[Judgement]]:
    """Cuts recorded blocks (cases x blocks, in order of time) into runs: each takes blocks until
    every case is decided or all looks are taken, as the command would, and the next one begins with
    the next block. The verdicts of each; a last one that is cut short does not count."""
    runs, start = [], 0
    while start < values.shape[1]:
        verdicts = judge_looks(list(values[:, start:]), design)
        used = max(verdict.blocks for verdict in verdicts)
        if used < design.looks[-1] and any(v.outcome not in DECIDED for v in verdicts):
            break
        runs.append(verdicts)
        start += used
    return runs


def seconds_until(
    number: int, verdicts: Sequence[Judgement], names: Sequence[str], costs: Costs
) -> float:
    """Seconds of measuring until a case had its verdict: of its blocks, with every other case as
    long as that was open. `names`: of all cases, as `costs` has them."""
    own = verdicts[number].blocks
    each = zip(names, verdicts, strict=True)
    in_cases = sum(min(own, verdict.blocks) * costs.cases[name] for name, verdict in each)
    return costs.opening + own * costs.block + in_cases


HELD, BROKEN, NOT_SHOWN, IN_ALL = "held", "broken", "not shown", "in all"
JUDGED = (Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR)
FALSE_WORDS = frozenset({Outcome.SLOWER, Outcome.FASTER})


def share(count: int, trials: int) -> Json:
    """`count` of at least one trial, with exact binomial intervals (Clopper and Pearson):
    two-sided, and the one-sided upper bound, both at 95 %."""
    return {
        "count": count,
        "trials": trials,
        "share": count / trials,
        "interval_95": list(binomtest(count, trials).proportion_ci(0.95)),
        "upper_bound_95": binomtest(count, trials, alternative="less").proportion_ci(0.95).high,
    }


def standing(found: Json, allowed: float) -> str:
    """BROKEN where the interval of 95 % lies above the allowed rate; else IN_ALL: too few trials to
    show more alone, which count with those of other rows."""
    return BROKEN if found["interval_95"][0] > allowed else IN_ALL


def design_of(asked: Namespace, cases: int) -> Design:
    """For a family of that many cases; BadInputError where it cannot be."""
    return plan_design(cases, alpha=asked.alpha, margin=asked.margin, looks=asked.looks)


# ---- what is found: the operating characteristic

FAMILIES = (1, 10, 40)
# true changes, fractions
CHANGES = tuple(step / 200 for step in range(-6, 13))
IN_TIME_SECONDS = 600.0
IN_TIME = "in time"


def _outcomes(
    recorded: PairedBlocks, change: float, design: Design, tries: int, rng: np.random.Generator
) -> Counter[str]:
    """Verdicts on the one case of a family that changed, counted over so many families. Blocks are
    drawn whole and with replacement, and the sides tossed: independent and symmetric noise of the
    recorded size, around a change that is known."""
    counts, known = Counter(), len(recorded.cases)
    centred = recorded.values.copy()
    centred[..., LOG_RATIO] -= middle(walsh_averages(centred[..., LOG_RATIO]))[:, np.newaxis]
    group = np.arange(design.cases) // known
    shape = (group[-1] + 1, design.looks[-1])
    for _ in range(tries):
        # any case may be the changed one; it comes first
        cases = (rng.integers(known) + np.arange(design.cases)) % known
        drawn, sides = rng.integers(0, recorded.blocks, shape), rng.choice([-1, 1], shape)
        family = centred[cases[:, np.newaxis], drawn[group]]
        family[..., LOG_RATIO] *= sides[group]
        # without ties, as a clock is
        family[..., LOG_RATIO] += rng.normal(0, 1e-7, family.shape[:2])
        family[0, :, LOG_RATIO] += math.log1p(change)
        verdicts = judge_looks(list(family), design)
        counts[verdicts[0].outcome.value] += 1
        names = [recorded.cases[case] for case in cases]
        seconds = seconds_until(0, verdicts, names, recorded.costs)
        counts[IN_TIME] += verdicts[0].outcome is Outcome.SLOWER and seconds <= IN_TIME_SECONDS
    return counts


def operating_row(recorded: PairedBlocks, asked: Namespace, cases: int, number: int) -> Json:
    """What the one changed case of a family is called, its change being CHANGES[number]. Within the
    margin `slower` and `faster` are false, and the row has a standing."""
    design, change = design_of(asked, cases), CHANGES[number]
    rng = np.random.default_rng((asked.seed, cases, number))
    counts = _outcomes(recorded, change, design, asked.tries, rng)
    row = {
        "cases": cases,
        "change": change,
        "looks": list(design.looks),
        **{word.value: share(counts[word.value], asked.tries) for word in JUDGED},
        "slower_in_10_minutes": share(counts[IN_TIME], asked.tries),
    }
    if abs(math.log1p(change)) <= design.edge:
        wrong = share(sum(counts[word.value] for word in FALSE_WORDS), asked.tries)
        row["standing"] = standing(wrong, asked.alpha)
    return row


def operating_rows(recorded: PairedBlocks, asked: Namespace) -> list[Json]:
    """A row for each family size and change, computed by `asked.jobs` processes."""
    families, numbers = zip(*product(FAMILIES, range(len(CHANGES))), strict=True)
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("fork")) as pool:
        return list(pool.map(partial(operating_row, recorded, asked), families, numbers))


def scatter_row(case: str, blocks: Array) -> Json:
    """Standard deviations: of the log of a process's median time, and of a block's log-ratio."""
    processes = np.log(blocks[:, [BASE_SECONDS, NEW_SECONDS]])
    return {
        "case": case,
        "processes": math.sqrt(processes.var(axis=0, ddof=1).mean()),
        "blocks": float(blocks[:, LOG_RATIO].std(ddof=1)),
    }
