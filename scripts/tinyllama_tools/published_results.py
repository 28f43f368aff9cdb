"""A result as it is published: what its readers need, a row a line, and nothing that only the
measuring machine's owner knows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.compact_json import compact_json
from tinyllama_tools.places import names_alone
from tinyllama_tools.reading.json_file import Json, read_json
from tinyllama_tools.reading.result_reader import ITERATION, is_result
from tinyllama_tools.result_files import write_whole

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
