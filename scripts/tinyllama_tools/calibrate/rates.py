"""Error rates of the comparison: families of cases drawn from recorded or simulated blocks, judged
as by `compare run`, counted and bounded. Every result is a row of the calibration's document.

False alarms: families in which both sides are the same program. Detection: one case has its blocks
from data in which the new side is slower. All draws follow from the seed, whatever the number of
processes.
"""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
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
    summarise_pairs,
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


def seconds_until(number: int, verdicts: Sequence[Judgement], recorded: PairedBlocks) -> float:
    """Of measuring, until this case had its verdict: each other one was in its blocks as long as it
    had none itself."""
    own, costs = verdicts[number].blocks, recorded.costs
    blocks = {name: of.blocks for name, of in zip(recorded.cases, verdicts, strict=True)}
    of_cases = sum(min(own, blocks[name]) * costs.cases[name] for name in recorded.cases)
    return costs.opening + own * costs.block + of_cases


def drawn(available: int, wanted: int, groups: int = 1) -> Json:
    """What every row says of its blocks; `is_shown`: there are as many as it needs."""
    needed = groups * wanted
    return {"blocks": available, "blocks_needed": needed, "is_shown": available >= needed}


def draw_blocks(
    rng: np.random.Generator, available: int, wanted: int, groups: int = 1
) -> np.ndarray:
    """Numbers of blocks, a row a group, none twice. Where there are too few, each group has fewer
    than wanted, and is judged at the looks that these reach."""
    each = min(wanted, available // groups)
    return rng.permutation(available)[: groups * each].reshape(groups, each)


def draw_family(
    recorded: PairedBlocks, family: int, wanted: int, rng: np.random.Generator, *, is_tossed: bool
) -> Array:
    """An A/A family of `family` cases, `wanted` blocks each; recorded cases serve several times,
    with other blocks, where they are fewer. Blocks are drawn whole, so that what disturbs several
    cases at once stays together.

    `is_tossed`: chance decides which side of a drawn block is called the base (under A/A both are
    as good). That makes the null hypothesis exact and each family a trial of its own; else all
    families of a recording share the side that it happened to favour.
    """
    groups = -(-family // len(recorded.cases))
    numbers = draw_blocks(rng, recorded.blocks, wanted, groups)
    found = recorded.values[:, numbers]
    if is_tossed:
        # the judge sees the log-ratio and its error alone
        found[..., LOG_RATIO] *= 1 - 2 * rng.integers(0, 2, numbers.shape)
    return found.swapaxes(0, 1).reshape(-1, *found.shape[2:])[:family]


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


def simulate(scenario: str, *, cases: int, blocks: int, seed: int) -> PairedBlocks:
    """A/A blocks of a scenario, of 8 pairs; cases last around 10 ms, and cost nothing."""
    rng = np.random.default_rng([seed, list(SCENARIOS).index(scenario)])
    logs = SCENARIOS[scenario](rng, (cases, blocks, 8))
    levels = 0.01 * np.exp(rng.normal(0, 0.5, (cases, 1, 1)))
    base, new = (levels * np.exp(logs)).reshape(2, -1, 8)
    fields = (*summarise_pairs(base, new), np.median(base, axis=1), np.median(new, axis=1))
    values = np.stack(fields, axis=-1).reshape(cases, blocks, -1)
    names = tuple(f"case {number}" for number in range(cases))
    return PairedBlocks(names, values, Costs(0.0, dict.fromkeys(names, 0.0)))


HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# standing of a row whose families count with those of others
IN_ALL = "in all"
# what a row is of; the names of simulated ones begin so
RECORDED, SIMULATED = "recorded, sides tossed anew", "simulated: "
JUDGED = (Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.UNCLEAR)
FALSE_WORDS = (Outcome.SLOWER.value, Outcome.FASTER.value)
WHOLE_STEP = "full_step/"


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


def standing(found: Json, alpha: float, *, has_enough: bool = True) -> str:
    """`held`: the upper bound is at most alpha. `broken`: the true rate is above it, as far as
    an interval of 95 % can say. `not shown`: too few families for either, or not enough blocks
    that they were drawn from."""
    if found["interval_95"][0] > alpha:
        return BROKEN
    return HELD if found["upper_bound_95"] <= alpha and has_enough else NOT_SHOWN


def design_of(asked: Namespace, cases: int) -> Design:
    """For a family of that many cases; BadInputError where it cannot be."""
    return plan_design(cases, alpha=asked.alpha, margin=asked.margin, looks=asked.looks)


FALSE = "families with a false verdict"


def _count(
    data: PairedBlocks, design: Design, is_tossed: bool, families: int, seed: int
) -> Counter[str]:
    """Of families drawn: FALSE ones, and the verdicts of all cases by outcome."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    for _ in range(families):
        family = draw_family(data, design.cases, design.looks[-1], rng, is_tossed=is_tossed)
        outcomes = Counter(verdict.outcome.value for verdict in judge_looks(family, design))
        counts.update(outcomes)
        counts[FALSE] += not outcomes.keys().isdisjoint(FALSE_WORDS)
    return counts


def _count_simulated(scenario: str, design: Design, families: int, seed: int) -> Counter[str]:
    data = simulate(scenario, cases=design.cases, blocks=SPARE * design.looks[-1], seed=seed)
    return _count(data, design, False, families, seed)


def _row(name: str, counts: Counter[str], families: int, blocks: Json, asked: Namespace) -> Json:
    """`blocks`: as of drawn()."""
    false = share(counts[FALSE], families)
    return {
        "data": name,
        "cases": asked.cases,
        "alpha": asked.alpha,
        "false": false,
        "verdicts": {found.value: counts[found.value] for found in Outcome if counts[found.value]},
        **blocks,
        "standing": standing(false, asked.alpha, has_enough=blocks["is_shown"]),
    }


def false_alarm_row(data: PairedBlocks, asked: Namespace) -> Json:
    """Families drawn from recorded blocks, sides tossed anew, held against alpha."""
    design = design_of(asked, asked.cases)
    work = partial(_count, data, design, True)
    counts = sum(in_chunks(work, asked.families, asked.seed, asked.jobs), Counter())
    groups = -(-asked.cases // len(data.cases))
    blocks = drawn(data.blocks, design.looks[-1], groups)
    return _row(RECORDED, counts, asked.families, blocks, asked)


FAMILIES_A_SIMULATION = 50
# of the blocks that a family needs: what the families of one simulation choose from
SPARE = 3


def simulated_rows(asked: Namespace) -> list[Json]:
    """False alarms of every scenario, and of all of them together: one alone has too few families
    to show anything but that the rate is broken."""
    design, each = design_of(asked, asked.cases), math.ceil(asked.families / len(SCENARIOS))
    blocks = math.ceil(each / FAMILIES_A_SIMULATION) * SPARE * design.looks[-1]
    rows, together = [], Counter()
    for scenario in SCENARIOS:
        work = partial(_count_simulated, scenario, design)
        chunks = in_chunks(work, each, asked.seed, asked.jobs, FAMILIES_A_SIMULATION)
        counts = sum(chunks, Counter())
        together += counts
        row = _row(SIMULATED + scenario, counts, each, drawn(blocks, blocks), asked)
        if row["standing"] == NOT_SHOWN:
            row["standing"] = IN_ALL
        rows.append(row)
    blocks, families = len(SCENARIOS) * blocks, len(SCENARIOS) * each
    all_of = f"{SIMULATED}all of these"
    return [*rows, _row(all_of, together, families, drawn(blocks, blocks), asked)]


SLOWDOWNS = (0.02, 0.05, 0.10)
Try = tuple[Outcome, float]


def detections(
    recorded: PairedBlocks, slowdown: float, number: int, design: Design, count: int, seed: int
) -> list[Try]:
    """Verdicts on one case in `count` families in which it is slower, and after how many seconds.
    Its blocks are drawn apart from those of the others."""
    rng = np.random.default_rng(seed)
    slow = recorded.values[number].copy()
    slow[:, LOG_RATIO] += math.log1p(slowdown)
    found: list[Try] = []
    for _ in range(count):
        others, own = (
            draw_blocks(rng, recorded.blocks, design.looks[-1])[0] for _ in ("others", "own")
        )
        family = list(recorded.values[:, others])
        family[number] = slow[own]
        verdicts = judge_looks(family, design)
        seconds = seconds_until(number, verdicts, recorded)
        found.append((verdicts[number].outcome, seconds))
    return found


def detection_numbers(case: str, tries: Sequence[Try]) -> Json:
    """Of one case, or of all together. `..._seconds`: after which that share of all tries was
    called `slower`; None: never so many."""
    counts = Counter(outcome for outcome, _ in tries)
    times = sorted(seconds for outcome, seconds in tries if outcome is Outcome.SLOWER)

    def reached(wanted: float) -> float | None:
        needed = math.ceil(wanted * len(tries))
        return times[needed - 1] if needed <= len(times) else None

    def within(minutes: int) -> Json:
        return share(sum(time <= 60 * minutes for time in times), len(tries))

    return {
        "case": case,
        "found_in_5_minutes": within(5),
        "found_in_10_minutes": within(10),
        **{outcome.value: share(counts[outcome], len(tries)) for outcome in JUDGED},
        "median_seconds": reached(0.5),
        "seconds_for_95_percent": reached(0.95),
    }


def detection_rows(recorded: PairedBlocks, asked: Namespace) -> list[Json]:
    """Every case slower by 2, 5 and 10 %, one after the other; and by 2 % with a margin of 1 %,
    since a change within the margin is not called `slower` whatever the data. The parts and the
    model are a family without the full step, which takes longer than all of them."""
    every = range(len(recorded.cases))
    parts = [i for i in every if not recorded.cases[i].startswith(WHOLE_STEP)] or list(every)
    names = tuple(recorded.cases[i] for i in parts)
    recorded = replace(recorded, cases=names, values=recorded.values[parts])
    margins = [(slowdown, asked.margin) for slowdown in SLOWDOWNS]
    if asked.margin > 0.01:
        margins.insert(1, (SLOWDOWNS[0], 0.01))
    rows: list[Json] = []
    for slowdown, margin in margins:
        design = plan_design(len(names), alpha=asked.alpha, margin=margin, looks=asked.looks)
        tries = []
        for i in range(len(names)):
            work = partial(detections, recorded, slowdown, i, design)
            chunks = in_chunks(work, asked.tries, asked.seed + i, asked.jobs)
            tries.append(list(chain(*chunks)))
        row = {
            "slowdown": slowdown,
            "margin": margin,
            "alpha": asked.alpha,
            "looks": list(design.looks),
            **drawn(recorded.blocks, design.looks[-1]),
            "all": detection_numbers("all cases", list(chain(*tries))),
            "cases": list(map(detection_numbers, names, tries)),
        }
        rows.append(row)
    return rows


def noise_row(case: str, blocks: Array) -> Json:
    """Scatter of whole processes, and of what blocks make of it. `autocorrelation`: of a block's
    log-ratio with the next block's; far from 0 it says that blocks are no independent sample, which
    the test takes them for. None for fewer than three, or all the same."""
    logs = blocks[:, LOG_RATIO]
    apart = logs - logs.mean()
    is_known = len(logs) >= 3 and apart.any()
    processes = np.log(blocks[:, [BASE_SECONDS, NEW_SECONDS]])
    return {
        "case": case,
        "median_seconds": float(np.median(blocks[:, BASE_SECONDS])),
        "processes": math.sqrt(processes.var(axis=0, ddof=1).mean()),
        "blocks": float(logs.std(ddof=1)),
        "count": len(logs),
        "autocorrelation": float(apart[:-1] @ apart[1:] / (apart @ apart)) if is_known else None,
    }
