"""Exercises that nobody measured, changes to them, and worksheets read as a person would."""

from __future__ import annotations

import copy
import functools
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from fake_training import GIB, PROFILER_OPTIONS, PlayedPredictor, set_key, step_cost, summary_of
from tinyllama_tools.commands import exercise_1, exercise_2, exercise_3
from tinyllama_tools.commands.exercise import parse_options
from tinyllama_tools.commands.exercise_3 import Findings
from tinyllama_tools.commands.study import SizeRun
from tinyllama_tools.commands.training_runs import MeasuredRun
from tinyllama_tools.core.app import Json, problem_sizes
from tinyllama_tools.models.ablations import Evidence, Point, Study, read_study
from tinyllama_tools.stats.rank_tests import ratio_of_turns

Changes = Mapping[str, object]
# name of a run, of a size, `analysis` of exercise 3, or EVERY run -> keys to replace
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
EXERCISES = {1: exercise_1, 2: exercise_2, 3: exercise_3}


def options(number: int, *more: str) -> Namespace:
    """Of scripts/exercise, without files."""
    return parse_options([str(number), *more])


@functools.cache
def played(given: tuple[str, ...], gpu: bool) -> Json:
    """The summary of a made-up run."""
    return summary_of(given, gpu=gpu)


def changed_summary(summary: Json, changes: Changes) -> Json:
    """A copy. `components` takes shares by name, `step_seconds` the time of every step; the keys
    of a part that is not there are left out."""
    found = copy.deepcopy(summary)
    for key, value in changes.items():
        if key == "components":
            for component in (found["operators"] or {"components": []})["components"]:
                component["percent"] = value.get(component["name"], component["percent"])  # type: ignore[attr-defined]
        elif key == "step_seconds":
            for step in found["steps"]:
                step["time_seconds"] = value
        elif found.get(key.split(".")[0]) is not None:
            set_key(found, key, value)
    return found


def measured(number: int, changes: OfRuns, *, gpu: bool = False) -> dict[str, MeasuredRun]:
    """The runs of an exercise."""
    found = {}
    for name, given in EXERCISES[number].planned_runs(options(number)).items():
        part = "analysis" if name.startswith(exercise_3.ANALYSIS) else name
        of = {**changes.get(EVERY, {}), **changes.get(part, {})}
        summary = changed_summary(played(tuple(given), gpu), of)
        found[name] = MeasuredRun(name, " ".join(given), summary, link=name, seconds=1.0)
    return found


@functools.cache
def forecasts(free_bytes: int = 40 * GIB) -> Mapping:
    return exercise_3.forecasts(PlayedPredictor(free_bytes), "auto")


def findings(changes: OfRuns | None = None, *, gpu: bool = False) -> Findings:
    """Exercise 3's, with tiny, small and medium."""
    results = []
    for size in problem_sizes():
        result = {"refusal": "predicted peak memory is too large"}
        if size in NAMES:
            given = (f"--size={size}", "--num-steps=20", *PROFILER_OPTIONS)
            summary = changed_summary(played(given, gpu), (changes or {}).get(size, {}))
            result = {"folder": Path(size), "summary": summary}
        results.append(SizeRun(size, step_cost(size), 20, **result))
    return Findings(measured(3, changes or {}, gpu=gpu), forecasts(), results)


def sheet(number: int, changes: OfRuns | None = None, *, gpu: bool = False) -> str:
    """The page of made-up runs; that of exercise 2 without a longest sequence."""
    if number == 3:
        return exercise_3.sheet_of(findings(changes, gpu=gpu)).page
    runs = measured(number, changes or {}, gpu=gpu)
    if number == 1:
        return exercise_1.sheet_of(runs).page
    return exercise_2.sheet_of(runs, options(2), reason="not asked").page


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


def operator_table(rows: Sequence[tuple[str, int, float, float]]) -> list[Json]:
    """`operators.table` of name, calls, seconds and share."""
    names = ("name", "calls", "cpu_self_seconds", "share_percent")
    rest = {"device_self_seconds": None, "device_total_seconds": None, "self_memory_bytes": 0}
    return [
        {**dict(zip(names, row, strict=True)), "cpu_total_seconds": row[2], **rest} for row in rows
    ]


def roofline(points: Mapping[str, tuple[str, float]]) -> list[Json]:
    """`points` of a roofline: name -> bound and percent of the attainable rate."""
    rates = ("achieved_flops_per_sec", "attainable_flops_per_sec")
    return [
        {"name": name, "bound": bound, "percent_of_attainable": percent}
        | dict.fromkeys(("arithmetic_intensity_flops_per_byte", *rates), 1.0)
        for name, (bound, percent) in points.items()
    ]


def shares(**percents: float) -> list[Json]:
    """`operators.components` of these shares; `__` in a name stands for `/`."""
    seconds = {"forward_seconds": 0.001, "backward_seconds": 0.002}
    return [
        {"name": name.replace("__", "/"), **seconds, "percent": percent}
        for name, percent in percents.items()
    ]


def of(**percents: float) -> Changes:
    """All shares of components."""
    return {"operators.components": shares(**percents)}


def named(**percents: float) -> Changes:
    """Shares of these components; the others keep theirs."""
    return {"components": {name.replace("__", "/"): value for name, value in percents.items()}}


def named_in(name: str, **percents: float) -> OfRuns:
    return {name: named(**percents)}


def peaks(names: tuple[str, ...], *sizes: float) -> OfRuns:
    """Peaks in MB, run by run."""
    pairs = zip(names, sizes, strict=False)
    return {name: {LIVE_PEAK: int(size * MB)} for name, size in pairs}
