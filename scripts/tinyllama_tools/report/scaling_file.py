"""Reads the folder of a data-parallel run, or one result of it, and its projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tinyllama_tools.reading.json_file import Json, bad_file, read_json
from tinyllama_tools.reading.json_number import is_number, shown
from tinyllama_tools.scaling.analysis import Analysis, analyse_path
from tinyllama_tools.scaling.files import DOCUMENT, SCHEMA_VERSION
from tinyllama_tools.scaling.projection import ProjectedStep

AGAIN = "make it again: scripts/scaling --from FOLDER"
TEXTS = ("size", "interconnect", "scaling", "algorithm", "local_kind", "kind")
# without a measured overlap
OPTIONAL = ("seconds_between", "efficiency_between")


@dataclass(frozen=True)
class ScalingRun:
    """`analysis`: made anew of the results. `projections`, `projection`: the rows and the rest of
    what scaling.json says of them; empty where there is no such file."""

    path: Path
    analysis: Analysis
    projections: tuple[ProjectedStep, ...] = ()
    projection: Mapping[str, Any] | None = None

    @property
    def title(self) -> str:
        """`tiny, baseline, f32: 1, 2, 4 ranks (weak)`."""
        name = next((one.name for one in self.analysis.results if one.name is not None), None)
        ranks = ", ".join(str(one.ranks) for one in self.analysis.results)
        what = f"{name.size}, {name.variant}, {name.dtype}" if name else "collectives"
        return f"{what}: {ranks} ranks ({self.analysis.results[0].scaling})"


def _projected(row: object, index: int, path: Path) -> ProjectedStep:
    where = f"projection.steps[{index}]"
    names = [field.name for field in fields(ProjectedStep)]
    if not isinstance(row, dict) or set(row) != set(names):
        raise bad_file(path, f"{where} has other keys than {', '.join(names)}", AGAIN)
    for name, value in row.items():
        is_missing = value is None and name in OPTIONAL
        is_right = isinstance(value, str) if name in TEXTS else is_number(value)
        if not (is_right or is_missing):
            raise bad_file(path, f"{where}: {name} is {shown(value)}", AGAIN)
    return ProjectedStep(**row)


def _checked(document: Json, path: Path) -> Mapping[str, Any]:
    version, found = document.get("schema_version"), document.get("projection")
    if version != SCHEMA_VERSION:
        raise bad_file(path, f"schema_version is {version!r}, must be {SCHEMA_VERSION}", AGAIN)
    if not isinstance(found, dict):
        raise bad_file(path, "has no object 'projection'", AGAIN)
    for key, kind in (("steps", list), ("interconnects", list), ("missing", dict)):
        if not isinstance(found.get(key), kind):
            raise bad_file(path, f"projection.{key} is {shown(found.get(key))}", AGAIN)
    return found


def read_scaling_run(path: Path) -> ScalingRun:
    """BadInputError for results that cannot be used, and for a scaling.json that is damaged."""
    analysis = analyse_path(path)
    document_path = path / DOCUMENT
    if not path.is_dir() or not document_path.exists():
        return ScalingRun(path, analysis)
    found = _checked(read_json(document_path)[0], document_path)
    rows = tuple(_projected(row, i, document_path) for i, row in enumerate(found["steps"]))
    return ScalingRun(path, analysis, rows, found)
