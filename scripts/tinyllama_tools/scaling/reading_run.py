"""Reads the results of a run: one that cannot be used does not cost the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.scaling.document import failures_before
from tinyllama_tools.scaling.failure import Failure
from tinyllama_tools.scaling.files import ranks_of, result_files
from tinyllama_tools.scaling.scaling_result import ScalingResult, read_scaling_result


@dataclass(frozen=True)
class ReadRun:
    """`failures`: numbers of ranks without a usable result, those known before first. `unread`: of
    the others, how many."""

    results: tuple[ScalingResult, ...]
    failures: tuple[Failure, ...]
    unread: int


def read_results(path: Path, known: Sequence[Failure] = ()) -> ReadRun:
    """Of a folder every ranks_<N>.json that can be used, of a file that file.

    A file that cannot be used becomes a failure of its number of ranks, unless that has one
    already. BadInputError where none can be used.
    """
    found: list[ScalingResult] = []
    unread: list[Failure] = []
    failed = {failure.ranks for failure in known}
    refusal: BadInputError | None = None
    for file in result_files(path):
        try:
            found.append(read_scaling_result(file))
        except BadInputError as error:
            refusal = refusal or error
            if ranks_of(file) not in failed:
                unread.append(Failure(ranks_of(file), 1, str(error)))
    if not found and refusal is not None:
        raise refusal
    return ReadRun(tuple(found), (*known, *unread), len(unread))


def read_again(path: Path) -> ReadRun:
    """With what the folder's own scaling.json says was not measured."""
    return read_results(path, failures_before(path) if path.is_dir() else ())
