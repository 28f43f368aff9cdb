"""The verdicts on a family of cases that were measured in blocks, at planned looks.

Only planned looks judge: blocks beyond the last look that a case has reached wait for the next one.
At each look the exact p-value is multiplied by the number of looks; the least of these so far is a
p-value whenever one stops. Looks whose estimate points the other way than the last one do not
count, which can only raise it. Holm then corrects for the cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tinyllama_tools.judging.block_summary import BlockSummary
from tinyllama_tools.judging.design import Design, DesignError
from tinyllama_tools.judging.holm import holm_adjusted
from tinyllama_tools.judging.look import Look, look_at
from tinyllama_tools.judging.outcome import Outcome
from tinyllama_tools.judging.power import (
    ESTIMATE_VARIANCE,
    POWER_QUANTILE,
    answered_after,
    paired_detection,
)
from tinyllama_tools.judging.signed_rank import Array
from tinyllama_tools.judging.verdict import Evidence, Judgement, Limits, verdict

__all__ = ["Evidence", "Judgement", "judge_family", "judge_rows"]


class _Reached(NamedTuple):
    """The last look that a case has reached, the case's row in it, and its p-value over those
    looks that point the same way."""

    blocks: int
    look: Look
    row: int
    p_value: float


def _last_looks(
    log_ratios: Sequence[Array], errors: Sequence[Array], design: Design
) -> dict[int, _Reached]:
    """By position of a case; cases that have reached no look are left out."""
    blocks = np.array([len(case) for case in log_ratios])
    # a difference is shown one way only, so each direction has p-values of its own
    slower, faster = np.ones((2, len(log_ratios)))
    found: dict[int, _Reached] = {}
    for count in design.looks:
        reached = np.flatnonzero(blocks >= count)
        if reached.size == 0:
            break
        rows = np.stack([log_ratios[case][:count] for case in reached])
        spread = np.stack([errors[case][:count] for case in reached])
        look = look_at(rows, spread, design.look_confidence)
        corrected = np.minimum(1.0, design.correction * look.p_value)
        for p_values, sign in ((slower, 1), (faster, -1)):
            points_there = sign * look.estimate > 0
            least = np.minimum(p_values[reached], corrected)
            p_values[reached] = np.where(points_there, least, p_values[reached])
        p_value = np.where(look.estimate > 0, slower[reached], faster[reached])
        # an estimate of exactly 0 points nowhere
        p_value[look.estimate == 0] = 1.0
        for row, case in enumerate(reached.tolist()):
            found[case] = _Reached(count, look, row, float(p_value[row]))
    return found


def _smallest_difference(blocks: int, uncertainty: float, design: Design) -> float:
    shown = paired_detection(design.strictest_level).shift(blocks) * uncertainty
    estimated = math.sqrt(ESTIMATE_VARIANCE / blocks) * uncertainty
    limits = Limits(design.alpha, design.margin)
    return limits.smallest_difference(shown, POWER_QUANTILE * estimated)


def _distance(last: _Reached, uncertainty: float, design: Design) -> float:
    """Of an unclear case, in blocks."""
    look, row = last.look, last.row
    estimate = float(look.estimate[row])
    shown = abs(estimate) / uncertainty if uncertainty else math.inf
    return answered_after(
        estimate,
        float(look.high[row] - look.low[row]) / 2,
        math.sqrt(ESTIMATE_VARIANCE / last.blocks) * uncertainty,
        last.blocks,
        Limits(design.alpha, design.margin).log_margin,
        paired_detection(design.strictest_level).observations(shown) if shown else math.inf,
    )


def _look_after(blocks: int, distance: float, design: Design) -> int | None:
    """The planned look, after so many blocks, that comes late enough."""
    later = [count for count in design.looks if count > blocks]
    return next((count for count in later if count >= distance), None)


def _judgement(last: _Reached, adjusted_p_value: float, design: Design) -> Judgement:
    look, row = last.look, last.row
    estimate, low, high = float(look.estimate[row]), float(look.low[row]), float(look.high[row])
    uncertainty = float(look.uncertainty[row])
    limits = Limits(design.alpha, design.margin)
    outcome = verdict(adjusted_p_value, estimate, low, high, limits)
    is_open = outcome is Outcome.UNCLEAR
    distance = _distance(last, uncertainty, design) if is_open else last.blocks
    evidence = Evidence(
        estimate=estimate,
        low=low,
        high=high,
        confidence=design.look_confidence,
        p_value=last.p_value,
        blocks=last.blocks,
        scatter=float(look.scatter[row]),
        smallest_difference=_smallest_difference(last.blocks, uncertainty, design),
        distance=distance,
        blocks_needed=_look_after(last.blocks, distance, design) if is_open else last.blocks,
    )
    return Judgement(outcome, evidence, adjusted_p_value)


def judge_rows(
    log_ratios: Sequence[Array], errors: Sequence[Array], design: Design
) -> list[Judgement | None]:
    """As judge_family(), from arrays: a case's log(new / base) of its blocks, and their standard
    errors."""
    if len(log_ratios) > design.cases:
        raise DesignError(f"{len(log_ratios)} cases, but the design is for {design.cases}")
    found = _last_looks(log_ratios, errors, design)
    judgements: list[Judgement | None] = [None] * len(log_ratios)
    if found:
        adjusted = holm_adjusted(np.array([last.p_value for last in found.values()]), design.cases)
        for (case, last), adjusted_p_value in zip(found.items(), adjusted, strict=True):
            judgements[case] = _judgement(last, float(adjusted_p_value), design)
    return judgements


def judge_family(
    cases: Mapping[str, Sequence[BlockSummary]], design: Design
) -> dict[str, Judgement | None]:
    """Judges each case at the last planned look that it has reached; None: none reached yet.

    Cases of the design without a verdict count in Holm's correction as if they showed nothing.
    Raises DesignError for more cases than the design is for.
    """
    log_ratios = [np.array([block.log_ratio for block in blocks]) for blocks in cases.values()]
    errors = [np.array([block.standard_error for block in blocks]) for blocks in cases.values()]
    return dict(zip(cases, judge_rows(log_ratios, errors, design), strict=True))
