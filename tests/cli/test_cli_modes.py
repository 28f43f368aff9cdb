"""Ways to run: --verify, JSON on stdout, cold caches, limits of memory and time, failures."""

import re
from pathlib import Path

import pytest
from cli_program import (
    MIB,
    QUICK,
    RUN,
    SMALL,
    SMALL_MODEL,
    Program,
    WithPeaks,
    assert_complete,
    entries_by_case,
    read_json,
)
from jsonschema import Draft202012Validator

FFN = ["--components=ffn", "--passes=forward"]
# one case that needs 82 KiB and one that needs 625 MiB
SMALL_AND_LARGE = [*SMALL_MODEL, *FFN, "--batch=2,20000", "--seq=32"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


def test_verify_only_compares_and_times_nothing(program: Program) -> None:
    choice = [*SMALL, *RUN, "--components=ffn,loss", "--verify=only"]
    completed = program.run(*choice)
    assert completed.returncode == 0, completed.stderr
    lines = [line.split() for line in completed.stdout.splitlines()]
    assert [line[0] for line in lines] == program.cases(*choice)
    assert all(float(line[1]) < 2e-5 and line[-1] == "proved" for line in lines)
    assert "samples/s" not in completed.stdout
    assert "measured peak" not in completed.stderr


def test_json_on_stdout_is_pure_and_the_same_as_in_the_file(
    bench_program: Path, out: Path, validator: Draft202012Validator
) -> None:
    """With what its context has to say: --verify=off, cold caches, a seed, and the commit."""
    program = Program(bench_program, with_commit=True)
    choice = [*SMALL, *RUN, *FFN, "--verify=off", "--cold-cache", "--seed=7"]
    completed, result = program.measure(out, *choice, "--benchmark_format=json")
    assert completed.stdout == out.read_text(encoding="utf-8")
    assert validator.is_valid(result)
    assert_complete(result, program.names(*choice))
    context = result["context"]
    assert [context[key] for key in ("verify", "cold_cache", "seed")] == ["off", True, 7]
    # of the build, which may be older than the checkout
    assert re.fullmatch("[0-9a-f]{40}|unknown", context["git_commit"])
    assert not any("max_rel_error" in entry for entry in result["benchmarks"])
    assert [path.name for path in out.parent.iterdir()] == ["out.json"]


def test_filter_chooses_what_is_measured(
    program: Program, out: Path, with_peaks: WithPeaks
) -> None:
    choice = [*SMALL, "--benchmark_filter=^(ffn|loss)/backward", *with_peaks()]
    completed, result = program.measure(out, *choice)
    names = [f"{part}/backward/baseline/custom/f32/batch:2/seq:8" for part in ("ffn", "loss")]
    assert_complete(result, names)
    assert "sum of parts" not in completed.stdout


def test_one_repetition_has_no_aggregates(
    program: Program, with_peaks: WithPeaks, validator: Draft202012Validator
) -> None:
    once = [*with_peaks(), "--benchmark_repetitions=1"]
    quick = [option for option in QUICK if "repetitions" not in option]
    completed = program.run(*SMALL, *FFN, *once, *quick, "--benchmark_format=json")
    assert completed.returncode == 0, completed.stderr
    result = read_json(completed.stdout)
    assert validator.is_valid(result)
    assert [entry["run_type"] for entry in result["benchmarks"]] == ["iteration"]


@pytest.mark.parametrize(
    ("limit", "pattern"),
    [
        (
            "--memory-limit=400MiB",
            r"predicted peak memory \d+\.\d+ MiB exceeds 400\.00 MiB \(--memory-limit\)",
        ),
        (
            "--max-seconds-per-case=0.001",
            r".*need at least \d+\.\d s .* more than --max-seconds-per-case 0\.001.*",
        ),
    ],
)
def test_case_beyond_a_limit_is_skipped_with_both_numbers(
    program: Program,
    out: Path,
    with_peaks: WithPeaks,
    validator: Draft202012Validator,
    limit: str,
    pattern: str,
) -> None:
    completed, result = program.measure(out, *SMALL_AND_LARGE, *with_peaks(), limit)
    assert validator.is_valid(result)
    small, large = entries_by_case(result).values()
    assert len(small) in {1, 2 + 4}
    assert len(large) == 1
    assert large[0]["skipped"] is True
    reason = large[0]["skip_message"]
    assert re.fullmatch(pattern, reason), reason
    assert f"skipped: {reason}" in completed.stderr
    line = rf"^  ffn/\S*batch:20000/seq:32: {re.escape(reason)}$"
    assert re.search(line, completed.stdout.split("\nskipped\n")[1], re.MULTILINE)


def test_refused_memory_fails_the_case_and_the_run_goes_on(
    program: Program, out: Path, with_peaks: WithPeaks, validator: Draft202012Validator
) -> None:
    """The system refuses what the prediction took to be free: caught, reported, exit status 1."""
    choice = [*SMALL_MODEL, "--components=ffn,loss", "--passes=forward", "--batch=2,20000"]
    short = {"status": 1, "address_space": 900 * MIB}
    completed, result = program.measure(out, *choice, "--seq=32", *with_peaks(), **short)
    assert validator.is_valid(result)
    cases = entries_by_case(result)
    failed = {name: entries for name, entries in cases.items() if "batch:20000" in name}
    assert len(failed) == 2
    for name, entries in failed.items():
        assert len(entries) == 1
        assert "out of memory" in entries[0]["error_message"]
        assert f"{name}  FAILED: out of memory" in completed.stderr
    assert "frame #" not in completed.stderr + completed.stdout
    after = cases["loss/forward/baseline/custom/f32/batch:2/seq:32"]
    assert len(after) == 2 + 4, "the case after the failed one was not measured"
    assert re.search(r"^FAILED\n  ffn/forward/", completed.stdout, re.MULTILINE)


def test_reference_that_does_not_fit_is_no_failure(
    program: Program, out: Path, with_peaks: WithPeaks
) -> None:
    """The case fits, its float64 reference does not: a reason to skip, or to verify on less."""
    choice = [*SMALL_MODEL, *FFN, "--batch=2", "--seq=65536", "--memory-limit=160MiB"]
    program.measure(out, *choice, *with_peaks())


@pytest.mark.parametrize("dtype", ["bf16", "amp_bf16"])
def test_threads_option_decides(
    program: Program, out: Path, with_peaks: WithPeaks, dtype: str
) -> None:
    _, result = program.measure(out, *SMALL, *FFN, f"--dtypes={dtype}", *with_peaks())
    assert result["context"]["threads"] == 1
    assert result["context"]["settings"]["torch_threads"] == "1"
