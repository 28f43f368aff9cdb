"""A grid study as it is published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinyllama_tools.data.publish import published_text
from tinyllama_tools.data.studies import CHECK, COSTS, FRONTIER, PRODUCTS, STUDY, rounds_of


def published_texts(folder: Path) -> Mapping[str, str]:
    """The files of a study by name, as far as they are there; journals are none of them.

    BadInputError for one that cannot be read.
    """
    beside = (STUDY, PRODUCTS, COSTS, CHECK, FRONTIER)
    paths = [*rounds_of(folder), *(folder / name for name in beside)]
    return {path.name: published_text(path) for path in paths if path.is_file()}
