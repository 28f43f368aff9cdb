"""The ReFrame tests, run by ReFrame on this machine with a program that prints made-up numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
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
# the stand-in's numbers: baseline 86.1736 samples/s, optimized 113.301
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
def report(tmp_path_factory: pytest.TempPathFactory, stand_in: Path) -> Report:
    """One run of ReFrame for all: every size and variant of the step, components of one."""
    need_reframe()
    folder = tmp_path_factory.mktemp("reframe")
    (folder / "references.yaml").write_text(REFERENCES, encoding="utf-8")
    return run_reframe(
        folder,
        "settings_local.py",
        "--name=(TinyLlamaStep.*|TinyLlamaComponents%size=tiny%variant=optimized)%dtype=f32",
        f"--setvar=program={stand_in}",
        environment={
            "RFM_REFERENCE_PREFIX": str(folder),
            "STAND_IN": ",".join(f"{case}={how}" for case, how in BEHAVIOURS.items()),
            "STAND_IN_LOCK": str(folder / "lock"),
        },
    )


@pytest.fixture(scope="module")
def outcomes(report: Report) -> Mapping[str, Outcome]:
    """By '<size>/<variant>', the components as 'components'."""
    return {short_name(name): outcome for name, outcome in report.outcomes.items()}


def short_name(display_name: str) -> str:
    kind, size, variant, *_ = (part.split("=")[-1] for part in display_name.split())
    return "components" if kind == "TinyLlamaComponents" else f"{size}/{variant}"


def test_every_size_and_variant_is_a_test(outcomes: Mapping[str, Outcome]) -> None:
    sizes = ["tiny", "small", "medium", "large", "very_large"]
    steps = {f"{size}/{variant}" for size in sizes for variant in ("baseline", "optimized")}
    assert set(outcomes) == steps | {"components"}


def test_the_smallest_size_in_f32_is_what_is_quick(outcomes: Mapping[str, Outcome]) -> None:
    quick = {name for name, outcome in outcomes.items() if "quick" in outcome.tags}
    assert quick == {"tiny/baseline", "tiny/optimized", "components"}


def test_the_figures_of_a_step_reach_the_report(outcomes: Mapping[str, Outcome]) -> None:
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


def test_the_result_file_is_kept(outcomes: Mapping[str, Outcome]) -> None:
    assert (outcomes["tiny/baseline"].output / "results.json").is_file()


def test_each_component_has_its_figures(outcomes: Mapping[str, Outcome]) -> None:
    components = outcomes["components"]
    assert components.verdict == "pass", components.reason
    assert components.figures["attention/forward_backward/TFLOPS"] == (0.241826, "TFLOP/s")
    assert components.figures["optimizer/update/time"] == (0.0706086, "s")
    assert "optimizer/update/TFLOPS" not in components.figures
    assert len({name.split("/")[0] for name in components.figures}) == 8


def test_a_local_job_takes_the_best_device_present(outcomes: Mapping[str, Outcome]) -> None:
    assert "--device=auto" in outcomes["tiny/baseline"].script
    assert "--threads" not in outcomes["tiny/baseline"].script


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
