"""How often a slowdown is found, after how long, and how often the answer stays open.

A try is a family of the recorded cases, of which one is slower. Its blocks come either from the
A/A recording with the new side's times multiplied (arithmetical), or from a recording of a program
that was really slowed (injected). The other cases stay A/A, as a commit touches one thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.resample import draw_blocks, in_chunks
from tinyllama_tools.calibrate.turns import Verdict, judge_in_turn
from tinyllama_tools.stats.verdicts import Design, Outcome


@dataclass(frozen=True)
class Detections:
    """Tries at one slowdown of one case, each with as much time as it wanted, up to `budget`
    seconds."""

    case: str
    verdicts: tuple[Verdict, ...]
    budget: float

    def share(self, outcome: Outcome) -> Share:
        """How many tries ended so within the budget."""
        return Share(sum(v.outcome is outcome for v in self.verdicts), len(self.verdicts))

    def found_within(self, seconds: float) -> Share:
        """How many were called `slower` after at most that long."""
        found = (v.outcome is Outcome.SLOWER and v.seconds <= seconds for v in self.verdicts)
        return Share(sum(found), len(self.verdicts))

    def seconds_until(self, quantile: float) -> float | None:
        """Seconds after which this share of all tries was called `slower`; None: never so many."""
        times = sorted(v.seconds for v in self.verdicts if v.outcome is Outcome.SLOWER)
        needed = int(np.ceil(quantile * len(self.verdicts)))
        return times[needed - 1] if 0 < needed <= len(times) else None


def together(several: Sequence[Detections]) -> Detections:
    """All tries of several cases as one."""
    verdicts = tuple(v for one in several for v in one.verdicts)
    return Detections("all cases", verdicts, several[0].budget)


@dataclass(frozen=True)
class OneSlowCase:
    """Draws families in which `case` has its blocks from `slowed`, all others from `quiet`."""

    quiet: PairedBlocks
    slowed: PairedBlocks
    case: str
    design: Design
    budget: float

    def tries(self, count: int, seed: int) -> list[Verdict]:
        """The verdict of the slow case in that many families."""
        rng = np.random.default_rng(seed)
        wanted = self.design.looks[-1]
        found: list[Verdict] = []
        for _ in range(count):
            quiet = draw_blocks(rng, self.quiet.blocks, wanted, 1)[0].tolist()
            slow = draw_blocks(rng, self.slowed.blocks, wanted, 1)[0].tolist()
            family = {n: [values[i] for i in quiet] for n, values in self.quiet.summaries.items()}
            family[self.case] = [self.slowed.summaries[self.case][i] for i in slow]
            verdicts = judge_in_turn(family, self.design, self.quiet.costs, budget=self.budget)
            found.append(verdicts[self.case])
        return found


def detections(
    quiet: PairedBlocks,
    slowed: PairedBlocks,
    case: str,
    design: Design,
    *,
    budget: float,
    tries: int,
    seed: int = 0,
    jobs: int = 1,
) -> Detections:
    """`tries` families in which `case` is slow; `budget` in seconds.

    Raises ValueError where one of the recordings lacks the case.
    """
    for recording in (quiet, slowed):
        if case not in recording.summaries:
            raise ValueError(f"{case}: not in a recording, which has {', '.join(recording.cases)}")
    one = OneSlowCase(quiet.summaries_only(), slowed.summaries_only(), case, design, budget)
    chunks = in_chunks(partial(_tries, one), tries, seed, jobs)
    return Detections(case, tuple(v for chunk in chunks for v in chunk), budget)


def _tries(one: OneSlowCase, count: int, seed: int) -> list[Verdict]:
    return one.tries(count, seed)
