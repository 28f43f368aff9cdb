"""Whole runs by what was slowed, their options and the commit, and what each group says."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tinyllama_tools.calibrate.false_alarm_rows import BROKEN, HELD, NOT_SHOWN, standing
from tinyllama_tools.calibrate.intervals import Share
from tinyllama_tools.calibrate.published_words import without_run_paths
from tinyllama_tools.calibrate.real_runs import RealRun
from tinyllama_tools.calibrate.recorder import run_settings
from tinyllama_tools.stats.verdicts import Outcome

# A/A runs without `slower` that the suite has to show
ENOUGH_RUNS = 50
Json = dict[str, Any]


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
