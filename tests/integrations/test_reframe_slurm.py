"""The example settings of a Slurm cluster with AMD GPUs, run by ReFrame with a stand-in Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from reframe_run import Outcome, need_reframe, run_reframe
from slurm_stand_in import StandInSlurm


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, stand_in: Path) -> Mapping[str, Outcome]:
    """One test on each partition, by the partition's name."""
    need_reframe()
    folder = tmp_path_factory.mktemp("reframe")
    report = run_reframe(
        folder,
        "settings_slurm_amd.py",
        "--system=cluster",
        "--name=TinyLlamaStep%size=small%variant=optimized%dtype=bf16",
        f"--setvar=program={stand_in}",
        environment=StandInSlurm.install(tmp_path_factory.mktemp("slurm") / "slurm").environment,
    )
    return {name.split("@")[-1]: outcome for name, outcome in report.outcomes.items()}


def test_both_partitions_measure(outcomes: Mapping[str, Outcome]) -> None:
    assert {name: outcome.verdict for name, outcome in outcomes.items()} == {
        "gpu": "pass",
        "cpu": "pass",
    }
    rate = outcomes["gpu"].figures["full_step/train/samples_per_second"]
    assert rate == (113.301, "samples/s")


def test_a_gpu_job_asks_for_one_gpu_and_its_share_of_the_cores(
    outcomes: Mapping[str, Outcome],
) -> None:
    script = outcomes["gpu"].script
    assert "#SBATCH --gpus-per-node=1\n" in script
    assert "#SBATCH --cpus-per-task=12\n" in script
    assert "#SBATCH --partition=gpu\n" in script
    assert "#SBATCH --hint=nomultithread\n" in script
    assert "--exclusive" not in script
    assert "srun --cpus-per-task=12 " in script
    assert "--device=hip --components=full_step --sizes=small" in script


def test_a_cpu_job_asks_for_the_cores_of_a_node(outcomes: Mapping[str, Outcome]) -> None:
    script = outcomes["cpu"].script
    assert "gpu" not in script
    assert "#SBATCH --exclusive\n" in script
    assert "#SBATCH --cpus-per-task=128\n" in script
    assert "--device=cpu" in script
    assert "--threads=128" in script
