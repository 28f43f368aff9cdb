"""INT, TERM, HUP and PIPE at random moments, once and twice: a documented exit status, results of
finished cases written, and the next run needs no clean-up."""

from __future__ import annotations

import functools
import random
import signal
import time

from campaign.kills import GRACE_S, left_processes, start, usual_seconds
from campaign.tally import TIME_LIMIT_S, Scope, Tally, each, scratch
from campaign.workloads import (
    COMPARE,
    HISTORY,
    INTERRUPTED,
    REPORT,
    SCALING,
    STUDY,
    SUITE,
    TRAINING,
    Workload,
    journal_rows,
    uncaught,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
FULL = 25


def signalled(workload: Workload, draw: random.Random) -> list[str]:
    """At a random moment; a second one, soon after, may have its default effect."""
    usual = usual_seconds(workload)
    sent, is_twice = draw.choice(SIGNALS), draw.random() < 0.4
    with scratch() as folder:
        process = start(workload, workload.command(folder), folder)
        time.sleep(draw.uniform(0, usual))
        process.send_signal(sent)
        if is_twice:
            time.sleep(draw.uniform(0, 0.3))
            process.send_signal(sent)
        status = process.wait(TIME_LIMIT_S)
        # before a handler is there, and from the second on, a signal does what it always does
        allowed = {0, INTERRUPTED, -sent}
        problems = [] if status in allowed else [f"status {status}"]
        left = left_processes(process.pid)
        problems += [f"{len(left)} processes are left after {GRACE_S} s"] * bool(left)
        said = (folder / "said").read_text(errors="replace")
        problems += uncaught(said) if not is_twice else []
        problems += workload.problems(folder, status == 0, {})
        rows = journal_rows(folder / "journal.jsonl")
        again = start(workload, workload.again(folder), folder)
        ended = again.wait(TIME_LIMIT_S)
        problems += [f"the next run ended with {ended}"] * bool(ended)
        problems += workload.problems(folder, ended == 0, rows)
        twice = " twice" if is_twice else ""
        return [f"{sent.name}{twice}: {problem}" for problem in problems]


def run_part(scope: Scope) -> Tally:
    """Every workload."""
    tally = Tally()
    for workload in scope.some((SUITE, TRAINING, HISTORY, REPORT, STUDY, COMPARE, SCALING)):
        one = functools.partial(signalled, workload)
        kind = f"signal to {workload.name}"
        tally += each(scope, kind, scope.draws(kind, FULL), one)
    return tally
