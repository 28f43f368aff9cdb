"""The recorded noise of a machine, which stands in for a scatter that one file a side cannot show.

`scripts/compare calibrate` writes it; see calibrate/command.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinyllama_tools.core.app import RESULTS, Json, bad_file, read_json, schema_problem
from tinyllama_tools.data.nameless import nameless_context

if TYPE_CHECKING:
    from tinyllama_tools.stats.rank_tests import BlockSummary

KIND = "tiny_llama noise profile"
SCHEMA_VERSION = 1
DEFAULT_PATH = RESULTS / "noise_profile.json"
MACHINE = ("host_name", "device", "architecture", "threads")
_NOISE = {
    "type": "object",
    "required": ["scatter", "degrees"],
    "properties": {
        name: {"type": "number", "exclusiveMinimum": 0} for name in ("scatter", "degrees")
    },
}
SCHEMA = {
    "type": "object",
    "required": ["kind", "schema_version", "cases", "default"],
    "properties": {
        "kind": {"const": KIND},
        "schema_version": {"const": SCHEMA_VERSION},
        "cases": {"type": "object", "additionalProperties": _NOISE},
        "default": _NOISE,
    },
}


class Noise(NamedTuple):
    """`scatter`: standard deviation of log seconds between processes; `degrees`: of freedom."""

    scatter: float
    degrees: int


@dataclass(frozen=True)
class NoiseProfile:
    """`default`: of cases that were not recorded."""

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
            measured = _machine(context)
            for key in MACHINE:
                if measured[key] != self.machine[key]:
                    return (
                        f"the noise profile {self.path} is of {key} '{self.machine[key]}', the "
                        f"results are of '{measured[key]}'"
                    )
        return ""


def _machine(context: Mapping[str, Any]) -> Json:
    device = context.get("device") or {}
    return {
        "host_name": nameless_context(context).get("host_name"),
        "device": device.get("name"),
        "architecture": device.get("architecture"),
        "threads": context.get("threads"),
    }


def read_noise_profile(path: Path) -> NoiseProfile:
    """BadInputError naming the file and the key that is wrong."""
    document, _ = read_json(path)
    problem = schema_problem(document, SCHEMA)
    if problem:
        remedy = "record it again: scripts/compare calibrate"
        raise bad_file(path, f"is no noise profile: {problem}", remedy)
    noise = {
        name: Noise(float(entry["scatter"]), int(entry["degrees"]))
        for name, entry in {**document["cases"], "": document["default"]}.items()
    }
    default = noise.pop("")
    machine = nameless_context({key: document.get(key) for key in MACHINE})
    return NoiseProfile(path, machine, noise, default)


def scatter(summaries: Sequence[BlockSummary]) -> Noise:
    """Of the processes of these blocks; ValueError on fewer than two."""
    if len(summaries) < 2:
        raise ValueError(f"{len(summaries)} block: a scatter needs at least 2")
    logs = np.log([[s.base_seconds, s.new_seconds] for s in summaries])
    return Noise(float(np.sqrt(logs.var(axis=0, ddof=1).mean())), len(summaries) - 1)


def noise_profile(
    blocks: Mapping[str, Sequence[BlockSummary]], context: Mapping[str, Any], date: str
) -> Json:
    """The document; `default`, for cases that were not recorded, is the worst of those that were.

    `blocks` by case; `context`: a result file's, of the machine that recorded.
    """
    found = {name: scatter(summaries) for name, summaries in blocks.items()}
    machine = _machine(context)
    worst = Noise(max(n.scatter for n in found.values()), min(n.degrees for n in found.values()))
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        **machine,
        "device": machine["device"] or "unknown",
        "architecture": machine["architecture"] or "unknown",
        "date": date,
        "method": "standard deviation over blocks of the log of a process's median seconds",
        "cases": {name: noise._asdict() for name, noise in found.items()},
        "default": worst._asdict(),
    }
