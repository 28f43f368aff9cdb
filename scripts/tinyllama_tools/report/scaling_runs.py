"""Reads the results of scripts/scaling, projections included, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import BadInputError, Json, bad_file, is_number, read_json
from tinyllama_tools.core.app import shown_value as shown
from tinyllama_tools.data.ranks import DOCUMENT, Failure, read_again
from tinyllama_tools.data.ranks import SCHEMA_VERSION as SCALING_SCHEMA_VERSION
from tinyllama_tools.models.scaling_projection import Analysis, ProjectedStep, analyse

SCALE_AGAIN = "make it again: scripts/scaling --from FOLDER"
SCALING_TEXTS = ("size", "interconnect", "scaling", "algorithm", "local_kind", "kind")
CONTENT = (("steps", list), ("local_steps", list), ("interconnects", list), ("missing", dict))
# without a measured overlap
OPTIONAL = ("seconds_between", "efficiency_between")


@dataclass(frozen=True)
class StatedLocalStep:
    """One device's step that projections start from. `low`, `high`: seconds, of a predicted one,
    which `range_words` names; of a measured one there are none."""

    name: str
    kind: str
    seconds: float
    low: float
    high: float
    range_words: str
    source: str


@dataclass(frozen=True)
class ScalingRun:
    """`analysis`: made anew of the results. `failures`: numbers of ranks without a usable result.
    `projections`, `local_steps`, `projection`: the rows and the rest of what scaling.json says of
    them; empty where there is no such file, or where it is damaged, which `refusal` says."""

    path: Path
    analysis: Analysis
    failures: tuple[Failure, ...] = ()
    projections: tuple[ProjectedStep, ...] = ()
    local_steps: tuple[StatedLocalStep, ...] = ()
    projection: Mapping[str, Any] | None = None
    refusal: str = ""

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
        raise bad_file(path, f"{where} has other keys than {', '.join(names)}", SCALE_AGAIN)
    for name, value in row.items():
        is_missing = value is None and name in OPTIONAL
        is_right = isinstance(value, str) if name in SCALING_TEXTS else is_number(value)
        if not (is_right or is_missing):
            raise bad_file(path, f"{where}: {name} is {shown(value)}", SCALE_AGAIN)
    return ProjectedStep(**row)


def _local(row: object, index: int, path: Path) -> StatedLocalStep:
    where = f"projection.local_steps[{index}]"
    if not isinstance(row, dict):
        raise bad_file(path, f"{where} is no object", SCALE_AGAIN)
    found = {}
    for field in fields(StatedLocalStep):
        value = row.get(field.name)
        if not (isinstance(value, str) if field.type == "str" else is_number(value)):
            raise bad_file(path, f"{where}: {field.name} is {shown(value)}", SCALE_AGAIN)
        found[field.name] = value
    return StatedLocalStep(**found)


def _checked(document: Json, path: Path) -> Mapping[str, Any]:
    version, found = document.get("schema_version"), document.get("projection")
    if version != SCALING_SCHEMA_VERSION:
        raise bad_file(
            path, f"schema_version is {version!r}, must be {SCALING_SCHEMA_VERSION}", SCALE_AGAIN
        )
    if not isinstance(found, dict):
        raise bad_file(path, "has no object 'projection'", SCALE_AGAIN)
    for key, kind in CONTENT:
        if not isinstance(found.get(key), kind):
            raise bad_file(path, f"projection.{key} is {shown(found.get(key))}", SCALE_AGAIN)
    return found


def _with_projections(run: ScalingRun, path: Path) -> ScalingRun:
    found = _checked(read_json(path)[0], path)
    return replace(
        run,
        projections=tuple(_projected(row, i, path) for i, row in enumerate(found["steps"])),
        local_steps=tuple(_local(row, i, path) for i, row in enumerate(found["local_steps"])),
        projection=found,
    )


def read_scaling_run(path: Path) -> ScalingRun:
    """BadInputError where no result can be used."""
    read = read_again(path)
    run = ScalingRun(path, analyse(read.results), read.failures)
    document = path / DOCUMENT
    if not path.is_dir() or not document.exists():
        return run
    try:
        return _with_projections(run, document)
    except BadInputError as error:
        return replace(run, refusal=str(error).removeprefix(f"{document}: "))
