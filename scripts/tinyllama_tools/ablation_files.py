"""What an ablation writes: its result, its page, and both published."""

from __future__ import annotations

import json
from pathlib import Path

from tinyllama_tools.ablation_page import ablation_page
from tinyllama_tools.ablation_study import Study
from tinyllama_tools.core.app import write_whole
from tinyllama_tools.core.text import compact_json

RESULT = "ablation.json"
PAGE = "ABLATION.md"


def result_text(study: Study) -> str:
    """The result, a line a cell."""
    return compact_json(study.as_json(), (*study.tables, "rows", "gates", "peers"))


def write_study(study: Study, folder: Path) -> None:
    """Both files of a run."""
    write_whole(folder / RESULT, result_text(study))
    write_whole(folder / PAGE, ablation_page(study))


def read_study(path: Path) -> Study:
    """ValueError where the file is no result of an ablation; OSError where it cannot be read."""
    try:
        return Study.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: no result of scripts/ablation: {error}") from error


def publish(study: Study, results: Path, machine: str) -> list[Path]:
    """The tracked copies."""
    page, result = results / PAGE, results / "reference" / f"ablation_{machine}.json"
    write_whole(result, result_text(study))
    write_whole(page, ablation_page(study))
    return [page, result]
