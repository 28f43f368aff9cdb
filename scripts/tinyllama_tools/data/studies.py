"""Names and schemas of files that the commands write, and the axes of frontier.json."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.core.app import SUITE_FILE, Json, parse_json

KIND = "grid"
STUDY, COSTS, PRODUCTS, FRONTIER = "study.json", "costs.json", "products.json", "frontier.json"
# training steps of a larger size, which no rate is calibrated on: predictions are checked by them
CHECK = "check.json"
# kind of file: its schema; that of the suite's results has only what the tools compute with
SCHEMAS: Mapping[str, Json] = json.loads(
    Path(__file__).with_name("schemas.json").read_text(encoding="utf-8")
)


def journal_of(result: Path) -> Path:
    """The journal beside a result file."""
    return result.with_name(result.stem + ".journal.jsonl")


def runs_of(folder: Path) -> list[Path]:
    """The results that a grid was measured as: one run, or in earlier studies several rounds, whose
    medians count."""
    rounds = sorted(folder.glob("round_*.json"), key=lambda path: (len(path.name), path.name))
    return rounds or list(filter(Path.is_file, [folder / SUITE_FILE]))


def journaled_names(journal: Path) -> list[str]:
    """The cases of a journal, without a last line that was cut short."""
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


def why_no_run(folder: Path) -> str:
    """Says what a folder holds that has no result."""
    cases = len(journaled_names(journal_of(folder / SUITE_FILE)))
    there = f"{cases} cases in its journal" if cases else "nothing was measured"
    return f"the run of its cases did not end: {there}; the same command with --resume goes on"


class Axis(NamedTuple):
    """What frontier.json searches (`searched`, "batch" or "seq") at each value of the other axis
    (`given`). `key`: its list of points; `largest_key`: the result in a point."""

    searched: str
    given: str
    key: str
    title: str
    largest_key: str


BY_SEQ = Axis("batch", "seq", "points", "largest batch", "largest_batch")
BY_BATCH = Axis("seq", "batch", "sequences", "longest sequence", "longest_seq")
AXES: Mapping[str, Axis] = {axis.given: axis for axis in (BY_SEQ, BY_BATCH)}


# files of scripts/scaling, and beside them those of tiny_llama_scaling
SCALING_KIND, SCALING_SCHEMA_VERSION = "scaling", 3
SCALING_FILE, SCALING_PAGE = "scaling.json", "scaling.md"
RANK_FILES = "ranks_*.json"
CONTEXT_OF_RANKS = "distributed"


def is_result(document: Json) -> bool:
    """Whether it looks like Google Benchmark's JSON, ours or another's."""
    return isinstance(document.get("context"), dict) and "benchmarks" in document


def is_scaling_result(document: Json) -> bool:
    """Whether tiny_llama_scaling wrote it."""
    return is_result(document) and isinstance(document["context"].get(CONTEXT_OF_RANKS), dict)
