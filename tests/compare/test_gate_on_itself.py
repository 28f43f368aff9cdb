"""The project's own gate in short: nothing is said against a build compared with itself, and one
that was slowed on purpose does not get through."""

from __future__ import annotations

from pathlib import Path

import pytest
from built_programs import built_program
from compare_run import document_of, run

from tinyllama_tools.calibrate.slowdown_build import SLOWED_PROGRAM, slowdown_environment
from tinyllama_tools.judging.design import fewest_blocks

NAME = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
ALPHA, LOOKS = 0.05, 1
# One thread, and pairs enough for a median: other work on the machine must not decide.
SHORT = ["--components=ffn", "--passes=forward_backward", "--device=cpu", "--threads=1"]
SHORT += [f"--alpha={ALPHA}", f"--looks={LOOKS}", "--pairs=4"]
# A part that takes twice its time; what is left of it in noise has to be above the margin.
TWICE = slowdown_environment({"ffn": 1.0})


@pytest.fixture(scope="module")
def slowed_program() -> Path:
    """The built tiny_llama_bench_slowed."""
    return built_program(str(SLOWED_PROGRAM))


def judged(status: int, cases: dict[str, dict[str, object]], output: Path) -> dict[str, object]:
    """The case, once it is sure that it was measured and judged at its only look."""
    assert list(cases) == [NAME]
    case = cases[NAME]
    assert document_of(output)["exit_status"] == status
    assert case["evidence"]["blocks"] == fewest_blocks(1, ALPHA, LOOKS)
    return case


def test_a_build_compared_with_itself_passes(bench_program: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    status, cases = run(
        bench_program, bench_program, output, *SHORT, "--margin=0.2", quick=False
    )
    assert status == 0
    assert judged(status, cases, output)["outcome"] in {"same", "unclear"}


def test_a_build_slowed_on_purpose_fails(
    bench_program: Path, slowed_program: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    slow = [f"--environment-new={name}={value}" for name, value in TWICE.items()]
    status, cases = run(bench_program, slowed_program, output, *SHORT, *slow, quick=False)
    assert status == 1
    case = judged(status, cases, output)
    assert case["outcome"] == "slower"


def test_the_slowed_program_passes_where_nothing_is_slowed(
    bench_program: Path, slowed_program: Path, tmp_path: Path
) -> None:
    """What fails above is the slowdown and not the program."""
    output = tmp_path / "out"
    status, cases = run(
        bench_program, slowed_program, output, *SHORT, "--margin=0.2", quick=False
    )
    assert status == 0
    assert judged(status, cases, output)["outcome"] in {"same", "unclear"}
