"""What is published under results/reference/, for the tests that hold it or make files of it: a run
of tiny, of each machine a grid study with its page, and runs of several ranks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.ranks import read_results
from tinyllama_tools.models.data_parallel import Analysis, analyse

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


# ---- several ranks: the first rounds of what tiny_llama_scaling measured


def reference(kind: str) -> Path:
    """The folder of `ranks`, `ranks_4gbit` or `ranks_strong`."""
    return FOLDER / f"{kind}_2core_xeon_avx512"


def document(ranks: int = 2, rounds: int = 8, kind: str = "ranks") -> Json:
    """A file of so many ranks; of more than two with what two of them measured."""
    measured = reference(kind) / f"ranks_{min(ranks, 2)}.json"
    made = json.loads(measured.read_text(encoding="utf-8").replace("ranks:2", f"ranks:{ranks}"))
    made["context"]["distributed"]["world_size"] = ranks
    rows = made.pop("benchmarks")
    return made | {"benchmarks": [row for row in rows if row["repetition_index"] < rounds]}


def write_world(folder: Path, ranks: int = 2, changed: Json | None = None) -> Path:
    """ranks_<N>.json. `changed`: instead of its document."""
    path = folder / f"ranks_{ranks}.json"
    path.write_text(json.dumps(changed or document(ranks)), encoding="utf-8")
    return path


def write_run(folder: Path, ranks: Sequence[int] = (1, 2, 4), rounds: int = 8) -> Path:
    """A folder of scripts/scaling, without scaling.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in ranks:
        write_world(folder, number, document(number, rounds))
    return folder


def analysis_of(path: Path) -> Analysis:
    """Of a folder with ranks_<N>.json, or of one such file."""
    return analyse(read_results(path).results)
