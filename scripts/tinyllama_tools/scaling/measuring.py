"""Measures one number of ranks after the other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import INTERRUPTED
from tinyllama_tools.data.programs import REFUSED_OPTIONS
from tinyllama_tools.scaling.failure import Failure
from tinyllama_tools.scaling.files import log_file, result_file
from tinyllama_tools.scaling.pinning import allowed_cores, core_order, core_sets, siblings_of
from tinyllama_tools.scaling.rank_environment import free_port, rank_environment
from tinyllama_tools.scaling.rank_process import RankProcess
from tinyllama_tools.scaling.watching import Patience, WorldEnd, end_all, watch

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
    patience: Patience,
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
            end = watch(started, patience, keep, lambda: say(FINISHING))
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
    patience = Patience(TIMEOUTS * options.timeout + GRACE_SECONDS)
    for ranks, sets in every.items():
        command = program_arguments(options, result_file(folder, ranks))
        end = run_world(command, sets, patience, log_file(folder, ranks), say, show)
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
