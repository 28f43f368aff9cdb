"""The folder of a grid study: names and schemas of its files, and the axes of frontier.json."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import Json, parse_json

KIND = "grid"
STUDY, COSTS, PRODUCTS, FRONTIER = "study.json", "costs.json", "products.json", "frontier.json"
# training steps of a bigger size, which no rate is calibrated on: what predictions are checked by
CHECK = "check.json"
# by what a file is; of results of the suite, what is computed with of context and rows
SCHEMAS: Mapping[str, Json] = json.loads(
    Path(__file__).with_name("schemas.json").read_text(encoding="utf-8")
)
# a projection's are as those of fixtures/interconnects.json; none where none is of the device
SCHEMAS["scaling"]["properties"]["projection"]["properties"] |= {
    "interconnects": SCHEMAS["interconnects"] | {"minItems": 0}
}


def round_file(folder: Path, number: int) -> Path:
    """The result of a round, from 1."""
    return folder / f"round_{number}.json"


def journal_of(result: Path) -> Path:
    """Beside the result file."""
    return result.with_name(result.stem + ".journal.jsonl")


def rounds_of(folder: Path) -> list[Path]:
    """The results of all rounds that ended, in their order."""
    return sorted(folder.glob("round_*.json"), key=lambda path: (len(path.name), path.name))


def journaled_names(journal: Path) -> list[str]:
    """The cases that a journal holds; a last line that was cut short is none."""
    try:
        lines = journal.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    names = []
    for line in lines:
        with contextlib.suppress(ValueError):
            entry = parse_json(line)
            if isinstance(entry, dict) and isinstance(entry.get("case"), str):
                names.append(entry["case"])
    return names


def why_no_round(folder: Path) -> str:
    """Of a folder without the result of a round: what is there, and how to go on."""
    cases = len(journaled_names(journal_of(round_file(folder, 1))))
    there = f"{cases} cases in its journal" if cases else "nothing was measured"
    try:
        is_finished = bool(parse_json((folder / STUDY).read_text(encoding="utf-8"))["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        is_finished = False
    next_step = "" if is_finished else "; scripts/study --resume goes on with it"
    return f"round 1 did not end: {there}{next_step}"


class Axis(NamedTuple):
    """`searched` and `given`: "batch" or "seq". `key`: of frontier.json's list of points;
    `largest_key`: of a point's answer."""

    searched: str
    given: str
    key: str
    title: str
    largest_key: str


BY_SEQ = Axis("batch", "seq", "points", "largest batch", "largest_batch")
BY_BATCH = Axis("seq", "batch", "sequences", "longest sequence", "longest_seq")
AXES: Mapping[str, Axis] = {axis.given: axis for axis in (BY_SEQ, BY_BATCH)}


# of several ranks: what scripts/scaling writes, and beside it the programs' files
SCALING_KIND, SCALING_SCHEMA_VERSION = "scaling", 2
SCALING_FILE, SCALING_PAGE = "scaling.json", "scaling.md"
RANK_FILES = "ranks_*.json"
CONTEXT_OF_RANKS = "distributed"


def is_result(document: Json) -> bool:
    """Whether it looks like Google Benchmark's JSON, ours or another's."""
    return isinstance(document.get("context"), dict) and "benchmarks" in document


def is_scaling_result(document: Json) -> bool:
    """Whether tiny_llama_scaling wrote it."""
    return is_result(document) and isinstance(document["context"].get(CONTEXT_OF_RANKS), dict)
