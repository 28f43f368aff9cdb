"""From a judgement to what a compared case says of it."""

from __future__ import annotations

import math

from tinyllama_tools.compare.comparison import Interval
from tinyllama_tools.stats.verdicts import Judgement, Outcome


def interval_of(judgement: Judgement) -> Interval | None:
    """Of the ratio; None where so few blocks cannot give one."""
    found = judgement.evidence
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return None
    return Interval(math.exp(found.low), math.exp(found.high), found.confidence)


def unsettled_text(judgement: Judgement, samples: str = "blocks") -> str:
    """Of an unclear case that more samples may not settle; else empty."""
    if judgement.outcome is not Outcome.UNCLEAR or judgement.evidence.blocks_needed is not None:
        return ""
    return f"near the margin for such scatter: more {samples} may not settle it"
