"""How the tests start several ranks of a program, as torchrun would."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from built_programs import ON_CPU, SMALL_OPTIONS, Completed, Json, environment, read_json
from tinyllama_tools.commands.ranks import free_port

# what a rank needs to start and to end; nothing in these tests computes for long
PATIENCE_S = 60.0
SMALL = (*ON_CPU, *SMALL_OPTIONS)
# of each program, with a batch of 2 x 8
TRAIN = (*SMALL, "--batch-size=2", "--seq-len=8")
SCALE = (*SMALL, "--seq=8", "--min-time=0.01")


def rank_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun says to a rank of one host."""
    numbers = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_PORT": port}
    return {name: str(of) for name, of in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def run(*command: str | Path, **variables: str) -> Completed:
    """A program or a launcher, to its end."""
    return subprocess.run(
        list(map(str, command)),
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


class Ended(NamedTuple):
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
        """`program`: of all ranks, or each rank's. `options`: of each rank that is started."""
        programs = [program] * len(options) if isinstance(program, Path) else program
        found = port or free_port()
        self.processes = [
            subprocess.Popen(
                [str(programs[rank]), *map(str, options[rank])],
                env=environment(**rank_variables(rank, ranks, found)),
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

    def wait_for(self, line: str) -> None:
        """Of rank 0, on either stream, from its beginning."""
        first = self.processes[0]
        # a step is told on standard output, a round on standard error
        stream = first.stdout if line.startswith("Step") else first.stderr
        assert stream is not None
        assert any(said.startswith(line) for said in stream), f"rank 0 ended before '{line}'"

    def ends(self, seconds: float = PATIENCE_S, but: int | None = None) -> list[Ended]:
        """Every rank's end, in their order, but one's. Raises TimeoutExpired where one goes on."""
        deadline = time.monotonic() + seconds
        found = []
        for rank, process in enumerate(self.processes):
            if rank != but:
                output, error = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
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


def summary(folder: Path) -> Json:
    """What a training wrote."""
    return read_json(folder / "performance_summary.json")
