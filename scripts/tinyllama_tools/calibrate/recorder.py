"""Records whole blocks with the very pieces that `compare run` measures with, and judges nothing.

Every block has all cases, however clear they are; each case of a block is on disk when it is done.
Every start makes a further file in the folder, and what is read is all of them: so a recording that
was cut off is continued by starting it again.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from tinyllama_tools.calibrate.known_slowdown import slow_arguments
from tinyllama_tools.compare.case_record import CaseRecord
from tinyllama_tools.compare.measurements import (
    SIDES,
    BothReady,
    CaseFailure,
    Measured,
    Measurer,
    Opened,
    Side,
)
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter
from tinyllama_tools.compare.run_options import (
    add_options,
    is_chosen,
    program_arguments,
    settings_of,
)
from tinyllama_tools.compare.turn_process import NotResidentError, ProcessLostError
from tinyllama_tools.compare.turn_program import Greeting, TurnProgram
from tinyllama_tools.compare.turns_block import SliceEffort, TakingTurns
from tinyllama_tools.core.app import BadInputError

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


def _greeted(what: WhatToRecord, effort: SliceEffort, seed: int) -> tuple[TakingTurns, Greetings]:
    """Both sides, known to stay resident."""
    shared = program_arguments(what.settings)
    arguments = {Side.BASE: shared, Side.NEW: (*shared, *slow_arguments(what.slowdown))}
    programs = {side: TurnProgram(side.value, what.program, arguments[side]) for side in SIDES}
    measurer = TakingTurns(programs, effort, seed)
    try:
        return measurer, measurer.greet()
    except (NotResidentError, ProcessLostError) as error:
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
