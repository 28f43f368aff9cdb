"""What a calibration states, computed from recordings and runs, as one document.

Everything is stated for the level that `compare run` uses. The earlier half of the A/A blocks
checks that level; everything stated of recorded data is from the later half.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

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
    SIMULATED,
    Effort,
    Rule,
    false_alarm_row,
    recorded_rows,
    simulated_row,
    together,
)
from tinyllama_tools.calibrate.noise_profile import scatter
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.real_runs import RealRun
from tinyllama_tools.calibrate.recordings import Recorded
from tinyllama_tools.calibrate.resample import has_enough_blocks
from tinyllama_tools.calibrate.rival_rows import own_row, rival_rows
from tinyllama_tools.calibrate.run_groups import run_rows
from tinyllama_tools.calibrate.simulate import SCENARIOS
from tinyllama_tools.calibrate.targets import target_rows
from tinyllama_tools.stats.looks import BlockSummary

KIND = "tiny_llama calibration"
SCHEMA_VERSION = 1
EARLIER_HALF, LATER_HALF = "recorded, earlier half", "recorded, later half"
Json = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recordings:
    """`injected`: by slowdown of every part. `inside`: with one part slowed so that the full step
    is about 5 % slower, by that part. `family`: A/A of a whole family of cases, which false alarms
    are counted of where there is one."""

    quiet: Recorded
    injected: Mapping[float, Recorded] = field(default_factory=dict)
    inside: Mapping[str, Recorded] = field(default_factory=dict)
    family: Recorded | None = None


def simulated_rows(rule: Rule, effort: Effort, say: Say) -> list[Json]:
    """False alarms of every scenario, and of all of them together."""
    rows: list[Json] = []
    each = replace(effort, families=math.ceil(effort.families / len(SCENARIOS)))
    for name in SCENARIOS:
        say(f"{each.families} families, {SIMULATED}{name}")
        rows.append(simulated_row(SIMULATED + name, name, rule, each))
    return [*rows, together(SIMULATED + "all of these", rows)]


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
                "median_seconds": statistics.median(s.base_seconds for s in summaries),
                "processes": between,
                "blocks": statistics.stdev(s.log_ratio for s in summaries),
                "degrees": degrees,
                "autocorrelation": autocorrelation(summaries),
            }
        )
    return rows


def autocorrelation(summaries: Sequence[BlockSummary]) -> float | None:
    """Of a block's log-ratio with the next block's; None for fewer than three, or all the same.

    Far from 0 it says that blocks are no independent sample, which the test takes them for.
    """
    logs = np.array([summary.log_ratio for summary in summaries])
    apart = logs - logs.mean()
    scale = float((apart**2).sum())
    if len(logs) < 3 or scale == 0:
        return None
    return float((apart[:-1] * apart[1:]).sum() / scale)


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
        "blocks": rate.blocks,
        "blocks_needed": rate.blocks_needed,
        "is_shown": has_enough_blocks(rate.blocks, rate.blocks_needed),
    }


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
    _, later = quiet.halves()
    family = (recordings.family or recordings.quiet).blocks
    earlier_family, later_family = family.halves()
    document = simulated_document(rule, effort, say)
    say(f"{effort.families} families of the earlier half of {family.blocks} blocks")
    check = false_alarm_row(EARLIER_HALF, earlier_family, rule, effort)
    say(f"{effort.families} families of the later half, three times")
    recorded = recorded_rows(LATER_HALF, later_family, rule, effort)
    say(f"{effort.tries} tries a case and slowdown")
    injected = {x: found.blocks for x, found in recordings.injected.items()}
    detection = detection_rows(without_step(later), injected, rule, effort)
    say("the other tools")
    design = rule.design(len(quiet.cases))
    rivals = rival_rows(later, effort, design.looks[0])
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
        **({"A/A, a family of its own": recordings.family} if recordings.family else {}),
        **{f"every case slowed by {x:.0%}": found for x, found in recordings.injected.items()},
        **{f"slowed inside {part}": found for part, found in recordings.inside.items()},
    }
    found = {
        **document,
        "recordings": [recording_row(name, found) for name, found in everything.items()],
        "check": check,
        "false_alarms": [*document["false_alarms"], *recorded],
        "detection": detection,
        "rivals": [
            own_row(recorded[0], detection, rule.margin, _samples(later, design.looks)),
            *rivals,
        ],
        "attribution": [attribution_json(rate) for rate in blame],
        "runs": run_rows(runs),
        "noise": noise_rows(quiet),
    }
    return {**found, "targets": target_rows(found)}


def _samples(data: PairedBlocks, looks: Sequence[int]) -> str:
    """Slices a side that a verdict of this comparison stands on, as words."""
    slices = min(len(block.base) for blocks in data.slices.values() for block in blocks)
    return f"{looks[0] * slices} to {looks[-1] * slices}"


def document_standing(document: Json) -> str:
    """`broken` where any row of false alarms is, or the check of the earlier half, or the real A/A
    runs of any group; else `not shown` where any row or all real A/A runs are, else `held`."""
    rows = [row["standing"] for row in document["false_alarms"]]
    runs = [row["standing"] for row in document.get("runs", []) if "standing" in row]
    check = [document["check"]["standing"]] if "check" in document else []
    if BROKEN in {*rows, *runs, *check}:
        return BROKEN
    are_runs_shown = "runs" not in document or HELD in runs
    return HELD if are_runs_shown and NOT_SHOWN not in rows else NOT_SHOWN
