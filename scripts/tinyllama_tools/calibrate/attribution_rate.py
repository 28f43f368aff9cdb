"""How often a full step that was slowed inside one part is found, and blamed on that part.

Every try takes whole blocks of a recording in which only that part was slowed, judges all cases as
`compare run` would, and attributes the full step's change with the blocks that each case then has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.resample import draw_blocks, drawing_words, in_chunks
from tinyllama_tools.calibrate.turns import judge_in_turn
from tinyllama_tools.compare.attribution_tree import attributions, layers_by_size
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.verdicts import Design, Outcome

# made of the same parts; attributing them too would only take time
OTHER_WHOLES = frozenset({"block", "model", "rotary"})
WHOLE = "full_step"
NOBODY = "nobody"


@dataclass(frozen=True)
class Blame:
    """One try: whether the whole was called `slower`, and the component it was attributed to."""

    found: bool
    culprit: str


@dataclass(frozen=True)
class AttributionRate:
    """`part`: the component that was slowed. `change`: of the whole, as a fraction, over all blocks
    of the recording, which has `blocks`; a try wants up to `blocks_needed`."""

    part: str
    change: float
    blames: tuple[Blame, ...]
    drawing: str
    blocks: int
    blocks_needed: int

    @property
    def found(self) -> Share:
        """Tries in which the whole was called `slower`."""
        return Share(sum(blame.found for blame in self.blames), len(self.blames))

    @property
    def attributed(self) -> Share:
        """Of all tries, those in which it was, and was attributed to the slowed part."""
        right = sum(blame.found and blame.culprit == self.part for blame in self.blames)
        return Share(right, len(self.blames))

    @property
    def culprits(self) -> Counter[str]:
        """To whom it was attributed where it was found."""
        return Counter(blame.culprit for blame in self.blames if blame.found)


def component_of(case: str) -> str:
    """`ffn` of ffn/forward_backward/...; the name itself where it is not of that form."""
    name = parse_case_name(case)
    return name.component if name else case


def whole_of(cases: Mapping[str, object]) -> str:
    """The name of the full step among the cases; ValueError where there is none, or several."""
    found = [name for name in cases if component_of(name) == WHOLE]
    if len(found) != 1:
        raise ValueError(f"{len(found)} cases of {WHOLE} in the recording: must be one")
    return found[0]


@dataclass(frozen=True)
class BlameTries:
    """Draws whole blocks of the slowed recording."""

    slowed: PairedBlocks
    design: Design
    budget: float

    def tries(self, count: int, seed: int) -> list[Blame]:
        """One after the other."""
        rng = np.random.default_rng(seed)
        whole, layers = whole_of(self.slowed.summaries), layers_by_size()
        found: list[Blame] = []
        for _ in range(count):
            wanted = self.design.looks[-1]
            numbers = draw_blocks(rng, self.slowed.blocks, wanted, 1)[0].tolist()
            family = {n: [s[i] for i in numbers] for n, s in self.slowed.summaries.items()}
            verdicts = judge_in_turn(family, self.design, self.slowed.costs, budget=self.budget)
            taken = {
                name: blocks[: verdicts[name].blocks]
                for name, blocks in family.items()
                if component_of(name) not in OTHER_WHOLES
            }
            attribution = attributions(taken, layers).get(whole)
            culprit = component_of(attribution.culprit or NOBODY) if attribution else NOBODY
            found.append(Blame(verdicts[whole].outcome is Outcome.SLOWER, culprit))
        return found


def attribution_rate(
    slowed: PairedBlocks,
    part: str,
    design: Design,
    *,
    budget: float,
    tries: int,
    seed: int = 0,
    jobs: int = 1,
) -> AttributionRate:
    """`slowed`: blocks in which the new side was slowed inside `part`; `budget` in seconds.

    Raises ValueError where the recording has no full step.
    """
    whole = whole_of(slowed.summaries)
    drawn = BlameTries(slowed.summaries_only(), design, budget)
    chunks = in_chunks(partial(_tries, drawn), tries, seed, jobs)
    logs = [summary.log_ratio for summary in slowed.summaries[whole]]
    return AttributionRate(
        part,
        float(np.expm1(np.median(logs))),
        tuple(blame for chunk in chunks for blame in chunk),
        drawing_words(slowed.blocks, design.looks[-1], 1),
        slowed.blocks,
        design.looks[-1],
    )


def _tries(drawn: BlameTries, count: int, seed: int) -> list[Blame]:
    return drawn.tries(count, seed)
