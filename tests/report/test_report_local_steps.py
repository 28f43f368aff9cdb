"""A grid study as what projections of data-parallel training start from: measured and predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from played_grid import Grid
from played_study import write_study

from made_up_scaling import World, analysis_of, write_world
from tinyllama_tools.models.collectives import read_interconnects
from tinyllama_tools.models.projection import MEASURED, PREDICTED
from tinyllama_tools.scaling.output import local_table, overview
from tinyllama_tools.scaling.results import LocalSteps, local_steps, projections_of

NO_PROGRAM = Path("no_such_program")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), Grid(rounds=1))


@pytest.fixture(scope="module")
def found(study: Path) -> LocalSteps:
    return local_steps([], [study], NO_PROGRAM, "f32", "baseline")


def test_sizes_that_were_run_are_measured_and_others_predicted(found: LocalSteps) -> None:
    kinds = {size: step.kind for size, step in found.steps.items()}
    assert kinds["tiny"] == MEASURED
    assert kinds["large"] == kinds["very_large"] == PREDICTED
    assert found.missing == {}
    for step in found.steps.values():
        assert step.low <= step.seconds <= step.high
        assert (step.low < step.high) == (step.kind == PREDICTED)
        assert step.knows_small_batches == (step.kind == MEASURED)


def test_projections_say_which_local_steps_are_predictions(study: Path, tmp_path: Path) -> None:
    write_world(tmp_path, World(ranks=2))
    links = read_interconnects(names=["mi300x_ndr"])
    projections = projections_of(analysis_of(tmp_path), [study], links, NO_PROGRAM)
    of_size = {step.size: step.local_kind for step in projections.steps}
    assert of_size["tiny"] == MEASURED
    assert of_size["very_large"] == PREDICTED
    rows = [line for line in overview(projections) if "very_large" in line]
    assert rows and all("| predicted" in row and "| projection |" in row for row in rows)
    (line,) = (line for line in local_table(projections.local.values()) if "very_large" in line)
    assert projections.local["very_large"].range_words in line
