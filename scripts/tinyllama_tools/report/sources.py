"""Which results a report is made from: kinds, the newest of each, and frontier.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tinyllama_tools.core.app import (
    SUITE_FILE,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.data.profiles import SUMMARY as TRAINING_FILE
from tinyllama_tools.data.profiles import is_training_summary
from tinyllama_tools.data.studies import (
    AXES,
    FRONTIER,
    KIND,
    RANK_FILES,
    SCALING_FILE,
    SCALING_KIND,
    SCHEMA_VERSION,
    STUDY,
    Axis,
    is_result,
    is_scaling_result,
    rounds_of,
    why_no_round,
)
from tinyllama_tools.models.ablations import RESULT as ABLATION_FILE
from tinyllama_tools.report.document import Omission

# of a folder the first that is there says what it is
FILES = (STUDY, SUITE_FILE, ABLATION_FILE, TRAINING_FILE, FRONTIER, SCALING_FILE)
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


def is_frontier(document: Json) -> bool:
    """Whether it is one."""
    return "limit_bytes" in document and any(axis.key in document for axis in AXES.values())


def _is_scaling_document(document: Json) -> bool:
    return document.get("kind") == SCALING_KIND and "schema_version" in document


# the first that holds; of those in folders the path is the folder
KINDS: tuple[tuple[Callable[[Json], bool], Kind, bool], ...] = (
    (is_grid_study, Kind.STUDY, True),
    (is_training_summary, Kind.TRAINING, False),
    (lambda found: {"format_version", "gates"} <= set(found), Kind.ABLATION, False),
    (is_frontier, Kind.FRONTIER, False),
    (_is_scaling_document, Kind.SCALING, True),
    (is_scaling_result, Kind.SCALING, False),
    (is_result, Kind.SUITE, False),
)


def source_of(path: Path) -> Source:
    """What a path that somebody named is; BadInputError where it is no result, or unreadable."""
    if path.is_dir():
        inside = next((path / name for name in FILES if (path / name).exists()), None)
        if inside == path / STUDY or (inside is None and any(path.glob(RANK_FILES))):
            # a damaged study.json is named as such when it is read
            return Source(Kind.STUDY if inside else Kind.SCALING, path)
        if inside is None:
            known = f"{', '.join(FILES)} or {RANK_FILES}"
            raise BadInputError(f"{path}: holds none of {known}; {NAME_A_RESULT}")
        path = inside
    document, _ = read_json(path)
    for holds, kind, is_folder in KINDS:
        if holds(document):
            return Source(kind, path.parent if is_folder else path)
    known = ", ".join(list(document)[:5]) or "none"
    raise bad_file(
        path, f"is no result that this report knows: its keys are {known}", NAME_A_RESULT
    )


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


TEXT, NUMBER = {"type": "string"}, {"type": "number", "minimum": 0}
NUMBER_OR_NONE = {"type": ["number", "null"]}


def _points_schema(axis: Axis) -> Json:
    needed = {"size": TEXT, "variant": TEXT, "dtype": TEXT, "predicted_bytes": NUMBER}
    needed |= {axis.given: NUMBER, axis.largest_key: NUMBER}
    tried = {axis.confirmed_key: NUMBER_OR_NONE, "apart_percent": NUMBER_OR_NONE}
    properties = needed | tried | {"confirmed": TEXT, "remark": TEXT}
    return {
        "type": "array",
        "items": {"type": "object", "required": list(needed), "properties": properties},
    }


FRONTIER_SCHEMA: Json = {
    "type": "object",
    "required": ["schema_version", "limit_bytes", "limit_source", "overhead"],
    # one point, or more
    "anyOf": [{"properties": {a.key: {"minItems": 1}}, "required": [a.key]} for a in AXES.values()],
    "properties": {
        **{axis.key: _points_schema(axis) for axis in AXES.values()},
        **dict.fromkeys(("limit_source", "device", "git_commit", "date"), TEXT),
        "schema_version": {"const": SCHEMA_VERSION},
        "limit_bytes": NUMBER,
        "overhead": {"type": "object", "required": ["source"], "properties": {"source": TEXT}},
    },
}


def _line(point: Json, axis: Axis) -> FrontierLine:
    largest, confirmed = int(point[axis.largest_key]), point.get(axis.confirmed_key)
    tried = point.get("confirmed", "")
    remarks = ["" if largest else "not even 1 fits", tried, point.get("remark", "")]
    return FrontierLine(
        *(point[key] for key in ("size", "variant", "dtype")),
        int(point[axis.given]),
        largest,
        float(point["predicted_bytes"]),
        None if confirmed is None else int(confirmed),
        point.get("apart_percent"),
        "; ".join(filter(None, remarks)),
        bool(tried),
    )


def read_frontier(path: Path) -> FrontierFile:
    """BadInputError naming the point and the key that is wrong, and for a file without points."""
    found, _ = read_json(path)
    problem = schema_problem(found, FRONTIER_SCHEMA)
    if problem:
        raise bad_file(path, problem, "make it again: scripts/study")
    parts = (
        FrontierPart(axis, tuple(_line(point, axis) for point in found[axis.key]))
        for axis in AXES.values()
        if found.get(axis.key)
    )
    return FrontierFile(
        path,
        tuple(parts),
        found["limit_bytes"],
        found["limit_source"],
        found["overhead"]["source"],
        *(found.get(key, "") for key in ("device", "git_commit", "date")),
    )


# 20260131T080000Z_amd_instinct_mi300x, performance_results_tiny_20260131_080000
TIME = re.compile(r"(\d{8})[T_](\d{6})")
TRAINING_SIZE = re.compile(r"performance_results_(.+)_\d{8}_\d{6}")


def _time_of(folder: Path) -> tuple[str, ...]:
    """By its name, which survives copying; empty of a folder without a time in it."""
    found = TIME.search(folder.name)
    return found.groups() if found else ()


def _document(path: Path) -> Json | None:
    """None of a damaged file, which is named as such when it is read."""
    try:
        return read_json(path)[0]
    except BadInputError:
        return None


def _newest_trainings(folders: list[Path]) -> Iterator[Path]:
    """One of each size: scripts/study makes a folder a size."""
    sizes = set()
    for folder in folders:
        named = TRAINING_SIZE.fullmatch(folder.name)
        if named and named[1] not in sizes and (folder / TRAINING_FILE).is_file():
            sizes.add(named[1])
            yield folder / TRAINING_FILE


def _newest_study(folders: list[Path]) -> tuple[list[Path], list[Omission]]:
    """The newest that has measured something, and those that were passed over."""
    passed: list[Omission] = []
    for folder in folders:
        is_study = (folder / STUDY).exists()
        document = _document(folder / STUDY) if is_study else {}
        if document is not None and not is_grid_study(document):
            continue
        if rounds_of(folder):
            return [folder], passed
        passed.append(Omission("grid study", str(folder), why_no_round(folder)))
    return [], passed


def _newest_frontiers(folders: list[Path], studies: list[Path]) -> list[Path]:
    """The newest over sequences and the newest over batches, apart from those of grid studies;
    not what is older than the frontier of the study that is taken."""
    oldest = next((_time_of(study) for study in studies if (study / FRONTIER).is_file()), ())
    found: dict[object, Path] = {}
    for folder in folders:
        path = folder / FRONTIER
        if path.is_file() and not (folder / STUDY).exists() and _time_of(folder) >= oldest:
            found.setdefault((_document(path) or {}).get("by"), path)
    return list(found.values())


@dataclass(frozen=True)
class Newest:
    """`sources`: the newest of each kind, grid study first; `absent`: the kinds of which there is
    none; `passed_over`: newer studies that have measured nothing to report on."""

    sources: list[Source]
    absent: list[Kind]
    passed_over: list[Omission]


def newest_sources(results: Path) -> Newest:
    """What a report takes where nothing was named. OSError where `results` cannot be listed."""
    listed = results.iterdir() if results.is_dir() else ()
    dated = [path for path in listed if path.is_dir() and _time_of(path)]
    folders = sorted(dated, key=lambda path: (_time_of(path), path.name), reverse=True)

    def newest(name: str) -> list[Path]:
        return [folder / name for folder in folders if (folder / name).is_file()][:1]

    studies, passed_over = _newest_study(folders)
    found = {
        Kind.STUDY: studies,
        Kind.SUITE: newest(SUITE_FILE),
        Kind.TRAINING: list(_newest_trainings(folders)),
        Kind.FRONTIER: _newest_frontiers(folders, studies),
        Kind.ABLATION: newest(ABLATION_FILE),
        Kind.SCALING: [path.parent for path in newest(SCALING_FILE)],
    }
    # a study's own serves where there is no other
    served = {Kind.FRONTIER for folder in studies if (folder / FRONTIER).is_file()}
    sources = [Source(kind, path) for kind, paths in found.items() for path in paths]
    absent = [kind for kind, paths in found.items() if not paths and kind not in served]
    return Newest(sources, absent, passed_over)
