"""The same programs under the launchers that people use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rank_programs import ON_CPU, SMALL_MODEL, free_port, surroundings

OPTIONS = (*ON_CPU, *SMALL_MODEL, "--batch-size=2", "--seq-len=8", "--num-steps=3")
SCALING = (
    *ON_CPU,
    *SMALL_MODEL,
    "--batch=2",
    "--seq=8",
    "--rounds=1",
    "--min-time=0.01",
    "--max-bytes=4KiB",
)


def launched(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def summary(folder: Path) -> dict[str, object]:
    text = (folder / "performance_summary.json").read_text(encoding="utf-8")
    return json.loads(text)["distributed"]


def torchrun(ranks: int) -> list[str]:
    program = Path(sys.executable).with_name("torchrun")
    if not program.is_file():
        pytest.skip("torchrun is not beside this Python: torch is not installed in it")
    return [
        str(program),
        f"--nproc-per-node={ranks}",
        f"--master-port={free_port()}",
        "--no-python",
    ]


def mpirun(ranks: int) -> list[str]:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (openmpi-bin)")
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]


def test_torchrun_starts_a_training(train_program: Path, tmp_path: Path) -> None:
    finished = launched([*torchrun(2), str(train_program), *OPTIONS, f"--output-dir={tmp_path}"])
    assert finished.returncode == 0, finished.stderr
    found = summary(tmp_path)
    assert (found["world_size"], found["started_by"]) == (2, "torchrun")
    assert found["weights_are_identical"] is True


def test_mpirun_starts_a_training(train_program: Path, tmp_path: Path) -> None:
    finished = launched([*mpirun(2), str(train_program), *OPTIONS, f"--output-dir={tmp_path}"])
    assert finished.returncode == 0, finished.stderr
    found = summary(tmp_path)
    assert (found["world_size"], found["started_by"]) == (2, "open_mpi")


def test_mpirun_starts_the_scaling_program(train_program: Path, tmp_path: Path) -> None:
    program = train_program.with_name("tiny_llama_scaling")
    file = tmp_path / "result.json"
    finished = launched([*mpirun(2), str(program), *SCALING, f"--benchmark_out={file}"])
    assert finished.returncode == 0, finished.stderr
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["context"]["distributed"]["started_by"] == "open_mpi"


def test_torchrun_ends_with_a_rank_that_fails(train_program: Path) -> None:
    finished = launched([*torchrun(2), str(train_program), *OPTIONS, "--batch-size=0"])
    assert finished.returncode != 0
