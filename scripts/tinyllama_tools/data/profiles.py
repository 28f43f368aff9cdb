"""Reads what tiny_llama_train wrote into a folder, and checks it first.

docs/training_files.md says what the keys mean, results/training_schema.json of which type they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tinyllama_tools.core.app import PROJECT, Json, ToolError
from tinyllama_tools.data.json_files import schema_problem

SUMMARY = "performance_summary.json"
SCHEMA = PROJECT / "results/training_schema.json"
SCHEMA_VERSION = 1


# Different here, two profiles are not two versions of the same work.
SAME_WORK = (
    "size",
    "batch_size",
    "seq_len",
    "dtype",
    "gradient_accumulation_steps",
    "vocab_size",
    "hidden_dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "intermediate_dim",
)


class BadProfileError(ToolError):
    """No usable profile; the message names the file, what is wrong with it and what to do."""


@dataclass(frozen=True)
class Profile:
    """A folder's performance_summary.json, checked; each profiler's part is None where it was off.

    Seconds and bytes; docs/training_files.md explains every key.
    """

    folder: Path
    summary: Json

    @property
    def operators(self) -> Json | None:
        """Of the operator profiler."""
        return self.summary.get("operators")

    @property
    def memory(self) -> Json | None:
        """Of the memory profiler."""
        return self.summary.get("memory")

    @property
    def flops(self) -> Json | None:
        """Of the FLOPS profiler."""
        return self.summary.get("flops")


def _bad(path: Path, what: str) -> BadProfileError:
    return BadProfileError(
        f"{path}: {what}; name a folder that tiny_llama_train or scripts/profile has filled, "
        f"or profile again"
    )


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def check_summary(summary: object, path: Path) -> Json:
    """The summary, if it is one; BadProfileError naming `path` and the key that is wrong."""
    if not isinstance(summary, dict):
        raise _bad(path, "holds no object")
    version = summary.get("schema_version")
    if version != SCHEMA_VERSION:
        raise _bad(path, f"schema_version is {version!r}, must be {SCHEMA_VERSION}")
    problem = schema_problem(summary, SCHEMA)
    if problem:
        raise _bad(path, problem)
    return summary


def read_profile(folder: Path) -> Profile:
    """What the folder holds; BadProfileError where it is missing, unreadable or damaged."""
    path = folder / SUMMARY
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _bad(path, f"is no text: {error.reason}") from error
    try:
        summary = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"is no JSON: {error}") from error
    return Profile(folder, check_summary(summary, path))
