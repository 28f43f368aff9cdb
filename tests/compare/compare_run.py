"""Runs `compare run` between two builds as a user would, in this process."""

from __future__ import annotations

import json
from pathlib import Path

from tools import compare as main

Json = dict[str, object]
# few blocks, so that a run takes a second
QUICK = ["--alpha=0.2", "--looks=1", "--pairs=4", "--seed=5"]


def run(
    base: Path, new: Path, output: Path, *more: str, quick: bool = True
) -> tuple[int, dict[str, Json]]:
    """The exit status, and comparison.json's cases by name, if it was written."""
    options = [f"--base={base}", f"--new={new}", f"--output={output}", *(QUICK if quick else [])]
    status = main(["run", *options, *more])
    file = output / "comparison.json"
    document = json.loads(file.read_text()) if file.exists() else {"cases": []}
    return status, {case["name"]: case for case in document["cases"]}


def document_of(output: Path) -> Json:
    """comparison.json."""
    return json.loads((output / "comparison.json").read_text())
