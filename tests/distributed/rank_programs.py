"""How the tests start several ranks of a program, as torchrun would."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.commands.ranks import free_port

Json = Any
# what a rank needs to start and to end; nothing in these tests computes for long
PATIENCE_S = 60.0
SMALL_MODEL = (
    "--hidden-dim=32",
    "--n-layers=2",
    "--n-heads=4",
    "--n-kv-heads=2",
    "--intermediate-dim=48",
    "--vocab-size=300",
)
ON_CPU = ("--device=cpu", "--threads=1")
# whatever surrounds the tests must not look like a launcher
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def surroundings(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a program that nobody launched, one thread in every library."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(("SLURM_", "OMPI_", "PMIX_"))
    }
    return inherited | {"OMP_NUM_THREADS": "1", "GIT_DIR": os.devnull} | dict(more or {})


def rank_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun says to a rank of one host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@dataclass(frozen=True)
class Ended:
    """A rank that has ended."""

    status: int
    output: str
    error: str


class Ranks:
    """The processes of a run, all killed when it is left."""

    def __init__(
        self,
        program: Path | Sequence[Path],
        ranks: int,
        options: Sequence[Sequence[str]],
        port: int | None = None,
    ) -> None:
        """`program`: of all ranks, or each rank's."""
        programs = [program] * len(options) if isinstance(program, Path) else program
        found = port or free_port()
        self.processes = [
            subprocess.Popen(
                [str(programs[rank]), *map(str, options[rank])],
                env=surroundings(rank_variables(rank, ranks, found)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(len(options))
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def ends(self, seconds: float = PATIENCE_S) -> list[Ended]:
        """Every rank's end, in their order. Raises TimeoutExpired where one goes on."""
        deadline = time.monotonic() + seconds
        found = []
        for process in self.processes:
            left = max(0.1, deadline - time.monotonic())
            output, error = process.communicate(timeout=left)
            found.append(Ended(process.returncode, output, error))
        return found


def run_ranks(program: Path, ranks: int, *options: str) -> list[Ended]:
    """The same options for each rank, to the end."""
    with Ranks(program, ranks, [options] * ranks) as started:
        return started.ends()


def assert_all_well(ends: Sequence[Ended]) -> None:
    """No rank failed, and rank 0 alone spoke on standard output."""
    assert [end.status for end in ends] == [0] * len(ends), [end.error for end in ends]
    assert all(end.output == "" for end in ends[1:])
