"""kill -9 at any moment: no row is lost or measured twice, every file is whole or absent, and the
next run needs no clean-up."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import Iterator

from campaign.runs import TIME_LIMIT_S, left_of, next_run, ranks_of, start, usual_seconds
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import GRID, SCALING, SUITE, TRAINING, WORKLOADS, Workload, journal_rows

FULL = {w.name: 50 for w in WORKLOADS} | {SUITE.name: 200, TRAINING.name: 200, GRID.name: 10}


def killed(workload: Workload, draw: random.Random) -> list[str]:
    """Killed once or twice at random moments, then run to its end."""
    usual = usual_seconds(workload)
    with scratch() as folder:
        problems: list[str] = []
        rows = {}
        for command in [workload.command, *[workload.again] * draw.choice((0, 0, 1))]:
            process = start(command(folder), folder, workload.environment)
            # the end, where files are written, is as likely as all that comes before it
            late = draw.random() < 0.3
            time.sleep(usual * (draw.uniform(0.85, 1.05) if late else draw.uniform(0, 1)))
            process.kill()
            status = process.wait()
            problems += left_of(process.pid)
            problems += workload.problems(folder, status == 0, rows)
            rows = journal_rows(folder / "journal.jsonl")
        return problems + next_run(workload, folder, rows)


def killed_rank(draw: random.Random) -> list[str]:
    """One of the ranks that scripts/scaling started; then the same once more."""
    usual = usual_seconds(SCALING)
    with scratch() as folder:
        process = start(SCALING.command(folder), folder, SCALING.environment)
        ranks = ranks_of(process, 2)
        time.sleep(draw.uniform(0, 0.8 * usual))
        with contextlib.suppress(ProcessLookupError, IndexError):  # it had ended
            os.kill(draw.choice(ranks), signal.SIGKILL)
        status = process.wait(TIME_LIMIT_S)
        problems = [] if status in {0, 1} else [f"scripts/scaling ended with {status}"]
        problems += left_of(process.pid) + SCALING.problems(folder, False, {})
        return problems + next_run(SCALING, folder, {})


def run_part(scope: Scope) -> Iterator[Tally]:
    """All of them, and ranks."""
    for workload in scope.some(w for w in WORKLOADS if w is not SCALING):
        draws = scope.draws(workload.name, FULL[workload.name])
        one = functools.partial(killed, workload)
        yield each(scope, f"kill of {workload.name}", draws, one)
    if scope.has(SCALING.name):
        draws = scope.draws("rank", FULL[SCALING.name])
        yield each(scope, "kill of a rank", draws, killed_rank)
