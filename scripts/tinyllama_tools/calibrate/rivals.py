"""What tools in use say about the same recorded data, beside this comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu

from tinyllama_tools.calibrate.draws import PairedBlocks, Share
from tinyllama_tools.calibrate.rates import ARITHMETICAL, SLOWDOWNS, Effort
from tinyllama_tools.core.app import Json
from tinyllama_tools.stats.looks import Block
from tinyllama_tools.stats.verdicts import Outcome

ALPHA = 0.05
THRESHOLD = 0.05
FEWEST_SAMPLES = 10
APART, IN_TURN = "apart", "in turn"
ARRANGEMENTS = (APART, IN_TURN)
Seconds = Sequence[float]
# 1: claims slower, -1: claims faster, 0: claims nothing
Claim = Callable[[Seconds, Seconds], int]


def _direction(base: Seconds, new: Seconds) -> int:
    return int(np.sign(np.median(new) - np.median(base)))


def mann_whitney(base: Seconds, new: Seconds) -> int:
    """The direction of the medians where the two-sided test is significant at 0.05."""
    significant = mannwhitneyu(base, new, alternative="two-sided").pvalue < ALPHA
    return _direction(base, new) if significant else 0


def fixed_threshold(base: Seconds, new: Seconds) -> int:
    """The direction of the medians where they are more than 5 % apart."""
    ratio = np.median(new) / np.median(base)
    beyond = ratio > 1 + THRESHOLD or ratio < 1 / (1 + THRESHOLD)
    return _direction(base, new) if beyond else 0


@dataclass(frozen=True)
class Rival:
    """`samples`: the fewest a side; processes are pooled until they have as many."""

    name: str
    claim: Claim
    samples: int = 1


RIVALS = (
    Rival("Google Benchmark compare.py", mann_whitney, FEWEST_SAMPLES),
    Rival("benchstat's method", mann_whitney, FEWEST_SAMPLES),
    Rival("fixed 5 % threshold on medians", fixed_threshold),
)


@dataclass(frozen=True)
class Tries:
    """`claims[case][i]` of comparison i: 1 slower, -1 faster, 0 nothing. `samples`: the fewest a
    side."""

    claims: Mapping[str, tuple[int, ...]]
    samples: int = 0

    @property
    def per_case(self) -> Share:
        """Comparisons of a case that claimed a difference, whichever way."""
        every = [claim for found in self.claims.values() for claim in found]
        return Share(sum(claim != 0 for claim in every), len(every))

    @property
    def found(self) -> Share:
        """Comparisons of a case that claimed `slower`."""
        every = [claim for found in self.claims.values() for claim in found]
        return Share(sum(claim > 0 for claim in every), len(every))

    def per_family(self, family: int, families: int, seed: int) -> Share:
        """Families of that many cases with at least one claim; comparisons are drawn whole."""
        table = np.array(list(self.claims.values()))
        groups = math.ceil(family / len(table))
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, table.shape[1], (families, groups))
        # cases x families x groups; the last group may be needed in part only
        claimed = (table != 0)[:, drawn]
        last = family - (groups - 1) * len(table)
        claimed[last:, :, -1] = False
        return Share(int(claimed.any(axis=(0, 2)).sum()), families)


def _pooled(blocks: Sequence[Block], first: int, count: int, arrangement: str) -> Block:
    """`count` processes a side from block `first` on, as one sample a side."""
    later = first + (count if arrangement == APART else 0)
    base = [second for block in blocks[first : first + count] for second in block.base]
    new = [second for block in blocks[later : later + count] for second in block.new]
    shorter = min(len(base), len(new))
    return Block(tuple(base[:shorter]), tuple(new[:shorter]))


def blocks_needed(arrangement: str, processes: int) -> int:
    """For one comparison of that many processes a side."""
    return processes * (2 if arrangement == APART else 1)


def compare_by(
    rival: Rival, arrangement: str, data: PairedBlocks, slowdown: float = 0.0, processes: int = 1
) -> Tries:
    """Every comparison that the blocks allow, the new side made slower by the fraction, of
    `processes` a side or as many more as the rival's samples want.

    Raises ValueError where there are too few blocks for one, or no slices were kept.
    """
    if not data.slices:
        raise ValueError("the rivals need slices, and only summaries were kept")
    claims: dict[str, tuple[int, ...]] = {}
    samples: list[int] = []
    fewest = min(len(block.base) for blocks in data.slices.values() for block in blocks)
    # the same for every case, so that a family can have the same comparison of all of them
    count = max(processes, math.ceil(rival.samples / fewest))
    needed = blocks_needed(arrangement, count)
    for name, blocks in data.slices.items():
        if len(blocks) < needed:
            raise ValueError(f"{len(blocks)} blocks of {name}: {rival.name} needs {needed}")
        pooled = [
            _pooled(blocks, first, count, arrangement) for first in range(len(blocks) - needed + 1)
        ]
        samples += [len(one.base) for one in pooled]
        claims[name] = tuple(
            rival.claim(one.base, [second * (1 + slowdown) for second in one.new]) for one in pooled
        )
    return Tries(claims, min(samples))


OURS = "this comparison"


def rival_rows(data: PairedBlocks, effort: Effort, first_look: int) -> list[Json]:
    """A row a tool and arrangement; detection is arithmetical, of every case in turn.

    `first_look`: blocks that this comparison takes at least. The rows with as much data are there
    where the recording has enough blocks for one such comparison.
    """
    rows: list[Json] = []
    for processes in dict.fromkeys((1, first_look)):
        for rival in RIVALS:
            for arrangement in ARRANGEMENTS:
                if processes == 1 or data.blocks >= blocks_needed(arrangement, processes):
                    rows.append(_rival_row(rival, arrangement, data, effort, processes))
    return rows


def _rival_row(
    rival: Rival, arrangement: str, data: PairedBlocks, effort: Effort, processes: int
) -> Json:
    quiet = compare_by(rival, arrangement, data, processes=processes)
    found = {
        str(x): compare_by(rival, arrangement, data, x, processes).found.as_json()
        for x in SLOWDOWNS
    }
    family = quiet.per_family(effort.cases, effort.families, effort.seed)
    return {
        "tool": rival.name,
        "arrangement": arrangement if processes == 1 else f"{arrangement}, {processes} blocks",
        "samples": str(quiet.samples),
        "false_per_case": quiet.per_case.as_json(),
        "false_per_family": family.as_json(),
        "found": found,
    }


def own_row(false_alarms: Json, detection: list[Json], margin: float, samples: str) -> Json:
    """The same columns from rows made before. `margin`: of the detections that count.
    `samples`: slices a side."""
    verdicts = false_alarms["verdicts"]
    wrong = sum(verdicts.get(o.value, 0) for o in (Outcome.SLOWER, Outcome.FASTER))
    return {
        "tool": OURS,
        "arrangement": "in turn",
        "samples": samples,
        "false_per_case": Share(wrong, sum(verdicts.values())).as_json(),
        "false_per_family": false_alarms["false"],
        "found": {
            str(row["slowdown"]): row["all"]["found"]
            for row in detection
            if row["how"] == ARITHMETICAL and row["margin"] == margin
        },
    }
