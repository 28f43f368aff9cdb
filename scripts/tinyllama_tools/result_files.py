"""Files of results: written whole, in a folder named by time, published of a commit only."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

from tinyllama_tools.suite_run import PROJECT

RESULTS = PROJECT / "results"
# of a run of the suite, in its folder
SUITE_FILE = "results.json"


def write_whole(path: Path, text: str) -> None:
    """Never half a file, whatever happens meanwhile."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def run_folder(kind: str, results: Path = RESULTS) -> Path:
    """results/<UTC time>_<kind>, not yet made."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"{now.strftime('%Y%m%dT%H%M%SZ')}_{kind}"


def head_commit(project: Path) -> str:
    """Of the checkout; empty where it is none."""
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()


def changed_files(project: Path) -> str:
    """Tracked files that differ from the commit, results apart."""
    git = ["git", "-c", "safe.directory=*", "status", "--porcelain", "--untracked-files=no"]
    command = [*git, "--", ":!results"]
    found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return found.stdout.strip()
