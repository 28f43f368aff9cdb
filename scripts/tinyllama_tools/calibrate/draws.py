"""Families of cases drawn from measured or simulated blocks, judged as compare run judges them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from tinyllama_tools.compare.sequential_run import DECIDED
from tinyllama_tools.stats.looks import Block, BlockSummary, judge_family, summarise
from tinyllama_tools.stats.verdicts import Design, Judgement, Outcome

CONFIDENCE = 0.95


def _checked(count: int, trials: int, confidence: float) -> None:
    if not 0 <= count <= trials or trials < 1:
        raise ValueError(f"{count} of {trials}: must be 0 to all of at least 1 trial")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must be between 0 and 1")


def upper_bound(count: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided: the true share lies at or below it, with at least this confidence.

    Raises ValueError where `count` is not within the trials or `confidence` not within (0, 1).
    """
    _checked(count, trials, confidence)
    return 1.0 if count == trials else float(beta.ppf(confidence, count + 1, trials - count))


def lower_bound(count: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided: the true share lies at or above it, with at least this confidence.

    Raises ValueError as upper_bound() does.
    """
    _checked(count, trials, confidence)
    return 0.0 if count == 0 else float(beta.ppf(1 - confidence, count, trials - count + 1))


@dataclass(frozen=True)
class Share:
    """`count` of `trials`."""

    count: int
    trials: int

    def __post_init__(self) -> None:
        _checked(self.count, self.trials, CONFIDENCE)

    @property
    def value(self) -> float:
        """From 0 to 1."""
        return self.count / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided at 95 %: 2.5 % beyond either end."""
        outer = (1 + CONFIDENCE) / 2
        return (
            lower_bound(self.count, self.trials, outer),
            upper_bound(self.count, self.trials, outer),
        )

    @property
    def bound(self) -> float:
        """One-sided upper bound at 95 %, which a rate has to stay below."""
        return upper_bound(self.count, self.trials)

    def as_json(self) -> dict[str, float | int | list[float]]:
        """Plain values for a result file."""
        return {
            "count": self.count,
            "trials": self.trials,
            "share": self.value,
            "interval_95": list(self.interval),
            "upper_bound_95": self.bound,
        }


Summaries = dict[str, tuple[BlockSummary, ...]]


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
    """`summaries[case][i]` and `slices[case][i]` are of block i, the same block for every case.

    `slices` is empty where only summaries were kept.
    """

    summaries: Summaries
    slices: Mapping[str, tuple[Block, ...]]
    costs: Costs

    def __post_init__(self) -> None:
        counts = {len(found) for found in (*self.summaries.values(), *self.slices.values())}
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

    def part(self, first: int, last: int) -> PairedBlocks:
        """Blocks from `first` up to, without, `last`."""
        return PairedBlocks(
            {name: found[first:last] for name, found in self.summaries.items()},
            {name: found[first:last] for name, found in self.slices.items()},
            self.costs,
        )

    def halves(self) -> tuple[PairedBlocks, PairedBlocks]:
        """The earlier and the later half in time, so that what the machine did in between counts.

        Raises ValueError where there are fewer than two blocks.
        """
        if self.blocks < 2:
            raise ValueError(f"{self.blocks} block: halves need at least 2")
        middle = self.blocks // 2
        return self.part(0, middle), self.part(middle, self.blocks)

    def only(self, cases: Sequence[str]) -> PairedBlocks:
        """These cases of every block."""
        return PairedBlocks(
            {name: found for name, found in self.summaries.items() if name in cases},
            {name: found for name, found in self.slices.items() if name in cases},
            self.costs,
        )

    def summaries_only(self) -> PairedBlocks:
        """Without slices: little to send to another process."""
        return PairedBlocks(self.summaries, {}, self.costs)

    def slowed(self, fraction: float) -> PairedBlocks:
        """Every case of the new side slower by this fraction, arithmetically."""
        return PairedBlocks(
            {
                name: tuple(slowed_summary(summary, fraction) for summary in found)
                for name, found in self.summaries.items()
            },
            {
                name: tuple(slowed_block(block, fraction) for block in found)
                for name, found in self.slices.items()
            },
            self.costs,
        )


def slowed_summary(summary: BlockSummary, fraction: float) -> BlockSummary:
    """Of a block whose new side took `fraction` longer."""
    return replace(
        summary,
        log_ratio=summary.log_ratio + math.log1p(fraction),
        new_seconds=summary.new_seconds * (1 + fraction),
    )


def exchanged_summary(summary: BlockSummary) -> BlockSummary:
    """The same block with the sides' names exchanged: as good an A/A block as the one recorded."""
    return replace(
        summary,
        log_ratio=-summary.log_ratio,
        base_seconds=summary.new_seconds,
        new_seconds=summary.base_seconds,
    )


def slowed_block(block: Block, fraction: float) -> Block:
    """The slices of a block whose new side took `fraction` longer."""
    return Block(block.base, tuple((np.asarray(block.new) * (1 + fraction)).tolist()))


def from_slices(slices: Mapping[str, Sequence[Block]], costs: Costs) -> PairedBlocks:
    """Summarises every block as the judge does; ValueError where cases have different numbers."""
    kept = {name: tuple(found) for name, found in slices.items()}
    return PairedBlocks(
        {name: tuple(summarise(block) for block in found) for name, found in kept.items()},
        kept,
        costs,
    )


def joined(several: Sequence[PairedBlocks]) -> PairedBlocks:
    """One after the other; only cases that all of them have. ValueError where there are none."""
    cases = [n for n in several[0].cases if all(n in one.summaries for one in several)]
    if not cases:
        raise ValueError("the recordings have no case in common")
    with_slices = [name for name in cases if all(name in one.slices for one in several)]
    return PairedBlocks(
        {name: tuple(s for one in several for s in one.summaries[name]) for name in cases},
        {name: tuple(b for one in several for b in one.slices[name]) for name in with_slices},
        Costs(
            float(np.mean([one.costs.block for one in several])),
            {n: float(np.mean([one.costs.cases[n] for one in several])) for n in cases},
            float(np.mean([one.costs.opening for one in several])),
        ),
    )


Judgements = Mapping[str, Judgement | None]
Judge = Callable[[Mapping[str, Sequence[BlockSummary]], Design], Judgements]


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
    kept = set(by_distance)
    return [name for name in open_cases if name in kept]


def judge_in_turn(
    blocks: Mapping[str, Sequence[BlockSummary]],
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


# families that one call of a worker process draws
CHUNK = 100
# what becomes of the order and the sides of the blocks that are drawn
AS_MEASURED, TOSSED = "as measured", "tossed anew"
IN_ORDER = "as measured, in order of time"
DrawnSides = Literal["as measured", "tossed anew", "as measured, in order of time"]
Found = TypeVar("Found")


@dataclass(frozen=True)
class FamilyCounts:
    """Families with at least one false verdict; `slower`: with at least one false `slower`.

    `cases`: verdicts by outcome over all cases of all families.
    """

    families: int
    false: int
    slower: int
    cases: Counter[Outcome]

    def __add__(self, other: FamilyCounts) -> FamilyCounts:
        return FamilyCounts(
            self.families + other.families,
            self.false + other.false,
            self.slower + other.slower,
            self.cases + other.cases,
        )


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


def drawing_words(available: int, wanted: int, groups: int, sides: DrawnSides = AS_MEASURED) -> str:
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


@dataclass(frozen=True)
class AaFamilies:
    """Draws A/A families of `family` cases. `tossed anew`: which side of a drawn block is called
    the base is left to chance (under A/A both are as good), which makes the null hypothesis exact;
    without it a side that the recording favoured stays favoured. `in order of time`: consecutive
    blocks, so that what lasts for several of them is there as it was."""

    recorded: PairedBlocks
    family: int
    design: Design
    sides: DrawnSides = AS_MEASURED
    judge: Judge = judge_family

    @property
    def groups(self) -> int:
        """How often the recorded cases serve in one family."""
        return math.ceil(self.family / len(self.recorded.cases))

    @cached_property
    def _exchanged(self) -> Summaries:
        return {
            name: tuple(exchanged_summary(s) for s in found)
            for name, found in self.recorded.summaries.items()
        }

    def draw(self, rng: np.random.Generator) -> dict[str, list[BlockSummary]]:
        """The blocks of one family's cases, as many as the last look needs."""
        wanted = self.design.looks[-1]
        draw = draw_windows if self.sides == IN_ORDER else draw_blocks
        numbers = draw(rng, self.recorded.blocks, wanted, self.groups)
        tossed = rng.integers(0, 2 if self.sides == TOSSED else 1, numbers.shape)
        family: dict[str, list[BlockSummary]] = {}
        for group in range(self.groups):
            order = list(zip(numbers[group].tolist(), tossed[group].tolist(), strict=True))
            for name in self.recorded.cases[: self.family - len(family)]:
                sides = (self.recorded.summaries[name], self._exchanged[name])
                family[f"{name} #{group}"] = [sides[side][number] for number, side in order]
        return family

    def count(self, families: int, seed: int) -> FamilyCounts:
        """Draws and judges that many families, one after the other."""
        rng = np.random.default_rng(seed)
        false = slower = 0
        cases: Counter[Outcome] = Counter()
        for _ in range(families):
            family = self.draw(rng)
            # without a budget, time decides nothing
            costs = Costs(0.0, dict.fromkeys(family, 0.0))
            verdicts = judge_in_turn(family, self.design, costs, judge=self.judge)
            outcomes = Counter(verdict.outcome for verdict in verdicts.values())
            false += bool(outcomes[Outcome.SLOWER] or outcomes[Outcome.FASTER])
            slower += bool(outcomes[Outcome.SLOWER])
            cases += outcomes
        return FamilyCounts(families, false, slower, cases)


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
    sides: DrawnSides = AS_MEASURED,
    jobs: int = 1,
    judge: Judge = judge_family,
) -> FamilyCounts:
    """How many of `families` A/A families of `family` cases get a false verdict."""
    drawn = AaFamilies(recorded.summaries_only(), family, design, sides, judge)
    counts = in_chunks(partial(_count, drawn), families, seed, jobs)
    return sum(counts[1:], counts[0])


def _count(drawn: AaFamilies, families: int, seed: int) -> FamilyCounts:
    return drawn.count(families, seed)


Array = NDArray[np.float64]
SimulatedSides = tuple[Array, Array]
Shape = tuple[int, int, int]
# log seconds: between two processes of one program, and between neighbouring slices of one
BETWEEN = 0.08
WITHIN = 0.05


def _plain(rng: np.random.Generator, shape: Shape, between: Array | None = None) -> SimulatedSides:
    """Normal noise around each process's own level."""
    cases, blocks, _ = shape
    if between is None:
        between = rng.normal(0, BETWEEN, (2, cases, blocks, 1))
    slices = rng.normal(0, WITHIN, (2, *shape)) + between
    return slices[0], slices[1]


def drift(rng: np.random.Generator, shape: Shape) -> SimulatedSides:
    """The whole machine wanders, for all cases alike, and moves on within a pair."""
    cases, blocks, pairs = shape
    steps = rng.normal(0, 0.02, blocks * 2 * pairs)
    machine = np.cumsum(steps).reshape(1, blocks, pairs, 2)
    new_first = rng.integers(0, 2, shape).astype(bool)
    base, new = _plain(rng, shape)
    whole = np.broadcast_to(machine, (cases, blocks, pairs, 2))
    first, second = whole[..., 0], whole[..., 1]
    return base + np.where(new_first, second, first), new + np.where(new_first, first, second)


def spikes(rng: np.random.Generator, shape: Shape) -> SimulatedSides:
    """One slice in eight takes up to four times as long."""
    sides = _plain(rng, shape)
    hit = rng.random((2, *shape)) < 1 / 8
    extra = np.where(hit, rng.uniform(np.log(1.3), np.log(4), (2, *shape)), 0)
    return sides[0] + extra[0], sides[1] + extra[1]


def two_modes(rng: np.random.Generator, shape: Shape) -> SimulatedSides:
    """A process in three is 15 % slower for its whole life: where its memory came to lie."""
    cases, blocks, _ = shape
    slow = np.where(rng.random((2, cases, blocks, 1)) < 1 / 3, np.log(1.15), 0)
    return _plain(rng, shape, slow + rng.normal(0, 0.02, slow.shape))


def ties(rng: np.random.Generator, shape: Shape) -> SimulatedSides:
    """A clock so coarse that many ratios are equal, and many are 1."""
    base, new = _plain(rng, shape)
    return np.round(base / 0.05) * 0.05, np.round(new / 0.05) * 0.05


def heavy_tails(rng: np.random.Generator, shape: Shape) -> SimulatedSides:
    """Between processes and between slices: Student t with 1.5 degrees, no variance to speak of."""
    cases, blocks, _ = shape
    between = rng.standard_t(1.5, (2, cases, blocks, 1)) * BETWEEN / 2
    slices = between + rng.standard_t(1.5, (2, *shape)) * WITHIN / 2
    # no machine stalls for more than e^6 times an iteration
    bounded = np.clip(slices, -6, 6)
    return bounded[0], bounded[1]


def shared_noise(rng: np.random.Generator, shape: Shape) -> SimulatedSides:
    """What makes a process slow does so for all of its cases: the family errs together or not."""
    _, blocks, _ = shape
    return _plain(rng, shape, rng.normal(0, BETWEEN, (2, 1, blocks, 1)))


SCENARIOS: dict[str, Callable[[np.random.Generator, Shape], SimulatedSides]] = {
    "drift": drift,
    "spikes": spikes,
    "two modes": two_modes,
    "ties": ties,
    "heavy tails": heavy_tails,
    "shared noise": shared_noise,
}


def simulate(
    scenario: str, *, cases: int, blocks: int, pairs: int = 8, seed: int = 0
) -> PairedBlocks:
    """A/A blocks of a scenario; cases are called `case 0`, `case 1`, ... and last around 10 ms.

    A block costs a second and each case in it a quarter of one, as on a machine of two cores.
    Raises ValueError on a scenario that there is none of.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"scenario '{scenario}': must be one of {', '.join(SCENARIOS)}")
    rng = np.random.default_rng([seed, list(SCENARIOS).index(scenario)])
    base, new = SCENARIOS[scenario](rng, (cases, blocks, pairs))
    levels = 0.01 * np.exp(rng.normal(0, 0.5, cases))
    names = [f"case {number}" for number in range(cases)]
    slices = {
        name: [
            Block(tuple((level * np.exp(b)).tolist()), tuple((level * np.exp(n)).tolist()))
            for b, n in zip(base[at], new[at], strict=True)
        ]
        for at, (name, level) in enumerate(zip(names, levels, strict=True))
    }
    return from_slices(slices, Costs(1.0, dict.fromkeys(names, 0.25)))


FAMILIES_A_SIMULATION = 50
# of the blocks that a family needs: what the families of one simulation choose from
SPARE = 3


def simulated_false_alarms(
    scenario: str, design: Design, *, family: int, families: int, seed: int, jobs: int = 1
) -> tuple[FamilyCounts, int]:
    """False verdicts in `families` of `family` cases, and how many blocks were simulated in all."""
    work = partial(_count_simulated, scenario, design, family)
    counts = in_chunks(work, families, seed, jobs, FAMILIES_A_SIMULATION)
    return sum(counts[1:], counts[0]), len(counts) * SPARE * design.looks[-1]


def _count_simulated(
    scenario: str, design: Design, family: int, families: int, seed: int
) -> FamilyCounts:
    blocks = SPARE * design.looks[-1]
    data = simulate(scenario, cases=family, blocks=blocks, seed=seed).summaries_only()
    return AaFamilies(data, family, design).count(families, seed)
