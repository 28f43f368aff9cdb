"""Reads a performance_summary.json of tiny_llama_train as cases: the step and its phases.

docs/training_files.md says what the keys mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.profile_files import BadProfileError, check_summary
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.reading.json_file import MEASURE_AGAIN, Json, bad_file
from tinyllama_tools.reading.json_number import is_finite, shown
from tinyllama_tools.reading.stored_run import StoredCase, StoredRun
from tinyllama_tools.reading.whole_and_parts import TRAINING_PHASES, TRAINING_STEP, training_case

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


def _counters(document: Json, path: Path) -> dict[str, float]:
    found = {}
    for name, (keys, size) in COUNTERS.items():
        value = _value(document, keys)
        if value is None:
            continue
        if not is_finite(value):
            raise bad_file(
                path, f"{'.'.join(keys)} is {shown(value)}, must be finite", MEASURE_AGAIN
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


def _phase(steps: Sequence[Json], key: str, path: Path) -> float | None:
    values = [step[key] for step in steps if step[key] is not None]
    for value in values:
        if not is_finite(value):
            raise bad_file(
                path, f"{key} of a step is {shown(value)}, must be finite", MEASURE_AGAIN
            )
    return statistics.median(values) if values else None


def read_training(document: Json, path: Path) -> StoredRun:
    """`training/step` and its phases, medians over the steps that no profiler touched, without the
    first. BadInputError naming file and key of a summary that is not like its schema."""
    try:
        check_summary(document, path)
    except BadProfileError as error:
        raise BadInputError(str(error)) from error
    steps, warnings = _compared_steps(document["steps"], path)
    seconds = _phase(steps, "time_seconds", path)
    if not seconds:
        raise bad_file(
            path, f"time_seconds of a step is {seconds}, must be positive", MEASURE_AGAIN
        )
    cases = {TRAINING_STEP: StoredCase(seconds, len(steps), _counters(document, path))}
    for phase in TRAINING_PHASES:
        value = _phase(steps, f"{phase}_seconds", path)
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
