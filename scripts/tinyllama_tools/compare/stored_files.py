"""Reads the files of both sides, whichever program wrote them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.json_files import bad_file, read_json
from tinyllama_tools.data.results import (
    StoredRun,
    is_result,
    is_training_summary,
    read_result,
    read_training,
)

WHAT_TO_NAME = "name results of tiny_llama_bench or performance summaries of tiny_llama_train"


def read_stored(path: Path) -> StoredRun:
    """A run of the suite or of the training program, told by its content."""
    document, data = read_json(path)
    if is_training_summary(document):
        run = read_training(document, path)
    elif is_result(document):
        run = read_result(document, path)
    else:
        known = f"its keys are {', '.join(list(document)[:5]) or 'none'}"
        raise bad_file(path, f"is no result that can be compared: {known}", WHAT_TO_NAME)
    return replace(run, digest=hashlib.sha256(data).hexdigest())


def _refuse_twice(runs: Sequence[StoredRun], side: str) -> None:
    """Runs that are one and the same would pass for agreement between runs."""
    counts = Counter(run.digest for run in runs)
    for run in runs:
        if counts[run.digest] > 1:
            raise bad_file(
                run.path,
                f"is there {counts[run.digest]} times among the files of the {side}, or copies are",
                "each file must be a run of its own",
            )


def read_sides(
    base: Sequence[Path], new: Sequence[Path]
) -> tuple[list[StoredRun], list[StoredRun]]:
    """BadInputError for a file that cannot be read, one that is twice on a side, and files of
    different programs."""
    sides = [read_stored(path) for path in base], [read_stored(path) for path in new]
    for runs, side in zip(sides, ("base", "new"), strict=True):
        _refuse_twice(runs, side)
    training = [run.path for runs in sides for run in runs if run.configuration]
    if training and len(training) < len(base) + len(new):
        others = [run.path for runs in sides for run in runs if not run.configuration]
        raise BadInputError(
            f"{training[0]} is of tiny_llama_train and {others[0]} of tiny_llama_bench, which have "
            "no case in common; name files of one program"
        )
    return sides
