"""Starts local ranks on cores of their own, watches them, and ends those that do not end."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tinyllama_tools.core.app import INTERRUPTED, REFUSED_OPTIONS, BadInputError
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


BUILD_IT = "build it: scripts/bench --setup-only"
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
# loaded before any fork: a child between fork and exec must not load libraries
LIBC = ctypes.CDLL(None, use_errno=True)
# between two looks at the ranks
LOOK_SECONDS = 0.05
# how long a rank may take to end after SIGTERM
TERM_SECONDS = 5.0
LAST_WORDS = 8
OnLine = Callable[[int, str], None]
Process = subprocess.Popen[bytes]


def _start(command: Sequence[str], environment: Mapping[str, str], cores: Sequence[int]) -> Process:
    parent = os.getpid()

    def in_child() -> None:
        """Between fork and exec: the kernel ends the rank with the launcher, however that ends."""
        if hasattr(LIBC, "prctl"):
            LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            # died before the line above
            if os.getppid() != parent:
                os._exit(1)
        os.sched_setaffinity(0, cores)

    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches the launcher alone, and the ranks once, from it
            start_new_session=True,
            preexec_fn=in_child,
        )
    except (OSError, subprocess.SubprocessError) as error:
        name = Path(command[0]).name
        raise BadInputError(f"{name} cannot be started: {error}; {BUILD_IT}") from error


def _ended_with(process: Process) -> int | None:
    """None while it runs, -N where signal N ended it. It is looked at without being waited for:
    until then, its number is the number of its group and nobody else's."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def ending_text(status: int) -> str:
    """`ended with 1`, `was ended by SIGKILL`."""
    if status >= 0:
        return f"ended with {status}"
    known = {int(number) for number in signal.Signals}
    name = signal.Signals(-status).name if -status in known else f"signal {-status}"
    return f"was ended by {name}"


