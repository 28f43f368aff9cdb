"""What is measured for a calibration, and read back: blocks, recorded with the very pieces that
`compare run` measures with, and whole runs of it.

Every block and every run is on disk when it is done, so whatever was interrupted is continued.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
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
    parse_json,
    schema_problem,
    without_folders,
)
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import last_words
from tinyllama_tools.stats.rank_tests import summarise
from tinyllama_tools.stats.verdicts import BAD_INPUT


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def recording_paths(folder: Path, kind: str) -> list[Path]:
    """What was recorded of a kind so far, oldest first; half-written ones included."""
    found = [p for p in folder.glob("*.jsonl") if re.fullmatch(rf"{kind}_\d{{4}}\.jsonl", p.name)]
    return sorted(found)


def record_blocks(
    measurer: Interleaved,
    cases: Sequence[str],
    writer: RecordingWriter,
    seconds: float,
    most: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures block after block into the file until `seconds` are used up, or `most` blocks are
    there; their number. A block that was begun is finished; the proofs before the first one do not
    count. A case that `compare run` would give up is left out.

    Raises BadInputError where no case is left.
    """
    say(f"proving {len(cases)} cases on both sides")
    measuring = Measuring(measurer, cases, writer.add, Progress())
    measuring.open_all(verify=True)
    started = clock()
    while measuring.open_cases and clock() - started < seconds and measuring.blocks != most:
        measuring.measure_block()
        passed = f"{(clock() - started) / 60:.1f} of {seconds / 60:.1f} minutes"
        say(f"block {measuring.blocks}, {passed}")
    if not measuring.open_cases:
        raise BadInputError("every case was skipped or failed: nothing to record")
    return measuring.blocks


def record_kind(
    kind: str,
    options: Namespace,
    seconds: float,
    *,
    words: Sequence[str] = (),
    slow: Sequence[str] = (),
    most: int | None = None,
) -> None:
    """Records one file, KIND_NNNN.jsonl; an interrupt leaves all that was measured in it.
    `words`: options of `compare run` before the user's; `slow`: of the new side, REGEX=FRACTION.

    Raises BadInputError where the program cannot be served or has no such case.
    """
    taken = recording_paths(options.folder, kind)
    number = int(taken[-1].stem[-4:]) + 1 if taken else 1
    settings = run_settings([*words, *options.run_options])
    settings.base = settings.new = str(options.build)
    settings.slow_new = list(slow)
    # another seed for every file, so that a continued recording does not repeat its orders
    seed = options.seed + number
    sides = prepare(settings, seed, Progress())
    # whoever reads it need not know where the program lies
    names = dict.fromkeys(SIDES, Path(PROGRAM_IN_BUILD).name)
    path = options.folder / f"{kind}_{number:04d}.jsonl"
    with RecordingWriter(path, {**sides.header, **names}) as writer:
        blocks = record_blocks(sides.measurer, sides.shared, writer, seconds, most)
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
    """What two recordings of a kind must share for their blocks to be of one machine and one
    measurement."""
    found = {name: header[name] for name in ("base", "new", "pairs", "slice_seconds", "method")}
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
        **{key: first[key] for key in ("method", "pairs", "slice_seconds")},
        "sides": [first[side] for side in SIDES],
        "block_seconds": found.costs.of(found.cases),
    }
    return Recorded(found, row, first["base_context"])


RUNS = "runs.jsonl"
COMMAND = (sys.executable, "-m", "tinyllama_tools", "compare", "run")
RUN_SCHEMA = {
    "type": "object",
    "required": [
        *("slowdown", "exit_status", "outcomes", "seconds", "options", "culprits", "reason"),
        *("device", "git_commit", "threads"),
    ],
}


def run_once(build: Path, slowdown: Mapping[str, float], options: Sequence[str]) -> Json:
    """One run of the command: a line of RUNS. `slowdown`: of the new side, fraction by expression.

    `outcomes` and `culprits` by case; `reason`: in the words of comparison.json, how it ended
    without a verdict (budget too short), empty where it has one; what it said of that is shown.
    Raises BadInputError where nothing was measured: bad options, or a program that cannot start.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    sides = ["--base", str(build), "--new", str(build)]
    more = [f"--slow-new={pattern}={fraction:.6g}" for pattern, fraction in slowdown.items()]
    with tempfile.TemporaryDirectory(prefix="tiny_llama_calibrate_") as folder:
        command = [*COMMAND, *sides, *more, *options, "--output", folder]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        words = last_words(finished.stderr)
        found = Path(folder) / "comparison.json"
        if not found.is_file():
            raise BadInputError(f"compare run ended with {finished.returncode}: {words}")
        document = json.loads(found.read_text(encoding="utf-8"))
    cases, context = document["cases"], document.get("base_context", {})
    is_judged = finished.returncode != BAD_INPUT
    if not is_judged:
        # before it stands its progress, with files that are gone
        say(words.rpartition("\n")[2])
    blamed = {case["name"]: case["attribution"] for case in cases if case.get("attribution")}
    return {
        "slowdown": dict(slowdown),
        "exit_status": finished.returncode,
        "outcomes": {case["name"]: case["outcome"] for case in cases},
        "seconds": round(time.monotonic() - clock, 1),
        "started": started.isoformat(timespec="seconds"),
        "options": [without_folders(option) for option in options],
        "culprits": {name: attribution["culprit"] for name, attribution in blamed.items()},
        "reason": "" if is_judged else document["design"]["ended"],
        "git_commit": str(context.get("git_commit", "unknown")),
        "device": str(context.get("device", {}).get("name", "unknown")),
        "threads": context.get("threads"),
    }


def keep_run(run: Json, folder: Path) -> None:
    """Adds its line, in place of a last one that was cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUNS
    kept = path.read_bytes() if path.is_file() else b""
    with path.open("ab") as file:
        file.truncate(kept.rfind(b"\n") + 1)
        file.write(json.dumps(run).encode() + b"\n")


def kept_runs(folder: Path) -> list[Json]:
    """All runs of the folder, none where there is no file. A last line cut short is left out.

    Raises BadInputError for a line that is no run, and for a file that is no text.
    """
    path = folder / RUNS
    runs: list[Json] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: is no list of runs: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            runs.append(parse_json(line))
            problem = schema_problem(runs[-1], RUN_SCHEMA)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise BadInputError(f"{path}: line {number} is no run: {problem}")
    return runs
