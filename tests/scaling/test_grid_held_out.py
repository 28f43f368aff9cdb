"""How well laws and predictions meet what was measured: the default grid with the built program."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from grid_runs import grid_folder

from tinyllama_tools.models.prediction import check_against
from tinyllama_tools.report.inputs import ReportInputs, SeriesFit, read_inputs
from tinyllama_tools.report.sources import source_of
from tools import study as main

# percent: what the laws are good for, of time and of memory
MOST_OFF = {"time": 15.0, "memory": 5.0}


@pytest.fixture(scope="module")
def measured(bench_program: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    folder = tmp_path_factory.mktemp("held_out")
    places = (f"--results={folder / 'results'}", f"--build-folder={bench_program.parents[1]}")
    assert main(["tiny", "small", "--grid=only", *places]) == 0
    return read_inputs([source_of(grid_folder(folder))])


def stated(size: str, what: str, fits: list[SeriesFit]) -> float:
    """The median error in percent, printed with coverage and width."""
    held = [one for fit in fits if fit.series.name.size == size for one in fit.held_out]
    assert held, f"{what} at {size}: no cell was held out"
    median = statistics.median(abs(one.error_percent) for one in held)
    covered = sum(one.is_covered for one in held)
    width = statistics.median(one.width_percent for one in held)
    print(
        f"{what} at {size}: median error {median:.2f} % of {len(held)} held-out cells, "
        f"{covered} inside their range, median width {width:.1f} %"
    )
    return median


@pytest.mark.long
@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("what", ["time", "memory"])
def test_laws_meet_the_cells_that_were_held_out(
    measured: ReportInputs, size: str, what: str
) -> None:
    fits = measured.time_fits if what == "time" else measured.memory_fits
    assert stated(size, what, fits) <= MOST_OFF[what]


@pytest.mark.long
def test_a_bigger_size_is_as_predicted(measured: ReportInputs) -> None:
    if not measured.check_cases:
        pytest.skip("a step of medium does not fit here, or takes too long")
    for case in measured.check_cases:
        (found,) = [s for s in measured.predictions.steps if s.prediction.name == case.name]
        check = check_against(found.prediction, case)
        print(
            f"{case.name}: time off by {check.percent_off:+.1f} %, inside: {check.is_inside}; "
            f"memory off by {check.memory_percent_off:+.2f} %"
        )
        assert check.is_inside
        assert check.memory_percent_off is not None
        assert abs(check.memory_percent_off) <= MOST_OFF["memory"]
