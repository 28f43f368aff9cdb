"""The sbatch examples, with a fake srun and fake programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_cluster import FakeSlurm, fake_bench

from built_programs import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "integrations" / "slurm"
RANK_PROGRAMS = ("tiny_llama_scaling", "tiny_llama_train")
DATA_PARALLEL = "data_parallel.sbatch"
# of the data-parallel example, which starts two of them
PROGRAM = """#!/bin/bash
for option in "$@"; do
  if [[ "$option" == --benchmark_out=* ]]; then touch "${option#*=}"; fi
done
exit "${FAKE_STATUS:-0}"
"""


class Cluster:
    """A checkout with the examples and the programs; and srun."""

    def __init__(self, root: Path) -> None:
        self.checkout = root / "a path" / "with spaces"
        shutil.copytree(FOLDER, self.checkout / "integrations" / "slurm")
        self.programs = self.checkout / "build" / "benchmarks"
        self.programs.mkdir(parents=True)
        fake_bench(self.programs)
        for name in RANK_PROGRAMS:
            (self.programs / name).write_text(PROGRAM, encoding="utf-8")
            (self.programs / name).chmod(0o755)
        self.slurm = FakeSlurm(root / "slurm")

    def run(
        self, example: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        script = self.checkout / "integrations" / "slurm" / example
        nodes = {"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "8"}
        return self.slurm.run_script(script, self.checkout, *arguments, **nodes | environment)

    def results(self) -> list[Path]:
        return sorted((self.checkout / "results").glob("*"))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize(
    ("example", "arguments", "threads", "options"),
    [
        ("one_gpu.sbatch", ["--sizes", "small"], "8", "--device hip --sizes small"),
        ("one_node_cpu.sbatch", [], "64", "--device cpu"),
    ],
)
def test_a_job_measures_on_its_device_into_a_folder_of_its_own(
    cluster: Cluster, example: str, arguments: list[str], threads: str, options: str
) -> None:
    done = cluster.run(example, *arguments, SLURM_CPUS_PER_TASK=threads)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "SUCCESS: 2 cases measured"
    (call,) = cluster.slurm.srun_calls()
    program = cluster.programs / "tiny_llama_bench"
    start = f"srun --ntasks=1 --cpus-per-task={threads} {program} --threads {threads} "
    assert call.startswith(start)
    assert f"{options} --figures-of-merit" in call
    (folder,) = cluster.results()
    assert re.fullmatch(r"\d{8}T\d{6}Z_slurm_42", folder.name)
    files = {path.name for path in folder.iterdir()}
    assert files == {"results.json", "journal.jsonl", "summary.txt"}
    summary = (folder / "summary.txt").read_text(encoding="utf-8")
    assert f"Results: {folder}\n{summary}" == done.stdout


def test_a_job_that_ran_out_of_time_is_gone_on_with(cluster: Cluster) -> None:
    stopped = cluster.run("one_gpu.sbatch", FAKE="interrupted")
    assert stopped.returncode == 130
    (folder,) = cluster.results()
    assert f"TINY_LLAMA_RESUME={folder}" in stopped.stderr
    done = cluster.run("one_gpu.sbatch", TINY_LLAMA_RESUME=str(folder))
    assert done.returncode == 0, done.stderr
    assert cluster.results() == [folder]
    assert "--resume" in cluster.slurm.srun_calls()[-1]
    assert cluster.run("one_gpu.sbatch", FAKE="fails").returncode == 1


@pytest.mark.parametrize(
    ("example", "program"),
    [
        *(("one_gpu.sbatch", "tiny_llama_bench"), ("one_node_cpu.sbatch", "tiny_llama_bench")),
        *((DATA_PARALLEL, program) for program in RANK_PROGRAMS),
    ],
)
def test_what_is_not_set_up_says_how(cluster: Cluster, example: str, program: str) -> None:
    (cluster.programs / program).unlink()
    done = cluster.run(example)
    assert done.returncode == 2
    assert "scripts/bench --setup-only" in done.stderr
    assert cluster.slurm.srun_calls() == [] == cluster.results()


def test_one_node_and_all_of_them_are_measured_and_then_trained_on(cluster: Cluster) -> None:
    done = cluster.run(DATA_PARALLEL, "--size", "medium", SLURM_CPUS_PER_TASK="7")
    assert (done.returncode, done.stderr) == (0, "")
    one, all_, training = cluster.slurm.srun_calls()
    assert one.startswith("srun --nodes=1 --ntasks=8 --ntasks-per-node=8 --cpus-per-task=7 ")
    assert all_.startswith("srun --nodes=4 --ntasks=32 --ntasks-per-node=8 ")
    # a lost rank must not take the results of the others with it
    assert all("--kill-on-bad-exit=0 --wait=" in call for call in (one, all_, training))
    scaling = f"{cluster.programs}/tiny_llama_scaling --device hip --threads 7 --size medium"
    assert scaling in one and scaling in all_
    assert f"{cluster.programs}/tiny_llama_train --device hip --size small" in training
    (folder,) = cluster.results()
    assert re.fullmatch(r"\d{8}T\d{6}Z_slurm_42_scaling", folder.name)
    assert {path.name for path in folder.iterdir()} == {"ranks_8.json", "ranks_32.json"}
    assert done.stdout == f"Results: {folder}\n"
    # one node is measured once; a lost rank ends the job
    assert cluster.run(DATA_PARALLEL, SLURM_JOB_NUM_NODES="1").returncode == 0
    assert len(cluster.slurm.srun_calls()) == 3 + 2
    assert cluster.run(DATA_PARALLEL, FAKE_STATUS="1").returncode == 1
    assert len(cluster.slurm.srun_calls()) == 3 + 2 + 1
