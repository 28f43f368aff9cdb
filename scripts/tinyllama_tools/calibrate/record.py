"""Records whole blocks with the very pieces that compare run measures with, and reads them."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from tinyllama_tools.calibrate.draws import Costs, PairedBlocks, joined
from tinyllama_tools.compare.blocks import (
    SIDES,
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseRecord,
    Interleaved,
    Measurer,
    Side,
    SliceEffort,
)
from tinyllama_tools.compare.options import is_chosen, program_arguments, settings_of
from tinyllama_tools.compare.recording import (
    Recording,
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from tinyllama_tools.compare.served_process import ProcessLostError, ServedProgram
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.nameless import nameless_context
from tinyllama_tools.stats.rank_tests import summarise

Say = Callable[[str], None]


def slow_arguments(slowdown: Mapping[str, float]) -> tuple[str, ...]:
    """Options of the program for fractions by expression; the expression finds names of cases."""
    return tuple(f"--slow={pattern}={fraction:.6g}" for pattern, fraction in slowdown.items())


@dataclass(frozen=True)
class WhatToRecord:
    """`kind`: part of the file's name, e.g. `quiet`. `slowdown`: of the new side alone, fractions
    by expression. `settings`: options of `compare run`, which choose cases, pairs and slices."""

    kind: str
    program: Path
    settings: argparse.Namespace
    slowdown: Mapping[str, float] = field(default_factory=dict)


def recording_paths(folder: Path, kind: str) -> list[Path]:
    """What was recorded of a kind so far, oldest first; half-written ones included."""
    found = [p for p in folder.glob("*.jsonl") if re.fullmatch(rf"{kind}_\d{{4}}\.jsonl", p.name)]
    return sorted(found)


def record_blocks(
    measurer: Measurer,
    cases: Sequence[str],
    writer: RecordingWriter,
    seconds: float,
    most: int | None = None,
    *,
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures block after block into the file until `seconds` are used up, or `most` blocks are
    there; their number. A block that was begun is finished; the proofs before the first one do not
    count. A case that `compare run` would give up is left out.

    Raises BadInputError where no case is left.
    """
    records = {name: CaseRecord(name) for name in cases}

    def leave_out() -> None:
        for name in [name for name, record in records.items() if record.given_up]:
            del records[name]
            say(f"{name} is left out of the recording")

    say(f"proving {len(cases)} cases on both sides")
    for opened in measurer.open_once(list(cases), verify=True):
        writer.add(opened)
        records[opened.case].add(opened)
        if isinstance(opened, CaseFailure):
            say(f"{opened.case} failed on the {opened.side.value} side: {opened.reason}")
    for record in records.values():
        record.end_of_openings()
    leave_out()
    started, index = clock(), 0
    while clock() - started < seconds and index != most:
        if not records:
            raise BadInputError("every case was skipped or failed: nothing to record")
        index += 1
        for item in measurer.measure(index, list(records)):
            if isinstance(item, BothReady):
                continue
            writer.add(item)
            records[item.case].add(item)
            if isinstance(item, CaseFailure):
                say(f"{item.case} failed on the {item.side.value} side: {item.reason}")
        leave_out()
        spent = clock() - started
        say(f"block {index}, {spent / 60:.1f} of {seconds / 60:.1f} minutes")
    return index


