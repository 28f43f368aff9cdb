"""What the suite set out to reach, what was measured, and whether that reaches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyllama_tools.calibrate.false_alarm_rows import HELD, NOT_SHOWN, SIMULATED
from tinyllama_tools.calibrate.page_words import about, case_words, share_words, small_percent
from tinyllama_tools.calibrate.run_groups import ENOUGH_RUNS

WANTED_SHARE = 0.95
ENOUGH_TRIES = 20
REACHED, MISSED = "reached", "not reached"
# a fraction that slowed the new side, and the words and key of the time it has to be found in
DETECTIONS = (
    (0.05, "10 minutes", "found_in_10_minutes"),
    (0.10, "5 minutes", "found_in_5_minutes"),
)
Json = dict[str, Any]


def _target(target: str, measured: str, reached: str) -> Json:
    return {"target": target, "measured": measured, "reached": reached}


def _of_share(share: Mapping[str, Any], *, is_shown: bool) -> str:
    if not is_shown:
        return NOT_SHOWN
    return REACHED if share["share"] >= WANTED_SHARE else MISSED


def _false_alarm_targets(document: Json) -> list[Json]:
    allowed = small_percent(document["rule"]["alpha"])
    return [
        _target(
            f"false alarms of families, {row['data']}, {row['sides']}: bound at most {allowed}",
            f"{about(row['false'])}, bound {small_percent(row['false']['upper_bound_95'])}, from "
            f"{row['blocks']} blocks",
            {HELD: REACHED, NOT_SHOWN: NOT_SHOWN}.get(row["standing"], MISSED),
        )
        for row in document["false_alarms"]
        # scenarios count together
        if not row["data"].startswith(SIMULATED) or row is _simulated_together(document)
    ]


def _simulated_together(document: Json) -> Json | None:
    found = [row for row in document["false_alarms"] if row["data"].startswith(SIMULATED)]
    return found[-1] if found else None


def _run_targets(rows: Sequence[Json]) -> list[Json]:
    target = f"no `slower` in at least {ENOUGH_RUNS} real A/A runs"
    quiet = [row for row in rows if not row["slowdown"]]
    found = [
        _target(
            target,
            f"{about(row['slower'])}, {sum(row['without_verdict'].values())} of them without a "
            f"verdict: {row['options']}",
            MISSED
            if row["slower"]["count"]
            else (REACHED if row["standing"] == HELD else NOT_SHOWN),
        )
        for row in quiet
    ] or [_target(target, "none", NOT_SHOWN)]
    slowed = [row for row in rows if row["slowdown"]]
    target = f"at least {ENOUGH_TRIES} real slowed runs, `slower` in {WANTED_SHARE:.0%}"
    return found + (
        [
            _target(
                f"{target}: {row['slowdown']}",
                share_words(row["slower"]),
                _of_share(row["slower"], is_shown=row["runs"] >= ENOUGH_TRIES),
            )
            for row in slowed
        ]
        or [_target(target, "none", NOT_SHOWN)]
    )


def _detection_targets(rows: Sequence[Json], margin: float) -> list[Json]:
    """Of the case that is found least often: the target is for each."""
    found: list[Json] = []
    for slowdown, minutes, key in DETECTIONS:
        for row in rows:
            if row["slowdown"] != slowdown or row["margin"] != margin:
                continue
            worst = min(row["cases"], key=lambda case: case[key]["share"])
            found.append(
                _target(
                    f"{slowdown:.0%} slower ({row['how']}) found in {WANTED_SHARE:.0%} within "
                    f"{minutes}, every case",
                    f"all {share_words(row['all'][key])}; least: {case_words(worst['case'])} "
                    f"{share_words(worst[key])}",
                    _of_share(worst[key], is_shown=row["is_shown"]),
                )
            )
    return found


def _attribution_targets(rows: Sequence[Json]) -> list[Json]:
    target = f"a full step 5 % slower found and attributed in {WANTED_SHARE:.0%}"
    return [
        _target(
            f"{target}: inside {row['part']}",
            f"{share_words(row['attributed'])}, from {row['blocks']} blocks",
            _of_share(row["attributed"], is_shown=row["is_shown"]),
        )
        for row in rows
    ] or [_target(target, "none", NOT_SHOWN)]


def target_rows(document: Json) -> list[Json]:
    """Of a calibration's document: `target`, `measured`, `reached`."""
    return [
        *_false_alarm_targets(document),
        *_run_targets(document["runs"]),
        *_detection_targets(document["detection"], document["rule"]["margin"]),
        *_attribution_targets(document["attribution"]),
    ]
