"""False alarms per family as rows of the calibration: counted, bounded, and held against alpha."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.resample import drawing_words, false_alarms
from tinyllama_tools.calibrate.turns import Judge
from tinyllama_tools.judging.design import Design, plan_design
from tinyllama_tools.judging.family import judge_family

HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# of a row whose families count with those of others
IN_ALL = "in all"
# of the level asked for: what calibration may have to go down to
LEVELS = (1.0, 0.5, 0.2, 0.1)
Json = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """What a user asks of `compare run`."""

    alpha: float
    margin: float
    looks: int

    def design(self, cases: int) -> Design:
        """For a family of that many cases; DesignError where it cannot be."""
        return plan_design(cases, alpha=self.alpha, margin=self.margin, looks=self.looks)


@dataclass(frozen=True)
class Effort:
    """`families` of `cases` for false alarms; `tries` a case and slowdown for detection."""

    families: int
    cases: int
    tries: int
    jobs: int
    seed: int


def standing(share: Share, alpha: float) -> str:
    """`held`: the upper bound is at most alpha. `broken`: the true rate is above it, as far as
    an interval of 95 % can say. `not shown`: too few families for either."""
    if share.bound <= alpha:
        return HELD
    return BROKEN if share.interval[0] > alpha else NOT_SHOWN


def false_alarm_row(
    name: str,
    data: PairedBlocks,
    rule: Rule,
    effort: Effort,
    *,
    allowed: float,
    exchange: bool,
    judge: Judge = judge_family,
) -> Json:
    """One row. `allowed`: the rate that it is held against."""
    design = rule.design(effort.cases)
    counts = false_alarms(
        data,
        design,
        family=effort.cases,
        families=effort.families,
        seed=effort.seed,
        exchange=exchange,
        jobs=effort.jobs,
        judge=judge,
    )
    false = Share(counts.false, counts.families)
    groups = -(-effort.cases // len(data.cases))
    return {
        "data": name,
        "sides": "tossed anew" if exchange else "as measured",
        "blocks": data.blocks,
        "drawing": drawing_words(data.blocks, design.looks[-1], groups),
        "cases": effort.cases,
        "alpha": rule.alpha,
        "allowed": allowed,
        "false": false.as_json(),
        "slower": Share(counts.slower, counts.families).as_json(),
        "verdicts": {outcome.value: count for outcome, count in counts.cases.items()},
        "standing": standing(false, allowed),
    }


def together(name: str, rows: Sequence[Json]) -> Json:
    """Several rows as one. Each of them alone has too few families to show anything but that the
    rate is broken, so they are held together against what is allowed."""
    false = _sum(rows, "false")
    verdicts = Counter[str]()
    for row in rows:
        verdicts.update(row["verdicts"])
        if row["standing"] == NOT_SHOWN:
            row["standing"] = IN_ALL
    return {
        **rows[0],
        "data": name,
        "false": false.as_json(),
        "slower": _sum(rows, "slower").as_json(),
        "verdicts": dict(verdicts),
        "standing": standing(false, rows[0]["allowed"]),
    }


def _sum(rows: Sequence[Json], what: str) -> Share:
    return Share(sum(r[what]["count"] for r in rows), sum(r[what]["trials"] for r in rows))


def calibrated_rule(
    data: PairedBlocks, rule: Rule, effort: Effort, *, judge: Judge = judge_family
) -> tuple[Rule, list[Json]]:
    """The first of the levels at which this data shows that the rate asked for is held, and the
    rows of those tried; the lowest where none does.

    With too few families to show it even without a false alarm, the first that does not break it.
    """
    enough = Share(0, effort.families).bound <= rule.alpha
    wanted = {HELD} if enough else {HELD, NOT_SHOWN}
    rows: list[Json] = []
    chosen = rule
    for level in LEVELS:
        chosen = replace(rule, alpha=rule.alpha * level)
        row = false_alarm_row(
            "earlier half", data, chosen, effort, allowed=rule.alpha, exchange=False, judge=judge
        )
        rows.append(row)
        if row["standing"] in wanted:
            break
    return chosen, rows
