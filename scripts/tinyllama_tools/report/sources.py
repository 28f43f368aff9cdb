"""Which results a report is made from: kinds, the newest of each, frontiers and ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import SUITE_FILE, BadInputError, Json, bad_file, is_number, read_json
from tinyllama_tools.data.profiles import SUMMARY as TRAINING_FILE
from tinyllama_tools.data.profiles import is_training_summary
from tinyllama_tools.data.ranks import DOCUMENT as SCALING_FILE
from tinyllama_tools.data.ranks import KIND as SCALING_KIND
from tinyllama_tools.data.ranks import RESULTS as SCALING_RESULTS
from tinyllama_tools.data.ranks import is_scaling_result
from tinyllama_tools.data.results import is_result
from tinyllama_tools.data.studies import (
    AXES,
    FRONTIER,
    KIND,
    SCHEMA_VERSION,
    STUDY,
    Axis,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.models.ablations import RESULT as ABLATION_FILE
from tinyllama_tools.report.document import Omission

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


AGAIN = "make it again: scripts/study"
TEXTS = ("size", "variant", "dtype")
MOST = 1e30


@dataclass(frozen=True)
class FrontierLine:
    """One point: what fits at most where `given` is given; 0 where nothing does. `confirmed`: None
    where that was not tried or not settled; `apart_percent`: prediction over that, less 100."""

    size: str
    variant: str
    dtype: str
    given: int
    largest: int
    predicted_bytes: float
    confirmed: int | None = None
    apart_percent: float | None = None
    remark: str = ""
    is_tried: bool = False


@dataclass(frozen=True)
class FrontierPart:
    """The lines of one axis, one or more."""

    axis: Axis
    lines: tuple[FrontierLine, ...]


@dataclass(frozen=True)
class FrontierFile:
    """`parts`: one or two, that over sequences first. `overhead`: what steps took beyond the
    formulas, in words. `device`, `git_commit`, `date`: empty where the file does not say."""

    path: Path
    parts: tuple[FrontierPart, ...]
    limit_bytes: float
    limit_source: str
    overhead: str
    device: str
    git_commit: str
    date: str


class _Point:
    """One entry of a list of points, with the file and the place for messages."""

    def __init__(self, entry: object, where: str, path: Path) -> None:
        self._where, self._path = where, path
        if not isinstance(entry, dict):
            raise self.bad("is no object")
        self._entry: Mapping[str, Any] = entry

    def bad(self, what: str) -> Exception:
        return bad_file(self._path, f"{self._where}: {what}", AGAIN)

    def text(self, key: str, default: object = None) -> str:
        value = self._entry.get(key, default)
        if not isinstance(value, str):
            raise self.bad(f"{key} is {value!r}, must be a text")
        return value

    def number(self, key: str) -> float:
        value = self._entry.get(key)
        if not is_number(value) or not 0 <= value < MOST:
            raise self.bad(f"{key} is {value!r}, must be a number from 0")
        return value

    def number_or_none(self, key: str) -> float | None:
        """May be below 0."""
        value = self._entry.get(key)
        if value is not None and not (is_number(value) and abs(value) < MOST):
            raise self.bad(f"{key} is {value!r}, must be a number or null")
        return value


def _line(point: _Point, axis: Axis) -> FrontierLine:
    texts = [point.text(key) for key in TEXTS]
    largest, confirmed = point.number(axis.largest_key), point.number_or_none(axis.confirmed_key)
    tried, remark = point.text("confirmed", ""), point.text("remark", "")
    remarks = ["" if largest else "not even 1 fits", tried, remark]
    return FrontierLine(
        *texts,
        int(point.number(axis.given)),
        int(largest),
        float(point.number("predicted_bytes")),
        None if confirmed is None else int(confirmed),
        point.number_or_none("apart_percent"),
        "; ".join(filter(None, remarks)),
        bool(tried),
    )


def is_frontier(document: Json) -> bool:
    """Whether it is one."""
    return "limit_bytes" in document and any(axis.key in document for axis in AXES.values())


def _part(document: Json, axis: Axis, path: Path) -> FrontierPart | None:
    points = document.get(axis.key, [])
    if not isinstance(points, list):
        raise bad_file(path, f"'{axis.key}' is no list", AGAIN)
    lines = (
        _line(_Point(entry, f"{axis.key}[{index}]", path), axis)
        for index, entry in enumerate(points)
    )
    return FrontierPart(axis, tuple(lines)) if points else None


def read_frontier(path: Path) -> FrontierFile:
    """BadInputError naming the point and the key that is wrong, and for a file without points."""
    document, _ = read_json(path)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise bad_file(path, f"schema_version is {version!r}, must be {SCHEMA_VERSION}", AGAIN)
    parts = [_part(document, axis, path) for axis in AXES.values()]
    known = tuple(part for part in parts if part is not None)
    if not known:
        raise bad_file(path, "has no point", AGAIN)
    whole = _Point(document, "the file", path)
    overhead = _Point(document.get("overhead"), "overhead", path)
    return FrontierFile(
        path,
        known,
        whole.number("limit_bytes"),
        whole.text("limit_source"),
        overhead.text("source"),
        whole.text("device", ""),
        whole.text("git_commit", ""),
        whole.text("date", ""),
    )


# 20260131T080000Z_amd_instinct_mi300x, performance_results_tiny_20260131_080000
TIME = re.compile(r"(\d{8})[T_](\d{6})")
TRAINING_SIZE = re.compile(r"performance_results_(.+)_\d{8}_\d{6}")


def _time_of(folder: Path) -> tuple[str, str]:
    """By its name, which survives copying; a folder without a time in it is older than all."""
    found = TIME.search(folder.name)
    return (found[1], found[2]) if found else ("", "")


def _folders(results: Path) -> list[Path]:
    """Newest first. OSError where results/ cannot be listed."""
    found = [path for path in results.iterdir() if path.is_dir() and _time_of(path) != ("", "")]
    return sorted(found, key=lambda path: (_time_of(path), path.name), reverse=True)


def _holds_grid(folder: Path) -> bool:
    try:
        document = json.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # damaged, and named as such when it is read
        return (folder / STUDY_FILE).exists()
    return isinstance(document, dict) and is_grid_study(document)


def _newest_trainings(folders: list[Path]) -> Iterator[Path]:
    """One of each size: scripts/study makes a folder a size."""
    sizes = set()
    for folder in folders:
        named = TRAINING_SIZE.fullmatch(folder.name)
        size = named[1] if named else folder.name
        if named and size not in sizes and (folder / TRAINING_FILE).is_file():
            sizes.add(size)
            yield folder / TRAINING_FILE


def _newest_study(folders: list[Path]) -> tuple[Path | None, list[Omission]]:
    """The newest that has measured something, and those that were passed over."""
    passed: list[Omission] = []
    for folder in folders:
        if not _holds_grid(folder):
            continue
        if rounds_of(folder):
            return folder, passed
        passed.append(Omission("grid study", str(folder), why_no_round(folder)))
    return None, passed


def _newest_frontiers(folders: list[Path], study: Path | None) -> list[Path]:
    """The newest over sequences and the newest over batches, apart from those of grid studies;
    not what is older than the frontier of the study that is taken."""
    has_own = study is not None and (study / FRONTIER_FILE).is_file()
    oldest = _time_of(study) if study is not None and has_own else ("", "")
    found: dict[object, Path] = {}
    for folder in folders:
        path = folder / FRONTIER_FILE
        if path.is_file() and not (folder / STUDY_FILE).exists() and _time_of(folder) >= oldest:
            found.setdefault(_by(path), path)
    return list(found.values())


def _by(path: Path) -> object:
    """`seq` or `batch`; a damaged file is named as such when it is read."""
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("by")
    except (OSError, ValueError, AttributeError):
        return None


@dataclass(frozen=True)
class Newest:
    """`sources`: the newest of each kind, grid study first; `absent`: the kinds of which there is
    none; `passed_over`: newer studies that have measured nothing to report on."""

    sources: list[Source]
    absent: list[Kind]
    passed_over: list[Omission]


def newest_sources(results: Path) -> Newest:
    """What a report takes where nothing was named. OSError where `results` cannot be listed."""
    folders = _folders(results) if results.is_dir() else []
    study, passed_over = _newest_study(folders)
    found: dict[Kind, list[Path]] = {
        Kind.STUDY: [study] if study is not None else [],
        Kind.SUITE: [f / SUITE_FILE for f in folders if (f / SUITE_FILE).is_file()][:1],
        Kind.TRAINING: list(_newest_trainings(folders)),
        Kind.FRONTIER: _newest_frontiers(folders, study),
        Kind.ABLATION: [f / ABLATION_FILE for f in folders if (f / ABLATION_FILE).is_file()][:1],
        Kind.SCALING: [f for f in folders if (f / SCALING_FILE).is_file()][:1],
    }
    # a study's own serves where there is no other
    served = {Kind.FRONTIER for f in found[Kind.STUDY] if (f / FRONTIER_FILE).is_file()}
    sources = [Source(kind, path) for kind, paths in found.items() for path in paths]
    absent = [kind for kind, paths in found.items() if not paths and kind not in served]
    return Newest(sources, absent, passed_over)
