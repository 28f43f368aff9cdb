"""Starts local ranks on cores of their own, watches them, and ends those that do not end."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tinyllama_tools.core.app import INTERRUPTED, REFUSED_OPTIONS, BadInputError
from tinyllama_tools.data.ranks import Failure, log_file, result_file

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def allowed_cores() -> tuple[int, ...]:
    """Logical processors that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def siblings_of(cores: Sequence[int]) -> dict[int, int]:
    """The first logical processor of the core that each belongs to; itself where that is not
    known."""
    found = {}
    for core in cores:
        try:
            text = Path(SIBLINGS.format(core)).read_text(encoding="ascii")
            found[core] = int(text.replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            found[core] = core
    return found


def core_order(cores: Sequence[int], first_sibling: Mapping[int, int]) -> list[int]:
    """One logical processor of every core, then the second of every core, and so on."""
    seen: dict[int, int] = {}
    ranked = []
    for core in sorted(cores):
        owner = first_sibling.get(core, core)
        ranked.append((seen.get(owner, 0), core))
        seen[owner] = seen.get(owner, 0) + 1
    return [core for _, core in sorted(ranked)]


def core_sets(
    processes: int, threads: int, ordered: Sequence[int], *, oversubscribe: bool = False
) -> list[tuple[int, ...]]:
    """One set of `threads` logical processors a process, disjoint unless `oversubscribe`, which
    then begins again with the first.

    BadInputError where there are too few.
    """
    needed = processes * threads
    if needed > len(ordered) and not oversubscribe:
        raise BadInputError(
            f"--processes {processes} with --threads-per-process {threads}: {needed} logical "
            f"processors are needed, {len(ordered)} are allowed ({_listed(ordered)}); take fewer, "
            "or --oversubscribe, with which times mean little"
        )
    taken = [ordered[i % len(ordered)] for i in range(needed)]
    return [tuple(sorted(set(taken[i * threads : (i + 1) * threads]))) for i in range(processes)]


def _listed(cores: Sequence[int]) -> str:
    return ",".join(map(str, sorted(cores)))


ADDRESS = "127.0.0.1"
# of an outer job, which would say something else
OTHER_STARTERS = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
)


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now. OSError without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


