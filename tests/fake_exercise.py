"""Exercises that nobody measured, changes to them, and worksheets read as a person would."""

from __future__ import annotations

import copy
import functools
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_study import GIB, PlayedPredictor
from fake_training import PlayedProgram, set_key
from tinyllama_tools.commands import exercise_1, exercise_2
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_3 import Findings, measure_findings
from tinyllama_tools.commands.worksheet import MeasuredRun, Plan
from tinyllama_tools.models.ablation_evidence import Evidence
from tinyllama_tools.models.ablations import Point
from tinyllama_tools.stats.rank_tests import ratio_of_turns

Json = dict[str, Any]
Changes = Mapping[str, object]
NO_RESULTS = Path("no/results/here")
EVERY_RUN = ""


def options(number: int, *more: str) -> Namespace:
    """Of scripts/exercise, without files."""
    return parse_options([str(number), *more])


@functools.cache
def played(given: tuple[str, ...], gpu: bool) -> Json:
    """The summary of a made-up run."""
    return PlayedProgram(gpu=gpu)._summary(list(given))


def changed_summary(summary: Json, changes: Changes) -> Json:
    """A copy. `components` takes shares by name, `step_seconds` the time of every step; the keys
    of a part that is not there are left out."""
    found = copy.deepcopy(summary)
    for key, value in changes.items():
        if key == "components":
            for component in found["operators"]["components"]:
                component["percent"] = value.get(component["name"], component["percent"])  # type: ignore[attr-defined]
        elif key == "step_seconds":
            for step in found["steps"]:
                step["time_seconds"] = value
        elif found.get(key.split(".")[0]) is not None:
            set_key(found, key, value)
    return found


def measured(
    planned: Plan, changes: Mapping[str, Changes] | None = None, *, gpu: bool = False
) -> dict[str, MeasuredRun]:
    """By name. `changes`: run's name, or EVERY_RUN -> keys to replace in parts that are there."""
    found, changes = {}, changes or {}
    for name, given in planned.items():
        all_changes = {**changes.get(EVERY_RUN, {}), **changes.get(name, {})}
        summary = changed_summary(played(tuple(given), gpu), all_changes)
        found[name] = MeasuredRun(name, " ".join(given), summary, 0, "", name)
    return found


def sheet_1(every: Changes | None = None, *, gpu: bool = False, **runs: Changes) -> str:
    """Exercise 1's page of made-up runs."""
    planned = exercise_1.planned_runs(options(1))
    made = measured(planned, {EVERY_RUN: every or {}, **runs}, gpu=gpu)
    return exercise_1.sheet_of(made, NO_RESULTS).page


def sheet_2(every: Changes | None = None, *, gpu: bool = False, **runs: Changes) -> str:
    """Exercise 2's, without a longest sequence."""
    planned = exercise_2.planned_runs(options(2))
    made = measured(planned, {EVERY_RUN: every or {}, **runs}, gpu=gpu)
    limit = exercise_2.Limit(reason="not asked")
    return exercise_2.sheet_of(made, options(2), limit, NO_RESULTS).page


def made_up_findings(folder: Path, **program: object) -> Findings:
    """Exercise 3's, with tiny, small and medium."""
    given = options(3, f"--output={folder}/exercise_3.md", "--max-minutes=100")
    return measure_findings(given, PlayedProgram(**program), PlayedPredictor(40 * GIB))


def changed(
    findings: Findings,
    analysis: Changes | None = None,
    runs: Mapping[str, Changes] | None = None,
    sizes: Mapping[str, Changes] | None = None,
    evidence: Evidence | None = None,
) -> Findings:
    """The same findings with keys of its summaries replaced."""
    first, runs, sizes = findings.analysis, runs or {}, sizes or {}
    return replace(
        findings,
        analysis=replace(first, summary=changed_summary(first.summary or {}, analysis or {})),
        runs={
            name: replace(run, summary=changed_summary(run.summary or {}, runs.get(name, {})))
            for name, run in findings.runs.items()
        },
        evidence=evidence,
        results=[
            replace(r, summary=changed_summary(r.summary, sizes.get(r.size, {})))
            if r.summary
            else r
            for r in findings.results
        ],
    )


def made_up_evidence(file: Path, **speedups: float) -> Evidence:
    """An ablation at the worksheet's shape that measured these switches."""
    ratios = {name: ratio_of_turns([value] * 6, [1.0] * 6) for name, value in speedups.items()}
    return Evidence(file, Point("tiny", "f32", 8, 128), ratios)


# Pages.


def box(page: str, label: str) -> bool:
    """Of the boxes whose text begins with `label`; they all have to agree."""
    found = re.findall(r"^- \[([ x])\] (.*?) — (yes|no): ", page, re.MULTILINE)
    marks = {mark == "x" for mark, text, _ in found if text.startswith(label)}
    assert len(marks) == 1, f"{label}: {len(marks)} different boxes"
    assert all((mark == "x") == (word == "yes") for mark, _, word in found)
    return marks.pop()


def answer(page: str, asked: str) -> str:
    """What stands below a question up to the next one, or in the row of that name."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(f"| {asked}"):
            return line.split("|", 2)[2]
        if line.startswith("**") and asked in line:
            rest = lines[number + 1 :]
            ends = [i for i, text in enumerate(rest) if re.match(r"\*\*|##", text)]
            return "\n".join(filter(None, rest[: min(ends, default=len(rest))]))
    raise AssertionError(f"not on the page: {asked}")


def unanswered(page: str) -> list[str]:
    """Blanks, empty cells, boxes that no rule decided and questions without an answer below."""
    found, lines = [], page.split("\n")
    for index, line in enumerate(lines):
        undecided = line.startswith("- [") and not re.search(r" — (yes|no): \S", line)
        cells = re.split(r"(?<!\\)\|", line.strip())[1:-1] if line.startswith("|") else []
        is_header = index + 1 < len(lines) and lines[index + 1].startswith("|--")
        empty = not is_header and not all(text.strip() for text in cells)
        following = next((text for text in lines[index + 1 :] if text.strip()), "")
        is_open = (
            line.startswith("**") and line.endswith("?**") and following.startswith(("*", "#"))
        )
        if undecided or empty or is_open or "___" in line or "None" in line:
            found.append(line)
    return found


# Parts of summaries.


def components(**percents: float) -> list[Json]:
    """`operators.components` of these shares; `__` in a name stands for `/`."""
    seconds = {"forward_seconds": 0.001, "backward_seconds": 0.002}
    return [
        {"name": name.replace("__", "/"), **seconds, "percent": percent}
        for name, percent in percents.items()
    ]


def operator_table(rows: Sequence[tuple[str, int, float, float]]) -> list[Json]:
    """`operators.table` of name, calls, seconds and share."""
    names = ("name", "calls", "cpu_self_seconds", "share_percent")
    device = {"device_self_seconds": None, "device_total_seconds": None}
    return [
        {**dict(zip(names, row, strict=True)), "cpu_total_seconds": row[2], **device}
        | {"self_memory_bytes": 0}
        for row in rows
    ]


def roofline(points: Mapping[str, tuple[str, float]]) -> list[Json]:
    """`points` of a roofline: name -> bound and percent of the attainable rate."""
    rates = ("achieved_flops_per_sec", "attainable_flops_per_sec")
    return [
        {"name": name, "bound": bound, "percent_of_attainable": percent}
        | dict.fromkeys(("arithmetic_intensity_flops_per_byte", *rates), 1.0)
        for name, (bound, percent) in points.items()
    ]
