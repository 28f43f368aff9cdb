"""Whole runs of `scripts/compare run`, as a user would start them, and the verdict of each.

Both sides are the same program; a slowed run slows cases of the new side alone.
What every run said is a line of runs.jsonl, written when the run is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import INTERRUPTED, BadInputError
from tinyllama_tools.core.process import last_words
from tinyllama_tools.stats.verdicts import BAD_INPUT, Outcome

FILE = "runs.jsonl"
COMMAND = (sys.executable, "-m", "tinyllama_tools", "compare", "run")


@dataclass(frozen=True)
class RealRun:
    """`slowdown`: fraction by expression, empty for A/A. `outcomes` and `culprits` by case;
    `seconds` of the whole run. `reason`: why it ended without a verdict; empty where it has one.
    `git_commit`, `device` and `threads`: of the program that ran."""

    slowdown: Mapping[str, float]
    exit_status: int
    outcomes: Mapping[str, str]
    seconds: float
    started: str
    options: tuple[str, ...] = ()
    culprits: Mapping[str, str | None] = field(default_factory=dict)
    reason: str = ""
    git_commit: str = "unknown"
    device: str = "unknown"
    threads: int | None = None

    @property
    def has_verdict(self) -> bool:
        """Whether it ended as a comparison does."""
        return self.exit_status != BAD_INPUT

    @property
    def has_slower(self) -> bool:
        """Some case is called slower."""
        return Outcome.SLOWER.value in self.outcomes.values()

    @property
    def has_false_verdict(self) -> bool:
        """Of an A/A run: a case is called slower or faster."""
        return self.has_slower or Outcome.FASTER.value in self.outcomes.values()


def run_once(
    program: Path,
    slowdown: Mapping[str, float],
    options: Sequence[str],
) -> RealRun:
    """One run of the command. `slowdown`: of the new side. `options`: more of its options.

    A run that measured and ended without a verdict (budget too short, blocks became slower) is a
    run too. Raises BadInputError where nothing was measured: bad options, or a program that cannot
    start.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    sides = ["--base", str(program), "--new", str(program)]
    more = [f"--slow-new={pattern}={fraction:.6g}" for pattern, fraction in slowdown.items()]
    with tempfile.TemporaryDirectory(prefix="tiny_llama_calibrate_") as folder:
        command = [*COMMAND, *sides, *more, *options, "--output", folder]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        found = Path(folder) / "comparison.json"
        if not found.is_file():
            words = last_words(finished.stderr)
            raise BadInputError(f"compare run ended with {finished.returncode}: {words}")
        document = json.loads(found.read_text(encoding="utf-8"))
    cases: list[dict[str, Any]] = document["cases"]
    context = document.get("base_context", {})
    refused = finished.returncode == BAD_INPUT
    return RealRun(
        dict(slowdown),
        finished.returncode,
        {case["name"]: case["outcome"] for case in cases},
        round(time.monotonic() - clock, 1),
        started.isoformat(timespec="seconds"),
        tuple(options),
        {c["name"]: c["attribution"]["culprit"] for c in cases if c.get("attribution")},
        last_words(finished.stderr) if refused else "",
        str(context.get("git_commit", "unknown")),
        str(context.get("device", {}).get("name", "unknown")),
        context.get("threads"),
    )


def keep_run(run: RealRun, folder: Path) -> None:
    """Adds its line; BadInputError where the file cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")
    except OSError as error:
        raise BadInputError(f"{folder / FILE}: cannot be written: {error}") from error


def kept_runs(folder: Path) -> list[RealRun]:
    """All runs of the folder, none where there is no file. A last line cut short is left out.

    Raises BadInputError for a line that is no run.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    runs: list[RealRun] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            found = json.loads(line)
            runs.append(RealRun(**{**found, "options": tuple(found["options"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise BadInputError(f"{path}: line {number} is no run: {error!r}") from error
    return runs
