"""The rivals and this comparison side by side, on the same recorded blocks."""

from __future__ import annotations

from typing import Any

from tinyllama_tools.calibrate.detection_rows import ARITHMETICAL, SLOWDOWNS
from tinyllama_tools.calibrate.false_alarm_rows import Effort
from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.rivals import ARRANGEMENTS, RIVALS, compare_by
from tinyllama_tools.judging.outcome import Outcome

OURS = "this comparison"
Json = dict[str, Any]


def rival_rows(data: PairedBlocks, effort: Effort) -> list[Json]:
    """A row a tool and arrangement; detection is arithmetical, of every case in turn."""
    rows: list[Json] = []
    for rival in RIVALS:
        for arrangement in ARRANGEMENTS:
            quiet = compare_by(rival, arrangement, data)
            found = {
                str(x): compare_by(rival, arrangement, data, x).found.as_json() for x in SLOWDOWNS
            }
            family = quiet.per_family(effort.cases, effort.families, effort.seed)
            rows.append(
                {
                    "tool": rival.name,
                    "arrangement": arrangement,
                    "false_per_case": quiet.per_case.as_json(),
                    "false_per_family": family.as_json(),
                    "found": found,
                }
            )
    return rows


def own_row(false_alarms: Json, detection: list[Json], margin: float) -> Json:
    """The same columns from rows made before. `margin`: of the detections that count."""
    verdicts = false_alarms["verdicts"]
    wrong = sum(verdicts.get(o.value, 0) for o in (Outcome.SLOWER, Outcome.FASTER))
    return {
        "tool": OURS,
        "arrangement": "in turn",
        "false_per_case": Share(wrong, sum(verdicts.values())).as_json(),
        "false_per_family": false_alarms["false"],
        "found": {
            str(row["slowdown"]): row["all"]["found"]
            for row in detection
            if row["how"] == ARITHMETICAL and row["margin"] == margin
        },
    }
