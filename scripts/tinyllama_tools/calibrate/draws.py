"""Families of cases drawn from measured or simulated blocks, judged as by `compare run`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tinyllama_tools.stats.looks import judge_family
from tinyllama_tools.stats.rank_tests import Block, BlockSummary, summarise
from tinyllama_tools.stats.verdicts import DECIDED, Design, Judgement, Outcome

Summaries = Mapping[str, Sequence[BlockSummary]]
Judgements = Mapping[str, Judgement | None]
Judge = Callable[[Summaries, Design], Judgements]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Costs:
    """Wall-clock seconds: of a block whatever its cases (start of the two processes), of each case
    in a block (opening, warm-up, slices), and of all proofs before the first block."""

    block: float
    cases: Mapping[str, float]
    opening: float = 0.0

    def of(self, open_cases: Sequence[str]) -> float:
        """Seconds of one block with these cases."""
        return self.block + sum(self.cases[name] for name in open_cases)


@dataclass(frozen=True)
class PairedBlocks:
    """`summaries[case][i]` is of block i, the same block for every case."""

    summaries: Summaries
    costs: Costs

    def __post_init__(self) -> None:
        counts = {len(found) for found in self.summaries.values()}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                f"{sorted(counts)} blocks of the cases: every case needs as many, at least 1"
            )

    @property
    def cases(self) -> tuple[str, ...]:
        """In the order of the recording."""
        return tuple(self.summaries)

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(next(iter(self.summaries.values())))

    def halves(self) -> tuple[PairedBlocks, PairedBlocks]:
        """The earlier and the later half in time, so that what the machine did in between counts.

        Raises ValueError where there are fewer than two blocks.
        """
        if self.blocks < 2:
            raise ValueError(f"{self.blocks} block: halves need at least 2")
        middle = self.blocks // 2
        earlier = {name: found[:middle] for name, found in self.summaries.items()}
        later = {name: found[middle:] for name, found in self.summaries.items()}
        return PairedBlocks(earlier, self.costs), PairedBlocks(later, self.costs)

    def only(self, cases: Sequence[str]) -> PairedBlocks:
        """These cases of every block."""
        return PairedBlocks({name: self.summaries[name] for name in cases}, self.costs)

    def slowed(self, fraction: float) -> PairedBlocks:
        """Every case of the new side slower by this fraction, arithmetically."""

        def slower(summary: BlockSummary) -> BlockSummary:
            seconds = summary.new_seconds * (1 + fraction)
            log_ratio = summary.log_ratio + math.log1p(fraction)
            return replace(summary, log_ratio=log_ratio, new_seconds=seconds)

        found = {n: tuple(map(slower, blocks)) for n, blocks in self.summaries.items()}
        return PairedBlocks(found, self.costs)


def exchanged(summary: BlockSummary) -> BlockSummary:
    """The same block with the sides' names exchanged: as good an A/A block as the one recorded."""
    base, new = summary.new_seconds, summary.base_seconds
    return replace(summary, log_ratio=-summary.log_ratio, base_seconds=base, new_seconds=new)


def joined(several: Sequence[PairedBlocks]) -> PairedBlocks:
    """One after the other; only cases that all of them have. ValueError where there are none."""
    cases = [n for n in several[0].cases if all(n in one.summaries for one in several)]
    if not cases:
        raise ValueError("the recordings have no case in common")
    mean = lambda values: float(np.mean(values))  # noqa: E731
    costs = Costs(
        mean([one.costs.block for one in several]),
        {name: mean([one.costs.cases[name] for one in several]) for name in cases},
        mean([one.costs.opening for one in several]),
    )
    found = {name: tuple(s for one in several for s in one.summaries[name]) for name in cases}
    return PairedBlocks(found, costs)


@dataclass(frozen=True)
class Verdict:
    """`blocks` it stands on; `seconds` of measuring until it was known."""

    outcome: Outcome
    blocks: int
    seconds: float


def _that_fit(
    open_cases: list[str], judgements: Judgements, costs: Costs, blocks: int, left: float
) -> list[str]:
    """Of the open cases, those that can have `blocks` more in the seconds `left`; those farthest
    from a verdict go first."""

    def needed(name: str) -> float:
        judgement = judgements[name]
        return judgement.evidence.distance if judgement else 0.0

    by_distance = sorted(open_cases, key=needed)
    while by_distance and blocks * costs.of(by_distance) > left:
        by_distance.pop()
    return [name for name in open_cases if name in by_distance]


