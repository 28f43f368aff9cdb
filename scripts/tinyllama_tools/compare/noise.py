"""The recorded noise of a machine, which stands in for a scatter that one file a side cannot show.

`scripts/compare calibrate` writes it; see calibrate/command.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinyllama_tools.core.app import RESULTS, Json
from tinyllama_tools.data.json_files import bad_file, read_json
from tinyllama_tools.data.nameless import nameless_context
from tinyllama_tools.stats.looks import BlockSummary

KIND = "tiny_llama noise profile"
SCHEMA_VERSION = 1
DEFAULT_PATH = RESULTS / "noise_profile.json"
RECORD_AGAIN = "record it again: scripts/compare calibrate"
MACHINE = ("host_name", "device", "architecture", "threads")


@dataclass(frozen=True)
class Noise:
    """`scatter`: standard deviation of log seconds between processes; `degrees`: of freedom."""

    scatter: float
    degrees: int


@dataclass(frozen=True)
class NoiseProfile:
    """`default`: for cases that were not recorded."""

    path: Path
    machine: Mapping[str, Any]
    cases: Mapping[str, Noise]
    default: Noise

    def of(self, case: str) -> Noise:
        """The case's own noise, or the default."""
        return self.cases.get(case, self.default)

    def mismatch(self, contexts: Sequence[Mapping[str, Any]]) -> str:
        """Empty, or why it is not of the machine that these runs were measured on."""
        for context in contexts:
            device = context.get("device") or {}
            measured = {
                "host_name": nameless_context(context).get("host_name"),
                "device": device.get("name"),
                "architecture": device.get("architecture"),
                "threads": context.get("threads"),
            }
            for key in MACHINE:
                if measured[key] != self.machine[key]:
                    return (
                        f"the noise profile {self.path} is of {key} '{self.machine[key]}', the "
                        f"results are of '{measured[key]}'"
                    )
        return ""


def _noise(found: object, where: str, path: Path) -> Noise:
    entry = found if isinstance(found, dict) else {}
    scatter, degrees = entry.get("scatter"), entry.get("degrees")
    for name, value in (("scatter", scatter), ("degrees", degrees)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and value > 0):
            raise bad_file(
                path, f"{where}.{name} is {value!r}, must be a positive number", RECORD_AGAIN
            )
    return Noise(float(scatter), int(degrees))


def _checked(document: Json, path: Path) -> NoiseProfile:
    if document.get("kind") != KIND:
        raise bad_file(path, f"is no noise profile: kind is {document.get('kind')!r}", RECORD_AGAIN)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise bad_file(
            path, f"schema_version is {version!r}, must be {SCHEMA_VERSION}", RECORD_AGAIN
        )
    cases = document.get("cases")
    if not isinstance(cases, dict):
        raise bad_file(path, "'cases' is no object", RECORD_AGAIN)
    return NoiseProfile(
        path,
        nameless_context({key: document.get(key) for key in MACHINE}),
        {name: _noise(entry, f"cases.{name}", path) for name, entry in cases.items()},
        _noise(document.get("default"), "default", path),
    )


def read_noise_profile(path: Path) -> NoiseProfile:
    """BadInputError naming the file and the key that is wrong."""
    return _checked(read_json(path)[0], path)


def scatter(summaries: Sequence[BlockSummary]) -> tuple[float, int]:
    """Standard deviation of log seconds between processes, and its degrees of freedom.

    Raises ValueError on fewer than two blocks.
    """
    if len(summaries) < 2:
        raise ValueError(f"{len(summaries)} block: a scatter needs at least 2")
    logs = np.log([[s.base_seconds, s.new_seconds] for s in summaries])
    return float(np.sqrt(logs.var(axis=0, ddof=1).mean())), len(summaries) - 1


def noise_profile(
    blocks: Mapping[str, Sequence[BlockSummary]], context: Mapping[str, Any], date: str
) -> Json:
    """The document; `default`, for cases that were not recorded, is the worst of those that were.

    `blocks` by case; `context`: a result file's, of the machine that recorded.
    """
    found = {name: scatter(summaries) for name, summaries in blocks.items()}
    device = context.get("device", {})
    worst = max(value for value, _ in found.values())
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "host_name": nameless_context(context).get("host_name"),
        "device": device.get("name", "unknown"),
        "architecture": device.get("architecture", "unknown"),
        "threads": context.get("threads"),
        "date": date,
        "method": "standard deviation over blocks of the log of a process's median seconds",
        "cases": {
            n: {"scatter": value, "degrees": degrees} for n, (value, degrees) in found.items()
        },
        "default": {"scatter": worst, "degrees": min(degrees for _, degrees in found.values())},
    }
