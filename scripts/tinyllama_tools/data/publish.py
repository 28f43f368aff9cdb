"""A result as it is published: without what only the machine's owner knows.

The home folder becomes `~`, the checkout and the folder in which the report is made nothing.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tinyllama_tools.core.app import PROJECT, Json, write_whole
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.json_files import read_json
from tinyllama_tools.data.results import ITERATION, is_result

# of anybody: settings and reasons may name folders of whoever measured
START, END = r"(?<![\w.~-])", r"(?=[/\s:;,'\"]|$)"
# any other path of two names or more: below a device or a name it is none, nor after a scheme
PATHS = re.compile(r"(?<![\w.~-])(?<!:/)~?/(?:[\w.@+-]+/)+(?P<name>[\w.@+-]*)")
HOMES = re.compile(rf"{START}(?:/(?:home|Users)/[^/\s:;,'\"]+|/root){END}")
Value = TypeVar("Value")


def _text(text: str) -> str:
    if "/" not in text:
        return text
    short = text
    # where the report is made, and the checkout: what lies below is told from there
    for folder in {str(Path.cwd()), str(PROJECT)} - {"/"}:
        short = re.sub(rf"{START}{re.escape(folder)}/", "", short)
        short = re.sub(rf"{START}{re.escape(folder)}{END}", ".", short)
    home = str(Path.home())
    if home != "/":
        short = re.sub(rf"{START}{re.escape(home)}{END}", "~", short)
    return HOMES.sub("~", short)


def _changed(value: Value, change: Callable[[str], str]) -> Value:
    """The same with every text in it changed: of lists, mappings and data classes, deeply."""
    changed: Any = value
    if isinstance(value, str):
        changed = change(value)
    elif isinstance(value, Mapping):
        changed = {key: _changed(item, change) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        changed = type(value)(_changed(item, change) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f.name for f in dataclasses.fields(value))
        found = {name: _changed(getattr(value, name), change) for name in fields}
        changed = dataclasses.replace(value, **found)
    return changed


def without_places(value: Value) -> Value:
    """The same without the reader's own folders in any text."""
    return _changed(value, _text)


def _names_alone(text: str) -> str:
    return PATHS.sub(lambda found: found["name"], _text(text))


def names_alone(value: Value) -> Value:
    """As without_places, and of every other path that is not told from the checkout its last name:
    for what everybody may read."""
    return _changed(value, _names_alone)


REFERENCE = "reference"
# who it was, where its program lay, and what else it did: none of it bears on the figures
PRIVATE = frozenset({"host_name", "load_avg", "executable"})
# lists that get a line an item
EXPANDED = ("benchmarks", "cases", "points", "sequences", "tries")
# Google Benchmark's own, of which a row's `run_name` and its place in the list say as much
UNREAD = frozenset({"name", "family_index", "per_family_instance_index", "repetitions", "threads"})


def published_context(context: Mapping[str, Any]) -> dict[str, Any]:
    """A result file's context without what names the machine's owner or place."""
    return {name: value for name, value in context.items() if name not in PRIVATE}


def _published_rows(rows: Sequence[Json]) -> list[Json]:
    """Every repetition; a case's median and deviation follow from them."""
    repeated = {row["run_name"] for row in rows if row.get("run_type") == ITERATION}
    return [
        {key: value for key, value in row.items() if key not in UNREAD}
        for row in rows
        if row.get("run_type") == ITERATION or row.get("run_name") not in repeated
    ]


def published(document: Json) -> Json:
    """Any file of results: a result without host, program and load, without UNREAD and without
    what is computed from its repetitions; of every path in a text its last name alone."""
    if is_result(document):
        context = published_context(document["context"])
        rows = _published_rows(document["benchmarks"])
        document = {**document, "context": context, "benchmarks": rows}
    return names_alone(document)


def published_text(path: Path) -> str:
    """Of a JSON file; BadInputError where it cannot be read."""
    return compact_json(published(read_json(path)[0]), EXPANDED)


def replace_folder(folder: Path, texts: Mapping[str, str]) -> None:
    """By one with these files alone: a run with fewer leaves none of the one before."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, text in texts.items():
        write_whole(part / name, text)
    if folder.exists():
        shutil.rmtree(folder)
    part.replace(folder)
