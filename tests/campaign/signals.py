"""INT, TERM, HUP and PIPE at random moments, once and twice: a documented exit status, results of
finished cases written, and the next run needs no clean-up."""

from __future__ import annotations

import functools
import random
import signal
import time
from collections.abc import Iterator

from campaign.runs import TIME_LIMIT_S, left_of, next_run, said_in, start, uncaught, usual_seconds
from campaign.tally import Scope, Tally, each, scratch
from campaign.workloads import INTERRUPTED, QUICK, Workload, journal_rows

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
FULL = 25


def signalled(workload: Workload, draw: random.Random) -> list[str]:
    """At a random moment; a second one, soon after, may have its default effect."""
    usual = usual_seconds(workload)
    sent, is_twice = draw.choice(SIGNALS), draw.random() < 0.4
    with scratch() as folder:
        process = start(workload.command(folder), folder, workload.environment)
        time.sleep(draw.uniform(0, usual))
        process.send_signal(sent)
        if is_twice:
            time.sleep(draw.uniform(0, 0.3))
            process.send_signal(sent)
        status = process.wait(TIME_LIMIT_S)
        # before a handler is there, and from the second on, a signal does what it always does
        allowed = {0, INTERRUPTED, -sent}
        said = said_in(folder)
        problems = [] if status in allowed else [f"status {status}: ...{said[-300:]!r}"]
        # Python's own start has no handler yet
        problems += uncaught(said) if not is_twice and status != -sent else []
        problems += left_of(process.pid) + workload.problems(folder, status == 0, {})
        problems += next_run(workload, folder, journal_rows(folder / "journal.jsonl"))
        return [f"{sent.name}{' twice' * is_twice}: {problem}" for problem in problems]


def run_part(scope: Scope) -> Iterator[Tally]:
    """Every workload."""
    for workload in scope.some(QUICK):
        one = functools.partial(signalled, workload)
        kind = f"signal to {workload.name}"
        yield each(scope, kind, scope.draws(kind, FULL), one)
