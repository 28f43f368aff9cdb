"""The project's own gate in short: nothing is said against a build compared with itself, and one
that was slowed on purpose does not get through."""

from __future__ import annotations

from pathlib import Path

from compare_run import document_of, run

from tinyllama_tools.stats.verdicts import fewest_blocks

NAME = "ffn/forward_backward/baseline/tiny/f32/batch:8/seq:128"
ALPHA, LOOKS = 0.05, 1
# one thread, so that other work on the machine has a processor of its own
SHORT = ["--components=ffn", "--passes=forward_backward", "--device=cpu", "--threads=1"]
SHORT += [f"--alpha={ALPHA}", f"--looks={LOOKS}", "--pairs=4"]
# far beyond what other work on the machine makes of it
TWICE_ITS_TIME = "--slow-new=^ffn/=1"


def judged(status: int, cases: dict[str, dict[str, object]], output: Path) -> dict[str, object]:
    """The case, once it is sure that it was measured and judged at its only look."""
    assert list(cases) == [NAME]
    case = cases[NAME]
    assert document_of(output)["exit_status"] == status
    assert case["blocks"] == fewest_blocks(1, ALPHA, LOOKS)
    return case


def test_a_build_compared_with_itself_passes(bench_program: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    status, cases = run(bench_program, bench_program, output, *SHORT, "--margin=0.2", quick=False)
    assert status == 0
    assert judged(status, cases, output)["outcome"] in {"same", "unclear"}


def test_a_build_slowed_on_purpose_fails(bench_program: Path, tmp_path: Path) -> None:
    """Both sides are one program, so that nothing but the slowdown can be what fails."""
    output = tmp_path / "out"
    slow = [*SHORT, TWICE_ITS_TIME]
    status, cases = run(bench_program, bench_program, output, *slow, quick=False)
    assert status == 1
    assert judged(status, cases, output)["outcome"] == "slower"
