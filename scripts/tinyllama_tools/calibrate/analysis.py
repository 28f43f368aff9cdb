"""What a calibration states, computed from recordings and runs, as one document.

The level is calibrated on the earlier half of the A/A blocks; everything stated of recorded data is
from the later half, which had no part in that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tinyllama_tools.calibrate.attribution_rate import (
    WHOLE,
    AttributionRate,
    attribution_rate,
    component_of,
)
from tinyllama_tools.calibrate.detection_rows import TEN_MINUTES, detection_rows
from tinyllama_tools.calibrate.false_alarm_rows import (
    BROKEN,
    HELD,
    NOT_SHOWN,
    Effort,
    Rule,
    calibrated_rule,
    false_alarm_row,
    together,
)
from tinyllama_tools.calibrate.noise_profile import scatter
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.real_runs import RealRun, false_runs
from tinyllama_tools.calibrate.recordings import Recorded
from tinyllama_tools.calibrate.rival_rows import own_row, rival_rows
from tinyllama_tools.calibrate.simulate import SCENARIOS, simulate
from tinyllama_tools.judging.outcome import Outcome

KIND = "tiny_llama calibration"
SCHEMA_VERSION = 1
# blocks of a simulated scenario that families are drawn from; every case is simulated itself
SIMULATED_BLOCKS = 300
SIMULATED = "simulated: "
LATER_HALF = "recorded, later half"
Json = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recordings:
    """`injected`: by slowdown of every part. `inside`: with one part slowed so that the full step
    is about 5 % slower, by that part."""

    quiet: Recorded
    injected: Mapping[float, Recorded] = field(default_factory=dict)
    inside: Mapping[str, Recorded] = field(default_factory=dict)


def simulated_rows(rule: Rule, effort: Effort, say: Say) -> list[Json]:
    """False alarms of every scenario; sides are tossed anew, so that nothing is true but chance."""
    rows: list[Json] = []
    each = replace(effort, families=math.ceil(effort.families / len(SCENARIOS)))
    for name in SCENARIOS:
        say(f"{each.families} families, {SIMULATED}{name}")
        data = simulate(name, cases=effort.cases, blocks=SIMULATED_BLOCKS, seed=effort.seed)
        rows.append(
            false_alarm_row(SIMULATED + name, data, rule, each, allowed=rule.alpha, exchange=True)
        )
    return [*rows, together(SIMULATED + "all of these", rows)]


def recorded_rows(data: PairedBlocks, rule: Rule, allowed: float, effort: Effort) -> list[Json]:
    """False alarms of the later half: as measured, and with the sides tossed anew."""
    return [
        false_alarm_row(LATER_HALF, data, rule, effort, allowed=allowed, exchange=exchange)
        for exchange in (False, True)
    ]


def recording_row(name: str, recorded: Recorded) -> Json:
    """What was recorded, and how."""
    first = recorded.headers[0]
    costs = recorded.blocks.costs
    return {
        "name": name,
        "blocks": recorded.blocks.blocks,
        "left_out": recorded.left_out,
        "cases": list(recorded.blocks.cases),
        "hours": recorded.hours,
        "started": [header.started for header in recorded.headers],
        "method": first.method,
        "pairs": first.pairs,
        "slice_seconds": first.slice_seconds,
        "sides": [first.base, first.new],
        "block_seconds": costs.of(recorded.blocks.cases),
    }


def noise_rows(data: PairedBlocks) -> list[Json]:
    """Of each case: scatter of whole processes, and of what blocks make of it."""
    rows: list[Json] = []
    for name, summaries in data.summaries.items():
        between, degrees = scatter(summaries)
        rows.append(
            {
                "case": name,
                "median_seconds": sorted(s.base_seconds for s in summaries)[len(summaries) // 2],
                "processes": between,
                "blocks": _standard_deviation([s.log_ratio for s in summaries]),
                "degrees": degrees,
            }
        )
    return rows


def _standard_deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def without_step(data: PairedBlocks) -> PairedBlocks:
    """The parts and the model: a family of its own, since a step takes longer than all of them.

    All cases where there is nothing but the step.
    """
    parts = [name for name in data.cases if component_of(name) != WHOLE]
    return data.only(parts) if parts else data


def attribution_json(rate: AttributionRate) -> Json:
    """Of one slowed part."""
    return {
        "part": rate.part,
        "change": rate.change,
        "drawing": rate.drawing,
        "found": rate.found.as_json(),
        "attributed": rate.attributed.as_json(),
        "culprits": dict(rate.culprits),
    }


def runs_json(runs: Sequence[RealRun]) -> Json:
    """A/A runs together, slowed runs by what was slowed."""
    quiet = [run for run in runs if not run.slowdown]
    false = false_runs(runs)
    slowed: dict[str, list[RealRun]] = {}
    for run in runs:
        if run.slowdown:
            words = ", ".join(f"{part} {x:g}" for part, x in run.slowdown.items())
            slowed.setdefault(words, []).append(run)
    return {
        "quiet": {"false": false.as_json(), **_verdicts(quiet)} if false else None,
        "slowed": {words: _verdicts(found) for words, found in slowed.items()},
    }


def _verdicts(runs: Sequence[RealRun]) -> Json:
    cases = dict.fromkeys(name for run in runs for name in run.outcomes)
    by_case = {
        name: _counts(run.outcomes[name] for run in runs if name in run.outcomes) for name in cases
    }
    culprits = {
        whole: _counts(
            run.culprits[whole] or "nobody"
            for run in runs
            if whole in run.culprits and run.outcomes.get(whole) == Outcome.SLOWER.value
        )
        for whole in dict.fromkeys(name for run in runs for name in run.culprits)
    }
    return {
        "runs": len(runs),
        "seconds": sum(run.seconds for run in runs),
        "by_case": by_case,
        "culprits": {whole: found for whole, found in culprits.items() if found},
    }


def _counts(words: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def simulated_document(rule: Rule, effort: Effort, say: Say) -> Json:
    """Of simulated data only."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "rule": asdict(rule),
        "effort": asdict(effort),
        "false_alarms": simulated_rows(rule, effort, say),
    }


