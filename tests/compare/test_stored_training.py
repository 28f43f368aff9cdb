"""Performance summaries of the training program, compared with the same words."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from stored_samples import TIMES, document, write

from fake_training import made_up_summary
from tinyllama_tools.compare.stored import read_stored
from tools import compare as main

Json = dict[str, Any]
PHASES = ("data_loading", "forward", "backward", "optimizer", "evaluation", "other")


def summary(factor: float = 1.0, **changes: object) -> Json:
    """A run without profilers whose times are `factor` times the made-up ones."""
    found = made_up_summary(profilers=())
    for step in found["steps"]:
        for key in ("time_seconds", *(f"{phase}_seconds" for phase in PHASES)):
            step[key] *= factor
    found["configuration"] |= changes
    return found


def write_runs(folder: Path, side: str, factor: float, count: int) -> list[str]:
    return [
        str(write(folder / f"{side}_{i}.json", summary(factor * (1 + 0.001 * i))))
        for i in range(count)
    ]


def test_a_summary_is_read_as_the_step_and_its_phases(tmp_path: Path) -> None:
    found = summary()
    times = sorted(step["time_seconds"] for step in found["steps"][1:])
    run = read_stored(write(tmp_path / "a.json", found))
    step = run.cases["training/step"]
    assert times[0] <= (step.seconds or 0) <= times[-1]
    assert step.repetitions == len(times)
    assert {"training/forward", "training/backward", "training/optimizer"} <= run.cases.keys()
    assert step.counters["samples_per_second"] == found["summary"]["samples_per_second"]
    assert step.counters["peak_memory_MiB"] == found["summary"]["peak_memory_bytes"] / 2**20


def test_profiled_steps_do_not_count(tmp_path: Path) -> None:
    found = summary()
    found["steps"][3] |= {"profiled": True, "time_seconds": 1e6}
    run = read_stored(write(tmp_path / "a.json", found))
    assert run.cases["training/step"].repetitions == len(found["steps"]) - 2
    for step in found["steps"]:
        step["profiled"] = True
    run = read_stored(write(tmp_path / "b.json", found))
    assert "every step was profiled" in run.warnings[0]


def test_one_run_a_side_gives_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (base,), (new,) = write_runs(tmp_path, "base", 1.0, 1), write_runs(tmp_path, "new", 1.5, 1)
    assert main([base, new]) == 0
    said = capsys.readouterr().out
    assert "no verdict" in said
    assert "+50.0 %" in said
    assert main([base, new, "--strict"]) == 3


def test_several_runs_a_side_give_one_and_name_the_phase(tmp_path: Path) -> None:
    base, new = write_runs(tmp_path, "base", 1.0, 9), write_runs(tmp_path, "new", 1.5, 9)
    output = tmp_path / "out"
    assert main(["--base", *base, "--new", *new, "--output", str(output)]) == 1
    written = json.loads((output / "comparison.json").read_text(encoding="utf-8"))
    cases = {case["name"]: case for case in written["cases"]}
    assert cases["training/step"]["outcome"] == "slower"
    assert cases["training/step"]["ratio"] == pytest.approx(1.5, rel=1e-6)
    parts = cases["training/step"]["attribution"]["parts"]
    assert sum(part["share"] for part in parts) == pytest.approx(1.0, abs=0.05)


def test_other_work_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write(tmp_path / "a.json", summary())
    new = write(tmp_path / "b.json", summary(batch_size=16))
    assert main([str(base), str(new)]) == 0
    assert "not the same work: batch_size: 8 in the base, 16 in the new" in capsys.readouterr().out


def test_an_interrupted_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = summary()
    found["summary"]["interrupted"] = True
    path = str(write(tmp_path / "a.json", found))
    assert main([path, path]) == 0
    assert "the run was interrupted" in capsys.readouterr().out


def test_a_summary_and_a_result_have_nothing_in_common(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = write(tmp_path / "a.json", summary())
    result = write(tmp_path / "b.json", document(TIMES))
    assert main([str(training), str(result)]) == 2
    assert "is of tiny_llama_train" in capsys.readouterr().err


def test_times_are_medians_of_the_plain_steps(tmp_path: Path) -> None:
    document = summary()
    document["steps"][-1]["time_seconds"] = 1e3
    path = write(tmp_path / "summary.json", document)
    run = read_stored(path)
    times = [step["time_seconds"] for step in document["steps"][1:] if not step["profiled"]]
    assert run.cases["training/step"].seconds == statistics.median(times) < 1


def faulty(**step: object) -> Json:
    found = summary()
    found["steps"] = [first | step for first in found["steps"]]
    return found


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (faulty(time_seconds=float("inf")), "steps[19].time_seconds: inf is not of type"),
        (faulty(time_seconds=10**400), "0000 is not of type 'number'"),
        (faulty(time_seconds=float("nan")), "NaN"),
        (faulty(time_seconds=-1.0), "-1.0 is less than the minimum of 0"),
        (faulty(time_seconds=0.0), "time_seconds of a step is 0.0, must be positive"),
        (summary() | {"schema_version": 9}, "schema_version is 9, must be 1"),
        (summary() | {"steps": []}, "has no step"),
        (summary() | {"model": {}}, "'total_parameters' is a required property"),
    ],
)
def test_a_bad_summary(
    bad: Json, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.json", summary())
    path = write(tmp_path / "bad.json", bad)
    assert main([str(good), str(path)]) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert str(path) in message
