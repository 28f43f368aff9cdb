"""Starts local ranks on cores of their own, watches them, and ends those that do not end."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import INTERRUPTED, REFUSED_OPTIONS, BadInputError
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.ranks import Failure, result_file

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def core_order(cores: Iterable[int], first_sibling: Mapping[int, int]) -> list[int]:
    """One logical processor of every core, then the second of every core, and so on."""
    seen: Counter[int] = Counter()
    ranked = []
    for core in sorted(cores):
        ranked.append((seen[first_sibling[core]], core))
        seen[first_sibling[core]] += 1
    return [core for _, core in sorted(ranked)]


def allowed_cores() -> list[int]:
    """Logical processors that this process may run on, in the order in which ranks take them."""
    first_sibling = {}
    for core in os.sched_getaffinity(0):
        first_sibling[core] = core
        with contextlib.suppress(OSError, ValueError):
            text = Path(SIBLINGS.format(core)).read_text(encoding="ascii")
            first_sibling[core] = int(text.replace("-", ",").split(",")[0])
    return core_order(first_sibling, first_sibling)


def core_sets(
    processes: int, threads: int, ordered: Sequence[int], *, oversubscribe: bool = False
) -> list[list[int]]:
    """One set of `threads` logical processors a process, disjoint unless `oversubscribe`, which
    then begins again with the first. BadInputError where there are too few."""
    needed = processes * threads
    if needed > len(ordered) and not oversubscribe:
        raise BadInputError(
            f"--processes {processes} with --threads-per-process {threads}: {needed} logical "
            f"processors are needed, {len(ordered)} are allowed ({_listed(sorted(ordered))}); take "
            "fewer, or --oversubscribe, with which times mean little"
        )
    taken = [ordered[i % len(ordered)] for i in range(needed)]
    return [sorted(set(taken[i : i + threads])) for i in range(0, needed, threads)]


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


ADDRESS = "127.0.0.1"
# of an outer job, which would say something else
OTHER_STARTERS = re.compile(
    "OMPI_COMM_WORLD_((LOCAL_)?RANK|SIZE)|SLURM_(PROCID|NTASKS|LOCALID)|"
    "TORCHELASTIC_(USE_AGENT_STORE|RUN_ID)"
)


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now. OSError without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Of one of `ranks` local processes that meet at `port`, as torchrun says it."""
    kept = {n: value for n, value in os.environ.items() if not OTHER_STARTERS.fullmatch(n)}
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    own = {name: str(number) for name, number in numbers.items()}
    return kept | own | {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port)}


PROGRAM = Path("benchmarks/tiny_llama_scaling")
BUILD_IT = "build it: scripts/bench --setup-only"
FINISHING = "interrupted: the ranks finish the round in hand and write; Ctrl-C again kills them"
# between two looks at the ranks
LOOK_SECONDS = 0.05
# how long a rank may take to end after SIGTERM
TERM_SECONDS = 5.0
# a rank that still computes notices a loss within one timeout and asks who it was within another
TIMEOUTS = 2
# beyond those: 11 s of asking at the most, and the end of a process
GRACE_SECONDS = 15.0
LAST_WORDS = 8
# what a rank says that waits for another
MISSED = re.compile("asking who is lost|does not answer|nobody answers")
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
# loaded before any fork: a child between fork and exec must not load libraries
LIBC = ctypes.CDLL(None, use_errno=True)


def _before_exec(cores: Sequence[int], parent: int) -> None:
    """In the child: the kernel ends the rank with the launcher, however that ends."""
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        # died before the line above
        if os.getppid() != parent:
            os._exit(1)
    os.sched_setaffinity(0, cores)


