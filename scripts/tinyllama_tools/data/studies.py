"""Names of the files in the folder of a grid study, for what writes them and what reads them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

KIND, SCHEMA_VERSION = "grid", 1
STUDY, COSTS, PRODUCTS, FRONTIER = "study.json", "costs.json", "products.json", "frontier.json"
# training steps of a bigger size, which no rate is calibrated on: what predictions are checked by
CHECK = "check.json"
ROUNDS = "round_*.json"


def round_file(folder: Path, number: int) -> Path:
    """The result of a round, from 1."""
    return folder / f"round_{number}.json"


def journal_of(result: Path) -> Path:
    """Beside the result file."""
    return result.with_name(result.stem + ".journal.jsonl")


def _round_number(path: Path) -> tuple[int, str]:
    digits = path.stem.rpartition("_")[2]
    return (int(digits) if digits.isdecimal() else -1, path.name)


def rounds_of(folder: Path) -> list[Path]:
    """The results of all rounds that ended, in their order."""
    return sorted(folder.glob(ROUNDS), key=_round_number)


def journaled_names(journal: Path) -> list[str]:
    """The cases that a journal holds; a last line that was cut short is none."""
    try:
        lines = journal.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    names = []
    for line in lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("case"), str):
                names.append(entry["case"])
    return names


def why_no_round(folder: Path) -> str:
    """Of a folder without the result of a round: what is there, and how to go on."""
    cases = len(journaled_names(journal_of(round_file(folder, 1))))
    there = f"{cases} cases in its journal" if cases else "nothing was measured"
    try:
        is_finished = bool(json.loads((folder / STUDY).read_text(encoding="utf-8"))["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        is_finished = False
    next_step = "" if is_finished else "; scripts/study --resume goes on with it"
    return f"round 1 did not end: {there}{next_step}"
