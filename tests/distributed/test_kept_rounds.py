"""What was measured before a rank was lost is kept, under launchers that kill the others too."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from rank_programs import ON_CPU, SMALL_MODEL, Ranks, surroundings
from test_launchers import mpirun

ENDLESS = (
    *ON_CPU,
    *SMALL_MODEL,
    "--batch=2",
    "--seq=8",
    "--components=full_step",
    "--min-time=0.01",
    "--rounds=100000",
)
ROUNDS = 3


@pytest.fixture
def scaling_program(train_program: Path) -> Path:
    """Beside that of the training."""
    return train_program.with_name("tiny_llama_scaling")


def wait_for_round(process: subprocess.Popen[str], number: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"round {number} of "):
            return
    pytest.fail(f"rank 0 ended before round {number}")


def rounds_in(document: dict) -> int:
    """Of the overlapped step."""
    return sum(
        entry["run_type"] == "iteration" and entry["run_name"].endswith("/overlap")
        for entry in document["benchmarks"]
    )


def rounds_of(file: Path) -> int:
    return rounds_in(json.loads(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("lost", [0, 1])
def test_the_rounds_before_a_loss_are_in_the_file(
    scaling_program: Path, tmp_path: Path, lost: int
) -> None:
    file = tmp_path / "result.json"
    options = [[*ENDLESS, "--timeout=6", f"--benchmark_out={file}", "--benchmark_format=json"]] * 2
    with Ranks(scaling_program, 2, options) as started:
        wait_for_round(started.processes[0], ROUNDS + 1)
        started.processes[lost].kill()
        output, error = started.processes[1 - lost].communicate(timeout=40)
    assert started.processes[1 - lost].returncode == 1
    assert "failed, asking who is lost" in error
    assert f"rank {lost} does not answer" in error
    assert rounds_of(file) >= ROUNDS
    if lost != 0:
        assert rounds_in(json.loads(output)) >= ROUNDS


def test_mpirun_kills_the_others_and_the_rounds_are_kept(
    scaling_program: Path, tmp_path: Path
) -> None:
    """It does so soon after the loss, before anybody knows who is lost."""
    file = tmp_path / "result.json"
    script = tmp_path / "rank"
    # the number of the process of rank 1
    script.write_text(
        f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && echo $$ > {tmp_path}/rank_1\n'
        f'exec {scaling_program} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    # not the usual second, within which a loaded machine may not let rank 0 notice the loss
    kill_after = ("--mca", "odls_base_sigkill_timeout", "5")
    command = [
        *mpirun(2),
        *kill_after,
        str(script),
        *ENDLESS,
        "--timeout=60",
        f"--benchmark_out={file}",
    ]
    with subprocess.Popen(
        command, env=surroundings(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for_round(process, ROUNDS + 1)
            number = int((tmp_path / "rank_1").read_text(encoding="ascii"))
            subprocess.run(["kill", f"-{signal.SIGKILL:d}", str(number)], check=True)
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert rounds_of(file) >= ROUNDS
    assert "rank 0 of 2: round " in error
    assert "failed, asking who is lost" in error


def test_a_summary_is_written_before_the_lost_rank_is_asked_for(
    train_program: Path, tmp_path: Path
) -> None:
    """With a timeout that outlasts the test."""
    options = [
        *ON_CPU,
        *SMALL_MODEL,
        "--batch-size=2",
        "--seq-len=8",
        "--num-steps=1000000",
        "--timeout=1000",
        f"--output-dir={tmp_path}",
    ]
    with Ranks(train_program, 2, [options] * 2) as started:
        first = started.processes[0]
        assert first.stdout is not None and first.stderr is not None
        for line in first.stdout:
            if line.startswith("Step 3/"):
                break
        started.processes[1].kill()
        for line in first.stderr:
            if "failed, asking who is lost" in line:
                break
        summary = tmp_path / "performance_summary.json"
        # written within the next moments, by a process that goes on asking
        while not summary.exists():
            assert first.poll() is None
            time.sleep(0.01)
        assert first.poll() is None
    assert len(json.loads(summary.read_text(encoding="utf-8"))["steps"]) >= 3


def test_a_result_file_that_cannot_be_written_is_told_first(scaling_program: Path) -> None:
    options = [*ENDLESS, "--benchmark_out=/no/such/folder/result.json"]
    with Ranks(scaling_program, 1, [options]) as started:
        (end,) = started.ends()
    assert end.status == 2
    assert "--benchmark_out: " in end.error and "/no/such/folder" in end.error
    assert "round" not in end.error
