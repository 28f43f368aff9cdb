"""The rivals and this comparison side by side, on the same recorded blocks."""

from __future__ import annotations

from typing import Any

from tinyllama_tools.calibrate.detection_rows import ARITHMETICAL, SLOWDOWNS
from tinyllama_tools.calibrate.false_alarm_rows import Effort
from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.rivals import (
    ARRANGEMENTS,
    RIVALS,
    Rival,
    blocks_needed,
    compare_by,
)
from tinyllama_tools.stats.verdicts import Outcome

OURS = "this comparison"
Json = dict[str, Any]


def rival_rows(data: PairedBlocks, effort: Effort, first_look: int) -> list[Json]:
    """A row a tool and arrangement; detection is arithmetical, of every case in turn.

    `first_look`: blocks that this comparison takes at least. The rows with as much data are there
    where the recording has enough blocks for one such comparison.
    """
    rows: list[Json] = []
    for processes in dict.fromkeys((1, first_look)):
        for rival in RIVALS:
            for arrangement in ARRANGEMENTS:
                if processes == 1 or data.blocks >= blocks_needed(arrangement, processes):
                    rows.append(_rival_row(rival, arrangement, data, effort, processes))
    return rows


def _rival_row(
    rival: Rival, arrangement: str, data: PairedBlocks, effort: Effort, processes: int
) -> Json:
    quiet = compare_by(rival, arrangement, data, processes=processes)
    found = {
        str(x): compare_by(rival, arrangement, data, x, processes).found.as_json()
        for x in SLOWDOWNS
    }
    family = quiet.per_family(effort.cases, effort.families, effort.seed)
    return {
        "tool": rival.name,
        "arrangement": arrangement if processes == 1 else f"{arrangement}, {processes} blocks",
        "samples": str(quiet.samples),
        "false_per_case": quiet.per_case.as_json(),
        "false_per_family": family.as_json(),
        "found": found,
    }


def own_row(false_alarms: Json, detection: list[Json], margin: float, samples: str) -> Json:
    """The same columns from rows made before. `margin`: of the detections that count.
    `samples`: slices a side."""
    verdicts = false_alarms["verdicts"]
    wrong = sum(verdicts.get(o.value, 0) for o in (Outcome.SLOWER, Outcome.FASTER))
    return {
        "tool": OURS,
        "arrangement": "in turn",
        "samples": samples,
        "false_per_case": Share(wrong, sum(verdicts.values())).as_json(),
        "false_per_family": false_alarms["false"],
        "found": {
            str(row["slowdown"]): row["all"]["found"]
            for row in detection
            if row["how"] == ARITHMETICAL and row["margin"] == margin
        },
    }
