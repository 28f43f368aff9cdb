"""Ranks that die, hang, differ or never come: every other one ends in time and says why, and what
was measured before is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from rank_programs import (
    SCALE,
    TRAIN,
    Ranks,
    free_port,
    rank_variables,
    run,
    summary,
    surroundings,
)
from test_rank_programs import mpirun

from tinyllama_tools.commands.ranks import PORT_IN_USE

TIMEOUT_S = 6
# beyond the timeout, at the most: what ranks wait for each other's signs of life (11 s), and the
# end of a process on a loaded machine
LONGEST_S = TIMEOUT_S + 20
# of a run that no timeout ends, nor itself
UNBOUNDED = (*TRAIN, "--num-steps=1000000")
ENDLESS = (*UNBOUNDED, f"--timeout={TIMEOUT_S}")
ENDLESS_ROUNDS = (*SCALE, "--batch=2", "--components=full_step", "--rounds=100000")
ROUNDS = 3


@pytest.mark.parametrize(
    ("ranks", "lost", "how"),
    [
        *((3, lost, how) for lost in (1, 0) for how in (signal.SIGKILL, signal.SIGSTOP)),
        # Gloo tells the neighbours only; rank 0 hears of it from them, long before its timeout
        (4, 2, signal.SIGKILL),
    ],
)
def test_a_lost_rank_is_named_by_all_others(
    train_program: Path, tmp_path: Path, ranks: int, lost: int, how: signal.Signals
) -> None:
    with Ranks(train_program, ranks, [[*ENDLESS, f"--output-dir={tmp_path}"]] * ranks) as started:
        started.wait_for("Step 3/")
        started.processes[lost].send_signal(how)
        ends = started.ends(LONGEST_S, but=lost)
    others = [rank for rank in range(ranks) if rank != lost]
    for rank, end in zip(others, ends, strict=True):
        assert end.status == 1, end.error
        assert f"rank {rank} of {ranks}: step " in end.error
        assert f"rank {lost} does not answer" in end.error
    if lost != 0:
        assert len(summary(tmp_path)["steps"]) >= 3


def rounds_in(text: str) -> int:
    """Of the overlapped step."""
    rows = json.loads(text)["benchmarks"]
    names = [row["run_name"] for row in rows if row["run_type"] == "iteration"]
    return sum(name.endswith("/overlap") for name in names)


@pytest.mark.parametrize("lost", [0, 1])
def test_the_rounds_before_a_loss_are_in_the_file(
    scaling_program: Path, tmp_path: Path, lost: int
) -> None:
    file = tmp_path / "result.json"
    out = (f"--timeout={TIMEOUT_S}", f"--benchmark_out={file}", "--benchmark_format=json")
    with Ranks(scaling_program, 2, [(*ENDLESS_ROUNDS, *out)] * 2) as started:
        started.wait_for(f"round {ROUNDS + 1} of")
        started.processes[lost].kill()
        (end,) = started.ends(LONGEST_S, but=lost)
    assert end.status == 1
    assert "failed, asking who is lost" in end.error
    assert f"rank {lost} does not answer" in end.error
    assert rounds_in(file.read_text(encoding="utf-8")) >= ROUNDS
    if lost != 0:
        assert rounds_in(end.output) >= ROUNDS


def test_mpirun_kills_the_others_and_the_rounds_are_kept(
    scaling_program: Path, tmp_path: Path
) -> None:
    """It does so soon after the loss, before anybody knows who is lost."""
    file, script = tmp_path / "result.json", tmp_path / "rank"
    # the number of the process of rank 1
    script.write_text(
        f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && echo $$ > {tmp_path}/rank_1\n'
        f'exec {scaling_program} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    # not the usual second, within which a loaded machine may not let rank 0 notice the loss
    patient = ("--mca", "odls_base_sigkill_timeout", "5", str(script))
    command = [*mpirun(), *patient, *ENDLESS_ROUNDS, "--timeout=60", f"--benchmark_out={file}"]
    with subprocess.Popen(
        command, env=surroundings(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith(f"round {ROUNDS + 1} of ") for line in process.stderr)
            os.kill(int((tmp_path / "rank_1").read_text(encoding="ascii")), signal.SIGKILL)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert rounds_in(file.read_text(encoding="utf-8")) >= ROUNDS
    assert "rank 0 of 2: round " in error and "failed, asking who is lost" in error


def test_a_summary_is_written_before_the_lost_rank_is_asked_for(
    train_program: Path, tmp_path: Path
) -> None:
    """With a timeout that outlasts the test."""
    options = (*UNBOUNDED, "--timeout=1000", f"--output-dir={tmp_path}")
    with Ranks(train_program, 2, [options] * 2) as started:
        first = started.processes[0]
        started.wait_for("Step 3/")
        started.processes[1].kill()
        assert first.stderr is not None
        assert any("failed, asking who is lost" in line for line in first.stderr)
        # written within the next moments, by a process that goes on asking
        while not (tmp_path / "performance_summary.json").exists():
            assert first.poll() is None
            time.sleep(0.01)
        assert first.poll() is None
    assert len(summary(tmp_path)["steps"]) >= 3


def test_ranks_that_differ_do_not_start(train_program: Path, tmp_path: Path) -> None:
    """In their options, or in their build: of one commit there are many."""
    other = Path(shutil.copy(train_program, tmp_path))
    with other.open("ab") as stream:
        stream.write(b"another build")
    for programs, more, said in (
        ([train_program] * 2, ["--seed=7"], "--seed: 42 on rank 0 and 7 on rank 1"),
        ([train_program, other], [], "digest of the program: "),
    ):
        with Ranks(programs, 2, [UNBOUNDED, [*UNBOUNDED, *more]]) as started:
            ends = started.ends()
        assert [end.status for end in ends] == [2, 2]
        assert all(said in end.error for end in ends)


def test_ranks_that_cannot_meet_name_who_or_where(train_program: Path) -> None:
    with Ranks(train_program, 3, [ENDLESS] * 2) as started:
        ends = started.ends(LONGEST_S)
    assert [end.status for end in ends] == [2, 2]
    assert all(f"rank 2 did not come within {TIMEOUT_S} s" in end.error for end in ends)
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Ranks(train_program, 2, [ENDLESS], port) as started:
            (end,) = started.ends(LONGEST_S)
    # with the words by which scripts/scaling knows that another port may help
    assert end.status == 2 and f"MASTER_PORT={port}" in end.error and PORT_IN_USE.search(end.error)
    port, begun = free_port(), time.monotonic()
    finished = run(train_program, *ENDLESS, **rank_variables(1, 2, port))
    assert finished.returncode == 2 and f"MASTER_PORT={port}" in finished.stderr
    assert time.monotonic() - begun < LONGEST_S


def test_what_is_wrong_before_the_start_is_told_first(
    scaling_program: Path, train_program: Path
) -> None:
    for words, variables in (
        ("RANK=2: must be below WORLD_SIZE=2", {"RANK": "2", "WORLD_SIZE": "2"}),
        ("WORLD_SIZE: is not set", {"RANK": "0"}),
        ("RANK=x", {"RANK": "x", "WORLD_SIZE": "2"}),
    ):
        for program in (scaling_program, train_program):
            finished = run(program, **variables)
            assert finished.returncode == 2 and words in finished.stderr
    finished = run(scaling_program, *ENDLESS_ROUNDS, "--benchmark_out=/no/such/folder/result.json")
    assert finished.returncode == 2 and "round" not in finished.stderr
    assert "--benchmark_out: " in finished.stderr and "/no/such/folder" in finished.stderr
