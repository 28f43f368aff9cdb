"""Error rates of the comparison: families of cases drawn from recorded or simulated blocks, judged
as by `compare run`, counted and bounded. Every result is a row of the calibration's document.

False alarms: families in which both sides are the same program. Detection: one case has its blocks
from data in which the new side is slower. All draws follow from the seed, whatever the number of
processes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.stats import binomtest

from tinyllama_tools.core.app import Json
from tinyllama_tools.stats.looks import Costs, judge_rows
from tinyllama_tools.stats.rank_tests import Array, summarise_pairs
from tinyllama_tools.stats.verdicts import DECIDED, Design, Judgement, Outcome, plan_design

Found = TypeVar("Found")
# of a block: the fields of BlockSummary
LOG_RATIO, ERROR, BASE_SECONDS, NEW_SECONDS = range(4)


@dataclass(frozen=True)
class PairedBlocks:
    """`values[case, i]`: the fields of BlockSummary, of block i, the same block for every case."""

    cases: tuple[str, ...]
    values: Array
    costs: Costs

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self.values.shape[1]

    def only(self, cases: Sequence[str]) -> PairedBlocks:
        """These cases of every block."""
        numbers = [self.cases.index(case) for case in cases]
        return replace(self, cases=tuple(cases), values=self.values[numbers])

    def slowed(self, fraction: float) -> PairedBlocks:
        """Every case of the new side slower by this fraction, arithmetically."""
        values = self.values.copy()
        values[..., LOG_RATIO] += math.log1p(fraction)
        return replace(self, values=values)


class Verdict(NamedTuple):
    """`blocks` it stands on; `seconds` of measuring until it was known."""

    outcome: Outcome
    blocks: int
    seconds: float


def judge_looks(
    rows: Sequence[Array], design: Design, of: PairedBlocks | None = None, budget: float = math.inf
) -> list[Verdict]:
    """The verdict of every case (blocks x BlockSummary) at the planned looks, as far as blocks and
    `budget` (seconds, by the costs `of` these cases) go; unclear where no look was reached.

    As in `compare run`: a budget that does not reach the first look with all cases is refused; a
    case that has its verdict is measured no further, and where not all open cases can reach the
    next look, those farthest from a verdict are left as they are.
    """
    found = [Verdict(Outcome.UNCLEAR, 0, 0.0)] * len(rows)
    judgements: list[Judgement | None] = [None] * len(rows)
    still_open, seen, spent = list(range(len(rows))), 0, of.costs.opening if of else 0.0

    def distance(case: int) -> float:
        judgement = judgements[case]
        return judgement.distance if judgement else 0.0

    def cost(cases: Sequence[int]) -> float:
        return of.costs.of(of.cases[case] for case in cases) if of else 0.0

    for look in design.looks:
        if not seen and look * cost(still_open) > budget - spent:
            break
        nearest = sorted(still_open, key=distance)
        while nearest and (look - seen) * cost(nearest) > budget - spent:
            nearest.pop()
        still_open = sorted(nearest)
        if not still_open or look > min(map(len, rows)):
            break
        spent += (look - seen) * cost(still_open)
        seen = look
        counts = [look if case in nearest else found[case].blocks for case in range(len(rows))]
        taken = [row[:count] for row, count in zip(rows, counts, strict=True)]
        judgements = judge_rows(
            [row[:, LOG_RATIO] for row in taken], [row[:, ERROR] for row in taken], design
        )
        for case in still_open:
            judgement = judgements[case]
            if judgement is not None:
                found[case] = Verdict(judgement.outcome, look, spent)
        still_open = [case for case in still_open if found[case].outcome not in DECIDED]
    return found


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


def simulate(
    scenario: str, *, cases: int, blocks: int, pairs: int = 8, seed: int = 0
) -> PairedBlocks:
    """A/A blocks of a scenario; cases last around 10 ms. A block costs a second and each case in it
    a quarter of one, as on a machine of two cores."""
    rng = np.random.default_rng([seed, list(SCENARIOS).index(scenario)])
    logs = SCENARIOS[scenario](rng, (cases, blocks, pairs))
    levels = 0.01 * np.exp(rng.normal(0, 0.5, (cases, 1, 1)))
    base, new = (levels * np.exp(logs)).reshape(2, -1, pairs)
    fields = (*summarise_pairs(base, new), np.median(base, axis=1), np.median(new, axis=1))
    values = np.stack(fields, axis=-1).reshape(cases, blocks, -1)
    names = tuple(f"case {number}" for number in range(cases))
    return PairedBlocks(names, values, Costs(1.0, dict.fromkeys(names, 0.25)))


HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# standing of a row whose families count with those of others
IN_ALL = "in all"
# what a row is of; the names of simulated ones begin so
RECORDED, SIMULATED = "recorded, sides tossed anew", "simulated: "
# within which a detection is told
FIVE_MINUTES, TEN_MINUTES = 300.0, 600.0


def share(count: int, trials: int) -> Json:
    """`count` of at least one trial, with exact binomial intervals (Clopper and Pearson):
    two-sided, and the one-sided upper bound that a rate has to stay below, both at 95 %."""
    two_sided = binomtest(count, trials).proportion_ci(0.95)
    below = binomtest(count, trials, alternative="less").proportion_ci(0.95)
    return {
        "count": count,
        "trials": trials,
        "share": count / trials,
        "interval_95": [float(two_sided.low), float(two_sided.high)],
        "upper_bound_95": float(below.high),
    }


def standing(found: Json, alpha: float, *, has_enough: bool = True) -> str:
    """`held`: the upper bound is at most alpha. `broken`: the true rate is above it, as far as
    an interval of 95 % can say. `not shown`: too few families for either, or not enough blocks
    that they were drawn from."""
    if found["interval_95"][0] > alpha:
        return BROKEN
    return HELD if found["upper_bound_95"] <= alpha and has_enough else NOT_SHOWN


@dataclass(frozen=True)
class Settings:
    """What a user asks of `compare run`; then `families` of `cases` for false alarms, `tries` a
    case and slowdown for detection."""

    alpha: float
    margin: float
    looks: int
    families: int
    cases: int
    tries: int
    jobs: int
    seed: int

    def design(self, cases: int) -> Design:
        """For a family of that many cases; BadInputError where it cannot be."""
        return plan_design(cases, alpha=self.alpha, margin=self.margin, looks=self.looks)

    def of_tries(self, work: Callable[[int, int], list[Found]], number: int = 0) -> list[Found]:
        """What `work(how many, seed)` finds in all tries; `number`: tells cases apart."""
        chunks = in_chunks(work, self.tries, self.seed + number, self.jobs)
        return [found for chunk in chunks for found in chunk]


# keys of what is counted, beside one for each outcome of a case
FAMILIES, FALSE, FALSE_SLOWER = "families", "false", "slower families"


def _count(
    recorded: PairedBlocks, design: Design, is_tossed: bool, families: int, seed: int
) -> Counter[str]:
    """FAMILIES drawn, those with a FALSE verdict, those with a FALSE_SLOWER one, and the verdicts
    of all cases by outcome."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter({FAMILIES: families})
    for _ in range(families):
        family = draw_family(recorded, design.cases, design.looks[-1], rng, is_tossed=is_tossed)
        outcomes = Counter(verdict.outcome.value for verdict in judge_looks(family, design))
        slower = outcomes[Outcome.SLOWER.value] > 0
        counts.update(outcomes)
        counts[FALSE_SLOWER] += slower
        counts[FALSE] += slower or outcomes[Outcome.FASTER.value] > 0
    return counts


