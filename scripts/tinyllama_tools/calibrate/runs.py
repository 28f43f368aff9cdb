"""Whole runs of scripts/compare run, as a user would start them, by what was slowed."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tinyllama_tools.calibrate.draws import Share
from tinyllama_tools.calibrate.rates import BROKEN, HELD, NOT_SHOWN, standing
from tinyllama_tools.calibrate.record import run_settings
from tinyllama_tools.compare.options import add_options as add_run_options
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json
from tinyllama_tools.core.process import last_words
from tinyllama_tools.stats.verdicts import BAD_INPUT, Outcome


def _path_options(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Options that take paths; whether they take several."""
    return {
        name: action.nargs is not None
        for action in parser._actions
        if action.type is Path
        for name in action.option_strings
    }


def without_paths(words: Iterable[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words without the parser's options that take paths, and without their values."""
    options = _path_options(parser)
    kept: list[str] = []
    dropping = 0
    for word in words:
        if dropping and not word.startswith("-"):
            dropping -= 1
            continue
        name, separator, _ = word.partition("=")
        dropping = 0
        if name not in options:
            kept.append(word)
        elif not separator:
            # several end with the next option
            dropping = 2**31 if options[name] else 1
    return kept


def without_run_paths(words: Sequence[str]) -> list[str]:
    """Of options of `compare run`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_run_options(parser)
    return without_paths(words, parser)


def published_arguments(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Of `compare calibrate`, whose options end with those of `compare run` after --."""
    own = list(words)
    if "--" not in own:
        return without_paths(own, parser)
    at = own.index("--")
    return [*without_paths(own[:at], parser), "--", *without_run_paths(own[at + 1 :])]


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


# A/A runs without `slower` that the suite has to show
ENOUGH_RUNS = 50


def groups_of(runs: Sequence[RealRun]) -> list[list[RealRun]]:
    """Runs of the same slowdown, options and commit, in the order of their first run."""
    found: dict[tuple[object, ...], list[RealRun]] = {}
    for run in runs:
        key = (tuple(sorted(run.slowdown.items())), run.options, run.git_commit)
        found.setdefault(key, []).append(run)
    return list(found.values())


def quiet_standing(runs: Sequence[RealRun], alpha: float) -> str:
    """Of A/A runs. `broken`: false verdicts in more of them than alpha allows, beyond doubt.
    `held`: at least 50 runs with verdicts, none of which says `slower`."""
    if standing(Share(sum(run.has_false_verdict for run in runs), len(runs)), alpha) == BROKEN:
        return BROKEN
    judged = sum(run.has_verdict for run in runs)
    is_held = judged >= ENOUGH_RUNS and not any(run.has_slower for run in runs)
    return HELD if is_held else NOT_SHOWN


def group_row(runs: Sequence[RealRun]) -> Json:
    """One group. Runs without a verdict count in every denominator."""
    first = runs[0]
    settings = run_settings(first.options)
    row = {
        "slowdown": ", ".join(f"{part} {x:g}" for part, x in first.slowdown.items()),
        "options": shlex.join(without_run_paths(first.options)),
        "alpha": settings.alpha,
        "budget_seconds": settings.budget,
        "git_commit": first.git_commit,
        "device": first.device,
        "threads": first.threads,
        "runs": len(runs),
        "seconds": sum(run.seconds for run in runs),
        "slower": Share(sum(run.has_slower for run in runs), len(runs)).as_json(),
        "slower_or_faster": Share(sum(r.has_false_verdict for r in runs), len(runs)).as_json(),
        "without_verdict": dict(Counter(run.reason for run in runs if not run.has_verdict)),
        **_verdicts(runs),
    }
    if not first.slowdown:
        row["standing"] = quiet_standing(runs, settings.alpha)
    return row


def run_rows(runs: Sequence[RealRun]) -> list[Json]:
    """A row a group."""
    return [group_row(group) for group in groups_of(runs)]


def _verdicts(runs: Sequence[RealRun]) -> Json:
    cases = dict.fromkeys(name for run in runs for name in run.outcomes)
    by_case = {
        name: dict(Counter(run.outcomes[name] for run in runs if name in run.outcomes))
        for name in cases
    }
    culprits = {
        whole: dict(
            Counter(
                run.culprits[whole] or "nobody"
                for run in runs
                if whole in run.culprits and run.outcomes.get(whole) == Outcome.SLOWER.value
            )
        )
        for whole in dict.fromkeys(name for run in runs for name in run.culprits)
    }
    return {
        "by_case": by_case,
        "culprits": {whole: found for whole, found in culprits.items() if found},
    }
