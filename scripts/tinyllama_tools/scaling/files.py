"""Names of the files in the folder of a scaling run, for what writes them and what reads them."""

from __future__ import annotations

from pathlib import Path

from tinyllama_tools.core.app import BadInputError

KIND, SCHEMA_VERSION = "scaling", 1
DOCUMENT, PAGE = "scaling.json", "scaling.md"
RESULTS = "ranks_*.json"


def result_file(folder: Path, ranks: int) -> Path:
    """What tiny_llama_scaling writes at rank 0."""
    return folder / f"ranks_{ranks}.json"


def log_file(folder: Path, ranks: int) -> Path:
    """What the ranks said, a line each with its rank before it."""
    return folder / f"ranks_{ranks}.log"


def ranks_of(path: Path) -> int:
    """Of a file that is named as result_file() names it; 0 for others."""
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


def result_files(path: Path) -> list[Path]:
    """Of a folder every ranks_<N>.json in the order of N, of a file that file.

    BadInputError where a folder has none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(RESULTS), key=lambda file: (ranks_of(file), file.name))
    if not found:
        raise BadInputError(
            f"{path}: holds no {RESULTS}; measure first: scripts/scaling --processes 1,2"
        )
    return found
