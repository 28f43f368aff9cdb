"""How the tests run tiny_llama_train, and how they read what it leaves."""

from __future__ import annotations

import re
from pathlib import Path

import built_programs
from built_programs import ON_CPU, SMALL_MODEL, Json, read_json

SUMMARY = "performance_summary.json"
SMALL_BATCH = {"--batch-size": "2", "--seq-len": "8"}
STEP_LINE = re.compile(
    r"Step (?P<step>\d+)/(?P<steps>\d+): Loss = (?P<loss>\S+), Time = (?P<time>[\d.]+) seconds, "
    r"Memory = (?P<memory>\d+) MB(?P<profiling> \[PROFILING\])?"
)


def small(**changes: str | int | Path) -> list[str]:
    """Options of the small model; the program refuses an option that is given twice."""
    named = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return [*ON_CPU, *[f"{k}={v}" for k, v in (SMALL_MODEL | SMALL_BATCH | named).items()]]


class Program(built_programs.Program):
    """The built tiny_llama_train."""

    def trained(self, folder: Path, *arguments: str | Path) -> Json:
        """The summary of a run that must go well."""
        completed = self.run(*arguments, f"--output-dir={folder}")
        assert completed.returncode == 0, completed.stderr
        return read_json(folder / SUMMARY)


def step_lines(stdout: str) -> list[re.Match[str]]:
    """Every line of a step; fails on one that has another form."""
    lines = [line for line in stdout.splitlines() if line.startswith("Step ")]
    found = [STEP_LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [match for match in found if match]


def losses(summary: Json) -> list[float]:
    return [step["loss"] for step in summary["steps"]]


def files_below(folder: Path) -> set[str]:
    """Names of all files, hidden ones included, relative to the folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def whole_summary(folder: Path) -> Json:
    """Fails unless what it lists is there, nothing is half written, and all JSON can be parsed."""
    summary, there = read_json(folder / SUMMARY), files_below(folder)
    assert set(summary["files"]) <= there
    assert not [name for name in there if ".tmp" in name or Path(name).name.startswith(".")]
    for name in there:
        if name.endswith(".json"):
            read_json(folder / name)
    return summary
