"""Runs that did the same work and took different times."""

import pytest

from exercise_stand_in import measured, options
from tinyllama_tools.workshop.exercise_1 import MEMORY, PLAIN, make_sheet, planned_runs
from tinyllama_tools.workshop.rules import disagreement
from tinyllama_tools.workshop.runs import MeasuredRun


def run(
    name: str, seconds: float, batch: int = 8, steps: int = 5, profiled: int = 0
) -> MeasuredRun:
    """`steps` plain ones of this time after a first slow one, and slow profiled ones."""
    times = [9.0] + steps * [seconds] + profiled * [9.0]
    made = [
        {"step": n, "time_seconds": t, "profiled": n > steps + 1}
        for n, t in enumerate(times, start=1)
    ]
    configuration = {"batch_size": batch, "seq_len": 128, "num_steps": len(times)}
    return MeasuredRun(name, "", {"configuration": configuration, "steps": made})


def test_the_same_work_in_other_times_is_said() -> None:
    found = disagreement([run("a", 0.1), run("b", 0.121, steps=9), run("c", 0.11)])
    assert found.startswith("the machine was not quiet: ")
    assert "100 ms in a and 121 ms in b (medians), 21 % more" in found


@pytest.mark.parametrize(
    "other",
    [
        run("b", 0.119),
        run("b", 0.3, batch=16),
        run("b", 0.3, steps=2),
        run("b", 0.1, profiled=8),
        MeasuredRun("b", "", reason="refused"),
    ],
)
def test_what_says_nothing_of_the_machine(other: MeasuredRun) -> None:
    assert disagreement([run("a", 0.1), other]) == ""
    assert disagreement([]) == ""


def test_it_stands_at_the_head_of_the_worksheet() -> None:
    runs = measured(planned_runs(options(1)))
    assert "not quiet" not in make_sheet(runs).page
    for step in (runs[MEMORY].summary or {})["steps"]:
        step["time_seconds"] *= 2
    head = make_sheet(runs).page.split("##")[0]
    assert "Warning: the machine was not quiet" in head
    assert f"in {PLAIN}" in head and f"in {MEMORY}" in head