def rank_environment(
    rank: int, ranks: int, port: int, outer: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Of one of `ranks` local processes that meet at `port`."""
    kept = {name: value for name, value in outer.items() if name not in OTHER_STARTERS}
    return kept | {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
    }


LAST_WORDS = 8
BUILD_IT = "build it: scripts/bench --setup-only"
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
# loaded before any fork: a child between fork and exec must not load libraries
LIBC = ctypes.CDLL(None, use_errno=True)


def _in_child(cores: Sequence[int], parent: int) -> Callable[[], None]:
    """Runs between fork and exec: the kernel ends the rank with the launcher, however that ends."""

    def prepare() -> None:
        if hasattr(LIBC, "prctl"):
            LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            # died before the line above
            if os.getppid() != parent:
                os._exit(1)
        os.sched_setaffinity(0, cores)

    return prepare


class RankProcess:
    """A started rank. `words`: the last lines it said, on standard output or error."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        cores: Sequence[int],
    ) -> None:
        self.rank = rank
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self._rest = b""
        try:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the launcher alone, and the ranks once, from it
                start_new_session=True,
                preexec_fn=_in_child(cores, os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            name = Path(command[0]).name
            raise BadInputError(f"{name} cannot be started: {error}; {BUILD_IT}") from error
        os.set_blocking(self.output.fileno(), False)

    @property
    def output(self) -> IO[bytes]:
        """Where it says things."""
        if self.process.stdout is None:
            raise ValueError("the rank was started without a pipe")
        return self.process.stdout

    @property
    def status(self) -> int | None:
        """None while it runs, -N where signal N ended it.

        It is looked at without being waited for: until then, its number is the number of its group
        and nobody else's.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self.process.pid, look)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def said(self) -> list[str]:
        """Whole lines since the last time; the rest too once it has ended."""
        data = self._rest
        with contextlib.suppress(OSError):
            while chunk := self.output.read():
                data += chunk
        *lines, self._rest = data.split(b"\n")
        if self.status is not None and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        texts = [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines]
        self.words.extend(text for text in texts if text.strip())
        return texts

    def signal_group(self, number: int) -> None:
        """To it and whatever it started; nothing where they are gone. Not after close()."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Waits for its end."""
        self.process.wait()
        self.output.close()


def ending_text(status: int) -> str:
    """`ended with 1`, `was ended by SIGKILL`."""
    if status >= 0:
        return f"ended with {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


# between two looks at the ranks
LOOK_SECONDS = 0.05
OnLine = Callable[[int, str], None]


@dataclass(frozen=True)
class Deadlines:
    """Seconds. `others`: how long the ranks have to end by themselves once one has ended: the time
    that the program waits for a lost one, and some more. `after_term`: between SIGTERM and
    SIGKILL."""

    others: float
    after_term: float = 5.0


@dataclass(frozen=True)
class WorldEnd:
    """`status`: of the rank that ended badly first, 0 where none did; 1 for a signal. `first`: that
    rank and how it ended, with its last words. `killed`: ranks that had to be ended."""

    status: int
    first: str = ""
    words: str = ""
    killed: tuple[int, ...] = ()
    is_interrupted: bool = False


class _Watch:
    def __init__(
        self,
        ranks: Sequence[RankProcess],
        deadlines: Deadlines,
        on_line: OnLine,
        on_interrupt: Callable[[], None],
    ) -> None:
        self._ranks, self._patience = ranks, deadlines
        self._on_line, self._on_interrupt = on_line, on_interrupt
        self._ended: dict[int, int] = {}
        # in the order in which they ended
        self._bad: list[RankProcess] = []
        self._killed: list[int] = []
        self._deadline = float("inf")
        self._next_signal = signal.SIGTERM
        self._is_interrupted = False

    def _running(self) -> list[RankProcess]:
        return [one for one in self._ranks if one.rank not in self._ended]

    def _listen(self) -> None:
        pipes = [one.output for one in self._running()]
        select.select(pipes, [], [], LOOK_SECONDS)
        for one in self._ranks:
            for line in one.said():
                self._on_line(one.rank, line)
        # the pipe of a rank that has closed its output is ready at once, every time
        if self._running():
            time.sleep(LOOK_SECONDS / 10)

    def _note_ends(self) -> None:
        new = [(one, one.status) for one in self._running() if one.status is not None]
        for one, status in new:
            self._ended[one.rank] = status
            for line in one.said():
                self._on_line(one.rank, line)
        # of several at once, the one that a signal ended, or that refused to start, is the cause,
        # and the 1 of the others the effect
        bad = sorted(
            (pair for pair in new if pair[1] != 0), key=lambda pair: (pair[1] > 0, -pair[1])
        )
        self._bad += [one for one, _ in bad]
        if new and self._deadline == float("inf"):
            self._deadline = time.monotonic() + self._patience.others

    def _end_the_rest(self) -> None:
        if time.monotonic() < self._deadline:
            return
        for one in self._running():
            if self._next_signal == signal.SIGTERM:
                self._killed.append(one.rank)
            one.signal_group(self._next_signal)
        self._next_signal = signal.SIGKILL
        self._deadline = time.monotonic() + self._patience.after_term

    def interrupt(self) -> None:
        """The ranks finish the round in hand, however long that takes, and write; a second time
        they are killed."""
        number = signal.SIGKILL if self._is_interrupted else signal.SIGINT
        for one in self._running():
            one.signal_group(number)
        if not self._is_interrupted:
            self._on_interrupt()
        self._is_interrupted = True

    def to_the_end(self) -> WorldEnd:
        while self._running():
            try:
                self._listen()
                self._note_ends()
                self._end_the_rest()
            except KeyboardInterrupt:
                self.interrupt()
        return self._world_end()

    def _cause(self) -> RankProcess:
        """The rank that ended badly first. Of a wrong result all ranks end with 1 and rank 0 alone
        says why, so a silent one has no word where another of its status has."""
        first = self._bad[0]
        status = self._ended[first.rank]
        if status < 0:
            return first
        alike = (one for one in self._bad if one.words and self._ended[one.rank] == status)
        return next(alike, first)

    def _world_end(self) -> WorldEnd:
        killed = tuple(sorted(self._killed))
        if self._is_interrupted:
            return WorldEnd(INTERRUPTED, killed=killed, is_interrupted=True)
        if not self._bad:
            return WorldEnd(0)
        first = self._cause()
        status = self._ended[first.rank]
        text = f"rank {first.rank} of {len(self._ranks)} {ending_text(status)}"
        if first.rank in killed:
            text = f"rank {first.rank} of {len(self._ranks)} did not end after the others had"
        words = "\n".join(first.words)
        return WorldEnd(status if status > 0 else 1, text, words, killed)


def end_all(ranks: Sequence[RankProcess]) -> None:
    """Ends what still runs of them and of what they started, at once."""
    for one in ranks:
        one.signal_group(signal.SIGKILL)
    for one in ranks:
        one.close()


def watch(
    ranks: Sequence[RankProcess],
    deadlines: Deadlines,
    on_line: OnLine,
    on_interrupt: Callable[[], None],
) -> WorldEnd:
    """To the end of all of them. A KeyboardInterrupt asks them to end (SIGINT), a second one kills
    them. `on_line`: gets every line with its rank. `on_interrupt`: is called at the first
    interrupt. No rank, and nothing that a rank started, is left, whatever happens."""
    try:
        return _Watch(ranks, deadlines, on_line, on_interrupt).to_the_end()
    finally:
        end_all(ranks)


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
    """`failures`: numbers of ranks that did not come to their end. `status`: of the command.
    `ended`: numbers of ranks whose processes have ended, well or not."""

    failures: list[Failure] = field(default_factory=list)
    status: int = 0
    ended: list[int] = field(default_factory=list)


def program_arguments(options: argparse.Namespace, out: Path) -> list[str]:
    """What every rank is called with."""
    own = [
        f"--benchmark_out={out}",
        f"--threads={options.threads_per_process}",
        f"--timeout={options.timeout:g}",
    ]
    given = list(options.program)
    if options.global_batch is not None and not any("--global-batch" in text for text in given):
        own.append(f"--global-batch={options.global_batch}")
    return [str(options.build_folder / PROGRAM), *own, *given]


def _start(
    command: Sequence[str], sets: Sequence[tuple[int, ...]], port: int, say: Say
) -> list[RankProcess]:
    started: list[RankProcess] = []
    try:
        for rank, cores in enumerate(sets):
            environment = rank_environment(rank, len(sets), port)
            started.append(RankProcess(rank, command, environment, cores))
        say(f"{len(sets)} ranks on cores {'; '.join(','.join(map(str, one)) for one in sets)}")
    except BaseException:
        end_all(started)
        raise
    return started


def run_world(
    command: Sequence[str],
    sets: Sequence[tuple[int, ...]],
    deadlines: Deadlines,
    log: Path,
    say: Say,
    show: Say,
) -> WorldEnd:
    """One world of as many ranks as there are sets of cores. What they say goes to `log`, and what
    rank 0 says to `show`. A taken port is tried again with another one."""
    for attempt in range(PORT_TRIES):
        with log.open("a", encoding="utf-8") as stream:

            def keep(rank: int, line: str, stream=stream) -> None:  # noqa: ANN001
                stream.write(f"[rank {rank}] {line}\n")
                if rank == 0 and line.strip():
                    show(line)

            started = _start(command, sets, free_port(), say)
            end = watch(started, deadlines, keep, lambda: say(FINISHING))
        taken = end.status == REFUSED_OPTIONS and PORT_IN_USE.search(end.words)
        if not taken or attempt == PORT_TRIES - 1:
            break
        say("the port was taken meanwhile: trying another one")
    return end


def measure(options: argparse.Namespace, folder: Path, say: Say, show: Say) -> Measured:
    """Every number of ranks in its order. A refused option ends it, a world that failed does not.

    BadInputError where there are too few cores, before anything is started, or where the program
    cannot be started.
    """
    ordered = core_order(allowed := allowed_cores(), siblings_of(allowed))
    every = {
        ranks: core_sets(
            ranks, options.threads_per_process, ordered, oversubscribe=options.oversubscribe
        )
        for ranks in options.processes
    }
    folder.mkdir(parents=True, exist_ok=True)
    measured = Measured()
    try:
        _measure_worlds(options, folder, every, measured, (say, show))
    except KeyboardInterrupt:
        # between two worlds
        measured.status = INTERRUPTED
    left = (ranks for ranks in every if ranks not in measured.ended)
    measured.failures += [Failure(ranks, measured.status, NOT_STARTED) for ranks in left]
    return measured


def _measure_worlds(
    options: argparse.Namespace,
    folder: Path,
    every: Mapping[int, Sequence[tuple[int, ...]]],
    measured: Measured,
    talk: tuple[Say, Say],
) -> None:
    say, show = talk
    deadlines = Deadlines(TIMEOUTS * options.timeout + GRACE_SECONDS)
    for ranks, sets in every.items():
        command = program_arguments(options, result_file(folder, ranks))
        end = run_world(command, sets, deadlines, log_file(folder, ranks), say, show)
        measured.ended.append(ranks)
        if end.status == 0:
            continue
        words = f"; its last words: {end.words}" if end.words else ""
        what = "interrupted" if end.is_interrupted else f"{end.first}{words}"
        measured.failures.append(Failure(ranks, end.status, what))
        say(f"{ranks} ranks: {what}")
        if end.killed:
            say(f"{ranks} ranks: ended by force: {', '.join(map(str, end.killed))}")
        measured.status = end.status if end.status in {REFUSED_OPTIONS, INTERRUPTED} else 1
        if end.status in {REFUSED_OPTIONS, INTERRUPTED}:
            return
