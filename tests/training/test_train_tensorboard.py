"""What tiny_llama_train writes for TensorBoard, read by TensorBoard's own readers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_tb_profiler import io
from torch_tb_profiler.profiler import RunLoader
from train_program import FinishedRun


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
