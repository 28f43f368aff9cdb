"""Records whole blocks with the very pieces that compare run measures with, and reads them."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from tinyllama_tools.calibrate.draws import Costs, PairedBlocks, from_slices, joined
from tinyllama_tools.compare.blocks import (
    SIDES,
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseRecord,
    Interleaved,
    Measured,
    Measurer,
    Opened,
    Side,
    SliceEffort,
)
from tinyllama_tools.compare.options import add_options, is_chosen, program_arguments, settings_of
from tinyllama_tools.compare.recording import (
    KIND,
    SCHEMA_VERSION,
    Recording,
    RecordingHeader,
    RecordingWriter,
    read_recording,
)
from tinyllama_tools.compare.served_process import (
    Greeting,
    ProcessLostError,
    ServedProgram,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.publish import published_context

MOST_FRACTION = 10.0


def slow_arguments(slowdown: Mapping[str, float]) -> tuple[str, ...]:
    """Options of the program for fractions by expression; the expression finds names of cases."""
    return tuple(f"--slow={pattern}={fraction:.6g}" for pattern, fraction in slowdown.items())


def parse_slowdown(text: str) -> dict[str, float]:
    """`^ffn/=0.05`. Raises ValueError naming what is wrong."""
    pattern, separator, number = text.rpartition("=")
    try:
        fraction = float(number)
    except ValueError:
        fraction = 0.0
    if not separator or not 0 < fraction <= MOST_FRACTION:
        allowed = f"REGEX=FRACTION with a fraction above 0, at most {MOST_FRACTION:g}"
        raise ValueError(f"'{text}': must be {allowed}, such as ^ffn/=0.05")
    return {pattern: fraction}


QUIET = "quiet"
Say = Callable[[str], None]
Greetings = dict[Side, Greeting]


@dataclass(frozen=True)
class WhatToRecord:
    """`kind`: part of the file's name, e.g. `quiet`. `slowdown`: of the new side alone, fractions
    by expression. `settings`: options of `compare run`, which choose cases, pairs and slices."""

    kind: str
    program: Path
    settings: argparse.Namespace
    slowdown: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class HowLong:
    """`seconds` of measuring, `blocks` at the most; a block that was begun is finished."""

    seconds: float
    blocks: int | None = None


def recording_paths(folder: Path, kind: str) -> list[Path]:
    """What was recorded of a kind so far, oldest first; half-written ones included."""
    found = [p for p in folder.glob("*.jsonl") if re.fullmatch(rf"{kind}_\d{{4}}\.jsonl", p.name)]
    return sorted(found)


def next_path(folder: Path, kind: str) -> Path:
    """The file that the next recording of a kind goes to."""
    numbers = [int(path.stem[-4:]) for path in recording_paths(folder, kind)]
    return folder / f"{kind}_{max(numbers, default=0) + 1:04d}.jsonl"


class _CasesLeft:
    """Which cases are still worth a try: `compare run` gives up the same ones."""

    def __init__(self, cases: Sequence[str], say: Say) -> None:
        self.cases = list(cases)
        self._records = {name: CaseRecord(name) for name in cases}
        self._say = say

    def note(self, item: Measured | Opened) -> None:
        """Whatever became of a case."""
        self._records[item.case].add(item)
        if isinstance(item, CaseFailure):
            self._say(f"{item.case} failed on the {item.side.value} side: {item.reason}")
        self._leave_out()

    def end_of_openings(self) -> None:
        """A case that a side could not open before any timing is not timed."""
        for record in self._records.values():
            record.end_of_openings()
        self._leave_out()

    def _leave_out(self) -> None:
        for case in [name for name in self.cases if self._records[name].given_up]:
            self.cases.remove(case)
            self._say(f"{case} is left out of the recording")


def record_blocks(
    measurer: Measurer,
    cases: Sequence[str],
    writer: RecordingWriter,
    how_long: HowLong,
    *,
    say: Say,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures block after block into the file until the time is used up; the number of blocks.

    The proofs before the first block do not count. Raises BadInputError where no case is left.
    """
    left, index = _CasesLeft(cases, say), 0
    say(f"proving {len(cases)} cases on both sides")
    for opened in measurer.open_once(list(cases), verify=True):
        writer.add(opened)
        left.note(opened)
    left.end_of_openings()
    started = clock()
    while clock() - started < how_long.seconds and index != how_long.blocks:
        if not left.cases:
            raise BadInputError("every case was skipped or failed: nothing to record")
        index += 1
        for item in measurer.measure(index, list(left.cases)):
            if isinstance(item, BothReady):
                continue
            writer.add(item)
            left.note(item)
        spent = clock() - started
        say(f"block {index}, {spent / 60:.1f} of {how_long.seconds / 60:.1f} minutes")
    return index


def run_settings(options: Sequence[str]) -> argparse.Namespace:
    """Options of `compare run` without its sides. A bad one ends the program with status 2."""
    parser = argparse.ArgumentParser(prog="scripts/compare run", allow_abbrev=False)
    add_options(parser)
    return parser.parse_args(["--base", "", "--new", "", *options])


def _greeted(what: WhatToRecord, effort: SliceEffort, seed: int) -> tuple[Interleaved, Greetings]:
    """Both sides, known to stay resident."""
    shared = program_arguments(what.settings)
    arguments = {Side.BASE: shared, Side.NEW: (*shared, *slow_arguments(what.slowdown))}
    programs = {side: ServedProgram(side.value, what.program, arguments[side]) for side in SIDES}
    measurer = Interleaved(programs, effort, seed)
    try:
        return measurer, measurer.greet()
    except ProcessLostError as error:
        raise BadInputError(f"{what.program} cannot be recorded: {error}") from error


def record(what: WhatToRecord, folder: Path, how_long: HowLong, seed: int, *, say: Say) -> Path:
    """Records one file and returns its path; an interrupt leaves all that was measured in it.

    Raises BadInputError where the program cannot take turns or has no such case.
    """
    path, settings = next_path(folder, what.kind), what.settings
    # another seed for every file, so that a continued recording does not repeat its orders
    own_seed = seed + int(path.stem[-4:])
    effort = SliceEffort(settings.pairs, settings.slice, settings.limit)
    measurer, greetings = _greeted(what, effort, own_seed)
    cases = [name for name in greetings[Side.BASE].cases if is_chosen(name, settings)]
    if not cases:
        message = "the program has no case of these axes and this filter"
        raise BadInputError(f"{' '.join(program_arguments(settings))}: {message}")
    words = " ".join(slow_arguments(what.slowdown))
    header = RecordingHeader(
        base=str(what.program.name),
        new=f"{what.program.name} {words}".strip(),
        method=measurer.method,
        pairs=effort.pairs,
        slice_seconds=effort.slice_seconds,
        seed=own_seed,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base_context=greetings[Side.BASE].context,
        new_context=greetings[Side.NEW].context,
        settings={**settings_of(settings), "new_slow": dict(what.slowdown)},
    )
    with RecordingWriter(path, header) as writer:
        blocks = record_blocks(measurer, cases, writer, how_long, say=say)
    say(f"{blocks} blocks of {len(cases)} cases in {path}")
    return path


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
