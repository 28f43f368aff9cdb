"""The recording of a run: JSON lines, each written when it is known, so that nothing is lost.

  {"recording": "tiny_llama paired blocks", "schema_version": 1, "base", "new", "base_context",
   "new_context", "method", "pairs", "slice_seconds", "started", "seed", "settings"}
  {"opened": NAME, "side": "base"|"new", "seconds": s, "counters": {...}}
  {"block": i, "case": NAME, "base": [s...], "new": [s...], "first": [0|1...], "at": s}
  {"block": i, "case": NAME, "failed": {"side": "base"|"new", "reason": text}}
  {"skipped": NAME, "side": "base"|"new", "reason": text}

Blocks count from 1; a failure of block 0 came before any timing. `settings`: what both programs
were given, the environment added to each side, budget, limit and proof; empty where it was not
said.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tinyllama_tools.compare.blocks import (
    METHOD,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.stats.rank_tests import Block

KIND = "tiny_llama paired blocks"
SCHEMA_VERSION = 1
# what recordings called it until interleaving was called by its name
FORMER_METHOD = "in turn"
# more digits than any clock has
DIGITS = 6


@dataclass(frozen=True)
class RecordingHeader:
    """How it was measured. `started`: ISO."""

    base: str
    new: str
    method: str
    pairs: int
    slice_seconds: float
    seed: int
    started: str
    base_context: Json = field(default_factory=dict)
    new_context: Json = field(default_factory=dict)
    settings: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """What a file holds, in its order."""

    header: RecordingHeader
    case_blocks: tuple[CaseBlock, ...]
    failures: tuple[CaseFailure, ...]
    skips: tuple[CaseSkip, ...]
    openings: tuple[CaseOpening, ...]

    @property
    def blocks(self) -> dict[str, list[Block]]:
        """By case; case_blocks says which block each is of."""
        found: dict[str, list[Block]] = {}
        for item in self.case_blocks:
            found.setdefault(item.case, []).append(item.block)
        return found

    @property
    def counters(self) -> dict[str, dict[str, dict[str, float]]]:
        """By side and case."""
        found: dict[str, dict[str, dict[str, float]]] = {"base": {}, "new": {}}
        for item in self.openings:
            found[item.side.value][item.case] = dict(item.counters)
        return found


def _rounded(seconds: tuple[float, ...]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in seconds]


def _line(item: Measured | Opened) -> Json:
    if isinstance(item, CaseBlock):
        return {
            "block": item.index,
            "case": item.case,
            "base": _rounded(item.block.base),
            "new": _rounded(item.block.new),
            "first": list(item.first),
            "at": round(item.at, 3),
        }
    if isinstance(item, CaseFailure):
        failed = {"side": item.side.value, "reason": item.reason}
        return {"block": item.index, "case": item.case, "failed": failed}
    if isinstance(item, CaseSkip):
        return {"skipped": item.case, "side": item.side.value, "reason": item.reason}
    (seconds,) = _rounded((item.seconds,))
    opened = {"opened": item.case, "side": item.side.value, "seconds": seconds}
    return {**opened, "counters": dict(item.counters)}


def _not_written(path: Path, error: OSError) -> BadInputError:
    return BadInputError(f"{path}: the recording cannot be written: {error}")


def refuse_existing(path: Path) -> None:
    """BadInputError where the file is there: what an earlier run measured is not written over."""
    if path.exists():
        raise BadInputError(
            f"{path}: is there already, and a recording is never written over: name another "
            "--output or --record, or move it away"
        )


class RecordingWriter:
    """Writes lines as they come. The file must not exist.

    Raises BadInputError where it does, or cannot be written.
    """

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        self.path = path
        refuse_existing(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # closed in close(); "x": nor is it written over where it has come meanwhile
            self._file = path.open("x", encoding="utf-8")
        except OSError as error:
            raise _not_written(path, error) from error
        try:
            self._write({"recording": KIND, "schema_version": SCHEMA_VERSION, **asdict(header)})
        except BadInputError:
            self.close()
            raise

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Every line has been handed to the system by then, or its failure was raised; closing
        tries a failed one once more, and what that says is no news."""
        with contextlib.suppress(OSError):
            self._file.close()

    def add(self, item: Measured | Opened) -> None:
        """One line, handed to the operating system when this returns: it outlives this process,
        though not a power failure."""
        self._write(_line(item))

    def _write(self, line: Json) -> None:
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise _not_written(self.path, error) from error


def _seconds(values: object) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise ValueError("seconds must be a list")
    found = tuple(float(value) for value in values)
    if any(not (math.isfinite(value) and value > 0) for value in found):
        raise ValueError("seconds must be positive numbers")
    return found


def _item(line: Json) -> Measured | Opened:
    if "opened" in line:
        side = Side(line["side"])
        return CaseOpening(line["opened"], side, float(line["seconds"]), line["counters"])
    if "skipped" in line:
        return CaseSkip(line["skipped"], Side(line["side"]), line["reason"])
    if "failed" in line:
        failed = line["failed"]
        side = Side(failed["side"])
        return CaseFailure(int(line["block"]), line["case"], side, failed["reason"])
    block = Block(_seconds(line["base"]), _seconds(line["new"]))
    first = tuple(int(value) for value in line["first"])
    return CaseBlock(int(line["block"]), line["case"], block, first, float(line["at"]))


def _header(text: str, path: Path) -> RecordingHeader:
    try:
        line = json.loads(text)
        kind, version = line.pop("recording"), line.pop("schema_version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        message = f"{path}: not a recording of `scripts/compare run`: its first line must say so"
        raise BadInputError(message) from error
    if kind != KIND or version != SCHEMA_VERSION:
        raise BadInputError(
            f"{path}: recording '{kind}', schema_version {version}: must be '{KIND}', "
            f"{SCHEMA_VERSION}; record it anew"
        )
    if line.get("method") == FORMER_METHOD:
        line["method"] = METHOD
    try:
        return RecordingHeader(**line)
    except TypeError as error:
        raise BadInputError(f"{path}: line 1: {error}") from error


def read_recording(path: Path) -> Recording:
    """The file's contents; a last line cut short is left out.

    Raises BadInputError where it cannot be read or is not a recording, naming the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from error
    lines = text.split("\n")[:-1]
    if not lines:
        raise BadInputError(f"{path}: empty, or cut short in its first line: record it anew")
    header = _header(lines[0], path)
    items: list[Measured | Opened] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            items.append(_item(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError(f"{path}: line {number}: {error!r}") from error
    return Recording(
        header,
        tuple(item for item in items if isinstance(item, CaseBlock)),
        tuple(item for item in items if isinstance(item, CaseFailure)),
        tuple(item for item in items if isinstance(item, CaseSkip)),
        tuple(item for item in items if isinstance(item, CaseOpening)),
    )
