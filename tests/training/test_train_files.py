"""Files of a training run, and their schema."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_tb_profiler import io
from torch_tb_profiler.profiler import RunLoader
from train_program import (
    SUMMARY,
    FinishedRun,
    Program,
    assert_whole,
    files_below,
    read_summary,
    small,
)

from built_programs import PROJECT_ROOT, Json, finish, read_json
from chromium import PageOpener
from tinyllama_tools.commands.profile import draw_timelines
from tinyllama_tools.data.profiles import SCHEMA, read_profile

FLOPS_FILES = ["flops_profile", "computational_intensity", "roofline_data"]


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


def test_two_runs_at_once_in_one_folder_are_both_whole(program: Program, tmp_path: Path) -> None:
    options = [*small(num_steps=11), "--enable-pytorch-profiler", f"--profile-dir={tmp_path}"]
    both = [finish(process) for process in [program.start(*options), program.start(*options)]]
    assert [(run.returncode, run.stderr) for run in both] == [(0, "")] * 2
    assert_whole(tmp_path, read_summary(tmp_path))


def test_flops_profiler_leaves_its_files(flops_run: FinishedRun) -> None:
    expected = {f"flops_analysis/{name}.json" for name in FLOPS_FILES} | {SUMMARY}
    assert files_below(flops_run.folder) == expected == set(flops_run.summary["files"])
    for name in FLOPS_FILES:
        in_file = read_json(flops_run.folder / "flops_analysis" / f"{name}.json")
        assert in_file == flops_run.summary["flops"][name]


def crossing(events: list[Json]) -> list[Json]:
    """Events of a trace that end before they begin, or outside the one of their thread in which
    they began: viewers stack them by that."""
    complete = [event for event in events if event["ph"] == "X"]
    assert complete
    found, ends = [], {}
    for event in sorted(complete, key=lambda e: (e["ts"], -e["dur"])):
        around = ends.setdefault((event["pid"], event["tid"]), [math.inf])
        while around[-1] <= event["ts"]:
            around.pop()
        around.append(event["ts"] + event["dur"])
        if not event["ts"] <= around[-1] <= around[-2]:
            found.append(event)
    return found


def test_the_memory_timeline_is_drawn_with_its_phases_and_peak(
    profiled_run: FinishedRun, tmp_path: Path, open_page: PageOpener
) -> None:
    shutil.copy(profiled_run.folder / "memory_timeline.json", tmp_path)
    assert draw_timelines(tmp_path) == [tmp_path / "memory_timeline.html"]
    memory = profiled_run.summary["memory"]
    page = open_page(tmp_path / "memory_timeline.html")
    page.page.wait_for_selector(".trace.scatter", state="attached")
    assert page.said == []
    peak = f"peak {memory['peak_bytes'] / 2**20:.2f} MiB: {memory['peak_component']}"
    for text in (peak, "steps 2 to 4", ">step 3<", ">forward<", ">optimizer<", "time (ms)"):
        assert text in page.document, text
    assert page.document.count('class="trace scatter') >= 2


def test_what_a_profiled_run_records(profiled_run: FinishedRun, flops_run: FinishedRun) -> None:
    summary = profiled_run.summary
    assert summary["flops"] is flops_run.summary["operators"] is flops_run.summary["memory"] is None
    off = flops_run.summary["summary"]
    assert off["memory_profiled_average_step_seconds"] is None
    assert off["memory_profiling_overhead_percent"] is None
    for word, argument in zip(summary["command"], profiled_run.completed.args, strict=True):
        # without folders that are the reader's own
        assert argument.endswith(word.rpartition("=")[2])
        assert not word.startswith("/") and "=/" not in word
    assert re.fullmatch(r"20\d\d(-\d\d){2}T\d\d(:\d\d){2}Z", summary["started"])
    trace = read_json(profiled_run.folder / "trace_step_5_10.json")
    names = [event["name"] for event in trace["traceEvents"]]
    assert crossing(trace["traceEvents"]) == []
    steps = [name for name in names if name.startswith("ProfilerStep#")]
    assert steps == [f"ProfilerStep#{step}" for step in range(5, 11)]
    assert {"aten::mm", "attention/core", "forward", "backward"} <= set(names)
    rows = [r for r in summary["operators"]["table"] if r["name"] == "aten::mm"]
    # logits: 16 tokens of 32 features times 300 words
    assert any("[16, 32], [32, 300]" in row["input_shapes"] for row in rows)
    assert any("attention/qkv_proj" in row["stack"] for row in rows)


def test_both_folders_get_the_summary_of_the_last_run(program: Program, tmp_path: Path) -> None:
    profile, output = tmp_path / "deep" / "profile", tmp_path / "output"
    options = ["--profile-memory", f"--profile-dir={profile}", f"--output-dir={output}"]
    completed = program.run(*small(num_steps=3), *options)
    assert completed.returncode == 0, completed.stderr
    assert files_below(output) == {SUMMARY}
    assert read_summary(output)["files"] == [SUMMARY]
    assert files_below(profile) == set(read_summary(profile)["files"])
    assert read_summary(profile)["steps"] == read_summary(output)["steps"]
    # the next run's replaces it
    assert len(program.trained(output, *small(num_steps=2))["steps"]) == 2
    assert files_below(output) == {SUMMARY}


def part(schema: Json, name: str) -> Draft202012Validator:
    """Of one of the files beside performance_summary.json."""
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})


def problems(validator: Draft202012Validator, document: Json) -> list[str]:
    return [f"{e.json_path}: {e.message[:200]}" for e in validator.iter_errors(document)]


def objects(schema: Json) -> Iterator[Json]:
    """Every object with listed keys inside the schema."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for inner in schema.values():
            yield from objects(inner)


