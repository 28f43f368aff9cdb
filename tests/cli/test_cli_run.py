"""Runs: one of every component, pass and dtype, and the ways to run: JSON on stdout, limits of
memory, failures, weights, and --serve, which opens, times and closes cases as it is asked."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_program import (
    BASELINE,
    DTYPES,
    OUT,
    SMALL,
    SMALL_MODEL,
    SMOKE,
    Program,
    assert_complete,
    entries_by_case,
)
from jsonschema import Draft202012Validator

from built_programs import (
    ON_CPU,
    PROJECT_ROOT,
    TIMEOUT_S,
    FinishedRun,
    Json,
    strict_json,
    wait_until,
)

# the contract's, in the order in which they are listed
COMPONENTS = [
    *("embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"),
    *("optimizer", "full_step"),
]
OWN_PASSES = {
    "model": ["forward", "forward_loss", "backward", "forward_backward"],
    "optimizer": ["update"],
    "full_step": ["train"],
}
FFN = ["--components=ffn", "--passes=forward"]


def test_result_is_whole_and_of_its_schema(
    smoke_run: FinishedRun, program: Program, validator: Draft202012Validator
) -> None:
    completed, _, result = smoke_run
    errors = validator.iter_errors(result)
    assert [f"{error.json_path}: {error.message[:300]}" for error in errors] == []
    assert completed.returncode == 0
    names = program.names(*SMOKE)
    assert_complete(result, names)
    expected = {
        f"{component}/{name}/baseline/custom/{dtype}/batch:2/seq:8"
        for component in COMPONENTS
        for name in OWN_PASSES.get(component, ["forward", "backward", "forward_backward"])
        for dtype in DTYPES
    }
    peaks = {"peak/gemm/f32", "peak/gemm/bf16", "peak/gemm/f16", "peak/bandwidth"}
    assert set(names) >= expected | peaks
    # every counter by hand: rows_test.cpp
    cases = entries_by_case(result)
    for row in (row for name in expected for row in cases[name][:2]):
        assert row["tokens_per_second"] == pytest.approx(16e3 / row["real_time"], rel=1e-6)
    # where stderr is no terminal, progress is a plain line a case
    assert not {"\r", "\x1b"} & set(completed.stderr)
    steps = [line for line in completed.stderr.splitlines() if line.startswith("[")]
    assert [line.split()[1] for line in steps] == names
    # a table a component, and the sum of parts of each dtype
    tables = [text.split()[0] for text in completed.stdout.strip().split("\n\n")]
    assert [name for name in tables if name in COMPONENTS] == COMPONENTS
    assert completed.stdout.count("sum of parts  baseline custom ") == len(DTYPES)


def test_json_on_stdout_is_pure_and_the_same_as_in_the_file(
    bench_program: Path, tmp_path: Path, validator: Draft202012Validator
) -> None:
    """With what its context has to say: --verify=off, cold caches, a seed, and the commit."""
    program, out = Program(bench_program, with_commit=True), tmp_path / OUT
    choice = [*SMALL, *FFN, "--verify=off", "--cold-cache", "--seed=7"]
    completed, result = program.measure(out, *choice, "--benchmark_format=json")
    assert completed.stdout == out.read_text(encoding="utf-8")
    assert validator.is_valid(result)
    assert_complete(result, program.names(*choice))
    context = result["context"]
    assert [context[key] for key in ("verify", "cold_cache", "seed")] == ["off", True, 7]
    # of the build, which may be older than the checkout
    assert re.fullmatch("[0-9a-f]{40}|unknown", context["git_commit"])
    assert not any("max_rel_error" in entry for entry in result["benchmarks"])
    assert list(tmp_path.iterdir()) == [out]


def test_a_case_beyond_a_limit_is_skipped_and_one_that_is_refused_memory_fails(
    program: Program,
    tmp_path: Path,
    with_peaks: Callable[..., list[str]],
    validator: Draft202012Validator,
) -> None:
    """Where the system refuses what the prediction took to be free, that is caught and reported,
    the run goes on, and its exit status is 1. Google Benchmark's compare.py reads the result."""
    # cases that need 82 KiB, 625 MiB and 6 GiB
    choice = [*SMALL_MODEL, *FFN, "--batch=20000,200000,2", "--seq=32", "--memory-limit=2GiB"]
    space = (900 << 20, 900 << 20)
    out = tmp_path / OUT
    completed, result = program.measure(
        *(out, *choice, *with_peaks()),
        status=1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, space),
    )
    assert validator.is_valid(result)
    cases = entries_by_case(result)
    (failed, (refused,)), (skipped, (large,)), (_, measured) = cases.items()
    assert "out of memory" in refused["error_message"]
    assert f"{failed}  FAILED: out of memory" in completed.stderr
    assert f"\nFAILED\n  {failed}: out of memory" in completed.stdout
    assert "frame #" not in completed.stderr + completed.stdout
    pattern = r"predicted peak memory \d+\.\d+ GiB exceeds 2\.00 GiB \(--memory-limit\)"
    assert large["skipped"] and re.fullmatch(pattern, large["skip_message"])
    assert f"skipped: {large['skip_message']}" in completed.stderr
    assert f"\nskipped\n  {skipped}: {large['skip_message']}" in completed.stdout
    # after the one that failed
    assert len(measured) == 2 + 4

    tool = PROJECT_ROOT / ".deps/sources/benchmark/tools/compare.py"
    if not tool.is_file():
        pytest.skip("Google Benchmark came without its sources, so compare.py is not here")
    command = [sys.executable, str(tool), "-a", "benchmarks", str(out), str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ffn/forward/baseline/custom/f32/\S+/manual_time", done.stdout)


def test_every_component_is_proved_with_weights_in_every_type(program: Program) -> None:
    weights = [f"--weights={PROJECT_ROOT / 'fixtures/golden/gqa_groups_2'}", *ON_CPU]
    axes = ["--batch=2", "--seq=8", "--variants=baseline,fused"]
    choice = [*weights, *axes, f"--dtypes={','.join(DTYPES)}", "--verify=only"]
    names = [name for name in program.names(*choice) if not name.startswith("peak/")]
    assert {name.split("/")[0] for name in names} == set(COMPONENTS)
    completed = program.run(*choice)
    assert completed.returncode == 0, completed.stderr
    verdicts = [line.split()[-1] for line in completed.stdout.splitlines()]
    assert verdicts == ["proved"] * len(names)
    table = program.run(*weights, BASELINE, "--components=full_step", "--dry-run")
    parameters = 2 * 37 * 64 + 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 19 * 64)
    assert f" {parameters} " in table.stdout


