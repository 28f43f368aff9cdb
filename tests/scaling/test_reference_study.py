"""What laws and predictions are worth on the machine of a committed study, computed from its rounds
anew: the cells that were held out, and a step of a size that was not calibrated on.
"""

from __future__ import annotations

import statistics
from functools import cache

import pytest

from reference_study import MACHINES, Published
from tinyllama_tools.data.names import STEP
from tinyllama_tools.report.inputs import CHECKED, ReportInputs, read_inputs, source_of

SIZES = ("tiny", "small")
# percent: what laws (median over held-out cells) and predictions of time and memory are good for
MOST_OFF, MOST_MEMORY_OFF = 15.0, 5.0
pytestmark = pytest.mark.parametrize("place", MACHINES)


@cache
def inputs_of(place: Published) -> ReportInputs:
    return read_inputs([source_of(place.study)])


def test_the_study_is_whole(place: Published) -> None:
    inputs = inputs_of(place)
    assert [of for of in inputs.omissions if of.is_error] == []
    said, main = inputs.study.description, inputs.main
    assert said["finished"] and set(SIZES) <= set(said["sizes"])
    assert len(main.paths) == said["rounds_done"] == said["rounds"] >= 3
    assert main.context["git_dirty"] is False
    assert [case.name for case in main.left_out if case.is_failure] == []
    assert inputs.study.frontier and inputs.study.costs and inputs.study.check


@pytest.mark.parametrize("size", SIZES)
def test_laws_meet_the_cells_that_were_held_out(place: Published, size: str) -> None:
    """The components together and the full step alone."""
    errors: dict[bool, list[float]] = {True: [], False: []}
    for fit in inputs_of(place).time_fits:
        if fit.name.size == size:
            found = (abs(one.error_percent) for one in fit.held_out or ())
            errors[fit.name.component == STEP] += found
    # the step's largest three cells, and those of every component
    assert len(errors[True]) >= 3 and len(errors[False]) >= 20
    assert max(map(statistics.median, errors.values())) <= MOST_OFF


def test_the_bigger_size_is_as_predicted(place: Published) -> None:
    inputs = inputs_of(place)
    (case,) = inputs.check_cases
    assert case.name.size not in SIZES and case.name.component == STEP
    (found,) = [s for s in inputs.predictions.steps if s.prediction.name == case.name]
    # its rates come from the rounds alone
    assert found.kind == CHECKED
    assert found.prediction.low <= case.median_seconds <= found.prediction.high
    memory = found.cost.predicted_memory_bytes / (2**20 * case.counters["peak_memory_MiB"])
    assert 100 * abs(memory - 1) <= MOST_MEMORY_OFF
    # each size from the other
    assert all(abs(of) < MOST_OFF for of in inputs.predictions.rates.held_out_percent().values())
