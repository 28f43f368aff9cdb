"""Whole runs of scripts/compare run, as a user would start them, by what was slowed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from tinyllama_tools.calibrate.standing import (
    BROKEN,
    ENOUGH_RUNS,
    HELD,
    NOBODY,
    NOT_SHOWN,
    share,
    standing,
)
from tinyllama_tools.compare.options import run_settings
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json
from tinyllama_tools.core.text import last_words
from tinyllama_tools.data.nameless import names_alone
from tinyllama_tools.stats.verdicts import BAD_INPUT, Outcome

FILE = "runs.jsonl"
COMMAND = (sys.executable, "-m", "tinyllama_tools", "compare", "run")
SLOWER, FASTER = Outcome.SLOWER.value, Outcome.FASTER.value


def run_once(program: Path, slowdown: Mapping[str, float], options: Sequence[str]) -> Json:
    """One run of the command: a line of FILE. `slowdown`: of the new side, fraction by expression.

    `outcomes` and `culprits` by case; `reason`: why it measured and ended without a verdict (budget
    too short, blocks became slower), empty where it has one. Raises BadInputError where nothing was
    measured: bad options, or a program that cannot start.
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
    cases, context = document["cases"], document.get("base_context", {})
    is_refused = finished.returncode == BAD_INPUT
    return {
        "slowdown": dict(slowdown),
        "exit_status": finished.returncode,
        "outcomes": {case["name"]: case["outcome"] for case in cases},
        "seconds": round(time.monotonic() - clock, 1),
        "started": started.isoformat(timespec="seconds"),
        "options": names_alone(list(options)),
        "culprits": {
            case["name"]: case["attribution"]["culprit"]
            for case in cases
            if case.get("attribution")
        },
        "reason": last_words(finished.stderr) if is_refused else "",
        "git_commit": str(context.get("git_commit", "unknown")),
        "device": str(context.get("device", {}).get("name", "unknown")),
        "threads": context.get("threads"),
    }


def keep_run(run: Json, folder: Path) -> None:
    """Adds its line."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")


RUN_KEYS = frozenset(
    {"slowdown", "exit_status", "outcomes", "seconds", "options", "culprits", "reason", "device"}
    | {"git_commit", "threads"}
)


def kept_runs(folder: Path) -> list[Json]:
    """All runs of the folder, none where there is no file. A last line cut short is left out.

    Raises BadInputError for a line that is no run.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    runs: list[Json] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            runs.append(json.loads(line))
            missing = ", ".join(sorted(RUN_KEYS - set(runs[-1])))
        except (ValueError, TypeError) as error:
            raise BadInputError(f"{path}: line {number} is no run: {error!r}") from error
        if missing:
            raise BadInputError(f"{path}: line {number} is no run: it lacks {missing}")
    return runs


# A/A runs without `slower` that the suite has to show


def quiet_standing(slower: Json, either: Json, judged: int, alpha: float) -> str:
    """Of A/A runs. `broken`: false verdicts (`either`) in more of them than alpha allows, beyond
    doubt. `held`: at least 50 runs with verdicts, none of which says `slower`."""
    if standing(either, alpha) == BROKEN:
        return BROKEN
    return HELD if judged >= ENOUGH_RUNS and slower["count"] == 0 else NOT_SHOWN


def group_row(runs: Sequence[Json]) -> Json:
    """Runs of the same slowdown, options and commit. Those without a verdict count in every
    denominator."""
    first = runs[0]
    settings = run_settings(first["options"])
    slower = share(sum(SLOWER in run["outcomes"].values() for run in runs), len(runs))
    false = [run for run in runs if {SLOWER, FASTER} & set(run["outcomes"].values())]
    either = share(len(false), len(runs))
    without = [run["reason"] for run in runs if run["exit_status"] == BAD_INPUT]
    by_case: dict[str, Counter[str]] = {}
    blamed: dict[str, Counter[str]] = {}
    for run in runs:
        for name, outcome in run["outcomes"].items():
            by_case.setdefault(name, Counter())[outcome] += 1
        for whole, culprit in run["culprits"].items():
            if run["outcomes"].get(whole) == SLOWER:
                blamed.setdefault(whole, Counter())[culprit or NOBODY] += 1
    row = {
        "slowdown": ", ".join(f"{part} {x:g}" for part, x in first["slowdown"].items()),
        "options": shlex.join(first["options"]),
        "alpha": settings.alpha,
        "budget_seconds": settings.budget,
        **{key: first[key] for key in ("git_commit", "device", "threads")},
        "runs": len(runs),
        "seconds": sum(run["seconds"] for run in runs),
        "slower": slower,
        "slower_or_faster": either,
        "without_verdict": dict(Counter(without)),
        "by_case": {name: dict(counts) for name, counts in by_case.items()},
        "culprits": {whole: dict(counts) for whole, counts in blamed.items()},
    }
    if not first["slowdown"]:
        judged = len(runs) - len(without)
        row["standing"] = quiet_standing(slower, either, judged, settings.alpha)
    return row


def run_rows(runs: Sequence[Json]) -> list[Json]:
    """A row a group, in the order of their first run."""
    groups: dict[str, list[Json]] = {}
    for run in runs:
        key = json.dumps([sorted(run["slowdown"].items()), run["options"], run["git_commit"]])
        groups.setdefault(key, []).append(run)
    return [group_row(group) for group in groups.values()]
