"""Recordings as calibration needs them: whole blocks with what they cost, several files as one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tinyllama_tools.calibrate.paired_blocks import Costs, PairedBlocks, from_slices, joined
from tinyllama_tools.compare.measurements import CaseBlock
from tinyllama_tools.compare.recording import (
    KIND,
    SCHEMA_VERSION,
    Recording,
    RecordingHeader,
    read_recording,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.publish import published_context

# of published seconds: at most a half of a hundredth of a percent off, far below any scatter
PUBLISHED_DIGITS = 5


@dataclass(frozen=True)
class Recorded:
    """Recordings of the same two sides. `hours`: of measuring; `left_out`: blocks in which some
    case failed or was cut short, which therefore are not whole."""

    blocks: PairedBlocks
    headers: tuple[RecordingHeader, ...]
    hours: float
    left_out: int


def costs_of(blocks: Sequence[CaseBlock]) -> Costs:
    """From the times at which cases were done: what lies between two cases of a block is the later
    one's; what the first case of a block took beyond its usual time is the block's own, and what
    came before the first block is the opening."""
    between: dict[str, list[float]] = {}
    first: list[tuple[str, float]] = []
    for before, item in zip([None, *blocks], blocks, strict=False):
        if before is not None and before.index == item.index:
            between.setdefault(item.case, []).append(item.at - before.at)
        elif before is not None:
            first.append((item.case, item.at - before.at))
    cases = {name: float(np.median(found)) for name, found in between.items()}
    # a case that always came first has the block's own time in its cost
    names = {item.case for item in blocks}
    known = float(np.median(list(cases.values()))) if cases else 0.0
    cases |= dict.fromkeys(names - set(cases), known)
    own = [max(0.0, seconds - cases[name]) for name, seconds in first]
    block = float(np.median(own)) if own else 0.0
    opening = max(0.0, blocks[0].at - block - cases[blocks[0].case])
    return Costs(block, cases, opening)


def whole_blocks(recording: Recording) -> tuple[dict[str, list[CaseBlock]], int]:
    """By case, only blocks in which all cases were measured, in order; and how many were not.

    A case that was measured in less than half of the blocks (skipped, or closed after failures) is
    left out instead of the blocks.
    """
    indices = sorted({item.index for item in recording.case_blocks})
    counts: dict[str, int] = {}
    for item in recording.case_blocks:
        counts[item.case] = counts.get(item.case, 0) + 1
    cases = [name for name, count in counts.items() if 2 * count >= len(indices)]
    found = {(item.index, item.case): item for item in recording.case_blocks}
    whole = [i for i in indices if all((i, name) in found for name in cases)]
    by_case = {name: [found[(i, name)] for i in whole] for name in sorted(cases)}
    return by_case, len(indices) - len(whole)


def _one(path: Path) -> tuple[Recording, PairedBlocks, int] | None:
    """None for a recording that was cut off before its first whole block."""
    recording = read_recording(path)
    by_case, left_out = whole_blocks(recording)
    if not by_case or not next(iter(by_case.values())):
        return None
    slices = {name: [item.block for item in items] for name, items in by_case.items()}
    return recording, from_slices(slices, costs_of(recording.case_blocks)), left_out


def _conditions(header: RecordingHeader) -> dict[str, object]:
    """What two recordings must share for their blocks to be of one machine and one measurement."""
    found: dict[str, object] = {}
    for side, context in (("base", header.base_context), ("new", header.new_context)):
        found[f"{side}_context.device.name"] = context.get("device", {}).get("name")
        found[f"{side}_context.threads"] = context.get("threads")
        # the name of a side ends with what its environment adds; settings may be empty
        words = (header.base if side == "base" else header.new).split()[1:]
        added = header.settings.get(f"{side}_environment") or {}
        named = {f"{name}={value}" for name, value in added.items()}
        found[f"{side}_environment"] = sorted(named | {word for word in words if "=" in word})
    found |= {name: getattr(header, name) for name in ("pairs", "slice_seconds", "method")}
    return found


def _check_alike(headers: Sequence[tuple[Path, RecordingHeader]]) -> None:
    (first_path, first), *others = headers
    expected = _conditions(first)
    for path, header in others:
        for name, value in _conditions(header).items():
            if value != expected[name]:
                raise BadInputError(
                    f"{path}: {name} is {value!r}, and {expected[name]!r} in {first_path}: only "
                    "recordings made alike are joined; move one of them away"
                )


def read_recordings(paths: Iterable[Path]) -> Recorded:
    """The files in the order of their start, as one recording.

    Raises BadInputError where there is none, one cannot be read, they were not made alike, or have
    no case in common.
    """
    read = [(path, one) for path, one in ((path, _one(path)) for path in paths) if one is not None]
    read.sort(key=lambda item: item[1][0].header.started)
    found = [one for _, one in read]
    if not found:
        raise BadInputError(
            "no recording with a block in which every case was measured; make one with "
            "`scripts/compare calibrate --record 30m`"
        )
    _check_alike([(path, one[0].header) for path, one in read])
    try:
        blocks = joined([one[1] for one in found])
    except ValueError as error:
        raise BadInputError(str(error)) from error
    seconds = sum(max(item.at for item in one[0].case_blocks) for one in found)
    headers = tuple(one[0].header for one in found)
    return Recorded(blocks, headers, seconds / 3600, sum(one[2] for one in found))


def published_text(recorded: Recorded) -> str:
    """One recording of all blocks, in the format of recording.py, with five digits of a time.

    Who began a pair is not kept; `at` is what the costs say, so that they can be read back.
    """
    header = asdict(recorded.headers[0])
    for name in ("base_context", "new_context"):
        header[name] = published_context(header[name])
    lines = [json.dumps({"recording": KIND, "schema_version": SCHEMA_VERSION, **header})]
    costs = recorded.blocks.costs
    at = costs.opening
    for number in range(recorded.blocks.blocks):
        at += costs.block
        for name, blocks in recorded.blocks.slices.items():
            at += costs.cases[name]
            sides = (blocks[number].base, blocks[number].new)
            base, new = ([float(f"{s:.{PUBLISHED_DIGITS}g}") for s in side] for side in sides)
            line = {"block": number + 1, "case": name, "base": base, "new": new}
            lines.append(json.dumps({**line, "first": [], "at": round(at, 3)}))
    return "\n".join(lines) + "\n"
