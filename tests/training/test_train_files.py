"""Files of a training run, and their schema."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator as Validator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_tb_profiler import io
from torch_tb_profiler.profiler import RunLoader
from train_program import SUMMARY, Program, files_below, small, whole_summary

from built_programs import FinishedRun, finish, read_json
from chromium import PageOpener
from tinyllama_tools.commands.profile import draw_timelines
from tinyllama_tools.data.profiles import read_profile

FLOPS_FILES = ["flops_profile", "computational_intensity", "roofline_data"]


def test_profilers_leave_their_files_and_all_are_like_the_schema(
    program: Program,
    validator: Validator,
    profiled_run: FinishedRun,
    flops_run: FinishedRun,
    tmp_path: Path,
) -> None:
    there = files_below(profiled_run.folder)
    patterns = [
        *(r"performance_summary\.json", r"memory_timeline\.json", r"trace_step_5_10\.json"),
        *(r"tiny_llama_train\.\d+\.pt\.trace\.json", r"events\.out\.tfevents\.\d+\..+"),
    ]
    assert sorted(profiled_run.result["files"]) == sorted(there)
    matching = [sum(bool(re.fullmatch(p, name)) for name in there) for p in patterns]
    assert matching == [1] * len(there)
    flops = {name: flops_run.folder / f"flops_analysis/{name}.json" for name in FLOPS_FILES}
    of_flops = {str(file.relative_to(flops_run.folder)) for file in flops.values()} | {SUMMARY}
    assert files_below(flops_run.folder) == of_flops == set(flops_run.result["files"])
    files = flops | {"memory_timeline": profiled_run.folder / "memory_timeline.json"}
    for name, file in files.items():
        document = read_json(file)
        assert flops_run.result["flops"].get(name, document) == document
        part = {"$ref": f"#/$defs/{name}", "$defs": validator.schema["$defs"]}
        assert list(Validator(part).iter_errors(document)) == [], name
    shortest = program.trained(tmp_path, *small(num_steps=1))
    for summary in (profiled_run.result, flops_run.result, shortest):
        assert list(validator.iter_errors(summary)) == []
    # and the scripts can read it
    assert read_profile(profiled_run.folder) == profiled_run.result


def test_two_runs_at_once_in_one_folder_are_both_whole(program: Program, tmp_path: Path) -> None:
    options = [*small(num_steps=11, profile_dir=tmp_path), "--enable-pytorch-profiler"]
    both = [finish(process) for process in [program.start(*options), program.start(*options)]]
    assert [(run.returncode, run.stderr) for run in both] == [(0, "")] * 2
    whole_summary(tmp_path)


def test_the_memory_timeline_is_drawn_with_its_phases_and_peak(
    profiled_run: FinishedRun, tmp_path: Path, open_page: PageOpener
) -> None:
    shutil.copy(profiled_run.folder / "memory_timeline.json", tmp_path)
    assert draw_timelines(tmp_path) == [tmp_path / "memory_timeline.html"]
    memory = profiled_run.result["memory"]
    page = open_page(tmp_path / "memory_timeline.html")
    page.page.wait_for_selector(".trace.scatter", state="attached")
    assert page.said == []
    peak = f"peak {memory['peak_bytes'] / 2**20:.2f} MiB: {memory['peak_component']}"
    for text in (peak, "steps 2 to 4", ">step 3<", ">forward<", ">optimizer<", "time (ms)"):
        assert text in page.document, text


def test_what_a_profiled_run_records(profiled_run: FinishedRun, flops_run: FinishedRun) -> None:
    summary, other = profiled_run.result, flops_run.result
    assert summary["flops"] is other["operators"] is other["memory"] is None
    for word, argument in zip(summary["command"], profiled_run.completed.args, strict=True):
        # without folders that are the reader's own
        assert argument.endswith(word.rpartition("=")[2])
        assert not word.startswith("/") and "=/" not in word
    assert re.fullmatch(r"20\d\d(-\d\d){2}T\d\d(:\d\d){2}Z", summary["started"])


def test_profiling_many_steps_takes_hardly_more_memory(program: Program, tmp_path: Path) -> None:
    peaks = []
    for steps in (5, 95):
        options = small(num_steps=100, log_interval=50, profile_steps=steps, profile_dir=tmp_path)
        peak, completed = program.peak_memory(*options, "--enable-pytorch-profiler")
        assert completed.returncode == 0, completed.stderr
        peaks.append(peak)
    # the events of all steps would not fit into what is allowed
    assert (tmp_path / "trace_step_5_100.json").stat().st_size > (60 << 20)
    assert peaks[1] < 1.15 * peaks[0] + (60 << 20)


def test_tensorboard_shows_the_curves_and_the_trace(
    profiled_run: FinishedRun, tmp_path: Path
) -> None:
    folder, steps = profiled_run.folder, profiled_run.result["steps"]
    events = EventAccumulator(str(folder))
    events.Reload()
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
    (trace,) = folder.glob("*.pt.trace.json")
    assert trace.read_bytes() == (folder / "trace_step_5_10.json").read_bytes()
    # by the loader that TensorBoard runs
    (shown,) = RunLoader("run", str(folder), io.Cache(str(tmp_path))).load().profiles.values()
    views = {view.display_name for view in shown.views}
    assert {"Overview", "Operator", "Trace", "Memory"} <= views
    assert [row[0] for row in shown.overview["steps"]["rows"]] == [str(n) for n in range(5, 11)]
    theirs = {row["name"]: row["calls"] for row in shown.operation_table_by_name["data"]}
    # a row for each shape of the inputs
    rows = [row for row in profiled_run.result["operators"]["table"] if row["name"] == "aten::mm"]
    assert theirs["aten::mm"] == sum(row["calls"] for row in rows) > 0
