"""Reads and checks what tiny_llama_train wrote.

docs/training_files.md explains the keys, results/training_schema.json has their types."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.installation import DATA, typed
from tinyllama_tools.core.text import MIB, value_at
from tinyllama_tools.data.machine import PLUGINS, SAME_DEVICE, first_difference
from tinyllama_tools.data.names import TRAINING_PHASES, TRAINING_STEP, StoredCase, StoredRun

SUMMARY = "performance_summary.json"
SCHEMA = DATA / "results/training_schema.json"
# what a size may have beside its dimensions, in results only where it has it (docs/models.md)
FEATURES = (
    *("head_dim", "tied_embeddings", "qkv_bias", "o_bias", "mlp_bias", "qk_norm"),
    *("sliding_window", "rope_scaling", "whole_vocab", "only_layers"),
)
# keys of work_of(): two profiles that differ in one did different work
SAME_WORK = (
    *("ranks", "size", "batch_size", "seq_len", "dtype", "gradient_accumulation_steps"),
    *("vocab_size", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "intermediate_dim"),
    *FEATURES,
)


def check_summary(summary: Json, path: Path) -> None:
    """BadInputError, with `path` and the key, where it breaks its schema."""
    if problem := schema_problem(summary, SCHEMA):
        raise BadInputError(f"{path}: {problem}; profile again, or name another folder")


def read_profile(folder: Path) -> Json:
    """The folder's performance_summary.json; BadInputError where it is missing or damaged."""
    path = folder / SUMMARY
    try:
        document, _ = read_json(path)
    except BadInputError as error:
        raise BadInputError(
            f"{error} (tiny_llama_train and {typed('profile')} write it)"
        ) from error
    check_summary(document, path)
    return document


def work_of(summary: Json) -> Json:
    """What a run was asked to do: its configuration, and the number of ranks."""
    return summary["configuration"] | {"ranks": value_at(summary, "distributed.world_size") or 1}


def plain_steps(steps: Sequence[Json]) -> list[Json]:
    """The steps that were not profiled, without the first, which warms up."""
    return [step for step in steps[1:] if not step["profiled"]]


def median(steps: Sequence[Json], key: str) -> float | None:
    """The median of a key over the steps; None where no step has it."""
    values = [step[key] for step in steps if step[key] is not None]
    return statistics.median(values) if values else None


INTERRUPTED_REASON = "interrupted"


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run; calling it with a dotted key gives that value of its summary, or None.

    `summary`: None where nothing was measured; `reason` says why. `seconds`: of the whole process.
    `output`: standard output and error in their order; `notes`: the warnings in it. `link`: its
    folder, relative to the page.
    """

    name: str = ""
    command: str = ""
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    link: str = ""
    seconds: float | None = None
    notes: Sequence[str] = ()
    output: str = ""

    def __call__(self, key: str) -> Any:  # noqa: ANN401
        return value_at(self.summary, key)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, or ended the command before it began."""
        return self.reason.startswith(INTERRUPTED_REASON)

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was completed and the loss stayed finite."""
        wanted, done = self("configuration.num_steps"), self("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted

    @property
    def step_seconds(self) -> float | None:
        """The median time of plain_steps(), of all steps where there are none."""
        plain = plain_steps(self("steps") or [])
        return median(plain, "time_seconds") or self("summary.median_step_seconds")

    @property
    def speed(self) -> float | None:
        """Samples a second at the median step."""
        micro = self("configuration.gradient_accumulation_steps") or 1
        samples = (self("configuration.batch_size") or 0) * micro
        return samples / self.step_seconds if samples and self.step_seconds else None


Runs = Mapping[str, MeasuredRun]


def was_interrupted(runs: Runs) -> bool:
    """Whether Ctrl-C ended any of the runs."""
    return any(run.is_interrupted for run in runs.values())


# sections of a summary, each added by a profiler
SECTIONS = ("operators", "memory", "flops")
# profiles can be merged if they agree in these, and in their work
SAME_PROFILE = (*SAME_DEVICE, "torch_version", "git_commit", "git_dirty", PLUGINS)


def merged(summaries: Sequence[Json]) -> Json:
    """One summary of several profiled runs of the same work: the first, with the sections of all.
    BadInputError where the work or the machine differ, since shares of one run would be read as
    shares of another's time."""
    first = summaries[0]
    asked = [key for key in work_of(first) if key not in ("num_steps", "switches")]
    asked += [key for key in FEATURES if key not in asked]
    for other in summaries[1:]:
        found = first_difference(first["context"], other["context"], SAME_PROFILE)
        if found := found or first_difference(work_of(first), work_of(other), asked):
            name, here, there = found
            raise BadInputError(
                f"profiles of different runs: {name} is {here!r} in one, {there!r} in another; "
                "name one of their folders alone, or profile again"
            )
    found = {n: next((s[n] for s in summaries if s.get(n)), None) for n in SECTIONS}
    return summaries[0] | found


