"""Whole runs of the command, as a section of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tinyllama_tools.calibrate.page_words import about, case_words, small_percent
from tinyllama_tools.calibrate.run_groups import ENOUGH_RUNS
from tinyllama_tools.core.text import duration, markdown_table

Json = Mapping[str, Any]
SHORT_COMMIT = 10


def runs_section(rows: Sequence[Json]) -> list[str]:
    """A part for every group of runs of the same slowdown, options and commit."""
    lines = ["## Whole runs of `scripts/compare run`", ""]
    if not rows:
        return [*lines, "None yet: `scripts/compare calibrate --runs N`.", ""]
    for row in rows:
        lines += _group(row)
    return lines


def _group(row: Json) -> list[str]:
    what = f"Slowed: {row['slowdown']}" if row["slowdown"] else "A/A"
    where = f"{row['device']}, {row['threads']} threads, commit {row['git_commit'][:SHORT_COMMIT]}"
    lines = [
        f"{what}; options `{row['options'] or 'none'}`; budget {duration(row['budget_seconds'])} a "
        f"run, {duration(row['seconds'])} in all; {where}.",
        "",
    ]
    slower, either = row["slower"], row["slower_or_faster"]
    if row["slowdown"]:
        lines += [f"`slower` in {about(slower)} runs.", ""]
    else:
        no = f"no `slower` in {slower['trials']} runs"
        words = no if slower["count"] == 0 else f"`slower` in {about(slower)} runs"
        lines += [
            f"{words}, bound {small_percent(slower['upper_bound_95'])}; `slower` or `faster` in "
            f"{about(either)}, bound {small_percent(either['upper_bound_95'])} (Clopper-Pearson, "
            f"one-sided, 95 %). {row['standing']}: `held` wants {ENOUGH_RUNS} runs with verdicts.",
            "",
        ]
    for reason, count in row["without_verdict"].items():
        lines += [f"Without a verdict, and counted all the same: {count}: {reason}", ""]
    lines += [*_by_case(row["by_case"]), ""]
    return [*lines, *_culprit_lines(row["culprits"])]


def _by_case(cases: Mapping[str, Mapping[str, int]]) -> list[str]:
    outcomes = list(dict.fromkeys(word for found in cases.values() for word in found))
    rows = (
        (case_words(name), *(str(found.get(word, 0)) for word in outcomes))
        for name, found in cases.items()
    )
    return markdown_table(("case", *outcomes), rows)


def _culprit_lines(culprits: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for whole, found in culprits.items():
        counts = ", ".join(f"{case_words(name)} {count}" for name, count in found.items())
        yield from (f"`{case_words(whole)}` found slower, attributed to: {counts}.", "")
