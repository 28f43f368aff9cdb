"""How a training run ends, and what it says on a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from train_program import (
    FinishedRun,
    Program,
    assert_whole,
    files_below,
    read_summary,
    small,
    step_lines,
)

from built_programs import ON_CPU, TIMEOUT_S, Completed, finish, read_json

ENDLESS = 1_000_000
RULE = "=" * 42


def interrupted(process: subprocess.Popen[str], after: int) -> Completed:
    """Sends what Ctrl-C sends once this step is shown; the output is all that it said."""
    assert process.stdout is not None
    shown = []
    for line in process.stdout:
        shown.append(line)
        if line.startswith(f"Step {after}/"):
            break
    process.send_signal(signal.SIGINT)
    # Not by communicate() alone, which leaves out what was read ahead: on a busy machine the steps
    # that came before the signal. A process that goes on for ever is killed.
    guard = threading.Timer(TIMEOUT_S, process.kill)
    guard.start()
    shown.extend(process.stdout)
    guard.cancel()
    completed = finish(process)
    completed.stdout = "".join(shown) + completed.stdout
    return completed


def test_a_loss_that_is_not_finite_ends_the_run(
    program: Program, validator: Draft202012Validator, tmp_path: Path
) -> None:
    options = small(num_steps=50, learning_rate="1e30", output_dir=str(tmp_path))
    completed = program.run(*options)
    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    found = re.match(r"tiny_llama_train: step (\d+): the loss is (nan|inf): training stopped", line)
    assert found is not None, line
    assert "lower --learning-rate 1e+30" in line
    step = int(found[1])
    assert int(step_lines(completed.stdout)[-1]["step"]) == step
    assert "Performance Summary:" in completed.stdout
    summary = read_summary(tmp_path)
    assert list(validator.iter_errors(summary)) == []
    assert len(summary["steps"]) == summary["summary"]["steps_completed"] == step
    assert [s["step"] for s in summary["steps"] if s["loss"] is None] == [step]
    assert summary["summary"]["final_loss"] is None
    assert summary["summary"]["interrupted"] is False
    # between shown steps too
    completed = program.run(*small(num_steps=5000, learning_rate="1e30"), "--log-interval=1000")
    assert completed.returncode == 1
    last = step_lines(completed.stdout)[-1]["step"]
    assert f"step {last}: the loss is " in completed.stderr


def test_an_interrupted_run_keeps_its_steps(
    program: Program, validator: Draft202012Validator, tmp_path: Path
) -> None:
    process = program.start(*small(num_steps=ENDLESS), f"--output-dir={tmp_path}")
    completed = interrupted(process, after=3)
    assert (completed.returncode, completed.stderr) == (130, "")
    assert "Performance Summary:" in completed.stdout
    summary = read_summary(tmp_path)
    assert list(validator.iter_errors(summary)) == []
    assert summary["summary"]["interrupted"] is True
    assert summary["summary"]["steps_completed"] == len(step_lines(completed.stdout)) < ENDLESS
    assert_whole(tmp_path, summary)


def test_interrupted_profilers_keep_what_they_recorded(
    program: Program, validator: Draft202012Validator, tmp_path: Path
) -> None:
    profilers = ["--enable-pytorch-profiler", f"--profile-steps={ENDLESS}", "--profile-memory"]
    options = small(num_steps=ENDLESS, profile_dir=str(tmp_path))
    completed = interrupted(program.start(*options, *profilers), after=7)
    assert completed.returncode == 130
    summary = read_summary(tmp_path)
    assert list(validator.iter_errors(summary)) == []
    assert_whole(tmp_path, summary)
    assert files_below(tmp_path) == set(summary["files"])
    last = summary["summary"]["steps_completed"]
    assert summary["operators"]["last_step"] == last
    assert summary["operators"]["steps"] == last - 4
    trace = read_json(tmp_path / f"trace_step_5_{last}.json")
    assert f"ProfilerStep#{last}" in {event["name"] for event in trace["traceEvents"]}
    assert summary["memory"]["last_step"] == 4


def test_the_default_size_and_an_only_step_are_shown(program: Program) -> None:
    completed = program.run(*ON_CPU, "--size=tiny", "--num-steps=1")
    assert (completed.returncode, completed.stderr) == (0, "")
    said = completed.stdout
    assert said.startswith(
        f"{RULE}\nTiny LLaMA - libtorch C++, variant baseline\n{RULE}\nConfiguration:\n"
        "  Batch Size: 8\n  Sequence Length: 128\n  Number of Steps: 1\n"
    )
    for line in ("Hidden Dim: 256", "Num Layers: 4", "Num Heads: 8", "Intermediate Dim: 512"):
        assert f"\n  {line}\n" in said
    assert "Model Configuration:\n  Total Parameters: 2,873,600\n  Model Size: 11.0 MB\n" in said
    device, training = said.split("\nStarting training...\n")
    assert "\nUsing device: cpu\nCPU: " in device
    assert training.startswith("Step 1/1: Loss = 6.9")
    (step,) = step_lines(said)
    average = re.search(r"^Average time per step: ([\d.]+) seconds", said, re.M)
    assert average is not None and average[1] == step["time"]
    # without a profiler nothing is marked
    assert "profiling" not in said.lower()
    thin = program.run(*small(num_steps=10), "--log-interval=4").stdout
    assert [int(line["step"]) for line in step_lines(thin)] == [1, 4, 8, 10]


def marked(stdout: str) -> list[int]:
    return [int(line["step"]) for line in step_lines(stdout) if line["profiling"]]


def test_lines_are_those_of_the_summary(profiled_run: FinishedRun) -> None:
    said, summary = profiled_run.completed.stdout, profiled_run.summary
    lines, steps, means = step_lines(said), summary["steps"], summary["summary"]
    assert [int(line["step"]) for line in lines] == list(range(1, 13))
    for line, step in zip(lines, steps, strict=True):
        assert line["steps"] == "12"
        assert float(line["loss"]) == pytest.approx(step["loss"], abs=1e-4)
        assert float(line["time"]) == pytest.approx(step["time_seconds"], abs=1e-4)
        assert int(line["memory"]) == round(step["peak_memory_bytes"] / 2**20)
    assert "\nMemory Profiling enabled: Steps 2-4\n" in said
    assert marked(said) == [s["step"] for s in steps if s["profiled"]] == list(range(2, 11))
    _, text = said.split(f"\n{RULE}\nPerformance Summary:\n{RULE}\n")
    # the workshop's loops search for the second, the third and the peak
    speed = f"{means['samples_per_second']:.1f} samples/sec"
    wanted = [
        f"Average time per step: {means['average_step_seconds']:.4f} seconds "
        f"(first step, not in any average: {means['first_step_seconds']:.4f} seconds)",
        f"Training speed: {speed}",
        f"Throughput: {speed}",
        f"Peak memory usage: {means['peak_memory_bytes'] / 2**20:.0f} MB",
        *(
            f"Avg time per {phase}: {means[f'average_{phase}_seconds']:.4f} seconds"
            for phase in ("forward", "backward", "optimizer")
        ),
        f"Overhead: operator profiler {means['operator_profiling_overhead_percent']:+.1f} % of a "
        f"step, memory profiler {means['memory_profiling_overhead_percent']:+.1f} % of a step",
    ]
    said_lines = text.splitlines()
    assert all(any(x.startswith(line) for x in said_lines) for line in wanted)
