"""How much of a part of the campaign is tried and what of it did not hold; how programs are run,
watched and started again."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from campaign.workloads import Workload, journal_rows


class OfLibrary(str):
    """What did not hold by a fault of a library: counted and listed apart."""


@dataclass
class Tally:
    """`tried`: how many faults of each kind. `violations`: what did not hold, in words;
    `of_libraries`: the same, how often each. `notes`: what was measured besides."""

    tried: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    of_libraries: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, problems: Iterable[str]) -> None:
        """One fault of this kind and what did not hold after it."""
        self.tried[kind] += 1
        for problem in problems:
            if isinstance(problem, OfLibrary):
                self.of_libraries[problem] += 1
            else:
                self.violations.append(f"{kind}: {problem}")

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = vars(self).values(), vars(other).values()
        return Tally(*(a + b for a, b in zip(mine, theirs, strict=True)))


@dataclass(frozen=True)
class Scope:
    """How much of a part is done: `share` of its full counts, `minutes` of a soak, from `seed`; of
    workloads and other kinds only those in `names`, where it has any."""

    share: float = 1.0
    minutes: float = 120.0
    seed: int = 1
    names: tuple[str, ...] = ()
    jobs: int = 2

    def has(self, name: str) -> bool:
        return not self.names or name in self.names

    def count(self, full: int) -> int:
        """The share of a full count, at least one."""
        return max(1, round(self.share * full))

    def draws(self, kind: str, full: int) -> list[random.Random]:
        """A generator for each try; the same whatever the order they are tried in."""
        return [random.Random(f"{self.seed} {kind} {i}") for i in range(self.count(full))]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is removed, whatever happens."""
    with tempfile.TemporaryDirectory(
        prefix="tiny_llama_campaign_", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


class Trial(NamedTuple):
    """`name`: what a scope chooses it by. `full`: how often it is tried. `one`: a try, from random
    draws; what did not hold."""

    kind: str
    name: str
    full: int
    one: Callable[[random.Random], list[str]]


def each(scope: Scope, kind: str, draws: list, one: Callable[..., list[str]]) -> Tally:
    """`one` of each draw, some at a time; it gives what did not hold, an exception is that too."""
    tally = Tally()

    def guarded(draw: object) -> list[str]:
        try:
            return one(draw)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"[:300]]

    with ThreadPoolExecutor(scope.jobs) as pool:
        for number, problems in enumerate(pool.map(guarded, draws), start=1):
            tally.add(kind, problems)
            if problems or number % max(1, len(draws) // 5) == 0:
                print(f"{kind}: {number} of {len(draws)} {problems}", flush=True)
    return tally


def tried(scope: Scope, trials: Iterable[Trial]) -> Iterator[Tally]:
    """Those that the scope has."""
    for kind, name, full, one in trials:
        if scope.has(name):
            yield each(scope, kind, scope.draws(kind, full), one)


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


def next_run(workload: Workload, folder: Path) -> list[str]:
    """What does not hold of the run that a user starts after one that broke off."""
    rows = journal_rows(folder / "journal.jsonl")
    status, said = finish(workload.command(folder), folder, workload.environment)
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
