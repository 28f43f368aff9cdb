"""How programs are run, watched and started again."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from campaign.tally import scratch
from campaign.workloads import Rows, Workload

# of one run
TIME_LIMIT_S = 300
# in which processes that lost their parent notice it
GRACE_S = 30


def finish(
    command: Sequence[str | Path], folder: Path, environment: dict[str, str]
) -> tuple[int, str]:
    """Its status, and what it said."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def start(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own, whose processes can be looked for; what it says is in `said`."""
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def said_in(folder: Path) -> str:
    return (folder / "said").read_text(encoding="utf-8", errors="replace")


def processes_of(session: int) -> list[int]:
    """All that are left of a session, zombies apart."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, number, *_ = path.read_text().rpartition(")")[2].split()
            if int(number) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def left_of(session: int) -> list[str]:
    """What does not hold where processes are still there after GRACE_S; they are killed then."""
    deadline = time.monotonic() + GRACE_S
    while (left := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return [f"{len(left)} processes are left after {GRACE_S} s"] * bool(left)


def ranks_of(process: subprocess.Popen[bytes], number: int) -> list[int]:
    """Processes that this one starts, once there are so many; fewer where it ends before."""
    ranks: list[int] = []
    while len(ranks) < number and process.poll() is None:
        ranks = [p for p in processes_of(process.pid) if p != process.pid]
        time.sleep(0.005)
    return ranks


def uncaught(said: str) -> list[str]:
    """What a program says where nobody caught an exception of its own."""
    found = re.search(r"Traceback \(most recent|terminate called", said)
    return [f"an exception nobody caught: ...{said[found.start() :][-300:]}"] if found else []


def next_run(workload: Workload, folder: Path, rows: Rows) -> list[str]:
    """What does not hold of the run that a user starts after one that broke off."""
    status, said = finish(workload.again(folder), folder, workload.environment)
    problems = [f"the next run ended with {status}: ...{said.strip()[-300:]!r}"] * bool(status)
    return problems + workload.problems(folder, status == 0, rows)


@functools.cache
def usual_seconds(workload: Workload) -> float:
    """How long an undisturbed run takes."""
    with scratch() as folder:
        begun = time.monotonic()
        status, said = finish(workload.command(folder), folder, workload.environment)
        problems = workload.problems(folder, status == 0, {})
        if status or problems:
            end = said[-2000:]
            raise RuntimeError(f"undisturbed, {workload.name}: {status}, {problems}, {end}")
        return time.monotonic() - begun
