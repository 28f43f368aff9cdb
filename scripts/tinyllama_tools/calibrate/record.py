"""What is measured for a calibration, and read back: blocks, recorded with the very pieces that
`compare run` measures with, and whole runs of it, each in a folder of its own.

Every block and every run is on disk when it is done, so whatever was interrupted is continued.
"""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinyllama_tools.calibrate.rates import PairedBlocks, joined
from tinyllama_tools.compare.blocks import (
    SIDES,
    Interleaved,
    Measuring,
    Recording,
    RecordingWriter,
    costs_of,
    prepare,
    read_recording,
)
from tinyllama_tools.compare.options import run_settings
from tinyllama_tools.compare.sides import PROGRAM_IN_BUILD
from tinyllama_tools.core.app import (
    INTERRUPTED,
    BadInputError,
    Json,
    bad_file,
    read_json,
    schema_problem,
)
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import last_words
from tinyllama_tools.stats.rank_tests import summarise
from tinyllama_tools.stats.verdicts import Outcome


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def recording_paths(folder: Path) -> list[Path]:
    """What was recorded so far, oldest first; half-written ones included."""
    return sorted(folder.glob("blocks_????.jsonl"))


def _next_number(taken: Iterable[Path]) -> int:
    return 1 + max((int(path.stem[-4:]) for path in taken), default=0)


