"""What `scripts/compare calibrate` measures before it analyses: recordings and whole runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from tinyllama_tools.calibrate.analysis import Recordings, Say
from tinyllama_tools.calibrate.attribution_rate import component_of, whole_of
from tinyllama_tools.calibrate.detection_rows import SLOWDOWNS
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
from tinyllama_tools.calibrate.recordings import Recorded, read_recordings
from tinyllama_tools.calibrate.slowdown_build import (
    MOST_FRACTION,
    PARTS,
    slowdown_environment,
    slowdown_program,
)
from tinyllama_tools.compare.attribution_tree import layers_by_size
from tinyllama_tools.compare.build_side import PROGRAM_IN_BUILD
from tinyllama_tools.compare.case_name import parse_case_name
from tinyllama_tools.compare.errors import CompareError

INSIDE = "ffn"
STEP_SLOWDOWN = 0.05


def kind_of_slowdown(fraction: float) -> str:
    """`slowed_5_percent`."""
    return f"slowed_{100 * fraction:g}_percent"


def kind_inside(part: str) -> str:
    """Of recordings that have this part alone slowed."""
    return f"inside_{part}"


def fraction_inside(quiet: PairedBlocks, part: str, change: float) -> float:
    """By how much the part has to be slowed, for the full step to change by `change`.

    Raises CompareError where the recording lacks the step or the part, or no allowed fraction does.
    """
    try:
        whole = whole_of(quiet.summaries)
    except ValueError as error:
        raise CompareError(f"{error}; record it, so that a part of it can be slowed") from error
    name = parse_case_name(whole)
    parts = [case for case in quiet.cases if component_of(case) == part]
    if name is None or not parts:
        raise CompareError(f"{part}: not recorded, so how long it takes is not known")
    layers = layers_by_size()[name.size]
    fraction = change * _median(quiet, whole) / (layers * _median(quiet, parts[0]))
    if fraction > MOST_FRACTION:
        raise CompareError(f"{part} is too small a part of {whole} to slow it by {change:.0%}")
    return fraction


def _median(blocks: PairedBlocks, case: str) -> float:
    times = sorted(summary.base_seconds for summary in blocks.summaries[case])
    return times[len(times) // 2]


def _record_slowed(options: argparse.Namespace, say: Say) -> None:
    """The same time for each kind. Both sides are the slowdown build: only its variable differs."""
    settings = run_settings(options.run_options)
    quiet = read_recordings(recording_paths(options.folder, QUIET)).blocks
    inside = fraction_inside(quiet, INSIDE, STEP_SLOWDOWN)
    say("bringing the slowdown build up to date")
    program = slowdown_program(options.build)
    kinds: dict[str, Mapping[str, float]] = {
        kind_of_slowdown(fraction): dict.fromkeys(PARTS, fraction) for fraction in SLOWDOWNS
    }
    kinds[kind_inside(INSIDE)] = {INSIDE: inside}
    each = HowLong(options.record_slowed / len(kinds))
    for kind, fractions in kinds.items():
        say(f"recording {kind}")
        what = WhatToRecord(kind, program, settings, slowdown_environment(fractions))
        record(what, options.folder, each, options.seed, say=say)


def _do_runs(options: argparse.Namespace, say: Say) -> None:
    """Each run is kept when it is over."""
    program = options.build / PROGRAM_IN_BUILD
    if options.slow:
        program = slowdown_program(options.build)
    environment = slowdown_environment(options.slow)
    rule = ["--alpha", f"{options.alpha:g}", "--margin", f"{options.margin:g}"]
    more = [*rule, "--looks", str(options.looks), *options.run_options]
    for number in range(1, options.runs + 1):
        run = run_once(program, options.slow, environment, more)
        keep_run(run, options.folder)
        found = ", ".join(f"{name} {outcome}" for name, outcome in run.outcomes.items())
        say(f"run {number} of {options.runs}, {run.seconds / 60:.1f} minutes: {found}")


def measure(options: argparse.Namespace, say: Say) -> None:
    """All that the options ask for. Raises CompareError; what was measured stays."""
    if options.record:
        settings = run_settings(options.run_options)
        what = WhatToRecord(QUIET, options.build / PROGRAM_IN_BUILD, settings)
        record(what, options.folder, HowLong(options.record), options.seed, say=say)
    if options.record_slowed:
        _record_slowed(options, say)
    if options.runs:
        _do_runs(options, say)


def recordings_of(folder: Path, files: list[Path]) -> Recordings:
    """`files`, or all A/A recordings of the folder; and its slowed ones.

    Raises CompareError where there is no A/A recording, or one cannot be read.
    """
    quiet = read_recordings(files or recording_paths(folder, QUIET))
    found: dict[str, Recorded] = {}
    for kind in (*map(kind_of_slowdown, SLOWDOWNS), *map(kind_inside, PARTS)):
        paths = recording_paths(folder, kind)
        if paths:
            found[kind] = read_recordings(paths)
    return Recordings(
        quiet,
        {x: found[kind_of_slowdown(x)] for x in SLOWDOWNS if kind_of_slowdown(x) in found},
        {part: found[kind_inside(part)] for part in PARTS if kind_inside(part) in found},
    )
