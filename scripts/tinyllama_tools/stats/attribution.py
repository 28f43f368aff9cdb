"""Which part of a whole explains how much of its change: in seconds, with an interval.

The interval is the percentile bootstrap over blocks (Efron, Annals of Statistics 7, 1979), seeded;
whole and parts are drawn independently, since they need not have as many blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinyllama_tools.stats.looks import BlockSummary
from tinyllama_tools.stats.rank_tests import Array, middle, walsh_averages

SAMPLES = 1000
SEED = 20240607
CONFIDENCE = 0.95
# of the change, which a part must explain to be blamed for it
LEAST_SHARE = 0.5


@dataclass(frozen=True)
class PartChange:
    """What one part contributes to the change of a whole. `count`: how often the whole contains it.

    `seconds`: count x (new - base) of the part. `share`: seconds / the whole's change, with `low`
    to `high` at 95 %.
    """

    case: str
    count: int
    seconds: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Change:
    """`seconds`: new - base of the whole. `parts`: largest share first. `unexplained`: what their
    shares leave of 1. `culprit`: the part that the change is attributed to; None: none stands out.
    """

    seconds: float
    parts: tuple[PartChange, ...]
    unexplained: float
    culprit: str | None


def _seconds(blocks: Sequence[BlockSummary]) -> Array:
    """New - base of each block.

    From the paired log-ratio, which drift within the block does not touch as it does the medians.
    The hyperbolic sine makes it change its sign, and nothing else, when the sides are swapped.
    """
    ratio = np.array([block.log_ratio for block in blocks])
    level = np.sqrt([block.base_seconds * block.new_seconds for block in blocks])
    return 2 * level * np.sinh(ratio / 2)


def _location(rows: Array) -> Array:
    return middle(walsh_averages(rows))


def _drawn(values: Array, generator: np.random.Generator) -> Array:
    """Hodges-Lehmann estimates of samples drawn from the blocks with replacement."""
    return _location(values[generator.integers(0, values.size, (SAMPLES, values.size))])


def _part(name: str, count: int, values: Array, whole: float, shares: Array) -> PartChange:
    seconds = count * float(_location(values[np.newaxis, :])[0])
    low, high = np.quantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return PartChange(name, count, seconds, seconds / whole, float(low), float(high))


def _culprit(parts: Sequence[PartChange], shares: Mapping[str, Array]) -> str | None:
    """`shares`: of the drawn samples, by case."""
    if not parts:
        return None
    first, others = parts[0], parts[1:]
    # the largest of several shares was picked, so it must stand out from as many
    low = float(np.quantile(shares[first.case], (1 - CONFIDENCE) / 2 / len(parts)))
    stands_out = low > 0 and all(low > other.share for other in others)
    return first.case if stands_out and first.share >= LEAST_SHARE else None


def attribute(
    whole: Sequence[BlockSummary], parts: Mapping[str, tuple[int, Sequence[BlockSummary]]]
) -> Change:
    """Shares of the whole's change by part; `parts`: by case, how often the whole contains it, and
    its blocks.

    Changes are Hodges-Lehmann estimates over blocks. The culprit is the part with the largest share
    if that is at least one half, and the low end of its interval, corrected for the number of parts
    (Bonferroni), is above 0 and above every other part's share. Raises ValueError for a case
    without blocks, or a whole that did not change at all.
    """
    for name, blocks in {"the whole": whole, **{n: b for n, (_, b) in parts.items()}}.items():
        if not blocks:
            raise ValueError(f"{name} has no blocks: a change needs at least one")
    values = _seconds(whole)
    change = float(_location(values[np.newaxis, :])[0])
    if change == 0:
        raise ValueError("the whole changed by 0 seconds: there is nothing to attribute")
    generator = np.random.default_rng(SEED)
    drawn_whole = _drawn(values, generator)
    # a drawn whole of exactly 0 explains nothing, either way
    drawn_whole[drawn_whole == 0] = np.inf
    found, drawn = [], {}
    for name, (count, blocks) in parts.items():
        of_part = _seconds(blocks)
        drawn[name] = count * _drawn(of_part, generator) / drawn_whole
        found.append(_part(name, count, of_part, change, drawn[name]))
    found.sort(key=lambda part: -part.share)
    unexplained = 1 - sum(part.share for part in found)
    return Change(change, tuple(found), unexplained, _culprit(found, drawn))
