"""Reads a result of tiny_llama_scaling: ways of doing a step, and collectives, by round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import Json
from tinyllama_tools.data.json_files import MEASURE_AGAIN, bad_file, is_number, read_json
from tinyllama_tools.data.json_files import shown_value as shown
from tinyllama_tools.data.names import (
    TIMED_BY,
    CaseName,
    CollectiveName,
    parse_case_name,
    parse_collective_name,
)
from tinyllama_tools.data.programs import OWN_KEYS, UNITS
from tinyllama_tools.data.results import ITERATION, current_result, is_result, read_rows
from tinyllama_tools.scaling.weak_strong import STRONG, WEAK

ALONE, LOCAL, NO_OVERLAP, OVERLAP = "alone", "local", "no_overlap", "overlap"
SHARDED, COMMUNICATION = "sharded", "communication"
# ways of a data-parallel step, the one that counts first
STEPS = (OVERLAP, NO_OVERLAP, SHARDED)
CONTEXT_KEY = "distributed"
GLOO = "gloo"  # a back-end on processors
NEEDED = {
    "world_size": int,
    "backend": str,
    "started_by": str,
    "bucket_MiB": (int, float),
    "bucket_bytes": list,
    "gradient_bytes": int,
    "scaling": str,
    "ranks": list,
}
REMEDY = "name a result of tiny_llama_scaling, or measure: scripts/scaling --processes 1,2"


@dataclass(frozen=True)
class StepRow:
    """`seconds`: of the slowest rank's step, the mean of each round, by the round's number.
    `cpu_seconds`: likewise, of rank 0's processors, all its threads together. `counters`:
    likewise, by their name."""

    name: CaseName
    seconds: Mapping[int, float]
    cpu_seconds: Mapping[int, float] = field(default_factory=dict)
    counters: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def median_seconds(self) -> float:
        """Over the rounds."""
        return statistics.median(self.seconds.values())


@dataclass(frozen=True)
class CollectiveRow:
    """`seconds`: of one call, by round."""

    name: CollectiveName
    seconds: Mapping[int, float]

    @property
    def median_seconds(self) -> float:
        """Over the rounds."""
        return statistics.median(self.seconds.values())


@dataclass(frozen=True)
class ScalingResult:
    """One world: `steps` by mode at the batch of a rank. `alone_global`: the whole batch on one
    rank (strong scaling). `failed`: rows without a figure, with their reason. `rank_samples`:
    seconds of every step, [round][rank][step], by the row's name."""

    path: Path
    context: Mapping[str, Any]
    steps: Mapping[str, StepRow]
    alone_global: StepRow | None
    collectives: tuple[CollectiveRow, ...]
    failed: Mapping[str, str]
    rank_samples: Mapping[str, Any]

    @property
    def distributed(self) -> Mapping[str, Any]:
        """What the context says of the ranks."""
        return self.context[CONTEXT_KEY]

    @property
    def ranks(self) -> int:
        """How many."""
        return self.distributed["world_size"]

    @property
    def scaling(self) -> str:
        """WEAK or STRONG."""
        return self.distributed["scaling"]

    @property
    def step(self) -> StepRow | None:
        """The data-parallel step that efficiencies are of."""
        return next((self.steps[mode] for mode in STEPS if mode in self.steps), None)

    @property
    def name(self) -> CaseName | None:
        """Of any of the steps; None where only collectives were measured."""
        row = self.step or next(iter(self.steps.values()), None)
        return row.name if row is not None else None


def is_scaling_result(document: Json) -> bool:
    """Whether tiny_llama_scaling wrote it."""
    return is_result(document) and isinstance(document["context"].get(CONTEXT_KEY), dict)


def _check_context(document: Json, path: Path) -> None:
    if not is_scaling_result(document):
        raise bad_file(path, f"has no context.{CONTEXT_KEY}", REMEDY)
    found = document["context"][CONTEXT_KEY]
    for key, kind in NEEDED.items():
        value = found.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise bad_file(path, f"context.{CONTEXT_KEY}.{key} is {value!r}", MEASURE_AGAIN)
    if found["world_size"] < 1 or found["scaling"] not in {WEAK, STRONG}:
        what = f"world_size {found['world_size']}, scaling {found['scaling']!r}"
        raise bad_file(path, f"{what}: must be 1 or more, and {WEAK} or {STRONG}", MEASURE_AGAIN)
    if not all(isinstance(place, dict) and "rank" in place for place in found["ranks"]):
        raise bad_file(path, f"context.{CONTEXT_KEY}.ranks has one without a rank", MEASURE_AGAIN)
    sizes = found["bucket_bytes"]
    if not all(is_number(size) and size > 0 for size in sizes):
        raise bad_file(path, f"bucket_bytes {shown(sizes)}: must be positive", MEASURE_AGAIN)
    if not (is_number(found["bucket_MiB"]) and found["bucket_MiB"] > 0):
        what = f"bucket_MiB {shown(found['bucket_MiB'])}: must be positive and finite"
        raise bad_file(path, what, MEASURE_AGAIN)


