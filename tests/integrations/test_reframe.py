"""The ReFrame tests, run by ReFrame with a program that prints made-up numbers: here, and on a fake
Slurm cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from reframe_run import Outcome, Report, need_reframe, run_reframe

BEHAVIOURS = {
    "small/baseline": "fails",
    "small/optimized": "skips",
    "medium/baseline": "crashes",
    "medium/optimized": "interrupted",
    "large/baseline": "lost_figure",
    "large/optimized": "not_a_number",
    "very_large/optimized": "miscounts",
}
# the fake's numbers: baseline 86.1736 samples/s, optimized 113.301
REFERENCES = """
TinyLlamaStep:
  $index: [$partition, size, variant, dtype]
  "local:default":
    tiny:
      baseline:
        f32:
          full_step/train/samples_per_second: [86.0, -0.05, null, samples/s]
      optimized:
        f32:
          full_step/train/samples_per_second: [200.0, -0.05, null, samples/s]
    very_large:
      baseline:
        f32:
          full_step/train/kernels: [1.0, null, 0.05, kernels]
TinyLlamaComponents: {}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, fake_bench_program: Path) -> Report:
    """One run of ReFrame for all: every size and variant of the step, components of one."""
    need_reframe()
    folder = tmp_path_factory.mktemp("reframe")
    (folder / "references.yaml").write_text(REFERENCES, encoding="utf-8")
    return run_reframe(
        folder,
        "settings_local.py",
        "--name=(TinyLlamaStep.*|TinyLlamaComponents%size=tiny%variant=optimized)%dtype=f32",
        f"--setvar=program={fake_bench_program}",
        environment={
            "RFM_REFERENCE_PREFIX": str(folder),
            "FAKE": ",".join(f"{case}={how}" for case, how in BEHAVIOURS.items()),
            "FAKE_LOCK": str(folder / "lock"),
        },
    )


@pytest.fixture(scope="module")
def outcomes(report: Report) -> Mapping[str, Outcome]:
    """By '<size>/<variant>', the components as 'components'."""
    return {short_name(name): outcome for name, outcome in report.outcomes.items()}


def short_name(display_name: str) -> str:
    kind, size, variant, *_ = (part.split("=")[-1] for part in display_name.split())
    return "components" if kind == "TinyLlamaComponents" else f"{size}/{variant}"


def test_every_size_and_variant_is_a_test_and_the_smallest_is_quick(
    outcomes: Mapping[str, Outcome],
) -> None:
    assert len(outcomes) == 5 * 2 + 1
    quick = {name for name, outcome in outcomes.items() if "quick" in outcome.tags}
    assert quick == {"tiny/baseline", "tiny/optimized", "components"}


def test_the_figures_and_the_result_of_a_step_are_kept(outcomes: Mapping[str, Outcome]) -> None:
    step = outcomes["tiny/baseline"]
    assert (step.verdict, step.reason) == ("pass", "")
    assert step.figures == {
        "full_step/train/time": (0.0928359, "s"),
        "full_step/train/samples_per_second": (86.1736, "samples/s"),
        "full_step/train/tokens_per_second": (1.10302e6, "tokens/s"),
        "full_step/train/TFLOPS": (0.241826, "TFLOP/s"),
        "full_step/train/MFU_percent": (64.5247, "%"),
        "full_step/train/peak_percent": (64.5247, "%"),
        "full_step/train/roof_percent": (64.5247, "%"),
        "full_step/train/peak_memory": (97.5664, "MiB"),
    }
    assert (step.output / "results.json").is_file()
    # a local job takes the best device present
    assert "--device=auto" in step.script
    assert "--threads" not in step.script


def test_each_component_has_its_figures(outcomes: Mapping[str, Outcome]) -> None:
    components = outcomes["components"]
    assert components.verdict == "pass", components.reason
    assert components.figures["attention/forward_backward/TFLOPS"] == (0.241826, "TFLOP/s")
    assert components.figures["optimizer/update/time"] == (0.0706086, "s")
    assert "optimizer/update/TFLOPS" not in components.figures
    assert len({name.split("/")[0] for name in components.figures}) == 8


def test_what_cannot_be_measured_here_is_skipped_with_the_reason(
    report: Report, outcomes: Mapping[str, Outcome]
) -> None:
    assert outcomes["small/optimized"].verdict == "skip"
    assert "needs 80 GiB, 12 GiB are free" in report.console


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("tiny/optimized", "full_step/train/samples_per_second=113.301 samples/s, expected 200"),
        ("small/baseline", "FAILED: 1 of 1 cases failed"),
        ("medium/baseline", "no line 'SUCCESS: <n> ...' in the output"),
        ("medium/optimized", "exit status 130"),
        ("large/baseline", "no line 'FOM full_step/train/baseline/large/f32/batch:8/seq:1024/sam"),
        ("large/optimized", "not a number: FOM full_step/train/optimized/large/f32/batch:8/seq:10"),
        ("very_large/baseline", "full_step/train/kernels has a reference and was not measured"),
        ("very_large/optimized", "figures of 1 cases, not of 2"),
    ],
)
def test_what_fails_says_why(outcomes: Mapping[str, Outcome], case: str, reason: str) -> None:
    assert outcomes[case].verdict == "fail"
    assert reason in outcomes[case].reason


@pytest.fixture(scope="module")
def slurm_outcomes(
    tmp_path_factory: pytest.TempPathFactory, fake_bench_program: Path
) -> Mapping[str, Outcome]:
    """One test on each partition, by the partition's name."""
    need_reframe()
    folder = tmp_path_factory.mktemp("reframe")
    report = run_reframe(
        folder,
        "settings_slurm_amd.py",
        "--system=cluster",
        "--name=TinyLlamaStep%size=small%variant=optimized%dtype=bf16",
        f"--setvar=program={fake_bench_program}",
        environment=FakeSlurm.install(tmp_path_factory.mktemp("slurm") / "slurm").environment,
    )
    return {name.split("@")[-1]: outcome for name, outcome in report.outcomes.items()}


@pytest.mark.parametrize(
    ("partition", "asked", "not_asked"),
    [
        (
            "gpu",
            [
                "#SBATCH --gpus-per-node=1\n",
                "#SBATCH --cpus-per-task=12\n",
                "#SBATCH --partition=gpu\n",
                "#SBATCH --hint=nomultithread\n",
                "srun --cpus-per-task=12 ",
                "--device=hip --components=full_step --sizes=small",
            ],
            "--exclusive",
        ),
        (
            "cpu",
            [
                "#SBATCH --exclusive\n",
                "#SBATCH --cpus-per-task=128\n",
                "--device=cpu",
                "--threads=128",
            ],
            "gpu",
        ),
    ],
)
def test_a_partition_measures_on_what_its_job_asks_for(
    slurm_outcomes: Mapping[str, Outcome], partition: str, asked: list[str], not_asked: str
) -> None:
    assert set(slurm_outcomes) == {"gpu", "cpu"}
    outcome = slurm_outcomes[partition]
    assert outcome.verdict == "pass", outcome.reason
    assert outcome.figures["full_step/train/samples_per_second"] == (113.301, "samples/s")
    assert [text for text in asked if text not in outcome.script] == []
    assert not_asked not in outcome.script
