"""Reads the folder of a data-parallel run: a result for each number of ranks, and what failed.
read_rows() of results.py checks each file; here are the rounds of its steps and collectives."""

import functools
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
    is_number,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.installation import DATA, typed
from tinyllama_tools.data.names import (
    ALONE,
    ALONE_GLOBAL,
    ITERATION,
    STEPS,
    TIMED_BY,
    UNITS,
    CaseName,
    CollectiveName,
    parse_case_name,
    parse_collective_name,
)
from tinyllama_tools.data.results import read_rows
from tinyllama_tools.data.studies import (
    CONTEXT_OF_RANKS,
    RANK_FILES,
    SCALING_FILE,
    SCHEMAS,
    is_scaling_result,
)

REMEDY = (
    f"name a result of tiny_llama_scaling, or measure first: {typed('scaling')} --processes 1,2"
)


@dataclass(frozen=True)
class Failure:
    """A number of ranks whose run failed. `status`: the exit status; `words`: the rank that caused
    it, and what that said."""

    ranks: int
    status: int
    words: str


def result_file(folder: Path, ranks: int) -> Path:
    """The file that rank 0 writes; ranks_<N>.log beside it has the output of all ranks."""
    return folder / f"ranks_{ranks}.json"


def _ranks_of(path: Path) -> int:
    """The number of ranks in a file's name, as result_file() has it; 0 in other names."""
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


@functools.cache
def _schema() -> Json:
    """The part of the published schema for keys that are used here and read_rows() does not check;
    checking all of it takes a second for a thousand rows."""
    published = read_json(DATA / "results/schema.json")[0]
    context = published["$defs"]["context"]["properties"]
    row = {"repetition_index": {"type": "integer"}, "cpu_time": {"type": "number", "minimum": 0}}
    return {
        "properties": {
            "context": {"properties": {CONTEXT_OF_RANKS: context[CONTEXT_OF_RANKS]}},
            "benchmarks": {"items": {"properties": row}},
        }
    }


# number of a round: the value
Rounds = Mapping[int, float]


# Clocks of a row, each the mean of a round: seconds of the slowest rank, and processor seconds of
# all threads of rank 0.
SECONDS, CPU_SECONDS = "seconds", "cpu_seconds"
CLOCKS = {"real_time": SECONDS, "cpu_time": CPU_SECONDS}


@dataclass(frozen=True)
class Row:
    """A step or collective. `rounds`: the file's entry of each round, with its clocks in
    seconds."""

    name: CaseName | CollectiveName
    rounds: Mapping[int, Json]

    def figures(self, key: str) -> Rounds:
        """The values of a counter or clock."""
        return {n: entry[key] for n, entry in self.rounds.items() if is_number(entry.get(key))}

    @property
    def median_seconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.figures(SECONDS).values())


@dataclass(frozen=True)
class ScalingResult:
    """The result of one number of ranks. `steps`: by mode, at the batch of a rank; ALONE_GLOBAL at
    the whole batch. `failed`: rows that were not measured, with their reason."""

    path: Path
    context: Mapping[str, Any]
    steps: Mapping[str, Row]
    collectives: Sequence[Row]
    failed: Mapping[str, str]

    @property
    def distributed(self) -> Mapping[str, Any]:
        """The context's entry about the ranks."""
        return self.context[CONTEXT_OF_RANKS]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.distributed["world_size"]

    @property
    def scaling(self) -> str:
        """WEAK or STRONG."""
        return self.distributed["scaling"]

    @property
    def step(self) -> Row | None:
        """The data-parallel step whose efficiency is that of the run."""
        return next((self.steps[mode] for mode in STEPS if mode in self.steps), None)

    @property
    def name(self) -> CaseName | None:
        """The case of a step; None where only collectives were measured."""
        row = self.step or next(iter(self.steps.values()), None)
        return row.name if row is not None else None


def read_scaling_result(path: Path) -> ScalingResult:
    """The result in a file; BadInputError for another kind of file, or a value that cannot be
    used."""
    document, _ = read_json(path)
    if not is_scaling_result(document):
        raise bad_file(path, f"has no context.{CONTEXT_OF_RANKS}", REMEDY)
    if problem := schema_problem(document, _schema()):
        raise bad_file(path, problem, MEASURE_AGAIN)
    cases = read_rows(document, path).cases
    failed = {name: case.reason for name, case in cases.items() if case.seconds is None}
    measured = cases.keys() - failed
    rounds: dict[str, dict[int, Json]] = {}
    for entry in document["benchmarks"]:
        text = entry["run_name"].removesuffix(TIMED_BY)
        if entry["run_type"] == ITERATION and text in measured:
            unit = UNITS[entry["time_unit"]]
            clocks = {name: unit * entry[key] for key, name in CLOCKS.items() if key in entry}
            rounds.setdefault(text, {})[entry.get("repetition_index", 0)] = entry | clocks
    collectives = [
        Row(name, entries)
        for text, entries in rounds.items()
        if (name := parse_collective_name(text))
    ]
    parsed = [(parse_case_name(text), entries) for text, entries in rounds.items()]
    named = [(name, entries) for name, entries in parsed if name and name.is_data_parallel]
    # strong scaling also has steps of the whole batch, which is larger than a rank's
    batch = min((name.batch for name, _ in named), default=0)
    steps: dict[str, Row] = {}
    for name, entries in named:
        is_global = name.mode == ALONE and name.batch != batch
        steps[ALONE_GLOBAL if is_global else name.mode] = Row(name, entries)
    if not (steps or collectives or failed):
        raise bad_file(path, "holds neither a data-parallel step nor a collective", REMEDY)
    return ScalingResult(path, document["context"], steps, collectives, failed)


def _stated(path: Path) -> list[Failure]:
    """The failures in a folder's scaling.json, which stay failures when its results are read again.
    None where that file is damaged: it is about to be replaced."""
    try:
        found = read_json(path / SCALING_FILE)[0].get("failures")
    except BadInputError:
        return []
    if schema_problem(found, SCHEMAS["scaling"]["properties"]["failures"]):
        return []
    return [Failure(one["ranks"], one["status"], one["words"]) for one in found]


def read_scaling_run(
    path: Path, known: Sequence[Failure] | None = None
) -> tuple[list[ScalingResult], list[Failure]]:
    """The results in a folder's ranks_<N>.json, or in one such file; and the failures. `known`: the
    failures of a run that has just ended; None for an earlier run, whose scaling.json has them.

    A file that cannot be used is a failure of its number of ranks, unless that has one already.
    BadInputError where no file can be used.
    """
    files = sorted(path.glob(RANK_FILES), key=_ranks_of) if path.is_dir() else [path]
    if not files:
        raise bad_file(path, f"holds no {RANK_FILES}", REMEDY)
    failures = _stated(path) if known is None else list(known)
    known_ranks = {failure.ranks for failure in failures}
    found: list[ScalingResult] = []
    errors: list[BadInputError] = []
    for file in files:
        try:
            found.append(read_scaling_result(file))
        except BadInputError as error:
            errors.append(error)
            if (ranks := _ranks_of(file)) not in known_ranks:
                failures.append(Failure(ranks, 1, str(error)))
    if not found:
        raise errors[0]
    return found, failures
