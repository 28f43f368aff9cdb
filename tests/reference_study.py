"""The grid studies that are published under results/reference/, for the tests that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tinyllama_tools.core.app import RESULTS

FOLDER = RESULTS / "reference"
# of all files of a machine, and of the picture in the README
MOST_BYTES, MOST_PICTURE_BYTES = 4_000_000, 300_000
STUDY = "study_"
STUDIES = sorted(path for path in FOLDER.glob(f"{STUDY}*") if path.is_dir())


@dataclass(frozen=True)
class Published:
    """What is there of one machine."""

    folder: Path
    machine: str

    @property
    def study(self) -> Path:
        return self.folder / f"study_{self.machine}"

    @property
    def page(self) -> Path:
        return self.folder / f"scaling_{self.machine}.html"

    @property
    def picture(self) -> Path:
        return self.folder / f"roofline_{self.machine}.png"


MACHINES = [
    pytest.param(Published(FOLDER, path.name.removeprefix(STUDY)), id=path.name) for path in STUDIES
]


def data_files(place: Published) -> list[Path]:
    """The study's, and the frontiers that were made beside it."""
    beside = place.folder.glob(f"frontier_by_*_{place.machine}.json")
    return sorted([*place.study.iterdir(), *beside])