@dataclass
class Rank:
    """`words`: the last lines it said, on standard output or error; `rest`: of an unfinished line.
    `status`: once it has ended."""

    number: int
    process: Process
    output: IO[bytes]
    words: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))
    rest: bytes = b""
    status: int | None = None

    def signal_group(self, number: int) -> None:
        """To it and whatever it started; nothing where they are gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass(frozen=True)
class WorldEnd:
    """`status`: 0 where no rank ended badly, else of the one that did first; 1 for a signal.
    `what`: that rank, how it ended, and its last words. `killed`: ranks that had to be ended."""

    status: int
    what: str = ""
    killed: Sequence[int] = ()


class World:
    """The ranks of one run; none of them, and nothing that one started, is left when it is left."""

    def __init__(self, on_line: OnLine) -> None:
        """`on_line`: gets every line with its rank."""
        self.ranks: list[Rank] = []
        self._on_line = on_line
        self._pipes = selectors.DefaultSelector()
        # in the order in which they ended
        self._bad: list[Rank] = []
        self._killed: list[int] = []
        self._is_interrupted = False

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.signal_group(signal.SIGKILL)
        for rank in self.ranks:
            rank.process.wait()
            rank.output.close()
        self._pipes.close()

    def start(self, command: Sequence[str], sets: Sequence[Sequence[int]], port: int) -> None:
        """A rank on each set of cores."""
        for number, cores in enumerate(sets):
            process = _start(command, rank_environment(number, len(sets), port), cores)
            assert process.stdout is not None
            rank = Rank(number, process, process.stdout)
            self.ranks.append(rank)
            self._pipes.register(rank.output, selectors.EVENT_READ, rank)

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.status is None]

    def _listen(self, timeout: float) -> bool:
        """Whether anything was there."""
        ready = self._pipes.select(timeout)
        for key, _ in ready:
            rank: Rank = key.data
            data = os.read(key.fd, 1 << 16)
            *lines, rank.rest = (rank.rest + data).split(b"\n")
            if not data:
                self._pipes.unregister(key.fileobj)
                lines, rank.rest = [rank.rest] if rank.rest else [], b""
            for line in (one.decode("utf-8", errors="replace").rstrip("\r") for one in lines):
                if line.strip():
                    rank.words.append(line)
                self._on_line(rank.number, line)
        return bool(ready)

    def _note_ends(self) -> None:
        new = []
        for rank in self._running():
            rank.status = _ended_with(rank.process)
            if rank.status:
                new.append((rank.status > 0, -rank.status, rank.number, rank))
        # of several at once, the one that a signal ended, or that refused to start, is the cause,
        # and the 1 of the others the effect
        self._bad += [rank for *_, rank in sorted(new)]

    def _interrupt(self, on_interrupt: Callable[[], None]) -> None:
        """The ranks finish the round in hand, however long that takes, and write; a second time
        they are killed."""
        for rank in self._running():
            rank.signal_group(signal.SIGKILL if self._is_interrupted else signal.SIGINT)
        if not self._is_interrupted:
            on_interrupt()
        self._is_interrupted = True

    def watch(self, others_seconds: float, on_interrupt: Callable[[], None]) -> WorldEnd:
        """To the end of all of them. `others_seconds`: how long they have to end by themselves once
        one has ended. A KeyboardInterrupt asks them to end (SIGINT), a second one kills them;
        `on_interrupt` is called at the first."""
        deadline, harsher = float("inf"), signal.SIGTERM
        while self._running():
            try:
                self._listen(LOOK_SECONDS)
                self._note_ends()
                now, left = time.monotonic(), self._running()
                if len(left) < len(self.ranks):
                    deadline = min(deadline, now + others_seconds)
                if now < deadline or not left:
                    continue
                if harsher == signal.SIGTERM:
                    self._killed = [rank.number for rank in left]
                for rank in left:
                    rank.signal_group(harsher)
                deadline, harsher = now + TERM_SECONDS, signal.SIGKILL
            except KeyboardInterrupt:
                self._interrupt(on_interrupt)
        while self._listen(0):
            pass
        return self._end()

    def _end(self) -> WorldEnd:
        """Of the rank that ended badly first. Of a wrong result all ranks end with 1 and rank 0
        alone says why, so a silent one has no word where another of its status has."""
        if self._is_interrupted:
            return WorldEnd(INTERRUPTED, "interrupted", self._killed)
        if not self._bad:
            return WorldEnd(0)
        status = self._bad[0].status or 0
        alike = [rank for rank in self._bad if rank.status == status]
        cause = next((rank for rank in alike if rank.words), alike[0]) if status > 0 else alike[0]
        how = ending_text(status)
        if cause.number in self._killed:
            how = "did not end after the others had"
        what = f"rank {cause.number} of {len(self.ranks)} {how}"
        words = "\n".join(cause.words)
        what += f"; its last words: {words}" if words else ""
        return WorldEnd(status if status > 0 else 1, what, self._killed)


PROGRAM = Path("benchmarks/tiny_llama_scaling")
FINISHING = "interrupted: the ranks finish the round in hand and write; Ctrl-C again kills them"
# a rank that still computes notices a loss within one timeout and asks who it was within another
TIMEOUTS = 2
# beyond those: 11 s of asking at the most, and the end of a process
GRACE_SECONDS = 15.0
# somebody else may take a free port before the ranks do
PORT_TRIES = 3
NOT_STARTED = "not started, since the command ended before"
PORT_IN_USE = re.compile(r"in use|EADDRINUSE", re.IGNORECASE)
Say = Callable[[str], None]


@dataclass
class Measured:
    """`failures`: numbers of ranks that did not come to their end. `status`: of the command."""

    failures: list[Failure] = field(default_factory=list)
    status: int = 0


def run_world(
    command: Sequence[str],
    sets: Sequence[Sequence[int]],
    others_seconds: float,
    log: Path,
    talk: tuple[Say, Say],
) -> WorldEnd:
    """One world of as many ranks as there are sets of cores. What they say goes to `log`. `talk`:
    what is done goes to the first, what rank 0 says to the second. A taken port is tried again with
    another one."""
    say, show = talk
    for left in reversed(range(PORT_TRIES)):
        with log.open("a", encoding="utf-8", buffering=1) as stream:

            def keep(rank: int, line: str, stream: IO[str] = stream) -> None:
                stream.write(f"[rank {rank}] {line}\n")
                if rank == 0 and line.strip():
                    show(line)

            with World(keep) as world:
                world.start(command, sets, free_port())
                say(f"{len(sets)} ranks on cores {'; '.join(map(_listed, sets))}")
                end = world.watch(others_seconds, lambda: say(FINISHING))
        if not left or end.status != REFUSED_OPTIONS or not PORT_IN_USE.search(end.what):
            break
        say("the port was taken meanwhile: trying another one")
    return end


def measure(options: argparse.Namespace, folder: Path, say: Say, show: Say) -> Measured:
    """Every number of ranks in its order. A refused option ends it, a world that failed does not.

    BadInputError where there are too few cores, before anything is started, or where the program
    cannot be started.
    """
    threads, cores = options.threads_per_process, allowed_cores()
    left = {
        ranks: core_sets(ranks, threads, cores, oversubscribe=options.oversubscribe)
        for ranks in options.processes
    }
    others_seconds = TIMEOUTS * options.timeout + GRACE_SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    measured = Measured()
    try:
        for ranks in options.processes:
            result = result_file(folder, ranks)
            command = [
                str(options.build_folder / PROGRAM),
                f"--benchmark_out={result}",
                f"--threads={threads}",
                f"--timeout={options.timeout:g}",
                *options.program,
            ]
            log = result.with_suffix(".log")
            end = run_world(command, left[ranks], others_seconds, log, (say, show))
            del left[ranks]
            if end.status == 0:
                continue
            measured.failures.append(Failure(ranks, end.status, end.what))
            say(f"{ranks} ranks: {end.what}")
            if end.killed:
                say(f"{ranks} ranks: ended by force: {_listed(end.killed)}")
            measured.status = end.status if end.status in (REFUSED_OPTIONS, INTERRUPTED) else 1
            if measured.status != 1:
                break
    except KeyboardInterrupt:
        # between two worlds
        measured.status = INTERRUPTED
    measured.failures += [Failure(ranks, measured.status, NOT_STARTED) for ranks in left]
    return measured
