"""What laws and predictions are worth on the machine of a committed study, computed from its rounds
anew: the cells that were held out, a step of a size that was not calibrated on, and the frontier.

`.venv/bin/python -m pytest -s tests/scaling/test_reference_study.py` shows the tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from reference_study import MACHINES, Published, data_files
from tinyllama_tools.core.app import Json, read_json
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.studies import AXES, Axis, Line, apart_percent
from tinyllama_tools.report.analysis import CHECKED, HeldOutCell, SeriesFit
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sources import is_frontier, source_of

SIZES = ("tiny", "small")
# percent: what the laws are good for, median over held-out cells
MOST_OFF = {"time": 15.0, "memory": 5.0}
PARTS = "components"
pytestmark = pytest.mark.parametrize("place", MACHINES)


@cache
def inputs_of(place: Published) -> ReportInputs:
    return read_inputs([source_of(place.study)])


def fits_of(place: Published, what: str, size: str) -> list[SeriesFit]:
    inputs = inputs_of(place)
    every = inputs.time_fits if what == "time" else inputs.memory_fits
    return [fit for fit in every if fit.series.name.size == size]


def median_error(held: Sequence[HeldOutCell]) -> float:
    return statistics.median(abs(one.error_percent) for one in held)


def stated(name: str, held: Sequence[HeldOutCell], most: float) -> list[str]:
    """A row of the table; a miss is called one."""
    error = median_error(held)
    width = statistics.median(one.width_percent for one in held)
    covered = sum(one.is_covered for one in held)
    worst = max((one.error_percent for one in held), key=abs)
    verdict = "" if error <= most else f"MISSED: above {most:g} %"
    figures = [f"{error:.2f} %", f"{worst:+.1f} %", f"{covered} of {len(held)}", f"{width:.1f} %"]
    return [name, *figures, verdict]


def test_the_study_is_whole(place: Published) -> None:
    inputs = inputs_of(place)
    assert [of for of in inputs.omissions if of.is_error] == []
    (study,) = inputs.studies
    said = study.description
    assert said["finished"] and set(SIZES) <= set(said["sizes"])
    # interleaved: each round goes through the grid in an order of its own
    assert inputs.main is not None
    assert len(inputs.main.paths) == said["rounds_done"] == said["rounds"] >= 3
    assert inputs.main.context["git_dirty"] is False
    assert [case.name for case in inputs.main.left_out if case.is_failure] == []
    assert study.frontier is not None and study.costs and study.check is not None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", ["time", "memory"])
def test_laws_meet_the_cells_that_were_held_out(place: Published, what: str, size: str) -> None:
    """The components together and the full step alone; of single components the table says it."""
    fits, most = fits_of(place, what, size), MOST_OFF[what]
    of_step = [one for fit in fits if fit.series.name.component == STEP for one in fit.held_out]
    of_parts = [one for fit in fits if fit.series.name.component != STEP for one in fit.held_out]
    # the step's largest three cells, and those of every component
    assert len(of_step) >= 3 and len(of_parts) >= 20
    rows = [stated(str(fit.series), fit.held_out, most) for fit in fits if fit.held_out]
    rows += [
        [str(fit.series), "", "", "", "", fit.refusal or fit.held_out_refusal]
        for fit in fits
        if not fit.held_out
    ]
    totals = [stated(PARTS, of_parts, most), stated(STEP, of_step, most)]
    header = [f"{what} at {size}", "median", "largest", "covered", "median width", "verdict"]
    print("", *markdown_table(header, [*rows, *totals]), sep="\n")
    assert median_error(of_parts) <= most
    assert median_error(of_step) <= most


def test_the_bigger_size_is_as_predicted(place: Published) -> None:
    inputs = inputs_of(place)
    (case,) = inputs.check_cases
    assert case.name.size not in SIZES and case.name.component == STEP
    (found,) = [s for s in inputs.predictions.steps if s.prediction.name == case.name]
    # its rates come from the rounds alone
    assert found.kind == CHECKED
    of, check = found.prediction, found.check
    assert check is not None and check.memory_percent_off is not None
    print(
        f"\n{case.name}: measured {case.median_seconds:.3f} s, predicted {of.seconds:.3f} s "
        f"({of.low:.3f} to {of.high:.3f}, {of.range_words}), off by {check.percent_off:+.1f} %; "
        f"memory off by {check.memory_percent_off:+.2f} %, inside: {check.is_memory_inside}"
    )
    assert of.low <= case.median_seconds <= of.high
    assert abs(check.memory_percent_off) <= MOST_OFF["memory"]


@dataclass(frozen=True)
class Confirmed:
    """A point that was tried; `tries`: whether a step fitted, by its case's name."""

    axis: Axis
    point: Json
    tries: Mapping[str, bool | None]

    @property
    def predicted(self) -> int:
        return self.point[self.axis.largest_key]

    @property
    def found(self) -> int:
        return self.point[self.axis.confirmed_key]

    def case(self, value: int) -> str:
        """At a value of what was looked for."""
        keys = ("size", "variant", "dtype", self.axis.given)
        return str(Line(*(self.point[key] for key in keys)).case(self.axis, value))


def frontiers(place: Published) -> list[Json]:
    """The study's own, and those that were published with it."""
    documents = [read_json(path)[0] for path in data_files(place)]
    return [document for document in documents if is_frontier(document)]


def confirmed_points(place: Published) -> list[Confirmed]:
    return [
        Confirmed(axis, point, {one["case"]: one["fits"] for one in document["tries"]})
        for document in frontiers(place)
        for axis in AXES.values()
        for point in document[axis.key]
        if point[axis.confirmed_key] is not None
    ]


def test_what_is_predicted_to_fit_is_within_the_limit(place: Published) -> None:
    for document in frontiers(place):
        points = [(point, axis) for axis in AXES.values() for point in document[axis.key]]
        assert points
        for point, axis in points:
            fits = point["predicted_bytes"] <= document["limit_bytes"]
            assert fits == (point[axis.largest_key] > 0) or point["remark"], point


def test_the_frontier_is_where_tries_found_it(place: Published) -> None:
    rows = []
    for one in confirmed_points(place):
        # the file says what the tries said: this one ran, and the next larger one did not
        assert one.found < one.axis.smallest or one.tries[one.case(one.found)] is True
        assert one.tries[one.case(one.found + 1)] is False
        apart = apart_percent(one.predicted, one.found)
        assert one.point["apart_percent"] == apart
        remark = "as predicted" if one.predicted == one.found else f"apart {apart or 0.0:+.2f} %"
        rows.append([one.case(one.found), str(one.predicted), str(one.found), remark])
    print("", *markdown_table(["step", "predicted", "confirmed", ""], rows), sep="\n")
    assert rows, "no point was tried"
    for one in confirmed_points(place):
        most = max(1.0, MOST_OFF["memory"] / 100 * one.found)
        assert abs(one.predicted - one.found) <= most, one.case(one.found)
