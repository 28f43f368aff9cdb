"""False alarms, detection and attribution as rows of the calibration, counted and bounded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tinyllama_tools.calibrate.draws import (
    AS_MEASURED,
    FALSE,
    FALSE_SLOWER,
    FAMILIES,
    FAMILIES_A_SIMULATION,
    IN_ORDER,
    SCENARIOS,
    TOSSED,
    Judge,
    PairedBlocks,
    Verdict,
    draw_blocks,
    drawing_words,
    false_alarms,
    has_enough_blocks,
    in_chunks,
    judge_looks,
    simulated_false_alarms,
)
from tinyllama_tools.calibrate.standing import (
    FIVE_MINUTES,
    IN_ALL,
    NOBODY,
    NOT_SHOWN,
    SIMULATED,
    TEN_MINUTES,
    share,
    standing,
)
from tinyllama_tools.compare.comparison import layers_by_size
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.looks import attributions, judge_family
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import Design, Outcome, plan_design

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json


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


def _row(name: str, counts: Counter[str], rule: Rule, cases: int, more: Json) -> Json:
    trials = counts[FAMILIES]
    return {
        "data": name,
        "cases": cases,
        "alpha": rule.alpha,
        "false": share(counts[FALSE], trials),
        "slower": share(counts[FALSE_SLOWER], trials),
        "verdicts": {
            outcome.value: counts[outcome.value] for outcome in Outcome if counts[outcome.value]
        },
        **more,
    }


def false_alarm_row(
    name: str,
    data: PairedBlocks,
    rule: Rule,
    effort: Effort,
    *,
    sides: str = AS_MEASURED,
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
    groups, wanted = -(-effort.cases // len(data.cases)), design.looks[-1]
    row = _row(name, counts, rule, effort.cases, {"sides": sides, "blocks": data.blocks})
    has_enough = has_enough_blocks(data.blocks, wanted, groups)
    return {
        **row,
        "blocks_needed": groups * wanted,
        "drawing": drawing_words(data.blocks, wanted, groups, sides),
        "standing": standing(row["false"], rule.alpha, has_enough=has_enough),
    }


def recorded_rows(name: str, data: PairedBlocks, rule: Rule, effort: Effort) -> list[Json]:
    """Blocks drawn anywhere, with the sides as measured and tossed anew, and in order of time."""
    ways = (AS_MEASURED, TOSSED, IN_ORDER)
    return [false_alarm_row(name, data, rule, effort, sides=sides) for sides in ways]


def simulated_row(scenario: str, rule: Rule, effort: Effort) -> Json:
    """Families of a scenario, sides as simulated."""
    counts, blocks = simulated_false_alarms(
        scenario,
        rule.design(effort.cases),
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
    }
    row = _row(SIMULATED + scenario, counts, rule, effort.cases, more)
    return {**row, "standing": standing(row["false"], rule.alpha)}


def simulated_rows(rule: Rule, effort: Effort) -> list[Json]:
    """False alarms of every scenario, and of all of them together."""
    each = replace(effort, families=math.ceil(effort.families / len(SCENARIOS)))
    rows = [simulated_row(name, rule, each) for name in SCENARIOS]
    return [*rows, rows_together(SIMULATED + "all of these", rows)]


def rows_together(name: str, rows: Sequence[Json]) -> Json:
    """Several rows as one. Each of them alone has too few families to show anything but that the
    rate is broken, so they are held together against what is allowed."""
    for row in rows:
        if row["standing"] == NOT_SHOWN:
            row["standing"] = IN_ALL

    def sum_of(key: str) -> Json:
        return share(*(sum(row[key][what] for row in rows) for what in ("count", "trials")))

    false = sum_of("false")
    return {
        **rows[0],
        "data": name,
        "blocks": sum(row["blocks"] for row in rows),
        "blocks_needed": sum(row["blocks_needed"] for row in rows),
        "false": false,
        "slower": sum_of("slower"),
        "verdicts": dict(sum((Counter(row["verdicts"]) for row in rows), Counter())),
        "standing": standing(false, rows[0]["alpha"]),
    }


SLOWDOWNS = (0.02, 0.05, 0.10)
# seconds that a try may take: what a slowdown of this size has to be found in
BUDGETS = {0.10: FIVE_MINUTES}
ARITHMETICAL, INJECTED = "arithmetical", "injected"


def detections(
    quiet: PairedBlocks,
    slowed: PairedBlocks,
    case: str,
    design: Design,
    budget: float,
    count: int,
    seed: int,
) -> list[Verdict]:
    """Verdicts of `case` in `count` families in which it has its blocks from `slowed` and all
    others have theirs from `quiet`; each takes `budget` seconds at most."""
    rng = np.random.default_rng(seed)
    wanted = design.looks[-1]
    found: list[Verdict] = []
    for _ in range(count):
        others = draw_blocks(rng, quiet.blocks, wanted, 1)[0].tolist()
        own = draw_blocks(rng, slowed.blocks, wanted, 1)[0].tolist()
        family = {name: [blocks[i] for i in others] for name, blocks in quiet.summaries.items()}
        family[case] = [slowed.summaries[case][i] for i in own]
        found.append(judge_looks(family, design, quiet.costs, budget=budget)[case])
    return found


def detection_numbers(case: str, verdicts: Sequence[Verdict]) -> Json:
    """Of one case, or of all together. `..._seconds`: after which that share of all tries was
    called `slower`; None: never so many."""
    times = sorted(v.seconds for v in verdicts if v.outcome is Outcome.SLOWER)

    def of(outcome: Outcome) -> Json:
        return share(sum(v.outcome is outcome for v in verdicts), len(verdicts))

    def within(seconds: float) -> Json:
        return share(sum(time <= seconds for time in times), len(verdicts))

    def until(quantile: float) -> float | None:
        needed = math.ceil(quantile * len(verdicts))
        return times[needed - 1] if needed <= len(times) else None

    return {
        "case": case,
        "found": of(Outcome.SLOWER),
        "found_in_5_minutes": within(FIVE_MINUTES),
        "found_in_10_minutes": within(TEN_MINUTES),
        "unclear": of(Outcome.UNCLEAR),
        "same": of(Outcome.SAME),
        "faster": of(Outcome.FASTER),
        "median_seconds": until(0.5),
        "seconds_for_95_percent": until(0.95),
    }


def detection_row(
    quiet: PairedBlocks, slowed: PairedBlocks, slowdown: float, how: str, rule: Rule, effort: Effort
) -> Json:
    """Every case that both recordings have, slow one after the other. `slowdown`: as asked for.

    Raises ValueError where they have none in common.
    """
    design, budget = rule.design(len(quiet.cases)), BUDGETS.get(slowdown, TEN_MINUTES)
    cases = [name for name in quiet.cases if name in slowed.summaries]
    if not cases:
        raise ValueError("the slowed recording has none of the quiet recording's cases")
    verdicts: dict[str, list[Verdict]] = {}
    for number, name in enumerate(cases):
        work = partial(detections, quiet, slowed, name, design, budget)
        chunks = in_chunks(work, effort.tries, effort.seed + number, effort.jobs)
        verdicts[name] = [verdict for chunk in chunks for verdict in chunk]
    blocks, wanted = min(quiet.blocks, slowed.blocks), design.looks[-1]
    return {
        "slowdown": slowdown,
        "how": how,
        "margin": rule.margin,
        "alpha": rule.alpha,
        "looks": list(design.looks),
        "budget_seconds": budget,
        "blocks": [quiet.blocks, slowed.blocks],
        "blocks_needed": wanted,
        "is_shown": has_enough_blocks(blocks, wanted),
        "drawing": drawing_words(blocks, wanted, 1),
        "all": detection_numbers("all cases", [v for found in verdicts.values() for v in found]),
        "cases": [
            {**detection_numbers(name, found), "true_change": true_change(slowed, name)}
            for name, found in verdicts.items()
        ],
    }


def true_change(slowed: PairedBlocks, case: str) -> float:
    """By how much the case became slower, as a fraction, over all blocks of the recording."""
    return math.expm1(hodges_lehmann([s.log_ratio for s in slowed.summaries[case]]))


def detection_rows(
    quiet: PairedBlocks, injected: Mapping[float, PairedBlocks], rule: Rule, effort: Effort
) -> list[Json]:
    """Slowdowns of 2, 5 and 10 %; and 2 % with a margin of 1 %, since a change within the margin is
    not called `slower` whatever the data. `injected`: recordings by slowdown."""
    asked = [(slowdown, rule) for slowdown in SLOWDOWNS]
    if rule.margin > 0.01:
        asked.insert(1, (SLOWDOWNS[0], replace(rule, margin=0.01)))
    rows: list[Json] = []
    for slowdown, own in asked:
        # the same blocks may stand on both sides of a draw: they are of different cases
        data = {ARITHMETICAL: quiet.slowed(slowdown)}
        if slowdown in injected:
            data[INJECTED] = injected[slowdown]
        rows += [detection_row(quiet, d, slowdown, how, own, effort) for how, d in data.items()]
    return rows


# made of the same parts; attributing them too would only take time
OTHER_WHOLES = frozenset({"block", "model", "rotary"})
WHOLE_STEP = "full_step"


def component_of(case: str) -> str:
    """`ffn` of ffn/forward_backward/...; the name itself where it is not of that form."""
    name = parse_case_name(case)
    return name.component if name else case


def whole_of(blocks: PairedBlocks) -> str:
    """The name of the full step among the cases; ValueError where there is none, or several."""
    found = [name for name in blocks.cases if component_of(name) == WHOLE_STEP]
    if len(found) != 1:
        raise ValueError(f"{len(found)} cases of {WHOLE_STEP} in the recording: must be one")
    return found[0]


def culprits(
    slowed: PairedBlocks, design: Design, budget: float, count: int, seed: int
) -> list[str | None]:
    """Of each of `count` draws of whole blocks: the component that a slower full step was
    attributed to, NOBODY for none; None where the step was not called `slower`."""
    rng = np.random.default_rng(seed)
    whole, layers = whole_of(slowed), layers_by_size()
    found: list[str | None] = []
    for _ in range(count):
        numbers = draw_blocks(rng, slowed.blocks, design.looks[-1], 1)[0].tolist()
        family = {n: [s[i] for i in numbers] for n, s in slowed.summaries.items()}
        verdicts = judge_looks(family, design, slowed.costs, budget=budget)
        taken = {
            name: blocks[: verdicts[name].blocks]
            for name, blocks in family.items()
            if component_of(name) not in OTHER_WHOLES
        }
        attribution = attributions(taken, layers).get(whole)
        culprit = component_of(attribution.culprit or NOBODY) if attribution else NOBODY
        found.append(culprit if verdicts[whole].outcome is Outcome.SLOWER else None)
    return found


def attribution_row(slowed: PairedBlocks, part: str, design: Design, effort: Effort) -> Json:
    """`slowed`: blocks in which the new side was slowed inside `part`. `change`: of the whole, as a
    fraction, over all blocks. Raises ValueError where the recording has no full step."""
    whole, wanted = whole_of(slowed), design.looks[-1]
    work = partial(culprits, slowed, design, TEN_MINUTES)
    chunks = in_chunks(work, effort.tries, effort.seed, effort.jobs)
    blamed = Counter(name for chunk in chunks for name in chunk if name is not None)
    return {
        "part": part,
        "change": math.expm1(np.median([s.log_ratio for s in slowed.summaries[whole]])),
        "drawing": drawing_words(slowed.blocks, wanted, 1),
        "found": share(blamed.total(), effort.tries),
        "attributed": share(blamed[part], effort.tries),
        "culprits": dict(blamed),
        "blocks": slowed.blocks,
        "blocks_needed": wanted,
        "is_shown": has_enough_blocks(slowed.blocks, wanted),
    }
