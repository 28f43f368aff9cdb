"""What is published under results/reference/ of one machine, for the tests that hold it: a run of
tiny, and a grid study with its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tinyllama_tools.core.app import RESULTS

FOLDER = RESULTS / "reference"
MEASURED = FOLDER / "tiny_f32_2core_xeon_avx512.json"
# of all files of a machine, and of the picture in the README
MOST_BYTES, MOST_PICTURE_BYTES = 4_000_000, 300_000
STUDIES = sorted(path for path in FOLDER.glob("study_*") if path.is_dir())


@dataclass(frozen=True)
class Published:
    """What is there of one machine."""

    study: Path
    folder: Path = FOLDER

    @property
    def machine(self) -> str:
        return self.study.name.removeprefix("study_")

    @property
    def page(self) -> Path:
        return self.folder / f"scaling_{self.machine}.html"

    @property
    def picture(self) -> Path:
        return self.folder / f"roofline_{self.machine}.png"


MACHINES = [pytest.param(Published(path), id=path.name) for path in STUDIES]


def data_files(place: Published) -> list[Path]:
    """The study's, and the frontiers that were made beside it."""
    beside = place.folder.glob(f"frontier_by_*_{place.machine}.json")
    return sorted([*place.study.iterdir(), *beside])