def _check_round(entry: Json, number: object, path: Path) -> None:
    """What the reader of results leaves unchecked: other benchmarks need not have it."""
    name, cpu_time = entry["run_name"], entry.get("cpu_time", 0.0)
    if not isinstance(number, int) or isinstance(number, bool):
        what = f"{name}: repetition_index is {shown(number)}, must be a whole number"
        raise bad_file(path, what, MEASURE_AGAIN)
    if not (is_number(cpu_time) and cpu_time >= 0):
        what = f"{name}: cpu_time is {shown(cpu_time)}, must be a number of 0 or more"
        raise bad_file(path, what, MEASURE_AGAIN)


def _rounds(document: Json, path: Path) -> dict[str, dict[int, Json]]:
    """The repetitions of each row, by their number; the reader has checked their times."""
    found: dict[str, dict[int, Json]] = {}
    for index, entry in enumerate(document["benchmarks"]):
        if entry["run_type"] == ITERATION and not entry.get("error_occurred"):
            number = entry.get("repetition_index", index)
            _check_round(entry, number, path)
            found.setdefault(entry["run_name"].removesuffix(TIMED_BY), {})[number] = entry
    return found


def _seconds(rounds: Mapping[int, Json], clock: str = "real_time") -> dict[int, float]:
    return {number: e[clock] * UNITS[e["time_unit"]] for number, e in rounds.items() if clock in e}


def _counters(rounds: Mapping[int, Json]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for number, entry in rounds.items():
        for name, value in entry.items():
            if name not in OWN_KEYS and is_number(value):
                found.setdefault(name, {})[number] = value
    return found


def _split_alone(rows: list[StepRow], path: Path) -> tuple[dict[str, StepRow], StepRow | None]:
    """By mode; the row of the whole batch apart. Two sizes in one file are refused."""
    parallel = [row.name.batch for row in rows if row.name.mode != ALONE]
    own = min(parallel, default=min((row.name.batch for row in rows), default=0))
    found: dict[str, StepRow] = {}
    alone_global = None
    for row in rows:
        if row.name.mode == ALONE and row.name.batch != own:
            alone_global = row
        elif row.name.mode in found:
            names = f"{found[row.name.mode].name} and {row.name}"
            raise bad_file(path, f"has {names}", "measure one step a file")
        else:
            found[row.name.mode] = row
    return found, alone_global


def _check_ranks(name: CaseName | CollectiveName, world_size: int, path: Path) -> None:
    """A figure for each rank would be wrong by the factor between them."""
    if name.ranks != world_size:
        what = f"{name}: is of {name.ranks} ranks, context.{CONTEXT_KEY}.world_size is {world_size}"
        raise bad_file(path, what, MEASURE_AGAIN)


def read_scaling_result(path: Path) -> ScalingResult:
    """BadInputError for a file that is none, or with a time, counter or key that cannot be used."""
    document, _ = read_json(path)
    _check_context(document, path)
    document = current_result(document, path)
    checked = read_rows(document, path)
    failed = {n: c.failed or c.skipped for n, c in checked.cases.items() if c.seconds is None}
    steps: list[StepRow] = []
    collectives: list[CollectiveRow] = []
    world_size = document["context"][CONTEXT_KEY]["world_size"]
    for text, rounds in _rounds(document, path).items():
        if text in failed:
            continue
        step, collective = parse_case_name(text), parse_collective_name(text)
        if step is not None and step.is_data_parallel:
            _check_ranks(step, world_size, path)
            cpu_seconds = _seconds(rounds, "cpu_time")
            steps.append(StepRow(step, _seconds(rounds), cpu_seconds, _counters(rounds)))
        elif collective is not None:
            _check_ranks(collective, world_size, path)
            collectives.append(CollectiveRow(collective, _seconds(rounds)))
    if not steps and not collectives and not failed:
        raise bad_file(path, "holds neither a data-parallel step nor a collective", REMEDY)
    by_mode, alone_global = _split_alone(steps, path)
    samples = document.get("rank_samples")
    return ScalingResult(
        path,
        document["context"],
        by_mode,
        alone_global,
        tuple(collectives),
        failed,
        samples if isinstance(samples, dict) else {},
    )
