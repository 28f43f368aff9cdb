"""The files that a calibration leaves: in its folder, and published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyllama_tools.calibrate.page import calibration_page
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.recordings import Recorded, published_text
from tinyllama_tools.core.app import BadInputError, write_whole
from tinyllama_tools.core.text import compact_json

DOCUMENT, PAGE = "calibration.json", "CALIBRATION.md"
# of a file in the repository
MOST_BYTES = 2_000_000
EXPANDED = (
    "targets",
    "recordings",
    "false_alarms",
    "runs",
    "detection",
    "rivals",
    "attribution",
    "noise",
)
Json = Mapping[str, Any]


def _write(files: Mapping[Path, str]) -> list[Path]:
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise BadInputError(f"{path}: cannot be written: {error.strerror}") from error
    return list(files)


def write_calibration(document: Json, folder: Path) -> list[Path]:
    """The document and its page; BadInputError where they cannot be written."""
    text = compact_json(document, EXPANDED)
    return _write({folder / DOCUMENT: text, folder / PAGE: calibration_page(document)})


def write_noise_profile(profile: Json, path: Path) -> list[Path]:
    """For comparisons of stored results; BadInputError where it cannot be written."""
    return _write({path: json.dumps(profile, indent=1) + "\n"})


def small_enough(recorded: Recorded, most_bytes: int = MOST_BYTES) -> str:
    """The recording as text, with as many of its latest blocks as the file may hold."""
    text = published_text(recorded)
    blocks = recorded.blocks
    while len(text) > most_bytes and blocks.blocks > 1:
        fewer = int(blocks.blocks * most_bytes / len(text) * 0.98)
        blocks = _latest(blocks, max(1, fewer))
        text = published_text(Recorded(blocks, recorded.headers, recorded.hours, 0))
    return text


def _latest(blocks: PairedBlocks, count: int) -> PairedBlocks:
    return blocks.part(blocks.blocks - count, blocks.blocks)


def publish(document: Json, quiet: Recorded, results: Path, machine: str) -> list[Path]:
    """The page, the document, and the A/A recording that the tests judge; the paths written.

    Raises BadInputError where one cannot be written.
    """
    reference = results / "reference"
    return _write(
        {
            results / PAGE: calibration_page(document),
            reference / f"calibration_{machine}.json": compact_json(document, EXPANDED),
            reference / f"paired_blocks_{machine}.jsonl": small_enough(quiet),
        }
    )
