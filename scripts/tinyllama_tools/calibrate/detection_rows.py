"""Detection as rows of the calibration: a row a slowdown and way of slowing, with every case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tinyllama_tools.calibrate.detection import Detections, detections, together
from tinyllama_tools.calibrate.false_alarm_rows import Effort, Rule
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.resample import drawing_words, has_enough_blocks
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import Outcome

SLOWDOWNS = (0.02, 0.05, 0.10)
FIVE_MINUTES, TEN_MINUTES = 300.0, 600.0
# seconds that a try may take: what a slowdown of this size has to be found in
BUDGETS = {0.10: FIVE_MINUTES}
ARITHMETICAL, INJECTED = "arithmetical", "injected"
Json = dict[str, Any]


def _numbers(found: Detections) -> Json:
    """Of one case, or of all together."""
    return {
        "case": found.case,
        "found": found.share(Outcome.SLOWER).as_json(),
        "found_in_5_minutes": found.found_within(FIVE_MINUTES).as_json(),
        "found_in_10_minutes": found.found_within(TEN_MINUTES).as_json(),
        "unclear": found.share(Outcome.UNCLEAR).as_json(),
        "same": found.share(Outcome.SAME).as_json(),
        "faster": found.share(Outcome.FASTER).as_json(),
        "median_seconds": found.seconds_until(0.5),
        "seconds_for_95_percent": found.seconds_until(0.95),
    }


def true_change(slowed: PairedBlocks, case: str) -> float:
    """By how much the case became slower, as a fraction, over all blocks of the recording."""
    return math.expm1(hodges_lehmann([s.log_ratio for s in slowed.summaries[case]]))


def detection_row(
    quiet: PairedBlocks, slowed: PairedBlocks, slowdown: float, how: str, rule: Rule, effort: Effort
) -> Json:
    """Every case that both recordings have, slow in turn. `slowdown`: as asked for."""
    design, budget = rule.design(len(quiet.cases)), BUDGETS.get(slowdown, TEN_MINUTES)
    blocks = min(quiet.blocks, slowed.blocks)
    cases = [name for name in quiet.cases if name in slowed.summaries]
    if not cases:
        raise ValueError("the slowed recording has none of the quiet recording's cases")
    each = [
        detections(
            quiet,
            slowed,
            name,
            design,
            budget=budget,
            tries=effort.tries,
            seed=effort.seed + number,
            jobs=effort.jobs,
        )
        for number, name in enumerate(cases)
    ]
    return {
        "slowdown": slowdown,
        "how": how,
        "margin": rule.margin,
        "alpha": rule.alpha,
        "looks": list(design.looks),
        "budget_seconds": budget,
        "blocks": [quiet.blocks, slowed.blocks],
        "blocks_needed": design.looks[-1],
        "is_shown": has_enough_blocks(blocks, design.looks[-1]),
        "drawing": drawing_words(blocks, design.looks[-1], 1),
        "all": _numbers(together(each)),
        "cases": [
            {**_numbers(found), "true_change": true_change(slowed, found.case)} for found in each
        ],
    }


def detection_rows(
    quiet: PairedBlocks, injected: Mapping[float, PairedBlocks], rule: Rule, effort: Effort
) -> list[Json]:
    """Slowdowns of 2, 5 and 10 %; and 2 % with a margin of 1 %, since a change within the margin is
    not called `slower` whatever the data. `injected`: recordings by slowdown."""
    small = Rule(rule.alpha, 0.01, rule.looks)
    asked = [(x, rule) for x in SLOWDOWNS]
    if rule.margin > small.margin:
        asked.insert(1, (SLOWDOWNS[0], small))
    rows: list[Json] = []
    for slowdown, own in asked:
        # the same blocks may stand on both sides of a draw: they are of different cases
        arithmetical = quiet.slowed(slowdown)
        rows.append(detection_row(quiet, arithmetical, slowdown, ARITHMETICAL, own, effort))
        if slowdown in injected:
            rows.append(detection_row(quiet, injected[slowdown], slowdown, INJECTED, own, effort))
    return rows
