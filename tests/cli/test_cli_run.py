"""Runs: one of every component, pass and dtype, whose figures agree with each other, and the ways
to run: --verify, JSON on stdout, limits of memory and time, failures, weights, a terminal."""

import os
import pty
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import (
    COMPONENTS,
    MIB,
    RUN,
    SMALL,
    SMALL_MODEL,
    FinishedRun,
    Program,
    WithPeaks,
    assert_complete,
    entries_by_case,
    was_measured,
)
from jsonschema import Draft202012Validator

from built_programs import PROJECT_ROOT, TIMEOUT_S, Json

DTYPES = ["f32", "bf16", "amp_bf16", "f16", "amp_f16"]
OWN_PASSES = {
    "model": ["forward", "forward_loss", "backward", "forward_backward"],
    "optimizer": ["update"],
    "full_step": ["train"],
}
FFN = ["--components=ffn", "--passes=forward"]
# one case that needs 82 KiB and one that needs 625 MiB
SMALL_AND_LARGE = [*SMALL_MODEL, *FFN, "--batch=2,20000", "--seq=32"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


def repetitions(run: FinishedRun) -> list[Json]:
    """The entries that were timed, without the peaks'."""
    return [
        entry
        for entry in run.result["benchmarks"]
        if entry["run_type"] == "iteration" and not entry["name"].startswith("peak/")
    ]


def test_result_is_whole_and_of_its_schema(
    smoke_run: FinishedRun, program: Program, validator: Draft202012Validator
) -> None:
    errors = validator.iter_errors(smoke_run.result)
    assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == []
    assert [entry for entry in smoke_run.result["benchmarks"] if not was_measured(entry)] == []
    assert smoke_run.completed.returncode == 0
    names = program.names(*smoke_run.arguments)
    assert_complete(smoke_run.result, names)
    expected = {
        f"{component}/{name}/baseline/custom/{dtype}/batch:2/seq:8"
        for component in COMPONENTS
        for name in OWN_PASSES.get(component, ["forward", "backward", "forward_backward"])
        for dtype in DTYPES
    }
    peaks = {"peak/gemm/f32", "peak/gemm/bf16", "peak/gemm/f16", "peak/bandwidth"}
    assert set(names) >= expected | peaks
    # where stderr is no terminal, progress is a plain line a case
    stderr = smoke_run.completed.stderr
    assert not {"\r", "\x1b"} & set(stderr)
    steps = [line for line in stderr.splitlines() if line.startswith("[")]
    assert [line.split()[1] for line in steps] == names
    # a table a component, and the sum of parts of each dtype
    tables = [text.split()[0] for text in smoke_run.completed.stdout.strip().split("\n\n")]
    assert [name for name in tables if name in COMPONENTS] == COMPONENTS
    assert smoke_run.completed.stdout.count("sum of parts  baseline custom ") == len(DTYPES)


def test_rates_are_of_the_rows_own_time_and_work(smoke_run: FinishedRun) -> None:
    """rows_test.cpp has every counter by hand."""
    for entry in repetitions(smoke_run):
        seconds = entry["real_time"] * {"ms": 1e-3}[entry["time_unit"]]
        assert entry["tokens_per_second"] == pytest.approx(16 / seconds, rel=1e-6)
        assert entry["GB_per_second"] == pytest.approx(entry["bytes"] / seconds / 1e9, rel=1e-6)
        rate = entry["model_flops"] / seconds / 1e12
        assert entry.get("TFLOPS", 0) == pytest.approx(rate, rel=1e-6)
        assert entry["causal_flops"] <= entry["model_flops"] <= entry["hardware_flops"]
    cases = entries_by_case(smoke_run.result)
    f32, bf16 = (
        cases[f"ffn/forward/baseline/custom/{dtype}/batch:2/seq:8"][0] for dtype in ("f32", "bf16")
    )
    assert f32["model_flops"] == bf16["model_flops"]
    assert f32["bytes"] == 2 * bf16["bytes"]
    assert f32["max_rel_error"] < bf16["max_rel_error"]


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


def test_case_beyond_a_limit_is_skipped_and_one_that_is_refused_memory_fails(
    program: Program, tmp_path: Path, with_peaks: WithPeaks, validator: Draft202012Validator
) -> None:
    """With both numbers. Where the system refuses what the prediction took to be free, that is
    caught and reported, the run goes on, and its exit status is 1. Google Benchmark's compare.py
    reads both."""
    skipped, failed = tmp_path / "skipped.json", tmp_path / "failed.json"
    limit = "--memory-limit=400MiB"
    completed, result = program.measure(skipped, *SMALL_AND_LARGE, *with_peaks("a.jsonl"), limit)
    assert validator.is_valid(result)
    small, large = entries_by_case(result).values()
    assert (len(small), len(large), large[0]["skipped"]) == (2 + 4, 1, True)
    reason = large[0]["skip_message"]
    pattern = r"predicted peak memory \d+\.\d+ MiB exceeds 400\.00 MiB \(--memory-limit\)"
    assert re.fullmatch(pattern, reason), reason
    assert f"skipped: {reason}" in completed.stderr
    assert f"batch:20000/seq:32: {reason}\n" in completed.stdout.split("\nskipped\n")[1]

    choice = [*SMALL_MODEL, "--components=ffn,loss", "--passes=forward", "--batch=2,20000"]
    limits = (900 * MIB, 900 * MIB)
    short = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, limits), "status": 1}
    completed, result = program.measure(
        failed, *choice, "--seq=32", *with_peaks("b.jsonl"), **short
    )
    assert validator.is_valid(result)
    cases = entries_by_case(result)
    refused = {name: entries for name, entries in cases.items() if "batch:20000" in name}
    assert len(refused) == 2
    for name, (entry,) in refused.items():
        assert "out of memory" in entry["error_message"]
        assert f"{name}  FAILED: out of memory" in completed.stderr
    assert "frame #" not in completed.stderr + completed.stdout
    after = cases["loss/forward/baseline/custom/f32/batch:2/seq:32"]
    assert len(after) == 2 + 4, "the case after the failed one was not measured"
    assert re.search(r"^FAILED\n  ffn/forward/", completed.stdout, re.MULTILINE)

    tool = PROJECT_ROOT / ".deps/sources/benchmark/tools/compare.py"
    if not tool.is_file():
        pytest.skip("Google Benchmark came without its sources, so compare.py is not here")
    for base, new in ((skipped, failed), (failed, skipped)):
        command = [sys.executable, str(tool), "-a", "benchmarks", str(base), str(new)]
        done = subprocess.run(
            command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"ffn/forward/baseline/custom/f32/\S+/manual_time", done.stdout)


