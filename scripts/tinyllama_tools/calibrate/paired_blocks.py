"""Blocks as calibration draws them: every case of a block together, judged summaries beside slices.

Cases of one block ran within seconds of each other, so what disturbed one may have disturbed the
next. Blocks are therefore kept whole: what is drawn is a block, with all of its cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinyllama_tools.stats.looks import Block, BlockSummary, summarise

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
        """Without slices, which only the rivals need: little to send to another process."""
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