class Rank:
    """A started one. `words`: the last lines it said, on standard output or error. `status`: once
    it has ended, -N where signal N ended it."""

    def __init__(self, command: Sequence[str], cores: Sequence[int], *place: int) -> None:
        """`place`: as of rank_environment()."""
        self.number = place[0]
        self.status: int | None = None
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self._listener: threading.Thread | None = None
        try:
            self._process = subprocess.Popen(
                command,
                env=rank_environment(*place),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                # Ctrl-C reaches the launcher alone, and the ranks once, from it
                start_new_session=True,
                preexec_fn=partial(_before_exec, cores, os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            name = Path(command[0]).name
            raise BadInputError(f"{name} cannot be started: {error}; {BUILD_IT}") from error

    def hear(self, say: Callable[[int, str], object]) -> None:
        """`say` gets its number and every line, in a thread; only once all ranks are started, since
        a process that forks must have one thread."""

        def listen() -> None:
            for line in self._process.stdout or ():
                text = line.rstrip()
                self.words.extend([text] if text else [])
                say(self.number, text)

        self._listener = threading.Thread(target=listen, daemon=True)
        self._listener.start()

    def look(self) -> int | None:
        """At the status. It is looked at without being waited for: until then, the process's number
        is the number of its group and nobody else's."""
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            ended = found.si_code == os.CLD_EXITED
            self.status = found.si_status if ended else -found.si_status
        return self.status

    def signal_group(self, number: int) -> None:
        """To it and whatever it started; nothing where they are gone."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Nothing of it is left, and all that it said was heard."""
        self.signal_group(signal.SIGKILL)
        if self._listener is not None:
            self._listener.join(TERM_SECONDS)
        self._process.wait()


class WorldEnd(NamedTuple):
    """`status`: 0 where no rank ended badly, else of the one that did first; 1 for a signal.
    `what`: that rank, how it ended, its last words, and which ranks had to be ended."""

    status: int
    what: str = ""


def cause_of(bad: Sequence[Rank], killed: Sequence[int], ranks: int) -> WorldEnd:
    """`bad`: ranks in the order in which they ended.

    Of a wrong result all ranks end with 1 and rank 0 alone says why, so a silent one has no word
    where another has; nor has one that only missed another, such as that whose disk was full.
    """
    first = bad[0]
    if first.status > 0:
        speaking = [one for one in bad if one.status > 0 and one.words]
        causes = [one for one in speaking if not MISSED.search("\n".join(one.words))]
        hung = [one for one in bad if one.number in killed]
        first = (causes or hung or speaking or bad)[0]
    status, how = first.status, f"ended with {first.status}"
    if status < 0:
        with contextlib.suppress(ValueError):  # a signal without a name
            how = f"was ended by {signal.Signals(-status).name}"
    if first.number in killed:
        how = "did not end after the others had"
    words = "\n".join(first.words)
    said = f"; its last words: {words}" if words else ""
    return WorldEnd(max(1, status), f"rank {first.number} of {ranks} {how}{said}")


def watch(ranks: Sequence[Rank], others_seconds: float, progress: Progress) -> WorldEnd:
    """To the end of all of them. `others_seconds`: how long they have to end by themselves once
    one has ended. A KeyboardInterrupt asks them to end after the round in hand, however long
    that takes, and a second one kills them."""
    deadline, harsher, interrupt = math.inf, signal.SIGTERM, signal.SIGINT
    bad: list[Rank] = []
    killed: list[int] = []
    while left := [rank for rank in ranks if rank.status is None]:
        try:
            # of several that ended at once, the one that a signal ended, or that refused to
            # start, is the cause, and the 1 of the others the effect
            new = [rank for rank in left if rank.look()]
            bad += sorted(new, key=lambda rank: (rank.status > 0, -rank.status))
            now, left = time.monotonic(), [rank for rank in left if rank.status is None]
            if len(left) < len(ranks):
                deadline = min(deadline, now + others_seconds)
            if now >= deadline:
                killed = killed or [rank.number for rank in left]
                for rank in left:
                    rank.signal_group(harsher)
                deadline, harsher = now + TERM_SECONDS, signal.SIGKILL
            time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            for rank in left:
                rank.signal_group(interrupt)
            progress.line(FINISHING)
            interrupt = signal.SIGKILL
    for rank in ranks:
        rank.close()
    end = cause_of(bad, killed, len(ranks)) if bad else WorldEnd(0)
    if interrupt == signal.SIGKILL:
        end = WorldEnd(INTERRUPTED, "interrupted")
    by_force = f"; ended by force: {_listed(killed)}" if killed else ""
    return WorldEnd(end.status, end.what + by_force)


def run_world(
    command: Sequence[str],
    sets: Sequence[Sequence[int]],
    others_seconds: float,
    log: Path,
    progress: Progress,
) -> WorldEnd:
    """A rank on each set of cores; none of them, and nothing that one started, is left when it
    ends. What they say goes to `log`, and what rank 0 says to a terminal too."""
    ranks: list[Rank] = []
    with log.open("w", encoding="utf-8", buffering=1) as stream:

        def say(number: int, line: str) -> None:
            # where a disk is full, the result says so
            with contextlib.suppress(OSError):
                stream.write(f"[rank {number}] {line}\n")
            if number == 0 and line:
                progress.passing(line)

        port = free_port()
        try:
            for number, cores in enumerate(sets):
                ranks.append(Rank(command, cores, number, len(sets), port))
            for rank in ranks:
                rank.hear(say)
            progress.line(f"{len(sets)} ranks on cores {'; '.join(map(_listed, sets))}")
            return watch(ranks, others_seconds, progress)
        finally:
            for rank in ranks:
                rank.signal_group(signal.SIGKILL)
            for rank in ranks:
                rank.close()


def measure(
    options: argparse.Namespace, folder: Path, progress: Progress
) -> tuple[int, list[Failure]]:
    """Every number of ranks in its order. A refused option ends it, a world that failed does not.
    The status of the command, and the numbers of ranks that did not come to their end.

    BadInputError where there are too few cores, before anything is started, or where the program
    cannot be started; OSError where `folder` is there or cannot be made.
    """
    threads, cores = options.threads_per_process, allowed_cores()
    sets = {
        ranks: core_sets(ranks, threads, cores, oversubscribe=options.oversubscribe)
        for ranks in options.processes
    }
    others_seconds = TIMEOUTS * options.timeout + GRACE_SECONDS
    # another run of the same second has the same name
    folder.mkdir(parents=True)
    failures: list[Failure] = []
    status = 0
    for ranks, own in sets.items():
        result = result_file(folder, ranks)
        given = (f"--threads={threads}", f"--timeout={options.timeout:g}", *options.program)
        command = (str(options.build_folder / PROGRAM), f"--benchmark_out={result}", *given)
        try:
            end = run_world(command, own, others_seconds, result.with_suffix(".log"), progress)
        except KeyboardInterrupt:
            # while the ranks were being started
            end = WorldEnd(INTERRUPTED, "interrupted")
        if end.status != 0:
            failures.append(Failure(ranks, end.status, end.what))
            progress.line(f"{ranks} ranks: {end.what}")
            status = 1
        if end.status in (REFUSED_OPTIONS, INTERRUPTED):
            return end.status, failures
    return status, failures