def record_blocks(
    measurer: Interleaved,
    cases: Sequence[str],
    writer: RecordingWriter,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures block after block into the file until `seconds` are used up; their number. A block
    that was begun is finished; the proofs before the first one do not count. A case that `compare
    run` would give up is left out. Raises BadInputError where no case is left."""
    say(f"proving {len(cases)} cases on both sides")
    measuring = Measuring(measurer, cases, writer.add, Progress())
    measuring.open_all(verify=True)
    started = clock()
    while measuring.open_cases and clock() - started < seconds:
        measuring.measure_block()
        passed = f"{(clock() - started) / 60:.1f} of {seconds / 60:.1f} minutes"
        say(f"block {measuring.blocks}, {passed}")
    if not measuring.open_cases:
        raise BadInputError("every case was skipped or failed: nothing to record")
    return measuring.blocks


def record_file(options: Namespace) -> None:
    """Records one file, blocks_NNNN.jsonl; an interrupt leaves all that was measured in it.

    Raises BadInputError where the program cannot be served or has no such case.
    """
    number = _next_number(recording_paths(options.folder))
    settings = run_settings(options.run_options)
    settings.base = settings.new = str(options.build)
    # another seed for every file, so that a continued recording does not repeat its orders
    sides = prepare(settings, options.seed + number, Progress())
    # whoever reads it need not know where the program lies
    names = dict.fromkeys(SIDES, Path(PROGRAM_IN_BUILD).name)
    path = options.folder / f"blocks_{number:04d}.jsonl"
    with RecordingWriter(path, {**sides.header, **names}) as writer:
        blocks = record_blocks(sides.measurer, sides.shared, writer, options.record)
    say(f"{blocks} blocks of {len(sides.shared)} cases in {path}")


class Recorded(NamedTuple):
    """Recordings of the same two sides: their blocks, a row of the document that says how they were
    made, and the context of the first base."""

    blocks: PairedBlocks
    row: Json
    context: Json


def _whole_blocks(recording: Recording) -> tuple[dict[str, list[Json]], int]:
    """By case, only blocks in which all cases were measured, in order; and how many were not.

    A case that was measured in less than half of the blocks (skipped, or closed after failures) is
    left out instead of the blocks.
    """
    found = {(item["block"], item["case"]): item for item in recording.case_blocks}
    indices, names = (sorted(set(keys)) for keys in zip(*found, strict=True)) if found else ([], [])
    cases = [n for n in names if 2 * sum((i, n) in found for i in indices) >= len(indices)]
    whole = [i for i in indices if all((i, name) in found for name in cases)]
    by_case = {name: [found[(i, name)] for i in whole] for name in cases}
    return by_case, len(indices) - len(whole)


def _conditions(header: Json) -> Json:
    """What two recordings must share for their blocks to be of one machine and one
    measurement."""
    found = {name: header[name] for name in ("base", "new", "pairs", "slice_seconds")}
    for side in SIDES:
        context = header[f"{side}_context"]
        found[f"{side}_context.device.name"] = context.get("device", {}).get("name")
        for name in ("host_name", "threads", "git_commit", "git_dirty"):
            found[f"{side}_context.{name}"] = context.get(name)
        environment = f"{side}_environment"
        found[environment] = header.get("settings", {}).get(environment) or {}
    return found


def read_recordings(paths: Iterable[Path]) -> Recorded | None:
    """The files in the order of their start, as one recording; None where none has a block in which
    every case was measured, as one that was cut off early.

    Raises BadInputError where one cannot be read, they were not made alike, or have no case in
    common.
    """
    read = [(path, read_recording(path)) for path in paths]
    read.sort(key=lambda item: item[1].header["started"])
    kept: list[tuple[Path, Json]] = []
    blocks: list[PairedBlocks] = []
    seconds, left_out = 0.0, 0
    for path, recording in read:
        by_case, lost = _whole_blocks(recording)
        if not any(by_case.values()):
            continue
        kept.append((path, recording.header))
        values = [[summarise(i["base"], i["new"]) for i in items] for items in by_case.values()]
        timed = recording.case_blocks
        costs = costs_of(timed)
        # what came before the first block
        opening = max(0.0, timed[0]["at"] - costs.of([timed[0]["case"]]))
        costs = costs._replace(opening=opening)
        blocks.append(PairedBlocks(tuple(by_case), np.array(values), costs))
        seconds += max(item["at"] for item in timed)
        left_out += lost
    if not kept:
        return None
    expected = _conditions(kept[0][1])
    for path, header in kept:
        for name, value in _conditions(header).items():
            if value != expected[name]:
                raise BadInputError(
                    f"{path}: {name} is {value!r}, and {expected[name]!r} in {kept[0][0]}: only "
                    "recordings made alike are joined; move one of them away"
                )
    (_, first), found = kept[0], joined(blocks)
    row = {
        "blocks": found.blocks,
        # some case of them failed or was cut short
        "left_out": left_out,
        "cases": list(found.cases),
        "hours": seconds / 3600,
        "started": [header["started"] for _, header in kept],
        **{key: first[key] for key in ("pairs", "slice_seconds")},
        "block_seconds": found.costs.of(found.cases),
    }
    return Recorded(found, row, first["base_context"])


COMMAND = (sys.executable, "-m", "tinyllama_tools", "compare", "run")
_TEXTS = {"type": "array", "items": {"type": "string"}}
_CASE = {
    "type": "object",
    "required": ["name", "outcome", "p_value", "attribution"],
    "properties": {
        "name": {"type": "string"},
        "outcome": {"enum": [outcome.value for outcome in Outcome]},
        "attribution": {"type": ["object", "null"], "required": ["culprit"]},
    },
}
# what is read of a comparison.json
RUN_SCHEMA = {
    "type": "object",
    "required": ["cases", "alpha", "margin", "seconds", "design", "base_context"],
    "properties": {
        "cases": {"type": "array", "items": _CASE},
        "alpha": {"type": "number", "exclusiveMinimum": 0},
        "seconds": {"type": "number"},
        "base_context": {"type": "object", "properties": {"device": {"type": "object"}}},
        "design": {
            "type": "object",
            "required": ["ended", "looks", "pairs", "settings"],
            "properties": {
                "ended": {"type": "string"},
                "settings": {
                    "type": "object",
                    "required": ["arguments", "new_slow", "budget_seconds"],
                    "properties": {
                        "budget_seconds": {"type": "number"},
                        **dict.fromkeys(("arguments", "new_slow"), _TEXTS),
                    },
                },
            },
        },
    },
}


def run_once(options: Namespace) -> Json:
    """One whole run of the command into a folder of its own, run_NNNN; what it found.

    Raises BadInputError where nothing was measured: bad options, or a program that cannot start.
    """
    folder = options.folder / f"run_{_next_number(options.folder.glob('run_????')):04d}"
    rule = [f"--{name}={getattr(options, name):g}" for name in ("alpha", "margin", "looks")]
    sides = [f"--base={options.build}", f"--new={options.build}", f"--output={folder}"]
    slow = [f"--slow-new={text}" for text in options.slow]
    command = [*COMMAND, *sides, *slow, *rule, *options.run_options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if not (folder / "comparison.json").is_file():
        words = last_words(ended.stderr)
        raise BadInputError(f"compare run ended with {ended.returncode}: {words}")
    return read_run(folder / "comparison.json")


def read_run(path: Path) -> Json:
    """BadInputError naming the file and the key that is wrong."""
    run, _ = read_json(path)
    if problem := schema_problem(run, RUN_SCHEMA):
        raise bad_file(path, f"is no comparison of a run: {problem}", "move its folder away")
    return run


def is_judged(run: Json) -> bool:
    """Whether it reached a look; else its budget was too short, or it was interrupted."""
    return any(case["p_value"] is not None for case in run["cases"])


def finished_runs(folder: Path) -> list[Json]:
    """All runs of the folder but those that were interrupted, in order."""
    runs = map(read_run, sorted(folder.glob("run_????/comparison.json")))
    return [run for run in runs if run["design"]["ended"] != "interrupted"]