def judge_looks(
    blocks: Summaries,
    design: Design,
    costs: Costs,
    *,
    budget: float = float("inf"),
    judge: Judge = judge_family,
) -> dict[str, Verdict]:
    """The verdict of every case at the planned looks, as far as blocks and `budget` (seconds) go.

    A case that has its verdict is measured no further. A case is unclear where no look was reached.
    """
    found = dict.fromkeys(blocks, Verdict(Outcome.UNCLEAR, 0, 0.0))
    available = min(len(values) for values in blocks.values())
    still_open, seen, spent = list(blocks), 0, costs.opening
    judgements: Judgements = dict.fromkeys(blocks)
    for look in design.looks:
        if look > available:
            break
        still_open = _that_fit(still_open, judgements, costs, look - seen, budget - spent)
        if not still_open:
            break
        spent += (look - seen) * costs.of(still_open)
        seen = look
        going_on = set(still_open)
        taken = {n: b[: look if n in going_on else found[n].blocks] for n, b in blocks.items()}
        judgements = judge(taken, design)
        for name in still_open:
            judgement = judgements[name]
            if judgement is not None:
                found[name] = Verdict(judgement.outcome, look, spent)
        still_open = [name for name in still_open if found[name].outcome not in DECIDED]
    return found


# what becomes of the order and the sides of the blocks that are drawn
AS_MEASURED, TOSSED = "as measured", "tossed anew"
IN_ORDER = "as measured, in order of time"


def has_enough_blocks(available: int, wanted: int, groups: int = 1) -> bool:
    """Whether a family can have different blocks everywhere. Only then may figures drawn from them
    be said to show anything: with overlap or replacement, blocks count more than once."""
    return available >= groups * wanted


def draw_blocks(rng: np.random.Generator, available: int, wanted: int, groups: int) -> np.ndarray:
    """Numbers of blocks, a row a group: none twice in a family where there are enough for that,
    else none twice in a group, else with replacement."""
    if has_enough_blocks(available, wanted, groups):
        return rng.permutation(available)[: groups * wanted].reshape(groups, wanted)
    if has_enough_blocks(available, wanted):
        return np.stack([rng.permutation(available)[:wanted] for _ in range(groups)])
    return rng.integers(0, available, (groups, wanted))


def draw_windows(rng: np.random.Generator, available: int, wanted: int, groups: int) -> np.ndarray:
    """Numbers of consecutive blocks, a row a group, each from a start of its own; where there are
    too few blocks, the first follows the last."""
    starts = rng.integers(0, max(1, available - wanted + 1), (groups, 1))
    return (starts + np.arange(wanted)) % available


def drawing_words(available: int, wanted: int, groups: int, sides: str = AS_MEASURED) -> str:
    """How blocks are drawn, and from how many, for readers of the result."""
    source = f"from {available} recorded blocks"
    if sides == IN_ORDER:
        wrapped = "" if has_enough_blocks(available, wanted) else ", the first after the last"
        return f"{source}, in windows of {wanted} consecutive ones{wrapped}"
    if has_enough_blocks(available, wanted, groups):
        return f"{source}, without replacement in a family"
    if has_enough_blocks(available, wanted):
        words = "without replacement in a case, with overlap between the copies of a case"
        return f"{source}, {words}"
    return f"{source}, with replacement: {wanted} are needed"


