"""Error rates of the comparison: runs cut from recordings in their order of time, and simulated
families, judged as by `compare run`, counted and bounded. Every result is a row of the
calibration's document.

What is recorded is never shuffled and no side is tossed for another: what favours a side, or lasts
for several blocks, is in the runs as it was. Simulated families have a true change of just the
margin, at which false alarms are likeliest, and are simulated one by one. All draws follow from the
seed, whatever the number of processes.
"""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np
from scipy.stats import binomtest

from tinyllama_tools.compare.blocks import Costs
from tinyllama_tools.core.app import Json
from tinyllama_tools.stats.rank_tests import (
    BASE_SECONDS,
    LOG_RATIO,
    NEW_SECONDS,
    Array,
    autocorrelations,
    middle,
    summarise_pairs,
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

Found = TypeVar("Found")


@dataclass(frozen=True)
class PairedBlocks:
    """`values[case, i]`: the summary of block i, the same block for every case."""

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
    """The verdict of every case (a row a block) at the planned looks that its blocks reach.
    As in `compare run`: a case that has its verdict is measured no further."""
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
    """Of recorded blocks (cases x blocks) in order of time: the verdicts of one run after the
    other. Each has the blocks that the sequential rule uses up until every case is decided or all
    looks are taken; the next one begins with the next block. The last, cut short, does not count.
    """
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
    """Of measuring, until this case had its verdict: each other one was in its blocks as long as it
    had none itself. `names`: of the cases, which `costs` are of."""
    own = verdicts[number].blocks
    blocks = zip(names, verdicts, strict=True)
    of_cases = sum(min(own, of.blocks) * costs.cases[name] for name, of in blocks)
    return costs.opening + own * costs.block + of_cases


# families, or tries, that one call of a worker process draws
CHUNK = 100


def in_chunks(
    work: Callable[[int, int], Found], total: int, seed: int, jobs: int, chunk: int = CHUNK
) -> list[Found]:
    """`work(how many, seed)` until `total` are done, on `jobs` processes. The chunks and their
    seeds depend on `total` and `seed` alone."""
    sizes = [min(chunk, total - done) for done in range(0, total, chunk)]
    seeds = np.random.SeedSequence(seed).generate_state(len(sizes)).tolist()
    if jobs <= 1 or len(sizes) == 1:
        return [work(size, own) for size, own in zip(sizes, seeds, strict=True)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        return list(pool.map(work, sizes, seeds))


Shape = tuple[int, int, int]
# log seconds: between two processes of one program, and between neighbouring slices of one
BETWEEN, WITHIN = 0.08, 0.05


def _plain(rng: np.random.Generator, shape: Shape, between: Array | None = None) -> Array:
    """Normal noise around each process's own level; base and new first."""
    cases, blocks, _ = shape
    if between is None:
        between = rng.normal(0, BETWEEN, (2, cases, blocks, 1))
    return rng.normal(0, WITHIN, (2, *shape)) + between


def drift(rng: np.random.Generator, shape: Shape) -> Array:
    """The whole machine wanders, for all cases alike, and moves on within a pair."""
    cases, blocks, pairs = shape
    machine = np.cumsum(rng.normal(0, 0.02, blocks * 2 * pairs)).reshape(1, blocks, pairs, 2)
    new_first = rng.integers(0, 2, shape).astype(bool)
    whole = np.broadcast_to(machine, (cases, blocks, pairs, 2))
    first, second = whole[..., 0], whole[..., 1]
    order = np.stack([np.where(new_first, second, first), np.where(new_first, first, second)])
    return _plain(rng, shape) + order


def spikes(rng: np.random.Generator, shape: Shape) -> Array:
    """One slice in eight takes up to four times as long."""
    sides = _plain(rng, shape)
    hit = rng.random((2, *shape)) < 1 / 8
    return sides + np.where(hit, rng.uniform(np.log(1.3), np.log(4), (2, *shape)), 0)


def two_modes(rng: np.random.Generator, shape: Shape) -> Array:
    """A process in three is 15 % slower for its whole life: where its memory came to lie."""
    cases, blocks, _ = shape
    slow = np.where(rng.random((2, cases, blocks, 1)) < 1 / 3, np.log(1.15), 0)
    return _plain(rng, shape, slow + rng.normal(0, 0.02, slow.shape))


def ties(rng: np.random.Generator, shape: Shape) -> Array:
    """A clock so coarse that many ratios are equal, and many are 1."""
    return np.round(_plain(rng, shape) / 0.05) * 0.05


def heavy_tails(rng: np.random.Generator, shape: Shape) -> Array:
    """Between processes and between slices: Student t with 1.5 degrees, no variance to speak of."""
    cases, blocks, _ = shape
    between = rng.standard_t(1.5, (2, cases, blocks, 1)) * BETWEEN / 2
    slices = between + rng.standard_t(1.5, (2, *shape)) * WITHIN / 2
    # no machine stalls for more than e^6 times an iteration
    return np.clip(slices, -6, 6)


def shared_noise(rng: np.random.Generator, shape: Shape) -> Array:
    """What makes a process slow does so for all of its cases: the family errs together or not."""
    return _plain(rng, shape, rng.normal(0, BETWEEN, (2, 1, shape[1], 1)))


SCENARIOS: dict[str, Callable[[np.random.Generator, Shape], Array]] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (drift, spikes, two_modes, ties, heavy_tails, shared_noise)
}


# families of dependent blocks: how much a block has of the one before
DEPENDENCES = (0.0, 0.2, 0.3, 0.5, 0.7, 0.9)
# standard deviation of their log-ratios
DEPENDENT_SCATTER = 0.05


def dependent(rng: np.random.Generator, cases: int, blocks: int, of: float) -> Array:
    """Blocks whose log-ratios are an autoregressive series of the first order, each case its own;
    all pairs of a block agree."""
    fresh = math.sqrt(1 - of**2) * rng.normal(0, DEPENDENT_SCATTER, (cases, blocks))
    values = np.zeros((cases, blocks, 4))
    values[..., BASE_SECONDS] = values[..., NEW_SECONDS] = 0.01
    last = rng.normal(0, DEPENDENT_SCATTER, cases)
    for block in range(blocks):
        last = of * last + fresh[:, block]
        values[:, block, LOG_RATIO] = last
    return values


def simulate(scenario: str, rng: np.random.Generator, cases: int, blocks: int) -> Array:
    """A/A blocks of a scenario in order of time, of 8 pairs; iterations last around 10 ms."""
    logs = SCENARIOS[scenario](rng, (cases, blocks, 8))
    levels = 0.01 * np.exp(rng.normal(0, 0.5, (cases, 1, 1)))
    base, new = (levels * np.exp(logs)).reshape(2, -1, 8)
    fields = (*summarise_pairs(base, new), np.median(base, axis=1), np.median(new, axis=1))
    return np.stack(fields, axis=-1).reshape(cases, blocks, -1)


HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# standing of a row whose families count with those of others
IN_ALL = "in all"
SIMULATED = "simulated: "
JUDGED = (Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR)
FALSE_WORDS = frozenset({Outcome.SLOWER, Outcome.FASTER})


def share(count: int, trials: int) -> Json:
    """`count` of at least one trial, with exact binomial intervals (Clopper and Pearson):
    two-sided, and the one-sided upper bound that a rate has to stay below, both at 95 %."""
    return {
        "count": count,
        "trials": trials,
        "share": count / trials,
        "interval_95": list(binomtest(count, trials).proportion_ci(0.95)),
        "upper_bound_95": binomtest(count, trials, alternative="less").proportion_ci(0.95).high,
    }


def standing(found: Json, allowed: float) -> str:
    """`held`: the upper bound is at most what is allowed. `broken`: the true rate is above it, as
    far as an interval of 95 % can say. `not shown`: too few for either."""
    if found["interval_95"][0] > allowed:
        return BROKEN
    return HELD if found["upper_bound_95"] <= allowed else NOT_SHOWN


def design_of(asked: Namespace, cases: int) -> Design:
    """For a family of that many cases; BadInputError where it cannot be."""
    return plan_design(cases, alpha=asked.alpha, margin=asked.margin, looks=asked.looks)


Draw = Callable[[np.random.Generator, int, int], Array]
FALSE = "families with a false verdict"


def _count(draw: Draw, design: Design, families: int, seed: int) -> Counter[str]:
    """Of families simulated one by one, every other case at the margin's upper edge and the rest at
    its lower one: FALSE ones, and the verdicts of all cases by outcome."""
    rng, counts = np.random.default_rng(seed), Counter()
    edges = np.where(np.arange(design.cases) % 2, -design.edge, design.edge)
    for _ in range(families):
        values = draw(rng, design.cases, design.looks[-1])
        values[..., LOG_RATIO] += edges[:, None]
        outcomes = Counter(verdict.outcome for verdict in judge_looks(list(values), design))
        counts.update({outcome.value: count for outcome, count in outcomes.items()})
        counts[FALSE] += not FALSE_WORDS.isdisjoint(outcomes)
    return counts


def _family_row(name: str, counts: Counter[str], families: int, design: Design) -> Json:
    false = share(counts[FALSE], families)
    return {
        "data": name,
        "cases": design.cases,
        "alpha": design.alpha,
        "false": false,
        "verdicts": {found.value: counts[found.value] for found in Outcome if counts[found.value]},
        "standing": standing(false, design.alpha),
    }


def simulated_rows(asked: Namespace) -> list[Json]:
    """False alarms of every scenario, and of all of them together: one alone has too few families
    to show anything but that the rate is broken."""
    design, each = design_of(asked, asked.cases), math.ceil(asked.families / len(SCENARIOS))
    rows, together = [], Counter()
    for scenario in SCENARIOS:
        work = partial(_count, partial(simulate, scenario), design)
        counts = sum(in_chunks(work, each, asked.seed, asked.jobs), Counter())
        together += counts
        row = _family_row(SIMULATED + scenario, counts, each, design)
        if row["standing"] == NOT_SHOWN:
            row["standing"] = IN_ALL
        rows.append(row)
    all_of = f"{SIMULATED}all of these"
    return [*rows, _family_row(all_of, together, len(SCENARIOS) * each, design)]


def dependence_rows(asked: Namespace) -> list[Json]:
    """False alarms of blocks that depend on each other, in families of one case and of the usual
    number. They are stated and not held against alpha: what so few blocks say of their own
    dependence is not enough to keep it at any price."""
    rows = []
    for cases in dict.fromkeys((1, asked.cases)):
        design = design_of(asked, cases)
        for of in DEPENDENCES:
            work = partial(_count, partial(dependent, of=of), design)
            families = math.ceil(asked.families / len(DEPENDENCES))
            counts = sum(in_chunks(work, families, asked.seed, asked.jobs), Counter())
            row = _family_row(f"{SIMULATED}autocorrelation", counts, families, design)
            rows.append({"autocorrelation": of, **row})
    return rows


# ---- what is found: the operating characteristic

FAMILIES = (1, 10, 40)
# true changes, fractions
CHANGES = tuple(step / 200 for step in range(-6, 13))
IN_TIME_SECONDS = 600.0
IN_TIME = "in time"


def _outcomes(
    recorded: PairedBlocks, change: float, design: Design, count: int, seed: int
) -> Counter[str]:
    """Verdicts on one case of `count` families that changed by so much; all others are A/A. Blocks
    are drawn whole and with replacement, with the sides tossed: independent and symmetric noise of
    the recorded size, around a change that is known."""
    rng, counts, known = np.random.default_rng(seed), Counter(), len(recorded.cases)
    centred = recorded.values.copy()
    centred[..., LOG_RATIO] -= middle(walsh_averages(centred[..., LOG_RATIO]))[:, np.newaxis]
    group = np.arange(design.cases) // known
    shape = (group[-1] + 1, design.looks[-1])
    for _ in range(count):
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


def operating_rows(recorded: PairedBlocks, asked: Namespace) -> list[Json]:
    """What one changed case of a family is called, by the size of its true change. Inside the
    margin a `slower` or `faster` is false, and the row has a standing."""
    rows = []
    for cases in FAMILIES:
        design = design_of(asked, cases)
        for number, change in enumerate(CHANGES):
            work = partial(_outcomes, recorded, change, design)
            chunks = in_chunks(work, asked.tries, asked.seed + number, asked.jobs)
            counts = sum(chunks, Counter())
            row = {
                "cases": cases,
                "change": change,
                "looks": list(design.looks),
                **{of.value: share(counts[of.value], asked.tries) for of in JUDGED},
                "slower_in_10_minutes": share(counts[IN_TIME], asked.tries),
            }
            if abs(math.log1p(change)) <= design.edge:
                wrong = share(sum(counts[of.value] for of in FALSE_WORDS), asked.tries)
                is_broken = standing(wrong, asked.alpha) == BROKEN
                row["standing"] = BROKEN if is_broken else IN_ALL
            rows.append(row)
    return rows


def noise_row(case: str, blocks: Array) -> Json:
    """Scatter of whole processes, and of what blocks make of it. `autocorrelation`: of a block's
    log-ratio with the next block's; None for fewer than four."""
    logs = blocks[:, LOG_RATIO]
    processes = np.log(blocks[:, [BASE_SECONDS, NEW_SECONDS]])
    of = float(autocorrelations(logs[np.newaxis])[0]) if len(logs) > 3 else None
    return {
        "case": case,
        "median_seconds": float(np.median(blocks[:, BASE_SECONDS])),
        "processes": math.sqrt(processes.var(axis=0, ddof=1).mean()),
        "blocks": float(logs.std(ddof=1)),
        "count": len(logs),
        "autocorrelation": of,
    }
