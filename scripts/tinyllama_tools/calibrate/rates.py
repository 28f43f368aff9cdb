"""False alarms, detection and attribution as rows of the calibration, counted and bounded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tinyllama_tools.calibrate.draws import (
    AS_MEASURED,
    FAMILIES_A_SIMULATION,
    IN_ORDER,
    TOSSED,
    DrawnSides,
    FamilyCounts,
    Judge,
    PairedBlocks,
    Share,
    Verdict,
    draw_blocks,
    drawing_words,
    false_alarms,
    has_enough_blocks,
    in_chunks,
    judge_in_turn,
    simulated_false_alarms,
)
from tinyllama_tools.compare.comparison import attributions, layers_by_size
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.looks import judge_family
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import Design, Outcome, plan_design

HELD, BROKEN, NOT_SHOWN = "held", "broken", "not shown"
# of a row whose families count with those of others
IN_ALL = "in all"
# what the names of rows of simulated data begin with
SIMULATED = "simulated: "


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
    sides: DrawnSides = AS_MEASURED,
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


def rows_together(name: str, rows: Sequence[Json]) -> Json:
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


@dataclass(frozen=True)
class Detections:
    """Tries at one slowdown of one case, each with as much time as it wanted, up to `budget`
    seconds."""

    case: str
    verdicts: tuple[Verdict, ...]
    budget: float

    def share(self, outcome: Outcome) -> Share:
        """How many tries ended so within the budget."""
        return Share(sum(v.outcome is outcome for v in self.verdicts), len(self.verdicts))

    def found_within(self, seconds: float) -> Share:
        """How many were called `slower` after at most that long."""
        found = (v.outcome is Outcome.SLOWER and v.seconds <= seconds for v in self.verdicts)
        return Share(sum(found), len(self.verdicts))

    def seconds_until(self, quantile: float) -> float | None:
        """Seconds after which this share of all tries was called `slower`; None: never so many."""
        times = sorted(v.seconds for v in self.verdicts if v.outcome is Outcome.SLOWER)
        needed = int(np.ceil(quantile * len(self.verdicts)))
        return times[needed - 1] if 0 < needed <= len(times) else None


def together(several: Sequence[Detections]) -> Detections:
    """All tries of several cases as one."""
    verdicts = tuple(v for one in several for v in one.verdicts)
    return Detections("all cases", verdicts, several[0].budget)


@dataclass(frozen=True)
class OneSlowCase:
    """Draws families in which `case` has its blocks from `slowed`, all others from `quiet`."""

    quiet: PairedBlocks
    slowed: PairedBlocks
    case: str
    design: Design
    budget: float

    def tries(self, count: int, seed: int) -> list[Verdict]:
        """The verdict of the slow case in that many families."""
        rng = np.random.default_rng(seed)
        wanted = self.design.looks[-1]
        found: list[Verdict] = []
        for _ in range(count):
            quiet = draw_blocks(rng, self.quiet.blocks, wanted, 1)[0].tolist()
            slow = draw_blocks(rng, self.slowed.blocks, wanted, 1)[0].tolist()
            family = {n: [values[i] for i in quiet] for n, values in self.quiet.summaries.items()}
            family[self.case] = [self.slowed.summaries[self.case][i] for i in slow]
            verdicts = judge_in_turn(family, self.design, self.quiet.costs, budget=self.budget)
            found.append(verdicts[self.case])
        return found


def detections(
    quiet: PairedBlocks,
    slowed: PairedBlocks,
    case: str,
    design: Design,
    *,
    budget: float,
    tries: int,
    seed: int = 0,
    jobs: int = 1,
) -> Detections:
    """`tries` families in which `case` is slow; `budget` in seconds.

    Raises ValueError where one of the recordings lacks the case.
    """
    for recording in (quiet, slowed):
        if case not in recording.summaries:
            raise ValueError(f"{case}: not in a recording, which has {', '.join(recording.cases)}")
    one = OneSlowCase(quiet.summaries_only(), slowed.summaries_only(), case, design, budget)
    chunks = in_chunks(partial(_tries, one), tries, seed, jobs)
    return Detections(case, tuple(v for chunk in chunks for v in chunk), budget)


def _tries(one: OneSlowCase, count: int, seed: int) -> list[Verdict]:
    return one.tries(count, seed)


SLOWDOWNS = (0.02, 0.05, 0.10)
FIVE_MINUTES, TEN_MINUTES = 300.0, 600.0
# seconds that a try may take: what a slowdown of this size has to be found in
BUDGETS = {0.10: FIVE_MINUTES}
ARITHMETICAL, INJECTED = "arithmetical", "injected"


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


# made of the same parts; attributing them too would only take time
OTHER_WHOLES = frozenset({"block", "model", "rotary"})
WHOLE_STEP = "full_step"
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
    found = [name for name in cases if component_of(name) == WHOLE_STEP]
    if len(found) != 1:
        raise ValueError(f"{len(found)} cases of {WHOLE_STEP} in the recording: must be one")
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
    chunks = in_chunks(partial(_attribution_tries, drawn), tries, seed, jobs)
    logs = [summary.log_ratio for summary in slowed.summaries[whole]]
    return AttributionRate(
        part,
        float(np.expm1(np.median(logs))),
        tuple(blame for chunk in chunks for blame in chunk),
        drawing_words(slowed.blocks, design.looks[-1], 1),
        slowed.blocks,
        design.looks[-1],
    )


def _attribution_tries(drawn: BlameTries, count: int, seed: int) -> list[Blame]:
    return drawn.tries(count, seed)
