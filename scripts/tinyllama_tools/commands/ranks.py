"""Starts local ranks on cores of their own, watches them, and ends those that do not end."""

import argparse
import contextlib
import itertools
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tinyllama_tools.core.app import INTERRUPTED, REFUSED_OPTIONS, BadInputError
from tinyllama_tools.core.process import Progress, how_ended, program_in
from tinyllama_tools.core.text import count_of
from tinyllama_tools.data.rank_results import Failure, result_file

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def core_order(core_of: Mapping[int, str]) -> list[int]:
    """Logical processors: one of every core, then the second of every core, and so on. `core_of`:
    by processor, a name of its core."""
    cores: dict[str, list[int]] = {}
    for processor in sorted(core_of):
        cores.setdefault(core_of[processor], []).append(processor)
    turns = itertools.zip_longest(*cores.values())
    return [processor for turn in turns for processor in turn if processor is not None]


def allowed_cores() -> list[int]:
    """The logical processors that this process may run on, in the order in which ranks get them."""
    core_of = {processor: str(processor) for processor in os.sched_getaffinity(0)}
    for processor in core_of:
        with contextlib.suppress(OSError):
            core_of[processor] = Path(SIBLINGS.format(processor)).read_text(encoding="ascii")
    return core_order(core_of)


def core_sets(
    processes: int, threads: int, ordered: Sequence[int], *, oversubscribe: bool = False
) -> list[list[int]]:
    """For each process a set of `threads` logical processors. They are disjoint, unless there are
    too few: that is a BadInputError, or with `oversubscribe` the first are taken again."""
    needed = processes * threads
    if needed > len(ordered) and not oversubscribe:
        raise BadInputError(
            f"--processes {processes} with --threads {threads}: {needed} logical "
            f"processors are needed, {len(ordered)} are allowed ({_listed(sorted(ordered))}); take "
            "fewer, or --oversubscribe, with which times mean little"
        )
    taken = [ordered[i % len(ordered)] for i in range(needed)]
    return [sorted(set(taken[i : i + threads])) for i in range(0, needed, threads)]


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


ADDRESS = "127.0.0.1"
# a rank must not see variables of an outer job's launcher, which name other ranks
LAUNCHERS = ("OMPI_", "SLURM_", "TORCHELASTIC_")


