"""What a part of the campaign tries and finds, and how programs are run, made to fail, looked for
and started again.

Functions that try something return what did not hold, in words; None where no fault was met.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import built_programs
from built_programs import environment, wait_until
from campaign.workloads import Workload, journal_rows, once
from tinyllama_tools.core.app import without_folders

# tries at a time, and draws of one that meets no fault
JOBS, MOST_DRAWN = 2, 50


class OfLibrary(str):
    """What did not hold by a fault of a library, which is counted apart."""


class Note(str):
    """What was measured besides, which is no violation."""


class Tried(NamedTuple):
    """A number of faults of one kind, and what did not hold after them."""

    kind: str
    found: Sequence[str]
    count: int = 1


@dataclass(frozen=True)
class Scope:
    """How much of a part is done: `share` of its full counts, `minutes` of a soak, from `seed`.
    `names`: only kinds that end with one of these, where there are any."""

    share: float = 1.0
    minutes: float = 120.0
    seed: int = 1
    names: tuple[str, ...] = ()

    def has(self, kind: str) -> bool:
        return not self.names or kind.endswith(self.names)

    def count(self, full: int) -> int:
        return max(1, round(self.share * full))

    def draws(self, kind: str, full: int) -> list[random.Random]:
        """A generator for each try, whatever the order they are tried in."""
        return [random.Random(f"{self.seed} {kind} {i}") for i in range(self.count(full))]

    def tried(
        self, kind: str, tries: int | Iterable, one: Callable[[Any], Sequence[str] | None]
    ) -> Iterator[Tried]:
        """Does each of the tries, or so many draws at full count, some at a time. A try that raises
        is a violation. One that met no fault does not count; where it is drawn, it is drawn
        again."""

        def guarded(given: object) -> Tried:
            try:
                for _ in range(MOST_DRAWN if isinstance(given, random.Random) else 1):
                    if (found := one(given)) is not None:
                        return Tried(kind, found)
            except Exception as error:
                return Tried(kind, [f"{type(error).__name__}: {error}"[:300]])
            return Tried(kind, [], 0)

        if self.has(kind):
            given = self.draws(kind, tries) if isinstance(tries, int) else tries
            with ThreadPoolExecutor(JOBS) as pool:
                yield from pool.map(guarded, given)


PREFIX = "tiny_llama_campaign_"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is removed, whatever happens, as are all processes that were started in it, and
    what they said and called, which stands beside it."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as beside:
        folder = Path(beside, "work")
        folder.mkdir()
        try:
            yield folder
        finally:
            kill_all(folder)


def end_of(said: str, characters: int = 300) -> str:
    """The end of it, for the page, which names no folder of this machine."""
    return without_folders(said).strip()[-characters:]


# of one run
TIME_LIMIT_S = 300
# in which processes that lost their parent notice it
GRACE_S = 30
# in the environment of a started process and of all that these start, whatever their session
MARK = "TINY_LLAMA_CAMPAIGN_RUN"


def start(
    command: Sequence[str | Path],
    folder: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    **pipes: Any,  # noqa: ANN401
) -> subprocess.Popen[str]:
    """Starts a command in a session of its own, marked so that all that it starts can be found.
    What it says goes to a file beside the folder, in which writing may fail; `pipes`: Popen's, for
    another place."""
    with folder.with_name("said").open("ab") as said:
        marked = environment(**variables, **{MARK: str(folder)})
        how = {"cwd": folder, "env": marked, "start_new_session": True}
        usual = {"stdout": said, "stderr": said}
        return built_programs.start(command, **(how | usual | pipes))


def said_in(folder: Path) -> str:
    """By all that was started in the folder so far."""
    return folder.with_name("said").read_text(encoding="utf-8", errors="replace")


def finish(command: Sequence[str | Path], folder: Path, **variables: str) -> tuple[int, str]:
    """The command's status, and what was said."""
    return start(command, folder, variables).wait(TIME_LIMIT_S), said_in(folder)


def told_of(number: int, name: str) -> list[str]:
    """The zero-terminated texts in a file of a process in /proc; an empty one where it has
    ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/{name}").read_bytes().decode(errors="replace").split("\0")
    return [""]


def processes_of(folder: Path) -> list[int]:
    """Processes that were started in the folder or below it, by whomever, and have not ended."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    mark = f"{MARK}={folder}"
    return [n for n in numbers if any(t.startswith(mark) for t in told_of(n, "environ"))]


def kill_all(folder: Path) -> int:
    """Kills what was started in the folder; how many there were."""
    left = processes_of(folder)
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    wait_until(lambda: not processes_of(folder))
    return len(left)


def left_of(folder: Path) -> list[str]:
    """What does not hold where processes are still there after GRACE_S; they are killed then."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not processes_of(folder), GRACE_S)
        return []
    return [f"{kill_all(folder)} processes are left after {GRACE_S} s"]


def uncaught(said: str) -> list[str]:
    """What a program says where nobody caught an exception."""
    found = re.search(r"Traceback \(most recent|terminate called", said)
    return [f"an exception nobody caught: ...{said[found.start() :][-300:]}"] if found else []


def next_run(workload: Workload, folder: Path) -> list[str]:
    """What does not hold of the run that a user starts after one that broke off."""
    rows = journal_rows(folder / "journal.jsonl")
    status, said = finish(workload.command(folder), folder)
    problems = [f"the next run ended with {status}: ...{end_of(said)!r}"] * bool(status)
    return problems + workload.problems(folder, status == 0, rows)


def ended(workload: Workload, folder: Path, status: int, allowed: Container[int]) -> list[str]:
    """What does not hold after a run that was disturbed, and of the next one where it did not end
    well."""
    said = said_in(folder)
    problems = [f"status {status}: ...{end_of(said)!r}"] * (status not in allowed)
    problems += uncaught(said) + left_of(folder) + workload.problems(folder, status == 0)
    return problems + (next_run(workload, folder) if status else [])


@once
def library() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """failing_calls.c, compiled; its folder goes when this process ends."""
    folder, source = tempfile.TemporaryDirectory(prefix=PREFIX), Path(__file__).parent
    built = Path(folder.name, "failing_calls.so")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", built, source / "failing_calls.c", "-ldl"]
    subprocess.run(command, check=True)
    return built, folder


def run(
    workload: Workload, work: Path, *within: str, **fault: str | int
) -> tuple[int, str, list[str]]:
    """Runs a workload in `work` under failing_calls.c: the status, what was said, and the calls
    that were listed. `within`: what starts the command."""
    calls = work.with_name("calls")
    preloaded = {"LD_PRELOAD": library()[0], "FAIL_BELOW": work, "FAIL_LIST": calls}
    faults = {name: str(value) for name, value in (preloaded | fault).items()}
    status, said = finish([*within, *workload.command(work)], work, **faults)
    listed = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
    return status, said, [line.strip() for line in listed]


@once
def undisturbed(workload: Workload) -> tuple[float, list[str]]:
    """How long a run takes, and the calls that it makes."""
    with scratch() as folder:
        begun = time.monotonic()
        status, said, calls = run(workload, folder, FAIL_CALL=0)
        seconds = time.monotonic() - begun
        problems = workload.problems(folder, status == 0)
        if status or problems:
            raise RuntimeError(
                f"undisturbed, {workload.name}: {status}, {problems}, {said[-2000:]}"
            )
        return seconds, calls
