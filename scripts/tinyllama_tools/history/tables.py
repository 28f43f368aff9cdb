"""The history on a terminal, and as JSON for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyllama_tools.compare.wording import change_text, seconds_text
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.history.change_points import FEWEST_FILES, ChangePoint
from tinyllama_tools.history.entries import Machine, Series, StoredResult
from tinyllama_tools.history.wording import ADVISORY, before_text, between_text, files_text

MOST_FILES = 10

Json = dict[str, Any]


def _by_machine(series: Sequence[Series]) -> dict[Machine, list[Series]]:
    found: dict[Machine, list[Series]] = {}
    for one in series:
        found.setdefault(one.machine, []).append(one)
    return found


def _files(series: Sequence[Series]) -> list[StoredResult]:
    files = {point.result.number: point.result for one in series for point in one.points}
    return sorted(files.values(), key=lambda result: result.place)


def show_text(series: Sequence[Series]) -> str:
    """For each machine: its newest files, and each case's latest time beside those before."""
    lines: list[str] = []
    for machine, own in _by_machine(series).items():
        files = _files(own)
        lines += [f"{machine}: {len(files)} file{'' if len(files) == 1 else 's'}", ""]
        rows = [(str(f.number), f.label, f.date, f.torch_version, f.file) for f in files]
        lines += markdown_table(
            ("result", "commit", "measured", "libtorch", "file"), rows[-MOST_FILES:]
        )
        if len(files) > MOST_FILES:
            lines.append(f"and {len(files) - MOST_FILES} before them")
        cases = [
            (
                one.case,
                str(len(one.points)),
                seconds_text(one.points[-1].seconds),
                before_text([point.seconds for point in one.points]),
            )
            for one in own
        ]
        lines += ["", *markdown_table(("case", "files", "latest", "against the median"), cases), ""]
    return "\n".join(lines).rstrip()


def show_as_json(series: Sequence[Series]) -> list[Json]:
    """One object a machine and case, its points in order, seconds of an iteration."""
    return [
        {
            "machine": str(one.machine),
            "case": one.case,
            "points": [
                {
                    "result": point.result.number,
                    "commit": point.result.commit,
                    "dirty": point.result.dirty,
                    "date": point.result.date,
                    "seconds": point.seconds,
                }
                for point in one.points
            ],
        }
        for one in series
    ]


def changes_text(series: Sequence[Series], points: Sequence[ChangePoint]) -> str:
    """The change points, newest first, under the sentence that says what they are worth."""
    enough = sum(len(one.points) >= FEWEST_FILES for one in series)
    looked = f"{enough} of {len(series)} series have the {FEWEST_FILES} files that it takes."
    lines = [ADVISORY, looked, ""]
    for machine in dict.fromkeys(point.machine for point in points):
        own = [point for point in points if point.machine == machine]
        rows = [
            (
                change_text(point.ratio),
                point.after[0].label,
                point.case,
                f"{between_text(point)}; {files_text(point)}",
                f"{point.after[0].number} to {point.after[-1].number}",
                point.remark,
            )
            for point in own
        ]
        header = ("change", "commit", "case", "where", "results", "remark")
        lines += [f"{machine}:", "", *markdown_table(header, rows), ""]
    if not points:
        lines.append("No change point.")
    return "\n".join(lines).rstrip()


def changes_as_json(points: Sequence[ChangePoint]) -> list[Json]:
    """One object a change point; `advisory` is true of each."""
    return [
        {
            "advisory": True,
            "machine": str(point.machine),
            "case": point.case,
            "ratio": point.ratio,
            "commit": point.after[0].commit,
            "last_commit_before": point.before[-1].commit,
            "seconds_before": point.seconds_before,
            "seconds_after": point.seconds_after,
            "results_before": [result.number for result in point.before],
            "results_after": [result.number for result in point.after],
            "remark": point.remark,
        }
        for point in points
    ]
