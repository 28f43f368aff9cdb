"""False alarms per family as rows of the calibration: counted, bounded, and held against alpha."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.resample import (
    AS_MEASURED,
    IN_ORDER,
    TOSSED,
    FamilyCounts,
    Sides,
    drawing_words,
    false_alarms,
    has_enough_blocks,
)
from tinyllama_tools.calibrate.simulated_families import (
    FAMILIES_A_SIMULATION,
    simulated_false_alarms,
)
from tinyllama_tools.calibrate.turns import Judge
from tinyllama_tools.stats.looks import judge_family
from tinyllama_tools.stats.verdicts import Design, plan_design

HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# of a row whose families count with those of others
IN_ALL = "in all"
# what the names of rows of simulated data begin with
SIMULATED = "simulated: "
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


def standing(share: Share, alpha: float, *, has_enough: bool = True) -> str:
    """`held`: the upper bound is at most alpha. `broken`: the true rate is above it, as far as
    an interval of 95 % can say. `not shown`: too few families for either, or not enough blocks
    that they were drawn from."""
    if share.interval[0] > alpha:
        return BROKEN
    return HELD if share.bound <= alpha and has_enough else NOT_SHOWN


def _row(name: str, counts: FamilyCounts, rule: Rule, cases: int, more: Json) -> Json:
    return {
        "data": name,
        "cases": cases,
        "alpha": rule.alpha,
        "false": Share(counts.false, counts.families).as_json(),
        "slower": Share(counts.slower, counts.families).as_json(),
        "verdicts": {outcome.value: count for outcome, count in counts.cases.items()},
        **more,
    }


def false_alarm_row(
    name: str,
    data: PairedBlocks,
    rule: Rule,
    effort: Effort,
    *,
    sides: Sides = AS_MEASURED,
    judge: Judge = judge_family,
) -> Json:
    """One row of families drawn from `data`, held against the rule's alpha."""
    design = rule.design(effort.cases)
    counts = false_alarms(
        data,
        design,
        family=effort.cases,
        families=effort.families,
        seed=effort.seed,
        sides=sides,
        jobs=effort.jobs,
        judge=judge,
    )
    groups = -(-effort.cases // len(data.cases))
    needed = groups * design.looks[-1]
    has_enough = has_enough_blocks(data.blocks, design.looks[-1], groups)
    false = Share(counts.false, counts.families)
    more = {
        "sides": sides,
        "blocks": data.blocks,
        "blocks_needed": needed,
        "drawing": drawing_words(data.blocks, design.looks[-1], groups, sides),
        "standing": standing(false, rule.alpha, has_enough=has_enough),
    }
    return _row(name, counts, rule, effort.cases, more)


def simulated_row(name: str, scenario: str, rule: Rule, effort: Effort) -> Json:
    """One row of families of a scenario, sides as simulated."""
    design = rule.design(effort.cases)
    counts, blocks = simulated_false_alarms(
        scenario,
        design,
        family=effort.cases,
        families=effort.families,
        seed=effort.seed,
        jobs=effort.jobs,
    )
    more = {
        "sides": "as simulated",
        "blocks": blocks,
        "blocks_needed": blocks,
        "drawing": f"a simulation for every {FAMILIES_A_SIMULATION} families at most",
        "standing": standing(Share(counts.false, counts.families), rule.alpha),
    }
    return _row(name, counts, rule, effort.cases, more)


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
        "blocks": sum(row["blocks"] for row in rows),
        "blocks_needed": sum(row["blocks_needed"] for row in rows),
        "false": false.as_json(),
        "slower": _sum(rows, "slower").as_json(),
        "verdicts": dict(verdicts),
        "standing": standing(false, rows[0]["alpha"]),
    }


def _sum(rows: Sequence[Json], what: str) -> Share:
    return Share(sum(r[what]["count"] for r in rows), sum(r[what]["trials"] for r in rows))


def recorded_rows(name: str, data: PairedBlocks, rule: Rule, effort: Effort) -> list[Json]:
    """Blocks drawn anywhere, with the sides as measured and tossed anew, and in order of time."""
    return [
        false_alarm_row(name, data, rule, effort, sides=sides)
        for sides in (AS_MEASURED, TOSSED, IN_ORDER)
    ]
