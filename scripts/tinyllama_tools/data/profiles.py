"""Reads what tiny_llama_train wrote, and checks it first.

docs/training_files.md says what is to be known of the keys, results/training_schema.json of which
type they are."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from tinyllama_tools.core.text import MIB, value_at
from tinyllama_tools.data.machine import SAME_DEVICE, first_difference
from tinyllama_tools.data.names import (
    TRAINING_PHASES,
    TRAINING_STEP,
    StoredCase,
    StoredRun,
)

SUMMARY = "performance_summary.json"
SCHEMA = PROJECT / "results/training_schema.json"
# Of work_of(): different here, two profiles are not two versions of the same work.
SAME_WORK = (
    *("ranks", "size", "batch_size", "seq_len", "dtype", "gradient_accumulation_steps"),
    *("vocab_size", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "intermediate_dim"),
)


def check_summary(summary: Json, path: Path) -> None:
    """BadInputError naming `path` and the key that is wrong."""
    if problem := schema_problem(summary, SCHEMA):
        raise BadInputError(f"{path}: {problem}; profile again, or name another folder")


def read_profile(folder: Path) -> Json:
    """The folder's performance_summary.json; BadInputError where it is missing or damaged."""
    path = folder / SUMMARY
    try:
        document, _ = read_json(path)
    except BadInputError as error:
        raise BadInputError(f"{error} (tiny_llama_train and scripts/profile write it)") from error
    check_summary(document, path)
    return document


def work_of(summary: Json) -> Json:
    """What the run was asked to do: its configuration, and on how many ranks."""
    return summary["configuration"] | {"ranks": value_at(summary, "distributed.world_size") or 1}


def plain_steps(steps: Sequence[Json]) -> list[Json]:
    """Those that no profiler touched, without the first, which is in no average."""
    return [step for step in steps[1:] if not step["profiled"]]


def median(steps: Sequence[Json], key: str) -> float | None:
    """Of a key of the steps; None where none has it."""
    values = [step[key] for step in steps if step[key] is not None]
    return statistics.median(values) if values else None


INTERRUPTED_REASON = "interrupted"


@dataclass(frozen=True)
class MeasuredRun:
    """What a run left behind; called with a dotted key it gives the summary's value, or None.

    `summary`: None where nothing was measured, for this `reason`. `seconds`: of the process.
    `notes`: warnings that it printed. `link`: its folder as the page refers to it.
    """

    name: str
    command: str
    summary: Json | None = None
    exit_status: int = 0
    reason: str = ""
    link: str = ""
    seconds: float | None = None
    notes: Sequence[str] = ()

    def __call__(self, key: str) -> Any:  # noqa: ANN401
        return value_at(self.summary, key)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, or came before it."""
        return self.reason.startswith(INTERRUPTED_REASON)

    @property
    def is_complete(self) -> bool:
        """Whether every planned step was made and the loss stayed finite."""
        wanted, done = self("configuration.num_steps"), self("summary.steps_completed")
        return self.exit_status == 0 and done is not None and done == wanted

    @property
    def step_seconds(self) -> float | None:
        """Median of the plain steps; of all where there is none."""
        plain = plain_steps(self("steps") or [])
        return median(plain, "time_seconds") or self("summary.median_step_seconds")

    @property
    def speed(self) -> float | None:
        """Samples a second, of the median step."""
        micro = self("configuration.gradient_accumulation_steps") or 1
        samples = (self("configuration.batch_size") or 0) * micro
        return samples / self.step_seconds if samples and self.step_seconds else None


Runs = Mapping[str, MeasuredRun]


def was_interrupted(runs: Runs) -> bool:
    """Whether Ctrl-C ended the measuring."""
    return any(run.is_interrupted for run in runs.values())


# what each profiler adds to a summary
SECTIONS = ("operators", "memory", "flops")


# What runs of one configuration have alike, beside the work.
SAME_PROFILE = (*SAME_DEVICE, "torch_version", "git_commit", "git_dirty")


def merged(summaries: Sequence[Json]) -> Json:
    """One summary of runs of one configuration: the first, with each profiler's section in it.
    BadInputError where they are not: shares of one run are no shares of another's time."""
    first = summaries[0]
    asked = [key for key in work_of(first) if key not in ("num_steps", "switches")]
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
    """Share of these component paths and all below them; 0 where the profile has none."""
    names = tuple(f"{path}/" for path in paths)
    return sum(c["percent"] for c in components if f"{c['name']}/".startswith(names))


def group_shares(components: Sequence[Json]) -> dict[str, float]:
    """Attention, FFN and everything else, in percent of the recorded work."""
    found = {name: component_percent(components, name) for name in ("attention", "ffn")}
    return {**found, "other": sum(c["percent"] for c in components) - sum(found.values())}


OF_A_STEP = (
    *("cpu_self_seconds", "cpu_total_seconds", "device_self_seconds"),
    *("calls", "self_memory_bytes"),
)


def operator_shares(operators: Json) -> list[Json]:
    """All operators, largest share first: the keys of the file's table, of one recorded step, and
    `cpu_percent` of the host's time. The file's rows of one name, which shapes or stacks tell
    apart, become one."""
    named: dict[str, list[Json]] = {}
    for row in operators["table"]:
        named.setdefault(row["name"], []).append(row)
    host = sum(row["cpu_self_seconds"] for row in operators["table"])
    found = []
    for name, rows in named.items():
        of = {key: sum(row[key] or 0 for row in rows) / operators["steps"] for key in OF_A_STEP}
        if rows[0]["device_self_seconds"] is None:
            of["device_self_seconds"] = None
        share = sum(row["share_percent"] for row in rows)
        of_host = 100 * of["cpu_self_seconds"] * operators["steps"] / host if host else 0.0
        found.append(of | {"name": name, "share_percent": share, "cpu_percent": of_host})
    return sorted(found, key=lambda row: -row["share_percent"])


# A training run as a case of stored results.
PROGRAM = "tiny_llama_train"
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


def read_training(document: Json, path: Path) -> StoredRun:
    """`training/step` and its phases, medians over the plain steps, else over what there is, with a
    warning. BadInputError naming file and key of a summary that is not like its schema."""
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
