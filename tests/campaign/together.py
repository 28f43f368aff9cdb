"""Two of everything at once in one checkout and with the same files: a clear refusal or correct
results."""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from campaign.runs import TIME_LIMIT_S, left_of, said_in, start, uncaught, usual_seconds
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import PROJECT, QUICK, SUITE, Workload, bench_problems, environment

FULL = 20
REFUSED = 2
PROGRAM = PROJECT / "build/benchmarks/tiny_llama_bench"


def ended(processes: list[subprocess.Popen], folder: Path) -> list[str]:
    """Both in time, at least one of them well, the other too or with a message."""
    statuses = [process.wait(TIME_LIMIT_S) for process in processes]
    said = said_in(folder)
    is_clear = 0 in statuses and set(statuses) <= {0, REFUSED}
    problems = [] if is_clear else [f"statuses {statuses}: ...{said[-300:]!r}"]
    return problems + uncaught(said) + [text for p in processes for text in left_of(p.pid)]


def both(workload: Workload, draw: random.Random) -> list[str]:
    """Of one workload, with the same files, at the same moment or some time apart."""
    apart = draw.choice((0, 0.1, draw.uniform(0, 0.9 * usual_seconds(workload))))
    with scratch() as folder:
        command, more = workload.command(folder), workload.environment
        first = start(command, folder, more)
        time.sleep(apart)
        problems = ended([first, start(command, folder, more)], folder)
        problems += workload.problems(folder, True, {})
        return [f"{apart:.2f} s apart: {problem}" for problem in problems]


def copied_scripts(folder: Path) -> None:
    """As much of a checkout as the set-up's functions need."""
    ignore = shutil.ignore_patterns("__pycache__", "tinyllama_tools")
    shutil.copytree(PROJECT / "scripts", folder / "scripts", ignore=ignore)


def start_shell(code: str, folder: Path) -> subprocess.Popen:
    text = f"set -euo pipefail; source scripts/lib/common.sh; {code}"
    return start(["bash", "-c", text], folder, environment())


def bench_scripts(draw: random.Random) -> list[str]:
    """scripts/bench after its set-up: each has a folder of its own."""
    with scratch() as folder:
        copied_scripts(folder)
        options = " ".join(SUITE.command(folder)[1:-2])  # but journal and result
        code = f"source scripts/lib/results.sh; run_and_keep_results {PROGRAM} {options}"
        first = start_shell(code, folder)
        time.sleep(draw.choice((0, 0.5)))
        problems = ended([first, start_shell(code, folder)], folder)
        kept = sorted((folder / "results").iterdir())
        if len(kept) != 2:
            problems.append(f"{len(kept)} folders of results")
        for path in kept:
            (path / "results.json").rename(path / "out.json")
            problems += bench_problems(path, True, {})
        return problems


def set_ups(draw: random.Random) -> list[str]:
    """The second one waits, and works once the first is done or killed."""
    pause, is_killed = draw.uniform(0, 0.3), draw.random() < 0.3
    code = f"lock_set_up; echo begin $$ >>order; sleep {pause}; echo end $$ >>order; unlock_set_up"
    with scratch() as folder:
        copied_scripts(folder)
        processes = [start_shell(code, folder), start_shell(code, folder)]
        if is_killed:
            time.sleep(draw.uniform(0, 0.3))
            processes[0].kill()
            processes[0].wait()
            left_of(processes[0].pid)
            return ended(processes[1:], folder)
        problems = ended(processes, folder)
        order = [line.split() for line in (folder / "order").read_text().splitlines()]
        pairs = zip(order[::2], order[1::2], strict=True)
        if any(begun[1] != done[1] for begun, done in pairs):
            problems.append(f"two set-ups at once: {order}")
        return problems


def run_part(scope: Scope) -> Iterator[Tally]:
    """Twenty pairs of each."""
    for workload in scope.some(QUICK):
        kind = f"two of {workload.name}"
        yield each(scope, kind, scope.draws(kind, FULL), functools.partial(both, workload))
    for kind, one in (("two of scripts/bench", bench_scripts), ("two set-ups", set_ups)):
        yield each(scope, kind, scope.draws(kind, FULL), one)
