"""Reads a frontier.json: the largest batch of each sequence length, the reverse, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.json_files import bad_file, is_number, read_json
from tinyllama_tools.frontier import AXES, SCHEMA_VERSION, Axis

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
