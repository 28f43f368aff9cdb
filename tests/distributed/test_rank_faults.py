"""Ranks that die, hang or differ: every other one ends in time and says why, and what was measured
before is kept. The C++ tests beside the programs have every other place where ranks cannot meet."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path

import pytest
from rank_programs import SCALE, TRAIN, Ranks, run, summary

from built_programs import wait_until

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


def test_what_was_done_is_written_before_the_lost_rank_is_asked_for(
    train_program: Path, scaling_program: Path, tmp_path: Path
) -> None:
    """With a timeout that outlasts the test: mpirun kills the others soon after a loss."""
    file, page = tmp_path / "result.json", tmp_path / "performance_summary.json"
    scale, train = (
        (*ENDLESS_ROUNDS, f"--benchmark_out={file}"),
        (*UNBOUNDED, f"--output-dir={tmp_path}"),
    )
    for program, options, line, written in (
        (train_program, train, "Step 3/", page),
        (scaling_program, scale, f"round {ROUNDS + 1} of", file),
    ):
        with Ranks(program, 2, [(*options, "--timeout=1000")] * 2) as started:
            first = started.processes[0]
            started.wait_for(line)
            started.processes[1].kill()
            assert first.stderr is not None
            assert any("failed, asking who is lost" in line for line in first.stderr)
            # within the next moments, by a process that goes on asking
            wait_until(lambda file=written, rank=first: file.exists() or rank.poll() is not None)
            assert written.exists() and first.poll() is None
    assert len(summary(tmp_path)["steps"]) >= 3
    assert rounds_in(file.read_text(encoding="utf-8")) >= ROUNDS


def test_another_build_does_not_start_and_a_port_in_use_is_told(
    train_program: Path, tmp_path: Path
) -> None:
    """Of one commit there are many builds."""
    other = Path(shutil.copy(train_program, tmp_path))
    with other.open("ab") as stream:
        stream.write(b"another build")
    with Ranks([train_program, other], 2, [UNBOUNDED] * 2) as started:
        ends = started.ends()
    assert [end.status for end in ends] == [2, 2]
    assert all("digest of the program: " in end.error for end in ends)
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Ranks(train_program, 2, [ENDLESS], port) as started:
            (end,) = started.ends(LONGEST_S)
    assert end.status == 2 and f"MASTER_PORT={port}" in end.error and "in use" in end.error


def test_what_is_wrong_before_the_start_is_told_first(scaling_program: Path) -> None:
    for variables, options, words in (
        ({"RANK": "0"}, (), "WORLD_SIZE: is not set"),
        ({}, (*ENDLESS_ROUNDS, "--benchmark_out=/no/such/folder/r.json"), "/no/such/folder"),
    ):
        finished = run(scaling_program, *options, **variables)
        assert finished.returncode == 2 and "round" not in finished.stderr
        assert words in finished.stderr