# --weights: components run with the weights of a folder
GOLDEN = PROJECT_ROOT / "fixtures/golden/gqa_groups_2"
WEIGHTS = [f"--weights={GOLDEN}", "--variants=baseline"]
SHORT = [*WEIGHTS, "--batch=2", "--seq=8", *RUN]


def test_every_component_is_proved_with_weights_of_size_custom(program: Program) -> None:
    names = program.cases(*WEIGHTS)
    assert {name.split("/")[0] for name in names} >= set(COMPONENTS)
    assert all("/baseline/custom/f32/batch:8/seq:128" in name for name in names)
    table = program.run(*WEIGHTS, *RUN, "--components=full_step", "--dry-run")
    parameters = 2 * 37 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 19 * 64)
    assert f" {parameters} " in table.stdout
    choice = [*SHORT, f"--dtypes={','.join(DTYPES)}", "--verify=only"]
    completed = program.run(*choice)
    assert completed.returncode == 0, completed.stderr
    verdicts = [line.split()[-1] for line in completed.stdout.splitlines()]
    assert verdicts == ["proved"] * len(program.cases(*choice))


def test_second_interrupt_ends_at_once(program: Program, with_peaks: WithPeaks) -> None:
    """On a terminal. The first lets the case that is running finish, which here takes minutes."""
    endless = ["--benchmark_min_time=20000000x", "--max-seconds-per-case=10000"]
    ours, theirs = pty.openpty()
    options = [*SMALL, "--components=ffn", *with_peaks(), *endless]
    process = program.start(*options, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    try:
        written = b""
        while b"[1/3]" not in written:
            written += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=TIMEOUT_S) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_limit_on_file_sizes_is_an_error_that_names_the_file(
    bench_program: Path, tmp_path: Path
) -> None:
    axes = ["--components=rms_norm", "--passes=forward", "--variants=baseline", "--device=cpu"]
    small = ["--batch=1", "--seq=16", "--benchmark_min_time=0.01s", "--benchmark_out=out.json"]
    completed = subprocess.run(
        ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", bench_program, *axes, *small],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 2
    assert "out.json: cannot be written: File too large" in completed.stderr
