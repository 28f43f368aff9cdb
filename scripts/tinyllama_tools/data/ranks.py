"""Reads the folder of a data-parallel run: what each number of ranks measured, and what failed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    BadInputError,
    Json,
    bad_file,
    is_number,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.app import shown_value as shown
from tinyllama_tools.data.names import (
    ALONE,
    OWN_KEYS,
    STEPS,
    STRONG,
    TIMED_BY,
    UNITS,
    WEAK,
    CaseName,
    CollectiveName,
    parse_case_name,
    parse_collective_name,
)
from tinyllama_tools.data.results import ITERATION, checked_result, read_rows
from tinyllama_tools.data.studies import (
    CONTEXT_OF_RANKS,
    RANK_FILES,
    SCALING_FILE,
    is_scaling_result,
)


@dataclass(frozen=True)
class Failure:
    """A number of ranks that was not measured to its end. `status`: of the run, `words`: of the
    rank that ended first."""

    ranks: int
    status: int
    words: str


def result_file(folder: Path, ranks: int) -> Path:
    """What tiny_llama_scaling writes at rank 0."""
    return folder / f"ranks_{ranks}.json"


def log_file(folder: Path, ranks: int) -> Path:
    """What the ranks said, a line each with its rank before it."""
    return folder / f"ranks_{ranks}.log"


def ranks_of(path: Path) -> int:
    """Of a file that is named as result_file() names it; 0 for others."""
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


def result_files(path: Path) -> list[Path]:
    """Of a folder every ranks_<N>.json in the order of N, of a file that file.

    BadInputError where a folder has none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(RANK_FILES), key=lambda file: (ranks_of(file), file.name))
    if not found:
        raise BadInputError(
            f"{path}: holds no {RANK_FILES}; measure first: scripts/scaling --processes 1,2"
        )
    return found


COUNT, NUMBER = {"type": "integer", "minimum": 1}, {"type": "number", "exclusiveMinimum": 0}
TEXT = {"type": "string"}
DISTRIBUTED: Mapping[str, Json] = {
    "world_size": COUNT,
    "backend": TEXT,
    "started_by": TEXT,
    "bucket_MiB": NUMBER,
    "bucket_bytes": {"type": "array", "items": NUMBER},
    "gradient_bytes": {"type": "integer"},
    "scaling": {"enum": [WEAK, STRONG]},
    "ranks": {"type": "array", "items": {"type": "object", "required": ["rank"]}},
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
        return self.context[CONTEXT_OF_RANKS]

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


def _check_context(document: Json, path: Path) -> None:
    if not is_scaling_result(document):
        raise bad_file(path, f"has no context.{CONTEXT_OF_RANKS}", REMEDY)
    schema = {"required": list(DISTRIBUTED), "properties": DISTRIBUTED}
    wrong = schema_problem(document["context"][CONTEXT_OF_RANKS], schema)
    if wrong:
        raise bad_file(path, f"context.{CONTEXT_OF_RANKS}.{wrong}", MEASURE_AGAIN)


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
        stated = f"context.{CONTEXT_OF_RANKS}.world_size is {world_size}"
        what = f"{name}: is of {name.ranks} ranks, {stated}"
        raise bad_file(path, what, MEASURE_AGAIN)


def read_scaling_result(path: Path) -> ScalingResult:
    """BadInputError for a file that is none, or with a time, counter or key that cannot be used."""
    document, _ = read_json(path)
    _check_context(document, path)
    document = checked_result(document, path)
    checked = read_rows(document, path)
    failed = {n: c.failed or c.skipped for n, c in checked.cases.items() if c.seconds is None}
    steps: list[StepRow] = []
    collectives: list[CollectiveRow] = []
    world_size = document["context"][CONTEXT_OF_RANKS]["world_size"]
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


def failures_before(folder: Path) -> list[Failure]:
    """What an earlier scaling.json of the folder says was not measured: reading again does not undo
    it. None where there is no such file or a damaged one, which is about to be made anew."""
    try:
        found = read_json(folder / SCALING_FILE)[0]["failures"]
        return [Failure(int(f["ranks"]), int(f["status"]), str(f["words"])) for f in found]
    except (BadInputError, KeyError, TypeError, ValueError):
        return []


@dataclass(frozen=True)
class ReadRun:
    """`failures`: numbers of ranks without a usable result, those known before first. `unread`: of
    the others, how many."""

    results: tuple[ScalingResult, ...]
    failures: tuple[Failure, ...]
    unread: int


def read_results(path: Path, known: Sequence[Failure] = ()) -> ReadRun:
    """Of a folder every ranks_<N>.json that can be used, of a file that file.

    A file that cannot be used becomes a failure of its number of ranks, unless that has one
    already. BadInputError where none can be used.
    """
    found: list[ScalingResult] = []
    unread: list[Failure] = []
    failed = {failure.ranks for failure in known}
    refusal: BadInputError | None = None
    for file in result_files(path):
        try:
            found.append(read_scaling_result(file))
        except BadInputError as error:
            refusal = refusal or error
            if ranks_of(file) not in failed:
                unread.append(Failure(ranks_of(file), 1, str(error)))
    if not found and refusal is not None:
        raise refusal
    return ReadRun(tuple(found), (*known, *unread), len(unread))


def read_again(path: Path) -> ReadRun:
    """With what the folder's own scaling.json says was not measured."""
    return read_results(path, failures_before(path) if path.is_dir() else ())
