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
from typing import Any, NamedTuple

from campaign.workloads import Workload, journal_rows
from tinyllama_tools.commands.ranks import PROGRAM as RANK_PROGRAM


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


PREFIX = "tiny_llama_campaign_"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is removed, whatever happens."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def end_of(said: str, characters: int = 300) -> str:
    """The last of it, for the page: whose words name no folder of this machine."""
    return without_scratch(said).strip()[-characters:]


def without_scratch(text: str) -> str:
    return re.sub(rf"[^\s'\"]*{PREFIX}\w+/", "", text)


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
# a killed process is soon gone, but not at once
KILLED_S = 20.0


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


# in the environment of a started process and of all that these start, whatever their session
MARK = "TINY_LLAMA_CAMPAIGN_RUN"


def start(
    command: Sequence[str | Path],
    folder: Path,
    environment: dict[str, str],
    **pipes: Any,  # noqa: ANN401
) -> subprocess.Popen:
    """In a session of its own, with a mark by which all that it starts can be looked for; what it
    says is in `said`, unless `pipes`, which are Popen's, say otherwise."""
    with (folder / "said").open("ab") as said:
        usual = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
        marked = environment | {MARK: str(folder)}
        how = {"cwd": folder, "env": marked, "start_new_session": True}
        return subprocess.Popen(command, **(how | usual | pipes))


def said_in(folder: Path) -> str:
    return (folder / "said").read_text(encoding="utf-8", errors="replace")


def told_of(number: int, name: str) -> list[str]:
    """Zero-terminated texts of one of a process's files in /proc; of one that is gone, or has
    ended, an empty one."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/{name}").read_bytes().decode(errors="replace").split("\0")
    return [""]


def processes_of(folder: Path) -> list[int]:
    """All that were started in the folder, and by these, as far as they have not ended."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if f"{MARK}={folder}" in told_of(number, "environ")]


def _left_after(folder: Path, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def left_of(folder: Path) -> list[str]:
    """What does not hold where processes are still there after GRACE_S; they are killed then, and
    gone before the next try."""
    left = _left_after(folder, GRACE_S)
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    _left_after(folder, KILLED_S)
    return [f"{len(left)} processes are left after {GRACE_S} s"] * bool(left)


def ranks_of(launcher: subprocess.Popen, folder: Path, number: int) -> list[int]:
    """Ranks that it starts, once there are so many; fewer where it ends before."""
    ranks: list[int] = []
    while len(ranks) < number and launcher.poll() is None:
        # not before its program runs in it: a stop before that would stop its launcher too
        programs = {one: Path(told_of(one, "cmdline")[0]).name for one in processes_of(folder)}
        ranks = [one for one, name in programs.items() if name == RANK_PROGRAM.name]
        time.sleep(0.005)
    return ranks


def stop(number: int) -> bool:
    """Whether it could be stopped: it had not ended, and does nothing from now on."""
    # it is gone
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGSTOP)
        state = ""
        # Z, X: it has ended; another one than T: the signal is on its way
        while state not in {"Z", "X", "T"}:
            # after its name, which may hold anything
            state = Path(f"/proc/{number}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
        return state == "T"
    return False


def uncaught(said: str) -> list[str]:
    """What a program says where nobody caught an exception of its own."""
    found = re.search(r"Traceback \(most recent|terminate called", said)
    return [f"an exception nobody caught: ...{said[found.start() :][-300:]}"] if found else []


def next_run(workload: Workload, folder: Path) -> list[str]:
    """What does not hold of the run that a user starts after one that broke off."""
    rows = journal_rows(folder / "journal.jsonl")
    status, said = finish(workload.command(folder), folder, workload.environment)
    problems = [f"the next run ended with {status}: ...{end_of(said)!r}"] * bool(status)
    return problems + workload.problems(folder, status == 0, rows)


@functools.cache
def usual_seconds(workload: Workload) -> float:
    """How long an undisturbed run takes."""
    with scratch() as folder:
        begun = time.monotonic()
        status, said = finish(workload.command(folder), folder, workload.environment)
        problems = workload.problems(folder, status == 0)
        if status or problems:
            end = said[-2000:]
            raise RuntimeError(f"undisturbed, {workload.name}: {status}, {problems}, {end}")
        return time.monotonic() - begun
