"""Which files a run leaves, where, and that they belong together."""

from __future__ import annotations

import re
from pathlib import Path

from train_program import (
    SUMMARY,
    FinishedRun,
    Program,
    assert_whole,
    files_below,
    read_json,
    read_summary,
    small,
)


def test_operator_and_memory_profilers_leave_their_files(profiled_run: FinishedRun) -> None:
    there = files_below(profiled_run.folder)
    patterns = [
        r"performance_summary\.json",
        r"trace_step_5_10\.json",
        r"tiny_llama_train\.\d+\.pt\.trace\.json",
        r"events\.out\.tfevents\.\d+\..+",
        r"memory_timeline\.json",
    ]
    assert sorted(profiled_run.summary["files"]) == sorted(there)
    for pattern in patterns:
        assert len([name for name in there if re.fullmatch(pattern, name)]) == 1, pattern
    assert len(there) == len(patterns)
    assert_whole(profiled_run.folder, profiled_run.summary)


def test_flops_profiler_leaves_its_files(flops_run: FinishedRun) -> None:
    names = ["flops_profile", "computational_intensity", "roofline_data"]
    expected = {f"flops_analysis/{name}.json" for name in names} | {SUMMARY}
    assert files_below(flops_run.folder) == expected == set(flops_run.summary["files"])
    for name in names:
        in_file = read_json(flops_run.folder / "flops_analysis" / f"{name}.json")
        assert in_file == flops_run.summary["flops"][name]


def test_profilers_that_were_off_are_null(
    profiled_run: FinishedRun, flops_run: FinishedRun
) -> None:
    assert profiled_run.summary["flops"] is None
    assert flops_run.summary["operators"] is None
    assert flops_run.summary["memory"] is None
    assert flops_run.summary["summary"]["memory_profiled_average_step_seconds"] is None
    assert flops_run.summary["summary"]["memory_profiling_overhead_percent"] is None


def test_command_and_start_are_recorded(profiled_run: FinishedRun) -> None:
    shown, given = profiled_run.summary["command"], profiled_run.completed.args
    for word, argument in zip(shown, given, strict=True):
        # without folders that are the reader's own
        assert argument.endswith(word.rpartition("=")[2])
        assert word.partition("=")[0] == argument.partition("=")[0] or argument.startswith("/")
        assert not word.startswith("/")
        assert "=/" not in word
    assert re.fullmatch(r"20\d\d(-\d\d){2}T\d\d(:\d\d){2}Z", profiled_run.summary["started"])


def test_trace_has_the_profiled_steps(profiled_run: FinishedRun) -> None:
    trace = read_json(profiled_run.folder / "trace_step_5_10.json")
    names = [event["name"] for event in trace["traceEvents"]]
    steps = [name for name in names if name.startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{step}" for step in range(5, 11)]
    assert {"aten::mm", "attention/core", "forward", "backward"} <= set(names)


def test_shapes_and_stacks_are_in_the_table(profiled_run: FinishedRun) -> None:
    rows = [r for r in profiled_run.summary["operators"]["table"] if r["name"] == "aten::mm"]
    # logits: 16 tokens of 32 features times 300 words
    assert any("[16, 32], [32, 300]" in row["input_shapes"] for row in rows)
    assert any("attention/qkv_proj" in row["stack"] for row in rows)


def test_both_folders_get_the_summary(program: Program, tmp_path: Path) -> None:
    profile, output = tmp_path / "deep" / "profile", tmp_path / "output"
    options = ["--profile-memory", f"--profile-dir={profile}", f"--output-dir={output}"]
    completed = program.run(*small(num_steps=3), *options)
    assert completed.returncode == 0, completed.stderr
    assert files_below(output) == {SUMMARY}
    assert read_summary(output)["files"] == [SUMMARY]
    assert files_below(profile) == set(read_summary(profile)["files"])
    assert read_summary(profile)["steps"] == read_summary(output)["steps"]


def test_a_second_run_replaces_the_summary(program: Program, tmp_path: Path) -> None:
    first = program.trained(tmp_path, *small(num_steps=2))
    second = program.trained(tmp_path, *small(num_steps=3))
    assert len(first["steps"]) == 2
    assert len(second["steps"]) == 3
    assert files_below(tmp_path) == {SUMMARY}