def calibration_document(
    recordings: Recordings, runs: Sequence[RealRun], rule: Rule, effort: Effort, say: Say
) -> Json:
    """Everything. Raises ValueError where there are too few blocks, DesignError for a bad rule."""
    quiet = recordings.quiet.blocks
    earlier, later = quiet.halves()
    document = simulated_document(rule, effort, say)
    say(f"{effort.families} families of the earlier half of {quiet.blocks} blocks")
    used, calibration = calibrated_rule(earlier, rule, effort)
    say(f"{effort.families} families of the later half, twice")
    recorded = recorded_rows(later, used, rule.alpha, effort)
    say(f"{effort.tries} tries a case and slowdown")
    injected = {x: found.blocks for x, found in recordings.injected.items()}
    detection = detection_rows(without_step(later), injected, used, effort)
    say("the other tools")
    rivals = rival_rows(later, effort)
    design = used.design(len(quiet.cases))
    say("attribution")
    blame = [
        attribution_rate(
            found.blocks,
            part,
            design,
            budget=TEN_MINUTES,
            tries=effort.tries,
            seed=effort.seed,
            jobs=effort.jobs,
        )
        for part, found in recordings.inside.items()
    ]
    everything = {
        "A/A": recordings.quiet,
        **{f"every part slowed by {x:.0%}": found for x, found in recordings.injected.items()},
        **{f"slowed inside {part}": found for part, found in recordings.inside.items()},
    }
    return {
        **document,
        "recordings": [recording_row(name, found) for name, found in everything.items()],
        "calibration": {"alpha": used.alpha, "rows": calibration},
        "false_alarms": [*document["false_alarms"], *recorded],
        "detection": detection,
        "rivals": [own_row(recorded[0], detection, rule.margin), *rivals],
        "attribution": [attribution_json(rate) for rate in blame],
        "runs": runs_json(runs),
        "noise": noise_rows(quiet),
    }


def document_standing(document: Json) -> str:
    """`broken` where any row of false alarms is, else `not shown` where any is, else `held`."""
    found = {row["standing"] for row in document["false_alarms"]}
    return next((word for word in (BROKEN, NOT_SHOWN) if word in found), HELD)
