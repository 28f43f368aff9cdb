"""Reads what tiny_llama_train wrote, and checks it first.

docs/training_files.md says what is to be known of the keys, results/training_schema.json of which
type they are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    PROJECT,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.data.names import (
    TRAINING_PHASES,
    TRAINING_STEP,
    StoredCase,
    StoredRun,
    training_case,
)

SUMMARY = "performance_summary.json"
TIMELINE, TIMELINE_PAGE = "memory_timeline.json", "memory_timeline.html"
SCHEMA = PROJECT / "results/training_schema.json"
# Of work_of(): different here, two profiles are not two versions of the same work.
SAME_WORK = (
    "ranks",
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


class BadProfileError(BadInputError):
    """No usable profile; the message names the file, what is wrong with it and what to do."""


def check_summary(summary: object, path: Path) -> Json:
    """The summary, if it is one; BadProfileError naming `path` and the key that is wrong."""
    problem = schema_problem(summary, SCHEMA)
    if problem or not isinstance(summary, dict):
        raise BadProfileError(f"{path}: {problem}; profile again, or name another folder")
    return summary


def read_profile(folder: Path) -> Json:
    """The folder's performance_summary.json; BadProfileError where it is missing or damaged."""
    path = folder / SUMMARY
    try:
        document, _ = read_json(path)
    except BadInputError as error:
        raise BadProfileError(f"{error} (tiny_llama_train and scripts/profile write it)") from error
    return check_summary(document, path)


def work_of(summary: Json) -> Json:
    """What the run was asked to do: its configuration, and on how many ranks."""
    return summary["configuration"] | {"ranks": value_at(summary, "distributed.world_size") or 1}


def value_at(document: Any, key: str) -> Any:  # noqa: ANN401
    """What stands at a dotted key of nested objects; None where it leads nowhere."""
    for part in key.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def step_times(summary: Json | None, *, profiled: bool) -> list[float]:
    """Seconds of the steps that a profiler touched, or that none did, without the first step, which
    is in no average."""
    steps = (summary or {}).get("steps") or []
    return [s["time_seconds"] for s in steps if s["step"] > 1 and s["profiled"] == profiled]


# what each profiler adds to a summary
SECTIONS = ("operators", "memory", "flops")


def merged(summaries: Sequence[Json]) -> Json:
    """One summary of runs of one configuration: the first, with each profiler's section in it."""
    found = {n: next((s[n] for s in summaries if s.get(n)), None) for n in SECTIONS}
    return summaries[0] | found


def median(values: Sequence[float]) -> float | None:
    """None of none."""
    return statistics.median(values) if values else None


def component_percent(components: Sequence[Json], *paths: str) -> float:
    """Share of these component paths and all below them; 0 where the profile has none."""
    names = tuple(f"{path}/" for path in paths)
    return sum(c["percent"] for c in components if f"{c['name']}/".startswith(names))


def group_shares(components: Sequence[Json]) -> dict[str, float]:
    """Attention, FFN and everything else, in percent of the recorded work."""
    found = {name: component_percent(components, name) for name in ("attention", "ffn")}
    return {**found, "other": sum(c["percent"] for c in components) - sum(found.values())}


# A training run as a case of stored results.
PROGRAM = "tiny_llama_train"
MIB = 2**20
# counter: where the summary has it, and its size in the counter's unit
EFFICIENCY = "flops.flops_profile.efficiency_metrics"
COUNTERS: Mapping[str, tuple[str, float]] = {
    "samples_per_second": ("summary.samples_per_second", 1.0),
    "tokens_per_second": ("summary.tokens_per_second", 1.0),
    "peak_memory_MiB": ("summary.peak_memory_bytes", 1.0 / MIB),
    "library_scratch_MiB": ("summary.library_scratch_bytes", 1.0 / MIB),
    "final_loss": ("summary.final_loss", 1.0),
    "parameters": ("model.total_parameters", 1.0),
    "model_flops": ("model.flops_per_step", 1.0),
    "operators": ("operators.operator_calls_per_step", 1.0),
    "kernels": ("operators.kernels_per_step", 1.0),
    "allocations": ("memory.allocations_per_step", 1.0),
    "TFLOPS": (f"{EFFICIENCY}.achieved_flops_per_sec", 1e-12),
    "MFU_percent": (f"{EFFICIENCY}.mfu_percent", 1.0),
}


def is_training_summary(document: Json) -> bool:
    """Whether the training program wrote it."""
    return document.get("program") == PROGRAM


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


def _median(steps: Sequence[Json], key: str) -> float | None:
    return median([step[key] for step in steps if step[key] is not None])


def read_training(document: Json, path: Path) -> StoredRun:
    """`training/step` and its phases, medians over the steps that no profiler touched, without the
    first. BadInputError naming file and key of a summary that is not like its schema."""
    check_summary(document, path)
    steps, warnings = _compared_steps(document["steps"], path)
    seconds = _median(steps, "time_seconds")
    if not seconds:
        raise bad_file(
            path, f"time_seconds of a step is {seconds}, must be positive", MEASURE_AGAIN
        )
    counters = {
        name: value * size
        for name, (key, size) in COUNTERS.items()
        if (value := value_at(document, key)) is not None
    }
    cases = {TRAINING_STEP: StoredCase(seconds, len(steps), counters)}
    for phase in TRAINING_PHASES:
        if value := _median(steps, f"{phase}_seconds"):
            cases[training_case(phase)] = StoredCase(value, len(steps))
    if document["summary"]["interrupted"]:
        warnings.append(f"{path}: the run was interrupted")
    return StoredRun(
        path,
        document["context"],
        cases,
        configuration=work_of(document),
        warnings=tuple(warnings),
    )
