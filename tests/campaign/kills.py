"""kill -9 at any moment: no row is lost or measured twice, every file is whole or absent, and the
next run needs no clean-up."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from campaign.tally import TIME_LIMIT_S, Scope, Tally, each, scratch
from campaign.workloads import (
    COMPARE,
    GRID,
    HISTORY,
    REPORT,
    SCALING,
    STUDY,
    SUITE,
    TRAINING,
    WORKLOADS,
    Workload,
    journal_rows,
)

FULL = {w.name: 50 for w in WORKLOADS} | {SUITE.name: 200, TRAINING.name: 200, GRID.name: 10}
# in which processes that lost their parent notice it
GRACE_S = 30


def start(workload: Workload, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """In a group of its own, whose processes can be looked for."""
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=workload.environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def processes_of(session: int) -> list[int]:
    """All that are left of a session, zombies apart."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def left_processes(session: int) -> list[int]:
    """Those that are still there after GRACE_S; killed then."""
    deadline = time.monotonic() + GRACE_S
    while (left := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in left:
        os.kill(number, signal.SIGKILL)
    return left


@functools.cache
def usual_seconds(workload: Workload) -> float:
    """How long an undisturbed run takes."""
    with scratch() as folder:
        begun = time.monotonic()
        process = start(workload, workload.command(folder), folder)
        status = process.wait(TIME_LIMIT_S)
        problems = workload.problems(folder, status == 0, {})
        if status or problems:
            said = (folder / "said").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"undisturbed, {workload.name}: {status}, {problems}, {said}")
        return time.monotonic() - begun


def killed(workload: Workload, draw: random.Random) -> list[str]:
    """Killed once or twice at random moments, then run to its end."""
    usual = usual_seconds(workload)
    with scratch() as folder:
        problems: list[str] = []
        rows = {}
        commands = [workload.command, *[workload.again] * draw.choice((0, 0, 1))]
        for command in commands:
            process = start(workload, command(folder), folder)
            # the end, where files are written, is as likely as all that comes before it
            late = draw.random() < 0.3
            time.sleep(usual * (draw.uniform(0.85, 1.05) if late else draw.uniform(0, 1)))
            process.kill()
            status = process.wait()
            left = left_processes(process.pid)
            problems += [f"{len(left)} processes are left"] * bool(left)
            problems += workload.problems(folder, status == 0, rows)
            rows = journal_rows(folder / "journal.jsonl")
        process = start(workload, workload.again(folder), folder)
        status = process.wait(TIME_LIMIT_S)
        if status != 0:
            said = (folder / "said").read_text(errors="replace").strip()[-300:]
            problems.append(f"the next run ended with {status}: {said}")
        return problems + workload.problems(folder, status == 0, rows)


def killed_rank(draw: random.Random) -> list[str]:
    """One of the ranks that scripts/scaling started; then the same once more."""
    usual = usual_seconds(SCALING)
    with scratch() as folder:
        process = start(SCALING, SCALING.command(folder), folder)
        deadline = time.monotonic() + TIME_LIMIT_S
        ranks: list[int] = []
        while len(ranks) < 2 and process.poll() is None and time.monotonic() < deadline:
            ranks = [p for p in processes_of(process.pid) if p != process.pid]
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.8 * usual))
        with contextlib.suppress(ProcessLookupError, IndexError):  # it had ended
            os.kill(draw.choice(ranks), signal.SIGKILL)
        status = process.wait(TIME_LIMIT_S)
        problems = [] if status in {0, 1} else [f"scripts/scaling ended with {status}"]
        left = left_processes(process.pid)
        problems += [f"{len(left)} processes are left"] * bool(left)
        problems += SCALING.problems(folder, False, {})
        again = start(SCALING, SCALING.again(folder), folder)
        status = again.wait(TIME_LIMIT_S)
        problems += [f"the next run ended with {status}"] * bool(status)
        return problems + SCALING.problems(folder, status == 0, {})


def run_part(scope: Scope) -> Tally:
    """All of them, and ranks."""
    tally = Tally()
    for workload in scope.some((HISTORY, REPORT, SUITE, TRAINING, STUDY, COMPARE, GRID)):
        draws = scope.draws(workload.name, FULL[workload.name])
        one = functools.partial(killed, workload)
        tally += each(scope, f"kill of {workload.name}", draws, one)
    for workload in scope.some([SCALING]):
        draws = scope.draws("rank", FULL[workload.name])
        tally += each(scope, "kill of a rank", draws, killed_rank)
    return tally
