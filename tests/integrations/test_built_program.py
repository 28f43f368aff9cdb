"""The integrations with the built tiny_llama_bench in place of the fake."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import fake_bench
import pytest
from fake_ramble import analyse, load_application
from reframe_run import Outcome, Report, need_reframe, run_reframe

from built_programs import PROJECT_ROOT

# a step of a few milliseconds, measured once; compared with the baseline as ever
QUICK = ["--batch=2", "--seq=16", "--threads=1", "--benchmark_min_time=1x"]
QUICK += ["--benchmark_repetitions=1"]
FIGURE = re.compile(r"^FOM (\S+)/(\S+) = \S+ (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def output(bench_program: Path) -> str:
    """What it prints of one step and of one component without products."""
    command = [str(bench_program), "--device=cpu", "--components=optimizer,full_step", *QUICK]
    command += ["--variants=optimized", "--figures-of-merit"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_the_fake_prints_the_same_lines_and_ramble_finds_every_figure(output: str) -> None:
    """Names, units and order; the numbers of the fake are made up."""
    assert output.splitlines()[-1] == "SUCCESS: 2 cases measured"
    printed = FIGURE.findall(output)
    choice = "--components=optimizer,full_step --variants=optimized --batch=2 --seq=16"
    cases = fake_bench.cases_of(fake_bench.parse([*choice.split(), "--figures-of-merit"]))
    lines = [line for case in cases for line in fake_bench.figure_lines(case, "")]
    assert FIGURE.findall("\n".join(lines)) == printed
    folder = PROJECT_ROOT / "integrations" / "ramble" / "applications" / "tiny-llama-bench"
    analysis = analyse(load_application(folder / "application.py"), output)
    assert analysis.succeeded
    found = [(case, figure) for case, figures in analysis.figures.items() for figure in figures]
    assert found == [(case, figure) for case, figure, _ in printed]


@pytest.fixture(scope="module")
def report(bench_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """ReFrame on two sizes, with memory for the smaller one only."""
    need_reframe()
    return run_reframe(
        tmp_path_factory.mktemp("reframe"),
        "settings_local.py",
        "--name=TinyLlamaStep%size=(tiny|small)%variant=optimized%dtype=f32",
        f"--setvar=program={bench_program}",
        f"--setvar=options={' '.join(QUICK)} --memory-limit=300MiB",
        "--setvar=device=cpu",
    )


def outcome_of(report: Report, size: str) -> Outcome:
    (name,) = (name for name in report.outcomes if f"%size={size} " in name)
    return report.outcomes[name]


def test_reframe_measures_a_step(report: Report) -> None:
    step = outcome_of(report, "tiny")
    assert (step.verdict, step.reason) == ("pass", "")
    assert step.figures["full_step/train/samples_per_second"][0] > 0
    assert step.figures["full_step/train/peak_memory"][1] == "MiB"
    assert (step.output / "results.json").stat().st_size > 0


def test_reframe_skips_what_does_not_fit_with_the_program_s_reason(report: Report) -> None:
    assert outcome_of(report, "small").verdict == "skip"
    assert "exceeds 300.00 MiB (--memory-limit)" in report.console