def draw_family(
    recorded: PairedBlocks, family: int, wanted: int, sides: str, rng: np.random.Generator
) -> dict[str, list[BlockSummary]]:
    """An A/A family of `family` cases, `wanted` blocks each; recorded cases serve several times
    where they are fewer. `tossed anew`: which side of a drawn block is called the base is left to
    chance (under A/A both are as good), which makes the null hypothesis exact; without it a side
    that the recording favoured stays favoured. `in order of time`: consecutive blocks, so that
    what lasts for several of them is there as it was."""
    groups = -(-family // len(recorded.cases))
    draw = draw_windows if sides == IN_ORDER else draw_blocks
    numbers = draw(rng, recorded.blocks, wanted, groups)
    tossed = rng.integers(0, 2 if sides == TOSSED else 1, numbers.shape)
    drawn: dict[str, list[BlockSummary]] = {}
    for group in range(groups):
        order = list(zip(numbers[group].tolist(), tossed[group].tolist(), strict=True))
        for name in recorded.cases[: family - len(drawn)]:
            found = recorded.summaries[name]
            drawn[f"{name} #{group}"] = [
                exchanged(found[number]) if other else found[number] for number, other in order
            ]
    return drawn


# keys of what is counted, beside one for each outcome of a case
FAMILIES, FALSE, FALSE_SLOWER = "families", "false", "slower families"


def _count(
    recorded: PairedBlocks,
    design: Design,
    family: int,
    sides: str,
    judge: Judge,
    families: int,
    seed: int,
) -> Counter[str]:
    """FAMILIES drawn, those with a FALSE verdict, those with a FALSE_SLOWER one, and the verdicts
    of all cases by outcome."""
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter({FAMILIES: families})
    for _ in range(families):
        drawn = draw_family(recorded, family, design.looks[-1], sides, rng)
        # without a budget, time decides nothing
        costs = Costs(0.0, dict.fromkeys(drawn, 0.0))
        verdicts = judge_looks(drawn, design, costs, judge=judge)
        outcomes = Counter(verdict.outcome.value for verdict in verdicts.values())
        slower = outcomes[Outcome.SLOWER.value] > 0
        counts.update(outcomes)
        counts[FALSE_SLOWER] += slower
        counts[FALSE] += slower or outcomes[Outcome.FASTER.value] > 0
    return counts


# families that one call of a worker process draws
CHUNK = 100


def in_chunks(
    work: Callable[[int, int], Found], total: int, seed: int, jobs: int, chunk: int = CHUNK
) -> list[Found]:
    """`work(how many, seed)` until `total` are done, on `jobs` processes.

    The chunks and their seeds depend on `total` and `seed` alone, so that the result does not
    depend on `jobs`.
    """
    sizes = [min(chunk, total - done) for done in range(0, total, chunk)]
    seeds = np.random.SeedSequence(seed).generate_state(len(sizes)).tolist()
    if jobs <= 1 or len(sizes) == 1:
        return [work(size, own) for size, own in zip(sizes, seeds, strict=True)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        return list(pool.map(work, sizes, seeds))


def false_alarms(
    recorded: PairedBlocks,
    design: Design,
    *,
    family: int,
    families: int,
    seed: int = 0,
    sides: str = AS_MEASURED,
    jobs: int = 1,
    judge: Judge = judge_family,
) -> Counter[str]:
    """How many of `families` A/A families of `family` cases get a false verdict: see _count()."""
    work = partial(_count, recorded, design, family, sides, judge)
    return sum(in_chunks(work, families, seed, jobs), Counter())


Array = NDArray[np.float64]
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
    "drift": drift,
    "spikes": spikes,
    "two modes": two_modes,
    "ties": ties,
    "heavy tails": heavy_tails,
    "shared noise": shared_noise,
}


def simulated_slices(
    scenario: str, *, cases: int, blocks: int, pairs: int = 8, seed: int = 0
) -> dict[str, list[Block]]:
    """A/A blocks of a scenario; cases are called `case 0`, `case 1`, ... and last around 10 ms."""
    rng = np.random.default_rng([seed, list(SCENARIOS).index(scenario)])
    base, new = SCENARIOS[scenario](rng, (cases, blocks, pairs))
    levels = 0.01 * np.exp(rng.normal(0, 0.5, cases))
    return {
        f"case {number}": [
            Block((level * np.exp(b)).tolist(), (level * np.exp(n)).tolist())
            for b, n in zip(base[number], new[number], strict=True)
        ]
        for number, level in enumerate(levels)
    }


def simulate(scenario: str, *, cases: int, blocks: int, seed: int = 0) -> PairedBlocks:
    """Summaries of simulated_slices(). A block costs a second and each case in it a quarter of one,
    as on a machine of two cores."""
    slices = simulated_slices(scenario, cases=cases, blocks=blocks, seed=seed)
    summaries = {name: tuple(map(summarise, found)) for name, found in slices.items()}
    return PairedBlocks(summaries, Costs(1.0, dict.fromkeys(summaries, 0.25)))


FAMILIES_A_SIMULATION = 50
# of the blocks that a family needs: what the families of one simulation choose from
SPARE = 3


def simulated_false_alarms(
    scenario: str, design: Design, *, family: int, families: int, seed: int, jobs: int = 1
) -> tuple[Counter[str], int]:
    """False verdicts in `families` of `family` cases, and how many blocks were simulated in all."""
    work = partial(_count_simulated, scenario, design, family)
    counts = in_chunks(work, families, seed, jobs, FAMILIES_A_SIMULATION)
    return sum(counts, Counter()), len(counts) * SPARE * design.looks[-1]


def _count_simulated(
    scenario: str, design: Design, family: int, families: int, seed: int
) -> Counter[str]:
    data = simulate(scenario, cases=family, blocks=SPARE * design.looks[-1], seed=seed)
    return _count(data, design, family, AS_MEASURED, judge_family, families, seed)
