"""The grid studies that are published under results/reference/, for the tests that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.data.publish import REFERENCE
from tinyllama_tools.report.command import Place

FOLDER = RESULTS / REFERENCE
STUDY = "study_"
STUDIES = sorted(path for path in FOLDER.glob(f"{STUDY}*") if path.is_dir())
NONE_YET = (
    "no results/reference/study_* is committed: scripts/study tiny small measures one, "
    "scripts/report FOLDER --publish MACHINE publishes it"
)
# a parameter for each machine; where there is none, the tests are there and say so
MACHINES = [
    pytest.param(Place(FOLDER, path.name.removeprefix(STUDY)), id=path.name) for path in STUDIES
] or [pytest.param(None, id="none", marks=pytest.mark.skip(reason=NONE_YET))]


def data_files(place: Place) -> list[Path]:
    """The study's, and the frontiers that were made beside it."""
    beside = place.folder.glob(f"frontier_by_*_{place.machine}.json")
    return sorted([*place.study.iterdir(), *beside])