def component_percent(components: Sequence[Json], *paths: str) -> float:
    """The share of these components and those below them; 0 where the profile has none of them."""
    names = tuple(f"{path}/" for path in paths)
    return sum(c["percent"] for c in components if f"{c['name']}/".startswith(names))


def group_shares(components: Sequence[Json]) -> dict[str, float]:
    """The shares of attention, FFN and everything else, in percent of the recorded time."""
    found = {name: component_percent(components, name) for name in ("attention", "ffn")}
    return {**found, "other": sum(c["percent"] for c in components) - sum(found.values())}


# keys of an operator that are summed over all recorded steps
SUMMED = (
    *("cpu_self_seconds", "cpu_total_seconds", "device_self_seconds"),
    *("calls", "self_memory_bytes"),
)


def operator_shares(operators: Json) -> list[Json]:
    """A row for each operator, the largest share first: the keys of the file's table, as a mean
    over the recorded steps, and `cpu_percent`, its share of the host's time. Rows of the file that
    differ in shape or stack alone are added up."""
    named: dict[str, list[Json]] = {}
    for row in operators["table"]:
        named.setdefault(row["name"], []).append(row)
    host = sum(row["cpu_self_seconds"] for row in operators["table"])
    found = []
    for name, rows in named.items():
        sums = {key: sum(row[key] or 0 for row in rows) for key in SUMMED}
        a_step: Json = {key: value / operators["steps"] for key, value in sums.items()}
        if rows[0]["device_self_seconds"] is None:
            a_step["device_self_seconds"] = None
        share = sum(row["share_percent"] for row in rows)
        of_host = 100 * sums["cpu_self_seconds"] / host if host else 0.0
        found.append(a_step | {"name": name, "share_percent": share, "cpu_percent": of_host})
    return sorted(found, key=lambda row: -row["share_percent"])


# ---- a training run as a case of stored results

PROGRAM = "tiny_llama_train"
EFFICIENCY = "flops.flops_profile.efficiency_metrics"
# counter: its key in the summary, and the factor to the counter's unit
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


def read_training(document: Json, path: Path) -> StoredRun:
    """The cases `training/step` and its phases: medians over plain_steps(), or with a warning over
    all steps. BadInputError where the summary breaks its schema or has no step."""
    check_summary(document, path)
    if not (steps := document["steps"]):
        raise bad_file(path, "has no step", MEASURE_AGAIN)
    compared, warnings = plain_steps(steps) or steps[1:] or steps, []
    if len(steps) == 1:
        warnings.append(f"{path}: its only step is the first, which warms up")
    elif compared[0]["profiled"]:
        warnings.append(f"{path}: every step was profiled, so times contain what profilers add")
    seconds = median(compared, "time_seconds")
    if not seconds:
        raise bad_file(
            path, f"time_seconds of a step is {seconds}, must be positive", MEASURE_AGAIN
        )
    counters = {
        name: value * size
        for name, (key, size) in COUNTERS.items()
        if (value := value_at(document, key)) is not None
    }
    cases = {TRAINING_STEP: StoredCase(seconds, len(compared), counters)}
    for phase, case in TRAINING_PHASES.items():
        if value := median(compared, f"{phase}_seconds"):
            cases[case] = StoredCase(value, len(compared))
    if document["summary"]["interrupted"]:
        warnings.append(f"{path}: the run was interrupted")
    return StoredRun(
        path, document["context"], cases, configuration=work_of(document), warnings=tuple(warnings)
    )