# ---- --serve: requests and answers, a line each

SERVED = "ffn/forward/baseline/custom/f32/batch:2/seq:8"
FIXED_COUNTERS = ["peak_memory_MiB", "allocations", "operators", "model_flops", "hardware_flops"]
Process = subprocess.Popen[str]


def send(process: Process, action: str, case: str, **more: object) -> None:
    assert process.stdin
    print(json.dumps({"do": action, "case": case, **more}), file=process.stdin, flush=True)


def answer(process: Process) -> Json:
    assert process.stdout
    return strict_json(process.stdout.readline())


@pytest.fixture
def serve(program: Program) -> Iterator[Callable[..., Process]]:
    """Starts resident programs; what still runs at the end is killed."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(program.start("--serve", *SMALL, *arguments, stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def test_every_component_is_served_with_the_counters_of_an_ordinary_run(
    serve: Callable[..., Process], smoke_run: FinishedRun
) -> None:
    """Those that do not depend on time, to the byte."""
    usual, process = entries_by_case(smoke_run.result), serve()
    greeting = answer(process)
    context = greeting["context"]
    assert {"schema_version", "git_commit", "device", "torch_version", "settings"} <= set(context)
    assert [context[key] for key in ("threads", "seed", "verify")] == [1, 42, "on request"]
    assert {name.split("/")[0] for name in greeting["cases"]} == set(COMPONENTS)
    for name in greeting["cases"]:
        send(process, "open", name, verify=True, meter=True)
        opened, (entry, *_) = answer(process), usual[name]
        assert opened["opened"] == name and opened["seconds"] > 0
        assert opened["max_rel_error"] == pytest.approx(entry["max_rel_error"])
        counters = {key: entry[key] for key in FIXED_COUNTERS}
        assert {key: opened["counters"][key] for key in FIXED_COUNTERS} == counters, name
        send(process, "time", name, seconds=0.001)
        seconds = answer(process)["seconds"]
        assert seconds and all(0 < value < 1 for value in seconds)
        send(process, "close", name)
        assert answer(process) == {"closed": name}
    process.stdin.close()
    assert process.wait(TIMEOUT_S) == 0


def test_a_signal_waits_for_the_answer_and_a_client_that_goes_away_ends_the_program(
    serve: Callable[..., Process],
) -> None:
    process = serve(*FFN)
    answer(process)
    send(process, "open", SERVED)
    answer(process)

    def bytes_read() -> int:
        return int(Path(f"/proc/{process.pid}/io").read_text().split()[1])

    before, began = bytes_read(), time.monotonic()
    send(process, "time", SERVED, seconds=0.5)
    wait_until(lambda: bytes_read() > before + 50)
    process.send_signal(signal.SIGINT)
    assert answer(process)["seconds"]
    # all of it, and not what was left when the signal came
    assert time.monotonic() - began >= 0.5
    assert process.wait(TIMEOUT_S) == 130
    waiting, left = serve(*FFN), serve(*FFN)
    answer(waiting)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(TIMEOUT_S) == 130
    answer(left)
    left.stdout.close()
    send(left, "close", SERVED)
    assert left.wait(TIMEOUT_S) == 0
