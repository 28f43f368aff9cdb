"""The kinds of results that a report is made from, and how to tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tinyllama_tools.ablation_files import RESULT as ABLATION_FILE
from tinyllama_tools.core.app import SUITE_FILE, BadInputError, Json
from tinyllama_tools.data.json_files import bad_file, read_json
from tinyllama_tools.data.profiles import SUMMARY as TRAINING_FILE
from tinyllama_tools.data.results import is_result, is_training_summary
from tinyllama_tools.data.studies import FRONTIER, KIND, STUDY
from tinyllama_tools.report.frontier_file import is_frontier
from tinyllama_tools.scaling.files import DOCUMENT as SCALING_FILE
from tinyllama_tools.scaling.files import KIND as SCALING_KIND
from tinyllama_tools.scaling.files import RESULTS as SCALING_RESULTS
from tinyllama_tools.scaling.scaling_result import is_scaling_result

STUDY_FILE, FRONTIER_FILE = STUDY, FRONTIER
KNOWN = (
    f"{SUITE_FILE}, {STUDY_FILE}, {TRAINING_FILE}, {ABLATION_FILE}, {FRONTIER_FILE} or "
    f"{SCALING_RESULTS}"
)
NAME_A_RESULT = "name a result of scripts/bench, scripts/study, scripts/scaling or scripts/ablation"


class Kind(Enum):
    """`words`: what it is; `command`: what makes one."""

    STUDY = ("a grid study", "scripts/study tiny small")
    SUITE = ("a run of the suite", "scripts/bench")
    TRAINING = ("a training study", "scripts/study tiny small --grid off")
    FRONTIER = ("a frontier", "scripts/study")
    ABLATION = ("an ablation", "scripts/ablation")
    SCALING = ("a data-parallel run", "scripts/scaling --processes 1,2")

    def __init__(self, words: str, command: str) -> None:
        self.words = words
        self.command = command


@dataclass(frozen=True)
class Source:
    """A result to read. `path`: the folder of a grid study or of a data-parallel run, the file of
    any other kind, and of a data-parallel result that somebody named alone."""

    kind: Kind
    path: Path


def is_grid_study(document: Json) -> bool:
    """Whether it is the study.json of a grid."""
    return document.get("kind") == KIND and "schema_version" in document


def is_scaling_document(document: Json) -> bool:
    """Whether it is the scaling.json of scripts/scaling."""
    return document.get("kind") == SCALING_KIND and "schema_version" in document


def _of_file(path: Path) -> Source:
    document, _ = read_json(path)
    if is_grid_study(document):
        return Source(Kind.STUDY, path.parent)
    if is_training_summary(document):
        return Source(Kind.TRAINING, path)
    if "format_version" in document and "gates" in document:
        return Source(Kind.ABLATION, path)
    if is_frontier(document):
        return Source(Kind.FRONTIER, path)
    if is_scaling_document(document):
        return Source(Kind.SCALING, path.parent)
    if is_scaling_result(document):
        return Source(Kind.SCALING, path)
    if is_result(document):
        return Source(Kind.SUITE, path)
    known = ", ".join(list(document)[:5]) or "none"
    raise bad_file(
        path, f"is no result that this report knows: its keys are {known}", NAME_A_RESULT
    )


def source_of(path: Path) -> Source:
    """What a path that somebody named is; BadInputError where it is no result, or unreadable."""
    if not path.is_dir():
        return _of_file(path)
    if (path / STUDY_FILE).exists():
        return Source(Kind.STUDY, path)
    for name in (SUITE_FILE, ABLATION_FILE, TRAINING_FILE, FRONTIER_FILE, SCALING_FILE):
        if (path / name).exists():
            return _of_file(path / name)
    if any(path.glob(SCALING_RESULTS)):
        return Source(Kind.SCALING, path)
    raise BadInputError(f"{path}: holds none of {KNOWN}; {NAME_A_RESULT}")
