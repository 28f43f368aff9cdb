"""How a training run ends, and what it says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator
from train_program import Program, files_below, small, step_lines, whole_summary

from built_programs import ON_CPU, FinishedRun, finish, read_json, wait_until

ENDLESS = 1_000_000
RULE = "=" * 42


def test_a_loss_that_is_not_finite_ends_the_run(
    program: Program, validator: Validator, tmp_path: Path
) -> None:
    options = small(num_steps=5000, learning_rate="1e30", output_dir=tmp_path)
    # between shown steps too
    completed = program.run(*options, "--log-interval=1000")
    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    found = re.match(r"tiny_llama_train: step (\d+): the loss is (nan|inf): training stopped", line)
    assert found is not None, line
    assert "lower --learning-rate 1e+30" in line
    step = int(found[1])
    assert int(step_lines(completed.stdout)[-1]["step"]) == step
    assert "Performance Summary:" in completed.stdout
    summary = whole_summary(tmp_path)
    assert list(validator.iter_errors(summary)) == []
    assert len(summary["steps"]) == summary["summary"]["steps_completed"] == step
    assert [s["step"] for s in summary["steps"] if s["loss"] is None] == [step]
    assert summary["summary"]["final_loss"] is None
    assert summary["summary"]["interrupted"] is False


def test_an_interrupted_run_keeps_its_steps_and_what_its_profilers_recorded(
    program: Program, validator: Validator, tmp_path: Path
) -> None:
    folder, log = tmp_path / "profiles", tmp_path / "log"
    profilers = ["--enable-pytorch-profiler", f"--profile-steps={ENDLESS}", "--profile-memory"]
    with log.open("w") as stdout:
        options = small(num_steps=ENDLESS, profile_dir=folder)
        process = program.start(*options, *profilers, stdout=stdout)
    wait_until(lambda: "\nStep 7/" in log.read_text() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    completed = finish(process)
    assert (completed.returncode, completed.stderr) == (130, "")
    said, summary = log.read_text(), whole_summary(folder)
    assert "Performance Summary:" in said
    assert list(validator.iter_errors(summary)) == []
    assert files_below(folder) == set(summary["files"])
    assert summary["summary"]["interrupted"] is True
    last = summary["summary"]["steps_completed"]
    assert last == len(step_lines(said)) < ENDLESS
    assert summary["operators"]["last_step"] == last == summary["operators"]["steps"] + 4
    trace = read_json(folder / f"trace_step_5_{last}.json")
    assert f"ProfilerStep#{last}" in {event["name"] for event in trace["traceEvents"]}
    assert summary["memory"]["last_step"] == 4


def test_the_default_size_and_an_only_step_are_shown(program: Program) -> None:
    completed = program.run(*ON_CPU, "--size=tiny", "--num-steps=1")
    assert (completed.returncode, completed.stderr) == (0, "")
    device, training = completed.stdout.split("\nStarting training...\n")
    assert device.startswith(
        f"{RULE}\nTiny LLaMA - libtorch C++, variant baseline\n{RULE}\nConfiguration:\n"
        "  Batch Size: 8\n  Sequence Length: 128\n  Number of Steps: 1\n"
    )
    for line in ("  Total Parameters: 2,873,600", "  Model Size: 11.0 MB", "Using device: cpu"):
        assert line in device.splitlines()
    assert training.startswith("Step 1/1: Loss = 6.9")
    (step,) = step_lines(training)
    assert f"\nAverage time per step: {step['time']} seconds" in training
    # without a profiler nothing is marked
    assert "profiling" not in completed.stdout.lower()


def test_lines_are_those_of_the_summary(profiled_run: FinishedRun) -> None:
    said, summary = profiled_run.completed.stdout, profiled_run.result
    lines, steps, means = step_lines(said), summary["steps"], summary["summary"]
    assert [int(line["step"]) for line in lines] == list(range(1, 13))
    for line, step in zip(lines, steps, strict=True):
        assert line["steps"] == "12"
        assert float(line["loss"]) == pytest.approx(step["loss"], abs=1e-4)
        assert float(line["time"]) == pytest.approx(step["time_seconds"], abs=1e-4)
        assert int(line["memory"]) == round(step["peak_memory_bytes"] / 2**20)
    assert "\nMemory Profiling enabled: Steps 2-4\n" in said
    marked = [int(line["step"]) for line in lines if line["profiling"]]
    assert marked == [s["step"] for s in steps if s["profiled"]] == list(range(2, 11))
    _, text = said.split(f"\n{RULE}\nPerformance Summary:\n{RULE}\n")
    # the workshop's loops search for the second, the third and the peak
    speed = f"{means['samples_per_second']:.1f} samples/sec"
    wanted = [
        f"Average time per step: {means['average_step_seconds']:.4f} seconds "
        f"(first step, not in any average: {means['first_step_seconds']:.4f} seconds)",
        f"Training speed: {speed}",
        f"Throughput: {speed}",
        f"Peak memory usage: {means['peak_memory_bytes'] / 2**20:.0f} MB",
        f"Avg time per forward: {means['average_forward_seconds']:.4f} seconds",
        f"Overhead: operator profiler {means['operator_profiling_overhead_percent']:+.1f} % of a "
        f"step, memory profiler {means['memory_profiling_overhead_percent']:+.1f} % of a step",
    ]
    said_lines = text.splitlines()
    assert all(any(x.startswith(line) for x in said_lines) for line in wanted)