def test_every_object_of_the_schema_lists_all_its_keys(schema: Json) -> None:
    Draft202012Validator.check_schema(schema)
    assert SCHEMA.samefile(PROJECT_ROOT / "results" / "training_schema.json")
    found = list(objects(schema))
    assert len(found) > 25
    assert [entry for entry in found if entry["additionalProperties"] is not False] == []
    # all are demanded but what a device, an option or an older run may not have
    free = {
        key for entry in found for key in set(entry["properties"]) - set(entry.get("required", []))
    }
    readings = {"utilization_percent", "clock_MHz", "power_watts", "temperature_celsius"}
    sampling = readings | {"interval_seconds", "source"}
    shapes = {"input_shapes", "stack"}
    ranks = {"distributed", "weights_are_identical"}
    assert free == sampling | shapes | ranks | {"library_scratch_bytes"}


def test_every_file_is_like_the_schema(
    program: Program,
    validator: Draft202012Validator,
    schema: Json,
    profiled_run: FinishedRun,
    flops_run: FinishedRun,
    tmp_path: Path,
) -> None:
    shortest = program.trained(tmp_path, *small(num_steps=1))
    assert shortest["summary"]["plain_average_step_seconds"] is not None
    for summary in (profiled_run.summary, flops_run.summary, shortest):
        assert problems(validator, summary) == []
    files = {name: flops_run.folder / "flops_analysis" / f"{name}.json" for name in FLOPS_FILES}
    files["memory_timeline"] = profiled_run.folder / "memory_timeline.json"
    for name, file in files.items():
        assert problems(part(schema, name), read_json(file)) == []
    # and the scripts can read it
    assert read_profile(profiled_run.folder) == profiled_run.summary


def test_profiling_many_steps_takes_hardly_more_memory(program: Program, tmp_path: Path) -> None:
    def peak(profiled: int) -> int:
        folder = tmp_path / str(profiled)
        options = [f"--profile-steps={profiled}", f"--profile-dir={folder}", "--log-interval=50"]
        found, completed = program.peak_memory(
            *small(num_steps=100), "--enable-pytorch-profiler", *options
        )
        assert completed.returncode == 0, completed.stderr
        assert read_summary(folder)["operators"]["steps"] == profiled + 1
        return found

    few, many = peak(5), peak(95)
    trace = (tmp_path / "95" / "trace_step_5_100.json").stat().st_size
    # the events of all steps would not fit into what is allowed
    assert trace > (60 << 20)
    assert many < 1.15 * few + (60 << 20)


# ---- what is written for TensorBoard, read by its own readers


def test_the_curves_are_those_of_the_summary(profiled_run: FinishedRun) -> None:
    events = EventAccumulator(str(profiled_run.folder))
    events.Reload()
    steps = profiled_run.summary["steps"]
    for tag, values in {
        "loss": [step["loss"] for step in steps],
        "step_time_seconds": [step["time_seconds"] for step in steps],
        "samples_per_second": [2 / step["time_seconds"] for step in steps],
        "peak_memory_MiB": [step["peak_memory_bytes"] / 2**20 for step in steps],
    }.items():
        curve = events.Scalars(tag)
        assert [event.step for event in curve] == list(range(1, 13))
        # the file holds float32
        assert [event.value for event in curve] == pytest.approx(values, rel=1e-6), tag


def test_the_profilers_plugin_shows_the_trace(profiled_run: FinishedRun, tmp_path: Path) -> None:
    folder = profiled_run.folder
    (trace,) = folder.glob("*.pt.trace.json")
    assert trace.read_bytes() == (folder / "trace_step_5_10.json").read_bytes()
    # by the loader that TensorBoard runs
    (shown,) = RunLoader("run", str(folder), io.Cache(str(tmp_path))).load().profiles.values()
    assert shown.worker == "tiny_llama_train"
    views = {view.display_name for view in shown.views}
    assert {"Overview", "Operator", "Trace", "Memory"} <= views
    assert [row[0] for row in shown.overview["steps"]["rows"]] == [str(n) for n in range(5, 11)]
    theirs = {row["name"]: row["calls"] for row in shown.operation_table_by_name["data"]}
    ours: Counter[str] = Counter()
    for row in profiled_run.summary["operators"]["table"]:  # a row for each shape of the inputs
        ours[row["name"]] += row["calls"]
    # Not those that call themselves (aten::add_ converting a scalar): the plugin counts them once.
    for name in ("aten::mm", "aten::bmm", "aten::embedding"):
        assert theirs[name] == ours[name] > 0, name
