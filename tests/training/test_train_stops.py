"""A run that ends before its last step says why, and keeps what it has measured."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from pathlib import Path

from jsonschema import Draft202012Validator
from train_program import (
    TIMEOUT_S,
    Completed,
    Program,
    assert_whole,
    files_below,
    finish,
    read_json,
    read_summary,
    small,
    step_lines,
)

ENDLESS = 1_000_000


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


def test_such_a_loss_ends_the_run_between_shown_steps_too(program: Program) -> None:
    completed = program.run(*small(num_steps=5000, learning_rate="1e30"), "--log-interval=1000")
    assert completed.returncode == 1
    lines = step_lines(completed.stdout)
    assert int(lines[0]["step"]) == 1
    assert f"step {lines[-1]['step']}: the loss is " in completed.stderr


def test_an_interrupted_run_keeps_its_steps(
    program: Program, validator: Draft202012Validator, tmp_path: Path
) -> None:
    process = program.start(*small(num_steps=ENDLESS), f"--output-dir={tmp_path}")
    completed = interrupted(process, after=3)
    assert completed.returncode == 130
    assert completed.stderr == ""
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
    names = {event["name"] for event in trace["traceEvents"]}
    assert f"ProfilerStep#{last}" in names
    assert summary["memory"]["last_step"] == 4


def test_memory_is_kept_when_interrupted_while_recording(program: Program, tmp_path: Path) -> None:
    # So long a step that the signal comes before the recording ends, unless the machine is busy:
    # trainer_test.cpp ends a recording early whatever the machine does.
    options = small(num_steps=ENDLESS, batch_size=16, seq_len=256, profile_dir=str(tmp_path))
    completed = interrupted(program.start(*options, "--profile-memory"), after=2)
    assert completed.returncode == 130
    summary = read_summary(tmp_path)
    assert summary["memory"]["first_step"] == 2
    assert summary["memory"]["last_step"] == min(summary["summary"]["steps_completed"], 4)
    assert_whole(tmp_path, summary)