def free_port() -> int:
    """A TCP port of the loopback address that is free now; OSError where there is none."""
    with socket.create_server((ADDRESS, 0)) as probe:
        return probe.getsockname()[1]


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment of one of `ranks` local processes that meet at `port`, as torchrun sets
    it."""
    kept = {n: value for n, value in os.environ.items() if not n.startswith(LAUNCHERS)}
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    own |= {"MASTER_ADDR": ADDRESS, "MASTER_PORT": port}
    return kept | {name: str(value) for name, value in own.items()}


PROGRAM = "tiny_llama_scaling"
# Starts a rank on its cores; the kernel kills it when its launcher ends, however that ends.
START = ("setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list")
FINISHING = "interrupted: the ranks finish the round in hand and write; Ctrl-C again kills them"
# between two checks of the ranks
LOOK_SECONDS = 0.05
# for a rank to end after SIGTERM
TERM_SECONDS = 5.0
# A rank that still computes notices a loss within one timeout, and within another asks who is lost.
TIMEOUTS = 2
# beyond those: at most 11 s of asking, and the end of a process
GRACE_SECONDS = 15.0
LAST_WORDS = 8
# words of a rank that missed another one, and so did not cause the failure
MISSED = re.compile(
    "asking who is lost|does not answer|nobody answers|did not come|is not rank 0 of this run"
)


class Rank:
    """A running rank. `words`: the last lines of its standard output and error."""

    def __init__(
        self,
        command: Sequence[str],
        cores: Sequence[int],
        place: tuple[int, int, int],
        say: Callable[[int, str], object],
    ) -> None:
        """`place`: the arguments of rank_environment(). A thread passes the rank's number and every
        line of its output to `say`."""
        self.number = place[0]
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self.process = subprocess.Popen(
            [*START, _listed(cores), *command],
            env=rank_environment(*place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C reaches the launcher alone, and the ranks once, from it
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(say,), daemon=True)
        self._listener.start()

    def _listen(self, say: Callable[[int, str], object]) -> None:
        for line in self.process.stdout or ():
            text = line.rstrip()
            self.words.extend([text] if text else [])
            say(self.number, text)

    @property
    def status(self) -> int | None:
        """The exit status, -N where signal N ended it; None while it runs."""
        return self.process.poll()

    def close(self) -> None:
        """Kills the process if it still runs, and reads its output to the end."""
        self.process.kill()
        self.process.wait()
        self._listener.join(TERM_SECONDS)


def cause_of(bad: Sequence[Rank], killed: Sequence[int], ranks: int) -> Failure:
    """The rank that caused the failure, how it ended, its last words, and which ranks had to be
    killed. `bad`: ranks that failed, in the order in which they ended. The status is 1 where a
    signal ended the rank.

    After a wrong result all ranks end with 1 and rank 0 alone says why; after one rank's failure,
    such as a full disk, the others say that they miss it. So a rank that says something is the
    cause before a silent one, and one that misses another is not."""
    first = bad[0]
    if first.status > 0:
        speaking = [one for one in bad if one.status > 0 and one.words]
        causes = [one for one in speaking if not MISSED.search("\n".join(one.words))]
        hung = [one for one in bad if one.number in killed]
        first = (causes or hung or speaking or bad)[0]
    how = how_ended(first.status)
    if first.number in killed:
        how = "did not end after the others had"
    words = "\n".join(first.words)
    said = f"; its last words: {words}" if words else ""
    by_force = f"; ended by force: {_listed(killed)}" if killed else ""
    what = f"rank {first.number} of {ranks} {how}{said}{by_force}"
    return Failure(ranks, max(1, first.status), what)


def watch(ranks: Sequence[Rank], others_seconds: float, progress: Progress) -> Failure | None:
    """Waits for the end of all ranks. `others_seconds`: the time that the others have to end once
    one has ended; then they are killed. A KeyboardInterrupt asks all to end after the current
    round, however long that takes; a second one kills them."""
    deadline, harsher, interrupt = math.inf, signal.SIGTERM, signal.SIGINT
    bad: list[Rank] = []
    killed: list[int] = []
    left = list(ranks)
    while left:
        try:
            # of ranks that ended at once, that which a signal ended or that refused to start
            # (status 2) is the cause; the others' status 1 is the effect
            ended = [rank for rank in left if rank.status is not None]
            left = [rank for rank in left if rank not in ended]
            new = [rank for rank in ended if rank.status != 0]
            bad += sorted(new, key=lambda rank: (rank.status > 0, -rank.status))
            now = time.monotonic()
            if len(left) < len(ranks):
                deadline = min(deadline, now + others_seconds)
            if now >= deadline:
                killed = killed or [rank.number for rank in left]
                for rank in left:
                    rank.process.send_signal(harsher)
                deadline, harsher = now + TERM_SECONDS, signal.SIGKILL
            time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            for rank in left:
                rank.process.send_signal(interrupt)
            progress.line(FINISHING)
            interrupt = signal.SIGKILL
    for rank in ranks:
        rank.close()
    if interrupt == signal.SIGKILL:
        return Failure(len(ranks), INTERRUPTED, "interrupted")
    return cause_of(bad, killed, len(ranks)) if bad else None


def run_world(
    command: Sequence[str],
    sets: Sequence[Sequence[int]],
    others_seconds: float,
    log: Path,
    progress: Progress,
) -> Failure | None:
    """Runs a rank on each set of cores; none is left when this returns. Their output goes to `log`,
    as far as that can be written; that of rank 0 is also shown on a terminal."""
    ranks: list[Rank] = []
    unwritten: list[OSError] = []
    # unbuffered: a full buffer would fail once more when it is closed
    with log.open("wb", buffering=0) as stream:

        def say(number: int, line: str) -> None:
            try:
                stream.write(f"[rank {number}] {line}\n".encode())
            except OSError as error:
                # a full disk does not end the measurement
                unwritten.append(error)
            if number == 0 and line:
                progress.passing(line)

        port = free_port()
        try:
            for number, cores in enumerate(sets):
                ranks.append(Rank(command, cores, (number, len(sets), port), say))
            where = "; ".join(map(_listed, sets))
            progress.line(f"{count_of(len(sets), 'rank')} on cores {where}")
            return watch(ranks, others_seconds, progress)
        finally:
            for rank in ranks:
                rank.close()
            if unwritten:
                progress.line(f"{log}: cannot be written: {unwritten[0].strerror}")


def measure(
    options: argparse.Namespace, folder: Path, progress: Progress
) -> tuple[int, list[Failure]]:
    """Measures each number of ranks, in their order; refused options end it, other failures do not.
    The status of the command, and the numbers of ranks that failed.

    BadInputError, before anything is started, where there are too few cores or the program is not
    built; OSError where `folder` exists or cannot be made.
    """
    program = str(program_in(options.build_folder, PROGRAM))
    threads, cores = options.threads, allowed_cores()
    sets = {
        ranks: core_sets(ranks, threads, cores, oversubscribe=options.oversubscribe)
        for ranks in options.processes
    }
    others_seconds = TIMEOUTS * options.timeout + GRACE_SECONDS
    # fails where another run of the same second has the name
    folder.mkdir(parents=True)
    failures: list[Failure] = []
    for ranks, own in sets.items():
        result = result_file(folder, ranks)
        given = (f"--threads={threads}", f"--timeout={options.timeout:g}", *options.program)
        command = (program, f"--benchmark_out={result}", *given)
        try:
            failure = run_world(command, own, others_seconds, result.with_suffix(".log"), progress)
        except KeyboardInterrupt:
            # Ctrl-C while the ranks were being started
            failure = Failure(ranks, INTERRUPTED, "interrupted")
        if failure is not None:
            failures.append(failure)
            progress.line(f"{count_of(ranks, 'rank')}: {failure.words}")
            if failure.status in (REFUSED_OPTIONS, INTERRUPTED):
                return failure.status, failures
    return int(bool(failures)), failures
