"""Ranks that die, hang, differ or never come: every other one ends in time and says why."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from rank_programs import (
    ON_CPU,
    SMALL_MODEL,
    Ended,
    Ranks,
    free_port,
    rank_variables,
    surroundings,
)

from built_programs import built_program
from tinyllama_tools.commands.ranks import PORT_IN_USE

TIMEOUT_S = 6
# beyond the timeout, at the most: what ranks wait for each other's signs of life (11 s), and the
# end of a process on a loaded machine
GRACE_S = 20
# of a run that no timeout ends, nor itself
UNBOUNDED = (*ON_CPU, *SMALL_MODEL, "--batch-size=2", "--seq-len=8", "--num-steps=1000000")
ENDLESS = (*UNBOUNDED, f"--timeout={TIMEOUT_S}")


def wait_for_step(started: Ranks, step: int) -> None:
    output = started.processes[0].stdout
    assert output is not None
    for line in output:
        if line.startswith(f"Step {step}/"):
            return
    pytest.fail(f"rank 0 ended before step {step}")


@pytest.mark.parametrize("lost", [1, 0])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_by_all_others(
    train_program: Path, tmp_path: Path, lost: int, how: signal.Signals
) -> None:
    options = [[*ENDLESS, f"--output-dir={tmp_path}"]] * 3
    with Ranks(train_program, 3, options) as started:
        wait_for_step(started, 3)
        started.processes[lost].send_signal(how)
        begun = time.monotonic()
        ends: dict[int, Ended] = {}
        for rank, process in enumerate(started.processes):
            if rank == lost:
                continue
            output, error = process.communicate(timeout=TIMEOUT_S + GRACE_S)
            ends[rank] = Ended(process.returncode, output, error)
        spent = time.monotonic() - begun
    assert spent < TIMEOUT_S + GRACE_S
    for rank, end in ends.items():
        assert end.status == 1, end.error
        assert f"rank {rank} of 3: step " in end.error
        assert f"rank {lost} does not answer" in end.error
    if lost != 0:  # what rank 0 has measured is kept
        kept = json.loads((tmp_path / "performance_summary.json").read_text(encoding="utf-8"))
        assert len(kept["steps"]) >= 3


def test_ranks_that_are_no_neighbours_of_a_lost_one_are_not_taken_for_lost(
    train_program: Path, tmp_path: Path
) -> None:
    """Gloo tells the neighbours only; rank 0 hears of it from them, long before its timeout."""
    options = [[*ENDLESS, f"--output-dir={tmp_path}"]] * 4
    with Ranks(train_program, 4, options) as started:
        wait_for_step(started, 3)
        started.processes[2].kill()
        begun = time.monotonic()
        ends = {
            rank: process.communicate(timeout=TIMEOUT_S + GRACE_S)[1]
            for rank, process in enumerate(started.processes)
            if rank != 2
        }
        spent = time.monotonic() - begun
    assert spent < TIMEOUT_S + GRACE_S
    for rank, error in ends.items():
        assert f"rank {rank} of 4: step " in error
        assert "rank 2 does not answer" in error


def test_ranks_with_different_options_do_not_start(train_program: Path) -> None:
    options = UNBOUNDED
    with Ranks(train_program, 2, [options, [*options, "--seed=7"]]) as started:
        ends = started.ends()
    for end in ends:
        assert end.status == 2
        assert "--seed: 42 on rank 0 and 7 on rank 1" in end.error


def test_ranks_of_different_builds_do_not_start(train_program: Path, tmp_path: Path) -> None:
    """Of one commit there are many builds."""
    other = Path(shutil.copy(train_program, tmp_path))
    with other.open("ab") as stream:
        stream.write(b"another build")
    options = [UNBOUNDED] * 2
    with Ranks([train_program, other], 2, options) as started:
        ends = started.ends()
    for end in ends:
        assert end.status == 2
        assert "digest of the program: " in end.error


def test_a_rank_that_never_comes_is_named(train_program: Path) -> None:
    with Ranks(train_program, 3, [ENDLESS] * 2) as started:
        ends = started.ends(TIMEOUT_S + GRACE_S)
    for end in ends:
        assert end.status == 2
        assert f"rank 2 did not come within {TIMEOUT_S} s" in end.error


def test_a_port_in_use_is_named(train_program: Path) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Ranks(train_program, 2, [ENDLESS], port) as started:
            (end,) = started.ends(TIMEOUT_S + GRACE_S)
    assert end.status == 2
    assert f"MASTER_PORT={port}" in end.error
    # the words by which scripts/scaling knows that another port may help
    assert PORT_IN_USE.search(end.error)


def test_a_master_that_cannot_be_reached_is_named(train_program: Path) -> None:
    port = free_port()
    begun = time.monotonic()
    finished = subprocess.run(
        [str(train_program), *ENDLESS],
        env=surroundings(rank_variables(1, 2, port)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + GRACE_S,
        check=False,
    )
    assert finished.returncode == 2
    assert f"MASTER_PORT={port}" in finished.stderr
    assert time.monotonic() - begun < TIMEOUT_S + GRACE_S


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: must be below WORLD_SIZE=2"),
        ({"RANK": "0"}, "WORLD_SIZE: is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x"),
    ],
)
def test_a_wrong_environment_is_named(variables: dict[str, str], words: str) -> None:
    for path in ("benchmarks/tiny_llama_train", "benchmarks/tiny_llama_scaling"):
        finished = subprocess.run(
            [str(built_program(path))],
            env=surroundings(variables),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert finished.returncode == 2
        assert words in finished.stderr
