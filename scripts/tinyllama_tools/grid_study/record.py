"""study.json: what a grid's folder was asked for, how far it has come, and how to find the newest
that did not end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json, write_whole
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.json_files import bad_file, read_json
from tinyllama_tools.data.studies import KIND, SCHEMA_VERSION, STUDY
from tinyllama_tools.grid_study.plan import NO_CHECK, PASSES, GridPlan

START_ANOTHER = "remove the folder, or name another with --results"


@dataclass(frozen=True)
class Record:
    """`command`: as typed. `round_seconds`: of each round that was begun, all its processes
    together. `left_out`: why there are fewer rounds than planned. `finished`: UTC time, or empty.
    """

    plan: GridPlan
    command: str = "scripts/study"
    build_folder: str = "build"
    rounds_done: int = 0
    round_seconds: tuple[float, ...] = ()
    left_out: str = ""
    finished: str = ""

    @property
    def seconds_spent(self) -> float:
        """On rounds so far."""
        return sum(self.round_seconds)

    def as_json(self) -> Json:
        """The whole file."""
        plan = self.plan
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "sizes": list(plan.sizes),
            "batch": list(plan.batch),
            "seq": list(plan.seq),
            "components": list(plan.components),
            "passes": list(PASSES),
            "variants": list(plan.variants),
            "dtypes": [plan.dtype],
            "device": plan.device,
            "rounds": plan.rounds,
            "rounds_done": self.rounds_done,
            "minutes": plan.minutes,
            "seed": plan.seed,
            "check_size": plan.check_size,
            "build_folder": self.build_folder,
            "round_seconds": [round(seconds, 3) for seconds in self.round_seconds],
            "left_out": self.left_out,
            "finished": self.finished,
        }


def write_record(folder: Path, record: Record) -> None:
    """OSError where it cannot be written."""
    write_whole(folder / STUDY, compact_json(record.as_json(), ()))


# Which type the values of the file have; lists have one value or more.
TYPES: Mapping[str, tuple[type, ...] | list[type]] = {
    "command": (str,),
    "sizes": [str],
    "batch": [int],
    "seq": [int],
    "components": [str],
    "variants": [str],
    "dtypes": [str],
    "device": (str,),
    "rounds": (int,),
    "rounds_done": (int,),
    "minutes": (int, float),
    "seed": (int,),
    "check_size": (str,),
    "build_folder": (str,),
    "left_out": (str,),
    "finished": (str,),
}


def _checked(document: Json, path: Path) -> Json:
    if document.get("kind") != KIND:
        raise bad_file(path, f"kind is {document.get('kind')!r}, must be '{KIND}'", START_ANOTHER)
    if document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version")
        what = f"schema_version is {version!r}, must be {SCHEMA_VERSION}"
        raise bad_file(path, what, START_ANOTHER)
    for key, kind in TYPES.items():
        value = document.get(key)
        if isinstance(kind, list):
            is_good = isinstance(value, list) and value and all(type(v) in kind for v in value)
        else:
            is_good = type(value) in kind
        if not is_good:
            raise bad_file(path, f"{key} is {value!r}, which no study writes", START_ANOTHER)
    return document


def _round_seconds(document: Json, path: Path) -> tuple[float, ...]:
    found: Any = document.get("round_seconds")
    if not isinstance(found, list) or not all(type(v) in {int, float} for v in found):
        raise bad_file(path, f"round_seconds is {found!r}, which no study writes", START_ANOTHER)
    return tuple(float(value) for value in found)


def read_record(folder: Path) -> Record:
    """BadInputError naming the file and the value where study.json is not one of a grid."""
    path = folder / STUDY
    # studies of before there was a check had none
    document = _checked({"check_size": NO_CHECK} | read_json(path)[0], path)
    values = {f.name: document[f.name] for f in fields(GridPlan) if f.name != "dtype"}
    plan = GridPlan(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()},
        dtype=document["dtypes"][0],
    )
    return Record(
        plan,
        document["command"],
        document["build_folder"],
        document["rounds_done"],
        _round_seconds(document, path),
        document["left_out"],
        document["finished"],
    )


def newest_unfinished(results: Path) -> Path:
    """The folder of the newest grid that did not end; BadInputError where there is none, or where
    its study.json cannot be read."""
    for folder in sorted(results.glob(f"*_{KIND}"), reverse=True):
        if (folder / STUDY).is_file() and not read_record(folder).finished:
            return folder
    raise BadInputError(
        f"--resume: {results} holds no grid that did not end; begin one: scripts/study tiny small"
    )
