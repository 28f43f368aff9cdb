"""How the tests run tiny_llama_train, and how they read what it leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Any
Completed = subprocess.CompletedProcess[str]

PROJECT_ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "performance_summary.json"
TIMEOUT_S = 120.0
# a model so small that a step takes some milliseconds
SMALL_MODEL = {
    "hidden-dim": 32,
    "n-layers": 2,
    "n-heads": 4,
    "n-kv-heads": 2,
    "intermediate-dim": 48,
    "vocab-size": 300,
}
SMALL_BATCH = {"batch-size": 2, "seq-len": 8}
ON_CPU = ["--device=cpu", "--threads=1"]
PHASES = ["data_loading", "forward", "backward", "optimizer", "evaluation", "other"]
STEP_LINE = re.compile(
    r"Step (?P<step>\d+)/(?P<steps>\d+): Loss = (?P<loss>\S+), Time = (?P<time>[\d.]+) seconds, "
    r"Memory = (?P<memory>\d+) MB(?P<profiling> \[PROFILING\])?"
)
# Runs a program and says its largest resident set in KiB. In between because a program inherits
# the figure of the process that starts it, and that of pytest is larger than what is looked for.
MEASURER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def small(**changes: str | int) -> list[str]:
    """Options of the small model; the program refuses an option that is given twice."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return [*ON_CPU, *[f"--{k}={v}" for k, v in (SMALL_MODEL | SMALL_BATCH | named).items()]]


class Program:
    """The built tiny_llama_train, run as a user would, with one thread in every library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "GIT_DIR": os.devnull}

    def start(self, *arguments: str | Path, **keywords: Any) -> subprocess.Popen[str]:  # noqa: ANN401
        return subprocess.Popen(
            [str(self.path), *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **keywords,
        )

    def run(self, *arguments: str | Path, folder: Path | None = None) -> Completed:
        """Runs it to its end, in this folder."""
        return finish(self.start(*arguments, cwd=folder))

    def trained(self, folder: Path, *arguments: str | Path) -> Json:
        """The summary of a run that must go well."""
        completed = self.run(*arguments, f"--output-dir={folder}")
        assert completed.returncode == 0, completed.stderr
        return read_summary(folder)

    def peak_memory(self, *arguments: str | Path) -> tuple[int, Completed]:
        """Its largest resident set in bytes."""
        command = [sys.executable, "-S", "-c", MEASURER, str(self.path), *map(str, arguments)]
        completed = subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        *said, kibibytes = completed.stderr.splitlines()
        completed.stderr = "".join(f"{line}\n" for line in said)
        return int(kibibytes) * 1024, completed


@dataclass(frozen=True)
class FinishedRun:
    """A run that went well, and its folder."""

    completed: Completed
    folder: Path
    summary: Json


def finish(process: subprocess.Popen[str]) -> Completed:
    """Waits for its end; a process that does not come to one is killed."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def read_json(file: Path) -> Json:
    """Parses JSON as its standard has it: without NaN and infinity, which Python would take."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{file}: {constant} is not JSON")

    found = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    json.dumps(found, allow_nan=False)  # 1e999 is infinite too
    return found


def read_summary(folder: Path) -> Json:
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


def assert_whole(folder: Path, summary: Json) -> None:
    """What the summary lists is there, nothing is half written, and all JSON can be parsed."""
    there = files_below(folder)
    assert set(summary["files"]) <= there
    assert not [name for name in there if ".tmp" in name or Path(name).name.startswith(".")]
    for name in there:
        if name.endswith(".json"):
            read_json(folder / name)


def message_of(completed: Completed) -> str:
    """The one line that a refused command says; fails unless it is one, with exit status 2."""
    said = f"exit status {completed.returncode}, stderr:\n{completed.stderr}"
    assert completed.returncode == 2, said
    lines = completed.stderr.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("tiny_llama_train: "), said
    for foreign in ("terminate called", "frame #", "Exception raised from"):
        assert foreign not in lines[0], said
    return lines[0].removeprefix("tiny_llama_train: ")
