"""Reads what tiny_llama_train wrote, and checks it first.

docs/training_files.md says what is to be known of the keys, results/training_schema.json of which
type they are."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    PROJECT,
    BadInputError,
    Json,
    ToolError,
    bad_file,
    is_finite,
    schema_problem,
    shown_value,
)
from tinyllama_tools.data.names import (
    TRAINING_PHASES,
    TRAINING_STEP,
    StoredCase,
    StoredRun,
    training_case,
)

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


PROGRAM = "tiny_llama_train"
MIB = 2**20
# counter: where the summary has it, and its size in the counter's unit
COUNTERS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "samples_per_second": (("summary", "samples_per_second"), 1.0),
    "tokens_per_second": (("summary", "tokens_per_second"), 1.0),
    "peak_memory_MiB": (("summary", "peak_memory_bytes"), 1.0 / MIB),
    "library_scratch_MiB": (("summary", "library_scratch_bytes"), 1.0 / MIB),
    "final_loss": (("summary", "final_loss"), 1.0),
    "parameters": (("model", "total_parameters"), 1.0),
    "model_flops": (("model", "flops_per_step"), 1.0),
    "operators": (("operators", "operator_calls_per_step"), 1.0),
    "kernels": (("operators", "kernels_per_step"), 1.0),
    "allocations": (("memory", "allocations_per_step"), 1.0),
    "TFLOPS": (("flops", "flops_profile", "efficiency_metrics", "achieved_flops_per_sec"), 1e-12),
    "MFU_percent": (("flops", "flops_profile", "efficiency_metrics", "mfu_percent"), 1.0),
}


def is_training_summary(document: Json) -> bool:
    """Whether the training program wrote it."""
    return document.get("program") == PROGRAM


def _value(document: Any, keys: Sequence[str]) -> float | None:  # noqa: ANN401
    for key in keys:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document if isinstance(document, (int, float)) else None


def _training_counters(document: Json, path: Path) -> dict[str, float]:
    found = {}
    for name, (keys, size) in COUNTERS.items():
        value = _value(document, keys)
        if value is None:
            continue
        if not is_finite(value):
            raise bad_file(
                path, f"{'.'.join(keys)} is {shown_value(value)}, must be finite", MEASURE_AGAIN
            )
        found[name] = value * size
    return found


def _compared_steps(steps: Sequence[Json], path: Path) -> tuple[list[Json], list[str]]:
    """The steps that count, and what to know of the choice."""
    if not steps:
        raise bad_file(path, "has no step", MEASURE_AGAIN)
    later = steps[1:]
    plain = [step for step in later if not step["profiled"]]
    if plain:
        return plain, []
    if later:
        return later, [f"{path}: every step was profiled, so times contain what profilers add"]
    return list(steps), [f"{path}: its only step is the first, which warms up"]


def _phase(steps: Sequence[Json], key: str) -> float | None:
    values = [step[key] for step in steps if step[key] is not None]
    return statistics.median(values) if values else None


def read_training(document: Json, path: Path) -> StoredRun:
    """`training/step` and its phases, medians over the steps that no profiler touched, without the
    first. BadInputError naming file and key of a summary that is not like its schema."""
    try:
        check_summary(document, path)
    except BadProfileError as error:
        raise BadInputError(str(error)) from error
    steps, warnings = _compared_steps(document["steps"], path)
    seconds = _phase(steps, "time_seconds")
    if not seconds:
        raise bad_file(
            path, f"time_seconds of a step is {seconds}, must be positive", MEASURE_AGAIN
        )
    cases = {TRAINING_STEP: StoredCase(seconds, len(steps), _training_counters(document, path))}
    for phase in TRAINING_PHASES:
        value = _phase(steps, f"{phase}_seconds")
        if value:
            cases[training_case(phase)] = StoredCase(value, len(steps))
    if document["summary"]["interrupted"]:
        warnings.append(f"{path}: the run was interrupted")
    return StoredRun(
        path,
        document["context"],
        cases,
        configuration=document["configuration"],
        warnings=tuple(warnings),
    )


def component_percent(summary: Json, *names: str) -> float | None:
    """Sum over components, all below a name that ends in `/`; None without operator profile."""
    operators = summary.get("operators")
    if not operators:
        return None
    prefixes = tuple(name for name in names if name.endswith("/"))
    return sum(
        found["percent"]
        for found in operators["components"]
        if found["name"] in names or found["name"].startswith(prefixes)
    )
