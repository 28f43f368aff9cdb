"""What is measured for a calibration, and read back: blocks, recorded with the very pieces that
`compare run` measures with, and whole runs of it, each in a folder of its own.

Every block and every run is on disk when it is done, so whatever was interrupted is continued.
"""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinyllama_tools.calibrate.rates import PairedBlocks
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
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json, read_json
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import last_words
from tinyllama_tools.stats.rank_tests import summarise


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def next_path(folder: Path, kind: str) -> Path:
    """KIND_NNNN, with the number after the last."""
    paths = folder.glob(f"{kind}_[0-9][0-9][0-9][0-9]*")
    taken = [int(path.name.removeprefix(f"{kind}_")[:4]) for path in paths]
    return folder / f"{kind}_{max(taken, default=0) + 1:04d}"


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
    path = next_path(options.folder, "blocks").with_suffix(".jsonl")
    settings = run_settings(options.run_options)
    settings.base = settings.new = str(options.build)
    sides = prepare(settings, options.seed, Progress())
    # whoever reads it need not know where the program lies
    names = dict.fromkeys(SIDES, Path(PROGRAM_IN_BUILD).name)
    with RecordingWriter(path, {**sides.header, **names}) as writer:
        blocks = record_blocks(sides.measurer, sides.shared, writer, options.record)
    say(f"{blocks} blocks of {len(sides.shared)} cases in {path}")


class Recorded(NamedTuple):
    """A recording: its blocks, how they were made, as a row of the document, and the context of its
    base."""

    blocks: PairedBlocks
    row: Json
    context: Json


def _whole_blocks(recording: Recording) -> tuple[dict[str, list[Json]], int]:
    """By case, only blocks in which all cases were measured, in order; and how many were not.

    A case that was measured in less than half of the blocks (skipped, or closed after failures) is
    left out instead of the blocks.
    """
    found = {(item["block"], item["case"]): item for item in recording.blocks}
    indices, names = (sorted(set(keys)) for keys in zip(*found, strict=True)) if found else ([], [])
    cases = [n for n in names if 2 * sum((i, n) in found for i in indices) >= len(indices)]
    whole = [i for i in indices if all((i, name) in found for name in cases)]
    by_case = {name: [found[(i, name)] for i in whole] for name in cases}
    return by_case, len(indices) - len(whole)


# one has no scatter
FEWEST_BLOCKS = 2


def read_blocks(path: Path) -> Recorded:
    """BadInputError where it cannot be read, or has too few blocks in which every case was
    measured, as one that was cut off early."""
    recording = read_recording(path)
    by_case, left_out = _whole_blocks(recording)
    count = max(map(len, by_case.values()), default=0)
    if count < FEWEST_BLOCKS:
        raise BadInputError(
            f"{path}: recorded blocks in which every case was measured: {count}, and at least "
            f"{FEWEST_BLOCKS} are needed; record more: `scripts/compare calibrate --record 30m`"
        )
    values = [[summarise(i["base"], i["new"]) for i in items] for items in by_case.values()]
    timed, header = recording.blocks, recording.header
    costs = costs_of(timed)
    # what came before the first block
    costs = costs._replace(opening=max(0.0, timed[0]["at"] - costs.of([timed[0]["case"]])))
    row = {
        "blocks": count,
        # some case of them failed or was cut short
        "left_out": left_out,
        "cases": list(by_case),
        "hours": max(item["at"] for item in timed) / 3600,
        **{key: header[key] for key in ("started", "pairs", "slice_seconds")},
        "block_seconds": costs.of(by_case),
    }
    blocks = PairedBlocks(tuple(by_case), np.array(values), costs)
    return Recorded(blocks, row, header["base_context"])


COMMAND = (sys.executable, "-m", "tinyllama_tools", "compare", "run")


def run_once(options: Namespace) -> Json:
    """One whole run of the command into a folder of its own, run_NNNN; what it found.

    Raises BadInputError where nothing was measured: bad options, or a program that cannot start.
    """
    folder = next_path(options.folder, "run")
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
    return read_json(folder / "comparison.json")[0]


def is_judged(run: Json) -> bool:
    """Whether it reached a look; else its budget was too short."""
    return any(case["p_value"] is not None for case in run["cases"])


def finished_runs(folder: Path) -> list[Json]:
    """All runs of the folder but those that were interrupted, in order."""
    runs = [read_json(path)[0] for path in sorted(folder.glob("run_????/comparison.json"))]
    return [run for run in runs if run["design"]["ended"] != "interrupted"]
