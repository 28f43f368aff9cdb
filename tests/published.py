"""What is published under results/reference/, for the tests that hold it or make files of it: a run
of tiny, a grid study with its page, and runs of several ranks."""

import json
from collections.abc import Sequence
from pathlib import Path

from built_programs import PROJECT_ROOT, write_json
from tinyllama_tools.core.app import Json
from tinyllama_tools.data.rank_results import read_scaling_run
from tinyllama_tools.models.data_parallel import Analysis, analyse

FOLDER = PROJECT_ROOT / "results/reference"
# what the study and the run of tiny were measured on; and, by an older program, all others
MACHINE, OLDER = "2core_epyc_zen3", "2core_xeon_avx512"
MEASURED = FOLDER / f"tiny_f32_{MACHINE}.json"
# of the study, picture and page, and of the picture in the README
MOST_BYTES, MOST_PICTURE_BYTES = 4_000_000, 300_000
STUDY = FOLDER / f"study_{MACHINE}"
# of that machine and of one with units for bf16
PAGE = FOLDER / "scaling_2core_epyc.html"
# ten cases of tiny
RECORDED = FOLDER / f"paired_blocks_{OLDER}.jsonl"
PICTURE = FOLDER / f"roofline_{MACHINE}.png"
# the study's, and the frontiers that were made beside it
DATA_FILES = sorted([*STUDY.iterdir(), *FOLDER.glob(f"frontier_by_*_{MACHINE}.json")])


# ---- several ranks: the first rounds of what tiny_llama_scaling measured


def reference(kind: str) -> Path:
    """The folder of `ranks`, `ranks_4gbit` or `ranks_strong`."""
    return FOLDER / f"{kind}_{OLDER}"


def document(ranks: int = 2, rounds: int = 8, kind: str = "ranks") -> Json:
    """A file of so many ranks; of more than two with what two of them measured."""
    measured = reference(kind) / f"ranks_{min(ranks, 2)}.json"
    made = json.loads(measured.read_text(encoding="utf-8").replace("ranks:2", f"ranks:{ranks}"))
    made["context"]["distributed"]["world_size"] = ranks
    rows = made.pop("benchmarks")
    return made | {"benchmarks": [row for row in rows if row["repetition_index"] < rounds]}


def write_world(folder: Path, ranks: int = 2, changed: Json | None = None) -> Path:
    """ranks_<N>.json. `changed`: instead of its document."""
    return write_json(folder / f"ranks_{ranks}.json", changed or document(ranks))


def write_run(folder: Path, ranks: Sequence[int] = (1, 2, 4), rounds: int = 8) -> Path:
    """A folder of scripts/scaling, without scaling.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in ranks:
        write_world(folder, number, document(number, rounds))
    return folder


def analysis_of(path: Path) -> Analysis:
    """Of a folder with ranks_<N>.json, or of one such file."""
    return analyse(read_scaling_run(path)[0])
