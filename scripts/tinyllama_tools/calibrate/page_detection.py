"""What is found, by this comparison and by others, and what it is blamed on: tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyllama_tools.calibrate.detection_rows import SLOWDOWNS
from tinyllama_tools.calibrate.page_words import case_words, seconds_words, share_words
from tinyllama_tools.markdown_table import markdown_table

Json = Mapping[str, Any]
CASE_BY_CASE = 0.05


def detection_section(rows: Sequence[Json]) -> list[str]:
    """All cases together at every slowdown, then case by case at 5 %."""
    header = (
        "slowdown", "how", "margin", "found in 5 min", "found in 10 min", "`unclear`", "`same`",
        "half found after", "95 % found after",
    )  # fmt: skip
    cells = (
        (
            f"{row['slowdown']:.0%}",
            row["how"],
            f"{row['margin']:.0%}",
            share_words(row["all"]["found_in_5_minutes"]),
            share_words(row["all"]["found_in_10_minutes"]),
            share_words(row["all"]["unclear"]),
            share_words(row["all"]["same"]),
            seconds_words(row["all"]["median_seconds"]),
            seconds_words(row["all"]["seconds_for_95_percent"]),
        )
        for row in rows
    )
    lines = ["## Detection", "", *markdown_table(header, cells), ""]
    drawings = dict.fromkeys(f"{row['how']}: {row['drawing']}" for row in rows)
    lines += [f"How blocks are drawn: {'; '.join(drawings)}.", ""]
    lines += [f"Case by case at {CASE_BY_CASE:.0%}:", ""]
    for row in rows:
        if row["slowdown"] == CASE_BY_CASE:
            lines += _case_by_case(row)
    return lines


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
            share_words(case["found_in_10_minutes"]),
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
    header = ("tool", "data", "false, a case", "false, a family", *found)
    cells = (
        (
            row["tool"],
            row["arrangement"],
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
    header = ("slowed inside", "full step changed by", "found", "found and attributed", "blamed")
    cells = (
        (
            row["part"],
            f"{100 * row['change']:+.1f} %",
            share_words(row["found"]),
            share_words(row["attributed"]),
            ", ".join(f"{name} {count}" for name, count in row["culprits"].items()) or "nobody",
        )
        for row in rows
    )
    return [title, "", *markdown_table(header, cells), "", f"Blocks: {rows[0]['drawing']}.", ""]