def _row(name: str, counts: Counter[str], settings: Settings, blocks: Json) -> Json:
    """`blocks`: keys as of drawn()."""
    false = share(counts[FALSE], counts[FAMILIES])
    return {
        "data": name,
        "cases": settings.cases,
        "alpha": settings.alpha,
        "false": false,
        "slower": share(counts[FALSE_SLOWER], counts[FAMILIES]),
        "verdicts": {found.value: counts[found.value] for found in Outcome if counts[found.value]},
        **blocks,
        "standing": standing(false, settings.alpha, has_enough=blocks["is_shown"]),
    }


def false_alarm_row(data: PairedBlocks, settings: Settings) -> Json:
    """Families drawn from recorded blocks, sides tossed anew, held against alpha."""
    design = settings.design(settings.cases)
    work = partial(_count, data, design, True)
    counts = sum(in_chunks(work, settings.families, settings.seed, settings.jobs), Counter())
    groups = -(-settings.cases // len(data.cases))
    return _row(RECORDED, counts, settings, drawn(data.blocks, design.looks[-1], groups))


FAMILIES_A_SIMULATION = 50
# of the blocks that a family needs: what the families of one simulation choose from
SPARE = 3


def _count_simulated(scenario: str, design: Design, families: int, seed: int) -> Counter[str]:
    data = simulate(scenario, cases=design.cases, blocks=SPARE * design.looks[-1], seed=seed)
    return _count(data, design, False, families, seed)


def simulated_rows(settings: Settings) -> list[Json]:
    """False alarms of every scenario, and of all of them together: one alone has too few families
    to show anything but that the rate is broken."""
    design, each = settings.design(settings.cases), math.ceil(settings.families / len(SCENARIOS))
    blocks = math.ceil(each / FAMILIES_A_SIMULATION) * SPARE * design.looks[-1]
    rows, together = [], Counter()

    def add(name: str, counts: Counter[str], simulations: int) -> Json:
        made = drawn(simulations * blocks, simulations * blocks)
        rows.append(_row(SIMULATED + name, counts, settings, made))
        return rows[-1]

    for scenario in SCENARIOS:
        work = partial(_count_simulated, scenario, design)
        chunks = in_chunks(work, each, settings.seed, settings.jobs, FAMILIES_A_SIMULATION)
        counts = sum(chunks, Counter())
        together += counts
        row = add(scenario, counts, 1)
        if row["standing"] == NOT_SHOWN:
            row["standing"] = IN_ALL
    add("all of these", together, len(SCENARIOS))
    return rows


SLOWDOWNS = (0.02, 0.05, 0.10)
# seconds that a try may take: what a slowdown of this size has to be found in
BUDGETS = {0.10: FIVE_MINUTES}


def detections(
    recorded: PairedBlocks,
    slowdown: float,
    number: int,
    design: Design,
    budget: float,
    count: int,
    seed: int,
) -> list[Verdict]:
    """Verdicts of one case in `count` families in which it is slower, each of `budget` seconds at
    most. Its blocks are drawn apart from those of the others."""
    rng = np.random.default_rng(seed)
    slowed = recorded.slowed(slowdown).values[number]
    found: list[Verdict] = []
    for _ in range(count):
        others, own = (
            draw_blocks(rng, recorded.blocks, design.looks[-1])[0] for _ in ("others", "own")
        )
        family = list(recorded.values[:, others])
        family[number] = slowed[own]
        found.append(judge_looks(family, design, recorded, budget)[number])
    return found


def detection_numbers(case: str, verdicts: Sequence[Verdict]) -> Json:
    """Of one case, or of all together. `..._seconds`: after which that share of all tries was
    called `slower`; None: never so many."""
    tries = len(verdicts)
    counts = Counter(verdict.outcome for verdict in verdicts)
    times = sorted(v.seconds for v in verdicts if v.outcome is Outcome.SLOWER)

    def reached(wanted: float) -> float | None:
        needed = math.ceil(wanted * tries)
        return times[needed - 1] if needed <= len(times) else None

    return {
        "case": case,
        "found": share(counts[Outcome.SLOWER], tries),
        "found_in_5_minutes": share(sum(time <= FIVE_MINUTES for time in times), tries),
        "found_in_10_minutes": share(sum(time <= TEN_MINUTES for time in times), tries),
        "unclear": share(counts[Outcome.UNCLEAR], tries),
        "same": share(counts[Outcome.SAME], tries),
        "faster": share(counts[Outcome.FASTER], tries),
        "median_seconds": reached(0.5),
        "seconds_for_95_percent": reached(0.95),
    }


def detection_rows(recorded: PairedBlocks, settings: Settings) -> list[Json]:
    """Every case slower by 2, 5 and 10 %, one after the other; and by 2 % with a margin of 1 %,
    since a change within the margin is not called `slower` whatever the data."""
    asked = [(slowdown, settings) for slowdown in SLOWDOWNS]
    if settings.margin > 0.01:
        asked.insert(1, (SLOWDOWNS[0], replace(settings, margin=0.01)))
    rows: list[Json] = []
    for slowdown, own in asked:
        design, budget = own.design(len(recorded.cases)), BUDGETS.get(slowdown, TEN_MINUTES)
        verdicts = [
            own.of_tries(partial(detections, recorded, slowdown, i, design, budget), i)
            for i in range(len(recorded.cases))
        ]
        row = {
            "slowdown": slowdown,
            "margin": own.margin,
            "alpha": own.alpha,
            "looks": list(design.looks),
            "budget_seconds": budget,
            **drawn(recorded.blocks, design.looks[-1]),
            "all": detection_numbers("all cases", [v for found in verdicts for v in found]),
            "cases": list(map(detection_numbers, recorded.cases, verdicts)),
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
