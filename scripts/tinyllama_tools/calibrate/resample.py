"""Families of cases put together from measured blocks, and judged as `compare run` would.

Where a family has more cases than were recorded, the recorded cases serve several times over, each
time with other blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from typing import Literal, TypeVar

import numpy as np

from tinyllama_tools.calibrate.paired_blocks import (
    Costs,
    PairedBlocks,
    Summaries,
    exchanged_summary,
)
from tinyllama_tools.calibrate.turns import Judge, judge_in_turn
from tinyllama_tools.stats.looks import BlockSummary, judge_family
from tinyllama_tools.stats.verdicts import Design, Outcome

# families that one call of a worker process draws
CHUNK = 100
# what becomes of the order and the sides of the blocks that are drawn
AS_MEASURED, TOSSED = "as measured", "tossed anew"
IN_ORDER = "as measured, in order of time"
Sides = Literal["as measured", "tossed anew", "as measured, in order of time"]
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


def drawing_words(available: int, wanted: int, groups: int, sides: Sides = AS_MEASURED) -> str:
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
    sides: Sides = AS_MEASURED
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
    sides: Sides = AS_MEASURED,
    jobs: int = 1,
    judge: Judge = judge_family,
) -> FamilyCounts:
    """How many of `families` A/A families of `family` cases get a false verdict."""
    drawn = AaFamilies(recorded.summaries_only(), family, design, sides, judge)
    counts = in_chunks(partial(_count, drawn), families, seed, jobs)
    return sum(counts[1:], counts[0])


def _count(drawn: AaFamilies, families: int, seed: int) -> FamilyCounts:
    return drawn.count(families, seed)
