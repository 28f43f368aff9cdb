"""Ways to run: --verify, JSON on stdout, cold caches, limits of memory, failures."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import (
    QUICK,
    RUN,
    SMALL,
    SMALL_MODEL,
    Program,
    assert_complete,
    entries_by_case,
    read_json,
    read_result,
)
from jsonschema import Draft202012Validator

WithPeaks = Callable[..., list[str]]
FFN = ["--components=ffn", "--passes=forward"]
# one case that needs 82 KiB and one that needs 625 MiB
SMALL_AND_LARGE = [*SMALL_MODEL, *FFN, "--batch=2,20000", "--seq=32"]
MIB = 1 << 20


def test_verify_only_compares_and_times_nothing(program: Program) -> None:
    choice = [*SMALL, *RUN, "--components=ffn,loss", "--verify=only"]
    completed = program.run(*choice)
    assert completed.returncode == 0, completed.stderr
    lines = [line.split() for line in completed.stdout.splitlines()]
    names = [name for name in program.names(*choice) if not name.startswith("peak/")]
    assert [line[0] for line in lines] == names
    assert all(float(line[1]) < 2e-5 and line[-1] == "proved" for line in lines)
    assert "samples/s" not in completed.stdout
    assert "measured peak" not in completed.stderr


def test_json_on_stdout_is_pure_and_the_same_as_in_the_file(
    bench_program: Path, tmp_path: Path, validator: Draft202012Validator
) -> None:
    """With --verify=off, so that the result says so and has no error; with the commit."""
    program = Program(bench_program, with_commit=True)
    out = tmp_path / "out.json"
    choice = [*SMALL, *RUN, *FFN, "--verify=off"]
    files = ["--benchmark_format=json", f"--benchmark_out={out}"]
    completed = program.run(*choice, *QUICK, *files)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == out.read_text(encoding="utf-8")
    result = read_json(completed.stdout)
    assert validator.is_valid(result)
    assert_complete(result, program.names(*choice), repetitions=2)
    assert result["context"]["verify"] == "off"
    assert result["context"]["threads"] == 1
    # of the build, which may be older than the checkout
    assert re.fullmatch("[0-9a-f]{40}|unknown", result["context"]["git_commit"])
    assert not any("max_rel_error" in entry for entry in result["benchmarks"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json"]


def test_cold_cache_and_seed_are_in_the_context(
    program: Program, tmp_path: Path, validator: Draft202012Validator
) -> None:
    out = tmp_path / "out.json"
    choice = [*SMALL, *RUN, *FFN, "--cold-cache", "--seed=7"]
    completed = program.run(*choice, *QUICK, f"--benchmark_out={out}")
    assert completed.returncode == 0, completed.stderr
    result = read_result(out)
    assert validator.is_valid(result)
    assert_complete(result, program.names(*choice), repetitions=2)
    assert result["context"]["cold_cache"] is True
    assert result["context"]["seed"] == 7


def test_filter_chooses_what_is_measured(
    program: Program, tmp_path: Path, with_peaks: WithPeaks
) -> None:
    out = tmp_path / "out.json"
    choice = [*SMALL, "--benchmark_filter=^(ffn|loss)/backward", f"--benchmark_out={out}"]
    completed = program.run(*choice, *with_peaks(), *QUICK)
    assert completed.returncode == 0, completed.stderr
    names = [f"{part}/backward/baseline/custom/f32/batch:2/seq:8" for part in ("ffn", "loss")]
    assert_complete(read_result(out), names, repetitions=2)
    assert "sum of parts" not in completed.stdout


def test_one_repetition_has_no_aggregates(
    program: Program, tmp_path: Path, with_peaks: WithPeaks, validator: Draft202012Validator
) -> None:
    out = tmp_path / "out.json"
    once = ["--benchmark_min_time=1x", "--benchmark_repetitions=1", f"--benchmark_out={out}"]
    completed = program.run(*SMALL, *FFN, *with_peaks(), *once)
    assert completed.returncode == 0, completed.stderr
    result = read_result(out)
    assert validator.is_valid(result)
    assert [entry["run_type"] for entry in result["benchmarks"]] == ["iteration"]


def test_case_beyond_the_memory_limit_is_skipped_with_both_numbers(
    program: Program, tmp_path: Path, with_peaks: WithPeaks, validator: Draft202012Validator
) -> None:
    out = tmp_path / "out.json"
    limit = ["--memory-limit=400MiB", f"--benchmark_out={out}"]
    completed = program.run(*SMALL_AND_LARGE, *with_peaks(), *QUICK, *limit)
    assert completed.returncode == 0, completed.stderr
    result = read_result(out)
    assert validator.is_valid(result)
    small, large = entries_by_case(result).values()
    assert len(small) == 2 + 4
    assert len(large) == 1
    assert large[0]["skipped"] is True
    reason = large[0]["skip_message"]
    assert re.fullmatch(
        r"predicted peak memory \d+\.\d+ MiB exceeds 400\.00 MiB \(--memory-limit\)", reason
    )
    assert f"skipped: {reason}" in completed.stderr
    assert re.search(
        rf"^skipped\n  ffn/\S*batch:20000/seq:32: {re.escape(reason)}$",
        completed.stdout,
        re.MULTILINE,
    )


def test_tiny_memory_limit_skips_everything(program: Program, tmp_path: Path) -> None:
    """Measuring the peaks is not a case: the limit does not stand in its way."""
    out = tmp_path / "out.json"
    choice = [*SMALL, *RUN, "--components=ffn", "--memory-limit=1KiB"]
    completed = program.run(*choice, *QUICK, f"--benchmark_out={out}")
    assert completed.returncode == 0, completed.stderr[:2000]
    for entry in read_result(out)["benchmarks"]:
        assert re.search(r"\d KiB exceeds 1\.00 KiB", entry["skip_message"])


def test_case_beyond_the_time_limit_is_skipped_with_both_numbers(
    program: Program, tmp_path: Path, with_peaks: WithPeaks
) -> None:
    out = tmp_path / "out.json"
    limit = ["--max-seconds-per-case=0.001", f"--benchmark_out={out}"]
    completed = program.run(*SMALL_AND_LARGE, *with_peaks(), *QUICK, *limit)
    assert completed.returncode == 0, completed.stderr
    _, large = entries_by_case(read_result(out)).values()
    reason = large[0]["skip_message"]
    assert re.search(r"need at least \d+\.\d s .* more than --max-seconds-per-case 0\.001", reason)


def test_refused_memory_fails_the_case_and_the_run_goes_on(
    program: Program, tmp_path: Path, with_peaks: WithPeaks, validator: Draft202012Validator
) -> None:
    """The system refuses what the prediction took to be free: caught, reported, exit status 1."""
    out = tmp_path / "out.json"
    choice = [*SMALL_MODEL, "--components=ffn,loss", "--passes=forward", "--batch=2,20000"]
    arguments = [*choice, "--seq=32", *with_peaks(), *QUICK, f"--benchmark_out={out}"]
    completed = program.run(*arguments, address_space=900 * MIB)
    assert completed.returncode == 1, completed.stderr
    result = read_result(out)
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
    program: Program, tmp_path: Path, with_peaks: WithPeaks
) -> None:
    """The case fits, its float64 reference does not: a reason to skip, or to verify on less."""
    out = tmp_path / "out.json"
    choice = [*SMALL_MODEL, *FFN, "--batch=2", "--seq=65536", "--memory-limit=160MiB"]
    completed = program.run(*choice, *with_peaks(), *QUICK, f"--benchmark_out={out}")
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("dtype", ["bf16", "amp_bf16"])
def test_threads_option_decides(program: Program, with_peaks: WithPeaks, dtype: str) -> None:
    choice = [*SMALL, *FFN, f"--dtypes={dtype}", "--benchmark_format=json"]
    completed = program.run(*choice, *with_peaks(), *QUICK)
    assert completed.returncode == 0, completed.stderr
    context = read_json(completed.stdout)["context"]
    assert context["threads"] == 1
    assert context["settings"]["torch_threads"] == "1"
