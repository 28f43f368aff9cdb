"""Exercises that nobody measured, changes to them, and worksheets read as a person would."""

from __future__ import annotations

import copy
import functools
import re
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_training import GIB, PlayedPredictor, PlayedProgram, set_key, summary_of
from tinyllama_tools.commands import exercise_1, exercise_2, exercise_3
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_2 import Longest
from tinyllama_tools.commands.exercise_3 import Findings
from tinyllama_tools.commands.worksheet import MeasuredRun
from tinyllama_tools.core.app import Json
from tinyllama_tools.models.ablations import Evidence, Point, Study, read_study
from tinyllama_tools.stats.rank_tests import ratio_of_turns

Changes = Mapping[str, object]
# name of a run, of a size, `analysis`, or EVERY of exercises 1 and 2 -> keys to replace
OfRuns = Mapping[str, Changes]
EVERY = ""
# keys that are changed, and runs and sizes of exercise 2
POINTS = "flops.roofline_data.points"
LAUNCH = "operators.launch_overhead_percent"
WAIT, LIVE_PEAK = "summary.breakdown.data_loading.percent", "memory.peak_bytes"
SPEED = "step_seconds"
MB = 2**20
BATCHES = tuple(f"memory_analysis_bs{size}" for size in (4, 8, 16))
LENGTHS = tuple(f"memory_seq{size}" for size in (64, 128, 256, 512))
NAMES = ("tiny", "small", "medium")


def options(number: int, *more: str) -> Namespace:
    """Of scripts/exercise, without files."""
    return parse_options([str(number), *more])


@functools.cache
def played(given: tuple[str, ...], gpu: bool) -> Json:
    """The summary of a made-up run."""
    return summary_of(given, gpu=gpu)


def changed_summary(summary: Json | None, changes: Changes) -> Json | None:
    """A copy. `components` takes shares by name, `step_seconds` the time of every step; the keys
    of a part that is not there are left out."""
    found = copy.deepcopy(summary)
    for key, value in changes.items() if found else ():
        if key == "components":
            for component in found["operators"]["components"]:
                component["percent"] = value.get(component["name"], component["percent"])  # type: ignore[attr-defined]
        elif key == "step_seconds":
            for step in found["steps"]:
                step["time_seconds"] = value
        elif found.get(key.split(".")[0]) is not None:
            set_key(found, key, value)
    return found


def measured(number: int, changes: OfRuns, *, gpu: bool = False) -> dict[str, MeasuredRun]:
    """The runs of exercise 1 or 2."""
    found, exercise = {}, {1: exercise_1, 2: exercise_2}[number]
    for name, given in exercise.planned_runs(options(number)).items():
        of = {**changes.get(EVERY, {}), **changes.get(name, {})}
        summary = changed_summary(played(tuple(given), gpu), of)
        found[name] = MeasuredRun(name, " ".join(given), summary, 0, "", name)
    return found


@functools.cache
def findings(gpu: bool = False) -> Findings:
    """Exercise 3's, with tiny, small and medium."""
    with tempfile.TemporaryDirectory() as folder:
        given = options(3, f"--output={folder}/exercise_3.md", "--max-minutes=100")
        predictor = PlayedPredictor(40 * GIB)
        return exercise_3.measure_findings(given, PlayedProgram(gpu=gpu), predictor)


def changed(of: Findings, changes: OfRuns) -> Findings:
    """The same findings with keys of its summaries replaced."""

    def again(name: str, run: Any) -> Any:  # noqa: ANN401
        return replace(run, summary=changed_summary(run.summary, changes.get(name, {})))

    return replace(
        of,
        analysis=again("analysis", of.analysis),
        runs={name: again(name, run) for name, run in of.runs.items()},
        results=[again(result.size, result) for result in of.results],
    )


def sheet(number: int, changes: OfRuns | None = None, *, gpu: bool = False) -> str:
    """The page of made-up runs; that of exercise 2 without a longest sequence."""
    changes = changes or {}
    if number == 1:
        return exercise_1.sheet_of(measured(1, changes, gpu=gpu)).page
    if number == 2:
        runs = measured(2, changes, gpu=gpu)
        return exercise_2.sheet_of(runs, options(2), Longest(reason="not asked")).page
    return exercise_3.sheet_of(changed(findings(gpu), changes)).page


def made_up_evidence(file: Path, **speedups: float) -> Evidence:
    """An ablation at the worksheet's shape that measured these switches."""
    ratios = {name: ratio_of_turns([value] * 6, [1.0] * 6) for name, value in speedups.items()}
    study = read_study(file) if file.exists() else Study()
    return Evidence(file, study, Point("tiny", "f32", 8, 128), ratios)


# Pages.


def box(page: str, label: str) -> bool:
    """Of the boxes whose text begins with `label`; they all have to agree."""
    found = re.findall(r"^- \[([ x])\] (.*?) — (yes|no): ", page, re.MULTILINE)
    marks = {mark == "x" for mark, text, _ in found if text.startswith(label)}
    assert len(marks) == 1, f"{label}: {len(marks)} different boxes"
    assert all((mark == "x") == (word == "yes") for mark, _, word in found)
    return marks.pop()


def answer(page: str, asked: str) -> str:
    """What stands below a question or heading up to the next one, or in the row of that name."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(f"| {asked}"):
            return line.split("|", 2)[2]
        if line.startswith(asked) or (line.startswith("**") and asked in line):
            rest = lines[number + 1 :]
            ends = [i for i, text in enumerate(rest) if re.match(r"\*\*|##|[^-|A ]", text)]
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


def of(**percents: float) -> Changes:
    """All shares of components, whose / is written __."""
    return {"operators.components": components(**percents)}


def named(**percents: float) -> Changes:
    """Shares of these components; the others keep theirs."""
    return {"components": {name.replace("__", "/"): value for name, value in percents.items()}}


def named_in(*names: str, **percents: float) -> OfRuns:
    return dict.fromkeys(names, named(**percents))


def peaks(names: tuple[str, ...], *sizes: float) -> OfRuns:
    """Peaks in MB, run by run."""
    pairs = zip(names, sizes, strict=False)
    return {name: {LIVE_PEAK: int(size * MB)} for name, size in pairs}
