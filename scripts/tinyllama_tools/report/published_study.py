"""A grid study as it is published: what its readers need, a row a line, and nothing that only the
measuring machine's owner knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyllama_tools.calibrate.published_words import published_context
from tinyllama_tools.compact_json import compact_json
from tinyllama_tools.grid_files import CHECK, COSTS, FRONTIER, PRODUCTS, STUDY, rounds_of
from tinyllama_tools.reading.json_file import Json, read_json
from tinyllama_tools.reading.result_reader import ITERATION, is_result
from tinyllama_tools.report.places import names_alone

# lists that get a line an item
EXPANDED = ("benchmarks", "cases", "points", "sequences", "tries")
# Google Benchmark's own, of which a row's `run_name` and its place in the list say as much
UNREAD = frozenset({"name", "family_index", "per_family_instance_index", "repetitions", "threads"})


def _published_rows(rows: Sequence[Json]) -> list[Json]:
    """Every repetition; a case's median and deviation follow from them."""
    repeated = {row["run_name"] for row in rows if row.get("run_type") == ITERATION}
    return [
        {key: value for key, value in row.items() if key not in UNREAD}
        for row in rows
        if row.get("run_type") == ITERATION or row.get("run_name") not in repeated
    ]


def published(document: Json) -> Json:
    """Any file of a study: a result without host, program and load, without UNREAD and without
    what is computed from its repetitions; of every path in a text its last name alone."""
    if is_result(document):
        context = published_context(document["context"])
        rows = _published_rows(document["benchmarks"])
        document = {**document, "context": context, "benchmarks": rows}
    return names_alone(document)


def published_text(path: Path) -> str:
    """Of a JSON file; BadInputError where it cannot be read."""
    return compact_json(published(read_json(path)[0]), EXPANDED)


def published_texts(folder: Path) -> Mapping[str, str]:
    """The files of a study by name, as far as they are there; journals are none of them.

    BadInputError for one that cannot be read.
    """
    beside = (STUDY, PRODUCTS, COSTS, CHECK, FRONTIER)
    paths = [*rounds_of(folder), *(folder / name for name in beside)]
    return {path.name: published_text(path) for path in paths if path.is_file()}
