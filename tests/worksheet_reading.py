"""Reads a filled-in worksheet as a person would: boxes by their text, answers by their question."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def boxes(page: str) -> dict[str, list[bool]]:
    """Whether the boxes of each text are ticked, in the order of the page."""
    found: dict[str, list[bool]] = {}
    for mark, label in re.findall(r"^- \[([ x])\] (.*?) — (?:yes|no): ", page, re.MULTILINE):
        found.setdefault(label, []).append(mark == "x")
    return found


def box(page: str, label: str) -> bool:
    """Of the boxes whose text begins with `label`; they all have to agree."""
    marks = {m for text, ms in boxes(page).items() if text.startswith(label) for m in ms}
    assert len(marks) == 1, f"{label}: {len(marks)} different boxes"
    return marks.pop()


def answer(page: str, asked: str) -> str:
    """What stands below a question, on its next line with text, or in the row of that name."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(f"| {asked}"):
            return line.split("|", 2)[2]
        if line.startswith("**") and asked in line:
            return next(text for text in lines[number + 1 :] if text.strip())
    raise AssertionError(f"not on the page: {asked}")


def components(**percents: float) -> list[Json]:
    """`operators.components` of these shares; `__` in a name stands for `/`."""
    return [
        {
            "name": name.replace("__", "/"),
            "forward_seconds": 0.001,
            "backward_seconds": 0.002,
            "percent": percent,
        }
        for name, percent in percents.items()
    ]


def operator_table(rows: Sequence[tuple[str, int, float, float]]) -> list[Json]:
    """`operators.table` of name, calls, seconds and share."""
    return [
        {
            "name": name,
            "calls": calls,
            "cpu_self_seconds": seconds,
            "cpu_total_seconds": seconds,
            "device_self_seconds": None,
            "device_total_seconds": None,
            "share_percent": share,
            "self_memory_bytes": 0,
        }
        for name, calls, seconds, share in rows
    ]


def roofline(points: Mapping[str, tuple[str, float]]) -> list[Json]:
    """`points` of a roofline: name -> bound and percent of the attainable rate."""
    return [
        {
            "name": name,
            "arithmetic_intensity_flops_per_byte": 1.0,
            "achieved_flops_per_sec": 1.0,
            "attainable_flops_per_sec": 1.0,
            "percent_of_attainable": percent,
            "bound": bound,
        }
        for name, (bound, percent) in points.items()
    ]