def record(
    what: WhatToRecord,
    folder: Path,
    seconds: float,
    seed: int,
    *,
    most: int | None = None,
    say: Say,
) -> Path:
    """Records one file and returns its path; an interrupt leaves all that was measured in it.

    Raises BadInputError where the program cannot be served or has no such case.
    """
    numbers = [int(path.stem[-4:]) for path in recording_paths(folder, what.kind)]
    number = max(numbers, default=0) + 1
    path, settings = folder / f"{what.kind}_{number:04d}.jsonl", what.settings
    shared, slow = program_arguments(settings), slow_arguments(what.slowdown)
    arguments = {Side.BASE: shared, Side.NEW: (*shared, *slow)}
    programs = {side: ServedProgram(side.value, what.program, arguments[side]) for side in SIDES}
    effort = SliceEffort(settings.pairs, settings.slice, settings.limit)
    # another seed for every file, so that a continued recording does not repeat its orders
    measurer = Interleaved(programs, effort, seed + number)
    try:
        greetings = measurer.greet()
    except ProcessLostError as error:
        raise BadInputError(f"{what.program} cannot be recorded: {error}") from error
    cases = [name for name in greetings[Side.BASE].cases if is_chosen(name, settings)]
    if not cases:
        message = "the program has no case of these axes and this filter"
        raise BadInputError(f"{' '.join(shared)}: {message}")
    header = RecordingHeader(
        base=str(what.program.name),
        new=" ".join([what.program.name, *slow]),
        method=measurer.method,
        pairs=effort.pairs,
        slice_seconds=effort.slice_seconds,
        seed=seed + number,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base_context=nameless_context(greetings[Side.BASE].context),
        new_context=nameless_context(greetings[Side.NEW].context),
        settings={**settings_of(settings), "new_slow": dict(what.slowdown)},
    )
    with RecordingWriter(path, header) as writer:
        blocks = record_blocks(measurer, cases, writer, seconds, most, say=say)
    say(f"{blocks} blocks of {len(cases)} cases in {path}")
    return path


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
    known = float(np.median(list(cases.values()))) if cases else 0.0
    cases = {item.case: known for item in blocks} | cases
    own = [max(0.0, seconds - cases[name]) for name, seconds in first]
    block = float(np.median(own)) if own else 0.0
    opening = max(0.0, blocks[0].at - block - cases[blocks[0].case])
    return Costs(block, cases, opening)


def whole_blocks(recording: Recording) -> tuple[dict[str, list[CaseBlock]], int]:
    """By case, only blocks in which all cases were measured, in order; and how many were not.

    A case that was measured in less than half of the blocks (skipped, or closed after failures) is
    left out instead of the blocks.
    """
    found = {(item.index, item.case): item for item in recording.case_blocks}
    indices = sorted({index for index, _ in found})
    names = sorted({name for _, name in found})
    cases = [n for n in names if 2 * sum((i, n) in found for i in indices) >= len(indices)]
    whole = [i for i in indices if all((i, name) in found for name in cases)]
    by_case = {name: [found[(i, name)] for i in whole] for name in cases}
    return by_case, len(indices) - len(whole)


def blocks_recorded(folder: Path, kind: str) -> int:
    """Whole blocks of a kind so far."""
    recordings = map(read_recording, recording_paths(folder, kind))
    return sum(len(next(iter(whole_blocks(r)[0].values()), [])) for r in recordings)


def _conditions(header: RecordingHeader) -> dict[str, object]:
    """What two recordings must share for their blocks to be of one machine and one measurement."""
    found: dict[str, object] = {}
    sides = (("base", header.base, header.base_context), ("new", header.new, header.new_context))
    for side, name, context in sides:
        found[f"{side}_context.device.name"] = context.get("device", {}).get("name")
        found[f"{side}_context.threads"] = context.get("threads")
        # the name of a side ends with what its environment adds; settings may be empty
        added = (header.settings.get(f"{side}_environment") or {}).items()
        named = {word for word in name.split()[1:] if "=" in word}
        found[f"{side}_environment"] = sorted(named | {f"{key}={value}" for key, value in added})
    return found | {name: getattr(header, name) for name in ("pairs", "slice_seconds", "method")}


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
    """The files in the order of their start, as one recording; one that was cut off before its
    first whole block is passed over.

    Raises BadInputError where there is none, one cannot be read, they were not made alike, or have
    no case in common.
    """
    read = [(path, read_recording(path)) for path in paths]
    read.sort(key=lambda item: item[1].header.started)
    headers: list[tuple[Path, RecordingHeader]] = []
    blocks: list[PairedBlocks] = []
    seconds, left_out = 0.0, 0
    for path, recording in read:
        by_case, lost = whole_blocks(recording)
        if not any(by_case.values()):
            continue
        headers.append((path, recording.header))
        summaries = {name: tuple(summarise(i.block) for i in b) for name, b in by_case.items()}
        blocks.append(PairedBlocks(summaries, costs_of(recording.case_blocks)))
        seconds += max(item.at for item in recording.case_blocks)
        left_out += lost
    if not headers:
        raise BadInputError(
            "no recording with a block in which every case was measured; make one with "
            "`scripts/compare calibrate --record 30m`"
        )
    _check_alike(headers)
    try:
        found = joined(blocks)
    except ValueError as error:
        raise BadInputError(str(error)) from error
    return Recorded(found, tuple(header for _, header in headers), seconds / 3600, left_out)
