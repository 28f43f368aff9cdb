"""Reads a frontier.json: the largest batch of each sequence length, or the reverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.reading.json_file import Json, bad_file, read_json

AGAIN = "make it again: scripts/frontier"
SCHEMA_VERSION = 1
TEXTS = ("size", "variant", "dtype")


@dataclass(frozen=True)
class Axis:
    """`given` and `largest`: keys of a point; `confirmed`: what was found by trying."""

    key: str
    given: str
    largest: str
    confirmed: str
    title: str


BY_SEQ = Axis("points", "seq", "largest_batch", "confirmed_batch", "largest batch")
BY_BATCH = Axis("sequences", "batch", "longest_seq", "confirmed_seq", "longest sequence")


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
class FrontierFile:
    """`limit_bytes`: None where the file does not say."""

    path: Path
    axis: Axis
    limit_bytes: float | None
    limit_source: str
    lines: tuple[FrontierLine, ...]


def _number(point: Mapping[str, Any], key: str, where: str, path: Path) -> int | float:
    value = point.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e30:
        raise bad_file(path, f"{where}: {key} is {value!r}, must be a number from 0", AGAIN)
    return value


def _line(point: object, index: int, axis: Axis, path: Path) -> FrontierLine:
    where = f"{axis.key}[{index}]"
    if not isinstance(point, dict):
        raise bad_file(path, f"{where} is no object", AGAIN)
    for key in TEXTS:
        if not isinstance(point.get(key), str):
            raise bad_file(path, f"{where}: {key} is {point.get(key)!r}, must be a text", AGAIN)
    numbers = [
        _number(point, k, where, path) for k in (axis.given, axis.largest, "predicted_bytes")
    ]
    tried = str(point.get("confirmed") or "")
    remarks = ["not even 1 fits"] if not numbers[1] else []
    remarks += [text for text in (tried, str(point.get("remark") or "")) if text]
    texts = [point[key] for key in TEXTS]
    return FrontierLine(
        *texts,
        int(numbers[0]),
        int(numbers[1]),
        float(numbers[2]),
        point.get(axis.confirmed),
        point.get("apart_percent"),
        "; ".join(remarks),
        bool(tried),
    )


def is_frontier(document: Json) -> bool:
    """Whether scripts/frontier wrote it."""
    return "limit_bytes" in document and any(axis.key in document for axis in (BY_SEQ, BY_BATCH))


def read_frontier(path: Path) -> FrontierFile:
    """BadInputError naming the point and the key that is wrong, and for a file without points."""
    document, _ = read_json(path)
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise bad_file(path, f"schema_version is {version!r}, must be {SCHEMA_VERSION}", AGAIN)
    found: dict[str, Sequence[object]] = {}
    for axis in (BY_SEQ, BY_BATCH):
        points = document.get(axis.key) or []
        if not isinstance(points, list):
            raise bad_file(path, f"'{axis.key}' is no list", AGAIN)
        found[axis.key] = points
    axis = BY_SEQ if found[BY_SEQ.key] else BY_BATCH
    points = found[axis.key]
    if not points:
        raise bad_file(path, "has no point", AGAIN)
    limit = document.get("limit_bytes")
    return FrontierFile(
        path,
        axis,
        float(limit) if isinstance(limit, (int, float)) else None,
        str(document.get("limit_source") or "unknown"),
        tuple(_line(point, index, axis, path) for index, point in enumerate(points)),
    )
