"""One try of the sequential comparison on blocks that were measured before.

Judging is judging.family's; only measuring is replaced by handing out the next blocks. When a case
drops out is the rule of compare.sequential_run, which is too slow to be played thousands of times;
a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.calibrate.paired_blocks import Costs
from tinyllama_tools.compare.sequential_run import DECIDED
from tinyllama_tools.stats.looks import BlockSummary, judge_family
from tinyllama_tools.stats.verdicts import Design, Judgement, Outcome

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
