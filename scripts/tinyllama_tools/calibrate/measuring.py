"""What `scripts/compare calibrate` measures before it analyses: recordings and whole runs."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from tinyllama_tools.calibrate.analysis import Recordings, Say
from tinyllama_tools.calibrate.attribution_rate import component_of, whole_of
from tinyllama_tools.calibrate.detection_rows import SLOWDOWNS
from tinyllama_tools.calibrate.known_slowdown import MOST_FRACTION
from tinyllama_tools.calibrate.paired_blocks import PairedBlocks
from tinyllama_tools.calibrate.real_runs import keep_run, run_once
from tinyllama_tools.calibrate.recorder import (
    QUIET,
    HowLong,
    WhatToRecord,
    record,
    recording_paths,
    run_settings,
)
from tinyllama_tools.calibrate.recordings import Recorded, read_recordings, whole_blocks
from tinyllama_tools.compare.attribution_tree import layers_by_size
from tinyllama_tools.compare.build_side import PROGRAM_IN_BUILD
from tinyllama_tools.compare.recording import read_recording
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.names import parse_case_name

# A/A of as many cases as a family has, so that its families need no case twice
FAMILY = "family"
# eight components at five shapes that take little time: forty cases
FAMILY_OPTIONS = (
    "--components=embedding,rms_norm,rotary,attention,ffn,block,loss,model",
    "--passes=forward_backward",
    "--variants=baseline",
    "--batch=1,2,3,4,5",
    "--seq=64",
)
INSIDE, WHOLE = "ffn", "full_step"
EVERY_CASE = "."
STEP_SLOWDOWN = 0.05
# of a kind, before another kind's turn
ROUND_BLOCKS = 10
# of whole runs, one after the other: the next would not do better
MOST_WITHOUT_VERDICT = 3


def kind_of_slowdown(fraction: float) -> str:
    """`slowed_5_percent`."""
    return f"slowed_{100 * fraction:g}_percent"


def kind_inside(part: str) -> str:
    """Of recordings that have this part alone slowed."""
    return f"inside_{part}"


def fraction_inside(quiet: PairedBlocks, part: str, change: float) -> float:
    """By how much the part has to be slowed, for the full step to change by `change`.

    Raises BadInputError where the recording lacks the step or the part, or no allowed fraction
    does.
    """
    try:
        whole = whole_of(quiet.summaries)
    except ValueError as error:
        raise BadInputError(f"{error}; record it, so that a part of it can be slowed") from error
    name = parse_case_name(whole)
    parts = [case for case in quiet.cases if component_of(case) == part]
    if name is None or not parts:
        raise BadInputError(f"{part}: not recorded, so how long it takes is not known")
    layers = layers_by_size()[name.size]
    fraction = change * _median(quiet, whole) / (layers * _median(quiet, parts[0]))
    if fraction > MOST_FRACTION:
        raise BadInputError(f"{part} is too small a part of {whole} to slow it by {change:.0%}")
    return fraction


def _median(blocks: PairedBlocks, case: str) -> float:
    return statistics.median(summary.base_seconds for summary in blocks.summaries[case])


def _fraction_recorded(folder: Path, part: str) -> float | None:
    """By how much earlier recordings slowed this part: those that continue them do so too.

    Raises BadInputError for a recording that does not say it.
    """
    for path in recording_paths(folder, kind_inside(part)):
        slowed = read_recording(path).header.settings.get("new_slow") or {}
        if _cases_of(part) not in slowed:
            raise BadInputError(f"{path}: made before cases were slowed by --slow; move it away")
        return float(slowed[_cases_of(part)])
    return None


def _cases_of(component: str) -> str:
    """The expression that finds them."""
    return f"^{component}/"


def blocks_recorded(folder: Path, kind: str) -> int:
    """Whole blocks of a kind so far."""
    recordings = map(read_recording, recording_paths(folder, kind))
    return sum(len(next(iter(whole_blocks(r)[0].values()), [])) for r in recordings)


def _record_slowed(options: argparse.Namespace, say: Say) -> None:
    """As many blocks of each kind, in rounds of a few, so that no kind has an hour of its own.

    Both sides are one program: only its option differs. Every kind has one round at least. Where a
    part is slow the step that holds it is: each is slowed by its own share.
    """
    settings = run_settings(options.run_options)
    quiet = read_recordings(recording_paths(options.folder, QUIET)).blocks
    inside = _fraction_recorded(options.folder, INSIDE)
    if inside is None:
        inside = fraction_inside(quiet, INSIDE, STEP_SLOWDOWN)
    program = options.build / PROGRAM_IN_BUILD
    kinds: dict[str, Mapping[str, float]] = {
        kind_of_slowdown(fraction): {EVERY_CASE: fraction} for fraction in SLOWDOWNS
    }
    kinds[kind_inside(INSIDE)] = {_cases_of(INSIDE): inside, _cases_of(WHOLE): STEP_SLOWDOWN}
    each = HowLong(options.record_slowed / len(kinds), ROUND_BLOCKS)
    started, waiting = time.monotonic(), set(kinds)
    while waiting or time.monotonic() - started < options.record_slowed:
        counts = {kind: blocks_recorded(options.folder, kind) for kind in waiting or kinds}
        kind = min(counts, key=lambda name: (counts[name], list(kinds).index(name)))
        waiting.discard(kind)
        say(f"recording {kind}, which has {counts[kind]} blocks")
        what = WhatToRecord(kind, program, settings, kinds[kind])
        record(what, options.folder, each, options.seed, say=say)


def _do_runs(options: argparse.Namespace, say: Say) -> None:
    """Each run is kept when it is over, with a verdict or without.

    Raises BadInputError after three in a row without one, or where the program cannot start.
    """
    program = options.build / PROGRAM_IN_BUILD
    rule = ["--alpha", f"{options.alpha:g}", "--margin", f"{options.margin:g}"]
    more = [*rule, "--looks", str(options.looks), *options.run_options]
    in_a_row = 0
    for number in range(1, options.runs + 1):
        run = run_once(program, options.slow, more)
        keep_run(run, options.folder)
        found = ", ".join(f"{name} {outcome}" for name, outcome in run.outcomes.items())
        what = found if run.has_verdict else f"no verdict: {run.reason}"
        say(f"run {number} of {options.runs}, {run.seconds / 60:.1f} minutes: {what}")
        in_a_row = 0 if run.has_verdict else in_a_row + 1
        if in_a_row == MOST_WITHOUT_VERDICT:
            raise BadInputError(
                f"{in_a_row} runs in a row without a verdict, the last: {run.reason}"
            )


def measure(options: argparse.Namespace, say: Say) -> None:
    """All that the options ask for. Raises BadInputError; what was measured stays."""
    if options.record:
        settings = run_settings(options.run_options)
        what = WhatToRecord(QUIET, options.build / PROGRAM_IN_BUILD, settings)
        record(what, options.folder, HowLong(options.record), options.seed, say=say)
    if options.record_family:
        settings = run_settings([*FAMILY_OPTIONS, *options.run_options])
        what = WhatToRecord(FAMILY, options.build / PROGRAM_IN_BUILD, settings)
        record(what, options.folder, HowLong(options.record_family), options.seed, say=say)
    if options.record_slowed:
        _record_slowed(options, say)
    if options.runs:
        _do_runs(options, say)


def recordings_of(folder: Path, files: list[Path]) -> Recordings:
    """`files`, or all A/A recordings of the folder; and its slowed ones.

    Raises BadInputError where there is no A/A recording, or one cannot be read.
    """
    quiet = read_recordings(files or recording_paths(folder, QUIET))
    family = recording_paths(folder, FAMILY)
    found: dict[str, Recorded] = {}
    for kind in (*map(kind_of_slowdown, SLOWDOWNS), kind_inside(INSIDE)):
        paths = recording_paths(folder, kind)
        if paths:
            found[kind] = read_recordings(paths)
    return Recordings(
        quiet,
        {x: found[kind_of_slowdown(x)] for x in SLOWDOWNS if kind_of_slowdown(x) in found},
        {INSIDE: found[kind_inside(INSIDE)]} if kind_inside(INSIDE) in found else {},
        read_recordings(family) if family else None,
    )
