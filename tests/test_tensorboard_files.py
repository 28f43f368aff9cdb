"""What tiny_llama_train writes for TensorBoard, read by TensorBoard's own readers."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_tb_profiler import io
from torch_tb_profiler.profiler import RunLoader
from torch_tb_profiler.run import RunProfile

from built_programs import built_program

STEPS = 11
FIRST_PROFILED, LAST_PROFILED = 5, 10
OPTIONS = (
    "--device=cpu --hidden-dim=32 --n-layers=1 --n-heads=2 --n-kv-heads=1 --intermediate-dim=64 "
    f"--vocab-size=64 --batch-size=2 --seq-len=16 --num-steps={STEPS} "
    "--enable-pytorch-profiler --profile-operators"
).split()


@dataclass(frozen=True)
class Profile:
    """The folder of a run, and its summary."""

    folder: Path
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    program = built_program("benchmarks/tiny_llama_train")
    folder = tmp_path_factory.mktemp("profile")
    command = [str(program), *OPTIONS, f"--profile-dir={folder}"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return Profile(folder, json.loads((folder / "performance_summary.json").read_text("utf-8")))


def single_file(folder: Path, pattern: str) -> Path:
    files = list(folder.glob(pattern))
    assert len(files) == 1, files
    return files[0]


def test_the_event_file_is_one_that_tensorboard_looks_for(profile: Profile) -> None:
    assert single_file(profile.folder, "events.out.tfevents.*").name in profile.summary["files"]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("loss", lambda step: step["loss"]),
        ("step_time_seconds", lambda step: step["time_seconds"]),
        ("peak_memory_MiB", lambda step: step["peak_memory_bytes"] / 2**20),
    ],
)
def test_the_curves_are_those_of_the_summary(
    profile: Profile, tag: str, expected: Callable[[dict[str, Any]], float]
) -> None:
    events = EventAccumulator(str(profile.folder))
    events.Reload()
    curve = {event.step: event.value for event in events.Scalars(tag)}
    wanted = {step["step"]: expected(step) for step in profile.summary["steps"]}
    assert len(wanted) == STEPS
    # the file holds float32
    assert curve == pytest.approx(wanted, rel=1e-6)


def test_samples_a_second_follow_from_the_step_time(profile: Profile) -> None:
    events = EventAccumulator(str(profile.folder))
    events.Reload()
    times = {event.step: event.value for event in events.Scalars("step_time_seconds")}
    rates = {event.step: event.value for event in events.Scalars("samples_per_second")}
    assert rates == pytest.approx({step: 2 / time for step, time in times.items()}, rel=1e-5)


@pytest.fixture(scope="module")
def plugin_profile(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> RunProfile:
    """What the profiler's plugin makes of the trace, by the loader that TensorBoard runs."""
    cache = io.Cache(str(tmp_path_factory.mktemp("cache")))
    run = RunLoader("run", str(profile.folder), cache).load()
    assert len(run.profiles) == 1, "the trace was not found or could not be read"
    return next(iter(run.profiles.values()))


def test_the_plugin_shows_its_views(plugin_profile: RunProfile) -> None:
    assert plugin_profile.worker == "tiny_llama_train"
    views = {view.display_name for view in plugin_profile.views}
    assert {"Overview", "Operator", "Trace", "Memory"} <= views


def test_the_plugin_finds_the_profiled_steps(plugin_profile: RunProfile) -> None:
    rows = plugin_profile.overview["steps"]["rows"]
    assert [row[0] for row in rows] == [str(n) for n in range(FIRST_PROFILED, LAST_PROFILED + 1)]


def test_the_plugin_counts_the_calls_of_the_operator_table(
    profile: Profile, plugin_profile: RunProfile
) -> None:
    theirs = {row["name"]: row["calls"] for row in plugin_profile.operation_table_by_name["data"]}
    ours: Counter[str] = Counter()
    for row in profile.summary["operators"]["table"]:  # a row for each shape of the inputs
        ours[row["name"]] += row["calls"]
    # Not those that call themselves (aten::add_ converting a scalar): the plugin counts them once.
    for name in ("aten::mm", "aten::bmm", "aten::embedding"):
        assert ours[name] > 0
        assert theirs[name] == ours[name], name


def test_the_trace_is_the_same_as_the_chrome_trace(profile: Profile) -> None:
    plugin_file = single_file(profile.folder, "*.pt.trace.json")
    chrome_file = profile.folder / f"trace_step_{FIRST_PROFILED}_{LAST_PROFILED}.json"
    assert plugin_file.read_bytes() == chrome_file.read_bytes()
