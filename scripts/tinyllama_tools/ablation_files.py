"""What an ablation writes: its result, its page, and both published."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

from tinyllama_tools.ablation_page import ablation_page
from tinyllama_tools.ablation_study import Study
from tinyllama_tools.compact_json import compact_json

RESULT = "ablation.json"
PAGE = "ABLATION.md"


def write_whole(path: Path, text: str) -> None:
    """Never half a file, whatever happens meanwhile."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


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


def make_folder(results: Path) -> Path:
    """results/<UTC time>_ablation, new."""
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = results / f"{now.strftime('%Y%m%dT%H%M%SZ')}_ablation"
    folder.mkdir(parents=True)
    return folder


def publish(study: Study, results: Path, machine: str) -> list[Path]:
    """The tracked copies."""
    page, result = results / PAGE, results / "reference" / f"ablation_{machine}.json"
    write_whole(result, result_text(study))
    write_whole(page, ablation_page(study))
    return [page, result]


def changed_files(project: Path) -> str:
    """Tracked files that differ from the commit, results apart."""
    git = ["git", "-c", "safe.directory=*", "status", "--porcelain", "--untracked-files=no"]
    command = [*git, "--", ":!results"]
    found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return found.stdout.strip()
