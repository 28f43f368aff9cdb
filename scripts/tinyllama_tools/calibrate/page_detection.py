"""What is found, by this comparison and by others, and what it is blamed on: tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyllama_tools.calibrate.detection_rows import SLOWDOWNS, TEN_MINUTES
from tinyllama_tools.calibrate.false_alarm_rows import NOT_SHOWN
from tinyllama_tools.calibrate.page_words import case_words, seconds_words, share_words
from tinyllama_tools.core.text import markdown_table

Json = Mapping[str, Any]
CASE_BY_CASE = (0.05, 0.10)


def detection_section(rows: Sequence[Json]) -> list[str]:
    """All cases together at every slowdown, then case by case at 5 and 10 %."""
    header = (
        "slowdown", "how", "margin", "found in 5 min", "found in 10 min", "`unclear`", "`same`",
        "half found after", "95 % found after", "blocks (needed)", "",
    )  # fmt: skip
    cells = (
        (
            f"{row['slowdown']:.0%}",
            row["how"],
            f"{row['margin']:.0%}",
            share_words(row["all"]["found_in_5_minutes"]),
            _in_ten_minutes(row["all"], row),
            share_words(row["all"]["unclear"]),
            share_words(row["all"]["same"]),
            seconds_words(row["all"]["median_seconds"]),
            seconds_words(row["all"]["seconds_for_95_percent"]),
            f"{min(row['blocks'])} ({row['blocks_needed']})",
            shown_words(row),
        )
        for row in rows
    )
    lines = ["## Detection", "", *markdown_table(header, cells), ""]
    drawings = dict.fromkeys(f"{row['how']}: {row['drawing']}" for row in rows)
    lines += [f"How blocks are drawn: {'; '.join(drawings)}.", ""]
    for slowdown in CASE_BY_CASE:
        lines += [f"Case by case at {slowdown:.0%}:", ""]
        for row in rows:
            if row["slowdown"] == slowdown:
                lines += _case_by_case(row)
    return lines


def shown_words(row: Json) -> str:
    """Empty, or that the row's blocks are too few to show anything."""
    return "" if row["is_shown"] else f"**{NOT_SHOWN}**"


def _in_ten_minutes(share: Json, row: Json) -> str:
    """Nothing where tries ended earlier."""
    if row["budget_seconds"] < TEN_MINUTES:
        return "-"
    return share_words(share["found_in_10_minutes"])


def _case_by_case(row: Json) -> list[str]:
    header = (
        f"case, {row['how']}", "true change", "found in 5 min", "found in 10 min", "`unclear`",
        "half found after", "95 % found after",
    )  # fmt: skip
    cells = (
        (
            case_words(case["case"]),
            f"{100 * case['true_change']:+.1f} %",
            share_words(case["found_in_5_minutes"]),
            _in_ten_minutes(case, row),
            share_words(case["unclear"]),
            seconds_words(case["median_seconds"]),
            seconds_words(case["seconds_for_95_percent"]),
        )
        for case in row["cases"]
    )
    return [*markdown_table(header, cells), ""]


def rivals_section(rows: Sequence[Json]) -> list[str]:
    """False alarms and detections on the same blocks."""
    found = tuple(f"finds {slowdown:.0%}" for slowdown in SLOWDOWNS)
    header = ("tool", "data", "samples a side", "false, a case", "false, a family", *found)
    cells = (
        (
            row["tool"],
            row["arrangement"],
            row["samples"],
            share_words(row["false_per_case"]),
            share_words(row["false_per_family"]),
            *(share_words(row["found"][str(slowdown)]) for slowdown in SLOWDOWNS),
        )
        for row in rows
    )
    return ["## Side by side on the same recorded data", "", *markdown_table(header, cells), ""]


def attribution_section(rows: Sequence[Json]) -> list[str]:
    """A full step that became slower inside one part."""
    title = "## Attribution of a slower full step"
    if not rows:
        return [title, "", "None recorded: `scripts/compare calibrate --record-slowed TIME`.", ""]
    header = (
        "slowed inside",
        "full step changed by",
        "found",
        "found and attributed",
        "blamed",
        "blocks (needed)",
        "",
    )
    cells = (
        (
            row["part"],
            f"{100 * row['change']:+.1f} %",
            share_words(row["found"]),
            share_words(row["attributed"]),
            ", ".join(f"{name} {count}" for name, count in row["culprits"].items()) or "nobody",
            f"{row['blocks']} ({row['blocks_needed']})",
            shown_words(row),
        )
        for row in rows
    )
    return [title, "", *markdown_table(header, cells), "", f"Blocks: {rows[0]['drawing']}.", ""]
