"""The sbatch examples: their syntax, and a run with a stand-in for srun and for the program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from slurm_stand_in import StandInSlurm

from built_programs import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "integrations" / "slurm"
EXAMPLES = ["one_gpu.sbatch", "one_node_cpu.sbatch"]
Completed = subprocess.CompletedProcess[str]


class Cluster:
    """A checkout with the examples and, unless told otherwise, the program; and srun."""

    def __init__(self, root: Path, program: Path) -> None:
        self.checkout = root / "a path" / "with spaces"
        shutil.copytree(FOLDER, self.checkout / "integrations" / "slurm")
        self.program = self.checkout / "build" / "benchmarks" / "tiny_llama_bench"
        self.program.parent.mkdir(parents=True)
        shutil.copy(program, self.program)
        self.slurm = StandInSlurm.install(root / "slurm")

    def run(self, example: str, *arguments: str, **environment: str) -> Completed:
        script = self.checkout / "integrations" / "slurm" / example
        return self.slurm.run_script(script, self.checkout, *arguments, **environment)

    def results(self) -> list[Path]:
        return sorted((self.checkout / "results").glob("*"))


@pytest.fixture
def cluster(tmp_path: Path, stand_in: Path) -> Cluster:
    return Cluster(tmp_path, stand_in)


@pytest.mark.parametrize("name", [*EXAMPLES, "measure.sh"])
def test_the_shell_understands_it(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(FOLDER / name)], check=False).returncode == 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_option_for_sbatch_stands_before_the_first_command(name: str) -> None:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options, "sbatch would take its defaults"
    assert max(options) < first_command, "sbatch reads no option after a command"
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in options)


def test_a_gpu_job_measures_on_the_gpu(cluster: Cluster) -> None:
    done = cluster.run("one_gpu.sbatch", "--sizes", "small", SLURM_CPUS_PER_TASK="8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "SUCCESS: 2 cases measured"
    (call,) = cluster.slurm.calls("srun")
    assert call.startswith(f"srun --ntasks=1 --cpus-per-task=8 {cluster.program} --threads 8 ")
    assert "--device hip --sizes small --figures-of-merit" in call


def test_a_cpu_job_measures_on_the_processor(cluster: Cluster) -> None:
    done = cluster.run("one_node_cpu.sbatch", SLURM_CPUS_PER_TASK="64")
    assert done.returncode == 0, done.stderr
    (call,) = cluster.slurm.calls("srun")
    assert "--threads 64 --device cpu --figures-of-merit" in call


def test_the_results_of_a_job_are_in_a_folder_of_its_own(cluster: Cluster) -> None:
    done = cluster.run("one_gpu.sbatch")
    (folder,) = cluster.results()
    assert re.fullmatch(r"\d{8}T\d{6}Z_slurm_42", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "journal.jsonl",
        "summary.txt",
    }
    summary = (folder / "summary.txt").read_text(encoding="utf-8")
    assert f"Results: {folder}\n{summary}" == done.stdout


def test_a_failed_case_fails_the_job(cluster: Cluster) -> None:
    done = cluster.run("one_gpu.sbatch", STAND_IN="fails")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "FAILED: 1 of 2 cases failed"


def test_a_job_that_ran_out_of_time_is_gone_on_with(cluster: Cluster) -> None:
    stopped = cluster.run("one_gpu.sbatch", STAND_IN="interrupted")
    assert stopped.returncode == 130
    (folder,) = cluster.results()
    assert f"TINY_LLAMA_RESUME={folder}" in stopped.stderr
    done = cluster.run("one_gpu.sbatch", TINY_LLAMA_RESUME=str(folder))
    assert done.returncode == 0, done.stderr
    assert cluster.results() == [folder]
    assert "--resume" in cluster.slurm.calls("srun")[-1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_not_set_up_says_how(cluster: Cluster, name: str) -> None:
    cluster.program.unlink()
    done = cluster.run(name)
    assert done.returncode == 2
    assert "On a login node: scripts/bench --setup-only" in done.stderr
    assert cluster.slurm.calls("srun") == []
    assert cluster.results() == []
