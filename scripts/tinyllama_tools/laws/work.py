"""Which terms a law of time can have: those that the counted work of its cases has.

An optimizer's update does the same at every batch and sequence, and only attention's work grows
with the square of the sequence. Without this, noise of a few cells can feign a term whose share
grows fastest beyond the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tinyllama_tools.laws.terms import LAUNCH, LINEAR, QUADRATIC, TIME_TERMS, Term

# relative, of counts; what differs by less is the same
_SAME = 1e-3


def _varies(counts: Mapping[tuple[int, int], float]) -> bool:
    return max(counts.values()) - min(counts.values()) > _SAME * max(counts.values())


def _grows_faster_than_the_sequence(counts: Mapping[tuple[int, int], float]) -> bool:
    """Whether, at any batch, longer sequences add more a token; true where that is not known."""
    known = False
    for batch in {batch for batch, _ in counts}:
        lengths = sorted(seq for of, seq in counts if of == batch)
        slopes = [
            (counts[batch, after] - counts[batch, before]) / (after - before)
            for before, after in itertools.pairwise(lengths)
        ]
        known |= len(slopes) > 1
        if any(b > a + _SAME * abs(a) for a, b in itertools.pairwise(slopes)):
            return True
    return not known


def terms_of_work(counters: Mapping[str, Mapping[tuple[int, int], float]]) -> tuple[Term, ...]:
    """`counters`: of FLOPs and of bytes, each by batch and sequence; all terms where fewer than two
    sizes have any.
    """
    counts = [of for of in counters.values() if len(of) > 1]
    if not counts:
        return TIME_TERMS
    varying = [of for of in counts if _varies(of)]
    found = [LAUNCH]
    if varying:
        found.append(LINEAR)
    if any(map(_grows_faster_than_the_sequence, varying)):
        found.append(QUADRATIC)
    return tuple(found)
