"""Reads the folder of a data-parallel run: what each number of ranks measured, and what failed."""

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    RESULTS,
    BadInputError,
    Json,
    bad_file,
    is_number,
    read_json,
    schema_problem,
)
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

REMEDY = "name a result of tiny_llama_scaling, or measure first: scripts/scaling --processes 1,2"


@dataclass(frozen=True)
class Failure:
    """A number of ranks that was not measured to its end. `status`: of the run, `words`: of the
    rank that ended first."""

    ranks: int
    status: int
    words: str


def result_file(folder: Path, ranks: int) -> Path:
    """What tiny_llama_scaling writes at rank 0; ranks_<N>.log beside it has what the ranks said."""
    return folder / f"ranks_{ranks}.json"


def _ranks_of(path: Path) -> int:
    """Of a file that is named as result_file() names it; 0 for others."""
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


@functools.cache
def _schema() -> Json:
    """What is used here and read_rows() does not look at, as the published schema has it; all of
    that takes a second for a thousand rows."""
    published = read_json(RESULTS / "schema.json")[0]
    context = published["$defs"]["context"]["properties"]
    row = {"repetition_index": {"type": "integer"}, "cpu_time": {"type": "number", "minimum": 0}}
    return {
        "properties": {
            "context": {"properties": {CONTEXT_OF_RANKS: context[CONTEXT_OF_RANKS]}},
            "benchmarks": {"items": {"properties": row}},
        }
    }


# by the number of a round
Rounds = Mapping[int, float]


# Of a step or call, the mean of each round: the slowest rank's, and the processors' of rank 0, of
# all its threads together.
SECONDS, CPU_SECONDS = "seconds", "cpu_seconds"
CLOCKS = {"real_time": SECONDS, "cpu_time": CPU_SECONDS}


@dataclass(frozen=True)
class Row:
    """`rounds`: what the file says of each, by its number, with its clocks in seconds."""

    name: CaseName | CollectiveName
    rounds: Mapping[int, Json]

    def figures(self, key: str) -> Rounds:
        """Of a counter or clock."""
        return {n: of[key] for n, of in self.rounds.items() if is_number(of.get(key))}

    @property
    def median_seconds(self) -> float:
        """Over the rounds."""
        return statistics.median(self.figures(SECONDS).values())


@dataclass(frozen=True)
class ScalingResult:
    """One world: `steps` by mode at the batch of a rank, and by ALONE_GLOBAL. `failed`: rows
    without a figure, with their reason."""

    path: Path
    context: Mapping[str, Any]
    steps: Mapping[str, Row]
    collectives: Sequence[Row]
    failed: Mapping[str, str]

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
    def step(self) -> Row | None:
        """The data-parallel step that efficiencies are of."""
        return next((self.steps[mode] for mode in STEPS if mode in self.steps), None)

    @property
    def name(self) -> CaseName | None:
        """Of any of the steps; None where only collectives were measured."""
        row = self.step or next(iter(self.steps.values()), None)
        return row.name if row is not None else None


def read_scaling_result(path: Path) -> ScalingResult:
    """BadInputError for a file that is none, or with a time, counter or key that cannot be used."""
    document, _ = read_json(path)
    if not is_scaling_result(document):
        raise bad_file(path, f"has no context.{CONTEXT_OF_RANKS}", REMEDY)
    if problem := schema_problem(document, _schema()):
        raise bad_file(path, problem, MEASURE_AGAIN)
    cases = read_rows(document, path).cases
    failed = {name: case.reason for name, case in cases.items() if case.seconds is None}
    rounds: dict[str, dict[int, Json]] = {}
    for entry in document["benchmarks"]:
        text = entry["run_name"].removesuffix(TIMED_BY)
        if entry["run_type"] == ITERATION and text not in failed:
            unit = UNITS[entry["time_unit"]]
            clocks = {name: unit * entry[key] for key, name in CLOCKS.items() if key in entry}
            rounds.setdefault(text, {})[entry.get("repetition_index", 0)] = entry | clocks
    rows = [Row(name, of) for text, of in rounds.items() if (name := parse_collective_name(text))]
    parsed = [(parse_case_name(text), of) for text, of in rounds.items()]
    named = [(name, of) for name, of in parsed if name and name.is_data_parallel]
    # the whole batch of strong scaling is more than a rank's
    batch = min((name.batch for name, _ in named), default=0)
    steps: dict[str, Row] = {}
    for name, of in named:
        is_global = name.mode == ALONE and name.batch != batch
        steps[ALONE_GLOBAL if is_global else name.mode] = Row(name, of)
    if not (steps or rows or failed):
        raise bad_file(path, "holds neither a data-parallel step nor a collective", REMEDY)
    return ScalingResult(path, document["context"], steps, rows, failed)


def _stated(path: Path) -> list[Failure]:
    """What a folder's own scaling.json says was not measured, which reading again does not undo. A
    damaged one, which is about to be made anew, says nothing."""
    try:
        found = read_json(path / SCALING_FILE)[0].get("failures")
    except BadInputError:
        return []
    if schema_problem(found, SCHEMAS["scaling"]["properties"]["failures"]):
        return []
    return [Failure(of["ranks"], of["status"], of["words"]) for of in found]


def read_results(
    path: Path, known: Sequence[Failure] | None = None
) -> tuple[list[ScalingResult], list[Failure]]:
    """Of a folder every ranks_<N>.json that can be used, of a file that file; and the numbers of
    ranks without a usable result. `known`: failures of the run, which come first; None where it was
    an earlier one.

    A file that cannot be used becomes a failure of its number of ranks, unless that has one
    already. BadInputError where none can be used.
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
