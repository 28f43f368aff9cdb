"""The sbatch example for several nodes, with a stand-in for srun and for the programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from slurm_stand_in import StandInSlurm

from built_programs import PROJECT_ROOT

EXAMPLE = PROJECT_ROOT / "integrations" / "slurm" / "data_parallel.sbatch"
PROGRAM = """#!/bin/bash
for option in "$@"; do
  if [[ "$option" == --benchmark_out=* ]]; then touch "${option#*=}"; fi
done
exit "${STAND_IN_STATUS:-0}"
"""


class Job:
    """A checkout with both programs, and the variables of a job on several nodes."""

    def __init__(self, root: Path) -> None:
        self.checkout = root / "a path" / "with spaces"
        self.programs = self.checkout / "build" / "benchmarks"
        self.programs.mkdir(parents=True)
        for name in ("tiny_llama_scaling", "tiny_llama_train"):
            (self.programs / name).write_text(PROGRAM, encoding="utf-8")
            (self.programs / name).chmod(0o755)
        self.slurm = StandInSlurm.install(root / "slurm")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        nodes = {"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "8"}
        return self.slurm.run_script(EXAMPLE, self.checkout, *arguments, **nodes | environment)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_sbatch_reads_its_options() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options and max(options) < first_command
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in options)


def test_one_node_and_all_of_them_are_measured_and_then_trained_on(job: Job) -> None:
    done = job.run("--size", "medium", SLURM_CPUS_PER_TASK="7")
    assert (done.returncode, done.stderr) == (0, "")
    one, all_, training = job.slurm.calls("srun")
    assert one.startswith("srun --nodes=1 --ntasks=8 --ntasks-per-node=8 --cpus-per-task=7 ")
    assert all_.startswith("srun --nodes=4 --ntasks=32 --ntasks-per-node=8 ")
    # a lost rank must not take the results of the others with it
    assert all("--kill-on-bad-exit=0 --wait=" in call for call in (one, all_, training))
    for call in (one, all_):
        assert f"{job.programs}/tiny_llama_scaling --device hip --threads 7 --size medium" in call
    assert f"{job.programs}/tiny_llama_train --device hip --size small" in training
    (folder,) = (job.checkout / "results").glob("*")
    assert re.fullmatch(r"\d{8}T\d{6}Z_slurm_42_scaling", folder.name)
    assert {path.name for path in folder.iterdir()} == {"ranks_8.json", "ranks_32.json"}
    assert done.stdout == f"Results: {folder}\n"


def test_a_job_of_one_node_measures_it_once(job: Job) -> None:
    assert job.run(SLURM_JOB_NUM_NODES="1").returncode == 0
    assert len(job.slurm.calls("srun")) == 2


def test_a_lost_rank_ends_the_job(job: Job) -> None:
    assert job.run(STAND_IN_STATUS="1").returncode == 1
    assert len(job.slurm.calls("srun")) == 1


@pytest.mark.parametrize("name", ["tiny_llama_scaling", "tiny_llama_train"])
def test_what_is_not_built_says_how(job: Job, name: str) -> None:
    (job.programs / name).unlink()
    done = job.run()
    assert done.returncode == 2
    assert name in done.stderr and "scripts/bench --setup-only" in done.stderr
    assert job.slurm.calls("srun") == []
    assert not (job.checkout / "results").exists()
