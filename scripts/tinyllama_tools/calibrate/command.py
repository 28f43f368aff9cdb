"""How often the comparison errs on this machine, and what it finds: recorded, resampled, written.

Example: scripts/compare calibrate --record 60m
         scripts/compare calibrate --record-family 60m
         scripts/compare calibrate --record-slowed 60m
         scripts/compare calibrate --runs 50 -- --budget 10m
         scripts/compare calibrate

--record, --record-... and --runs measure, and add to what --folder has; each block and each run
is on disk when it is done, so whatever was interrupted goes on with the next start. Without them,
all that the folder has is analysed: false alarms a family, detection, and this machine's noise
profile, which `scripts/compare BASE.json NEW.json` reads.

Exit status: 0 no more false alarms than --alpha allows; 1 more, in any row, in the check of the
recordings' earlier half or in the whole runs; 2 bad input, or nothing recorded;
3 with --strict, where there are too few families, blocks or whole runs to show it; 130 interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tinyllama_tools.calibrate.page import calibration_page, target_rows
from tinyllama_tools.calibrate.rates import (
    SLOWDOWNS,
    WHOLE_STEP,
    Effort,
    Rule,
    attribution_row,
    component_of,
    detection_rows,
    false_alarm_row,
    recorded_rows,
    simulated_rows,
    whole_of,
)
from tinyllama_tools.calibrate.record import (
    Recorded,
    WhatToRecord,
    blocks_recorded,
    read_recordings,
    record,
    recording_paths,
)
from tinyllama_tools.calibrate.runs import keep_run, kept_runs, run_once, run_rows
from tinyllama_tools.calibrate.standing import BROKEN, HELD, NOT_SHOWN
from tinyllama_tools.compare.comparison import layers_by_size
from tinyllama_tools.compare.noise import DEFAULT_PATH, noise_profile, scatter
from tinyllama_tools.compare.options import duration_of, fraction, run_settings
from tinyllama_tools.compare.recording import read_recording
from tinyllama_tools.compare.sides import PROGRAM_IN_BUILD
from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    changed_files,
    head_commit,
    write_whole,
)
from tinyllama_tools.core.options import positive
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.nameless import nameless_context, names_alone
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    BAD_INPUT,
    LOOKS,
    MARGIN,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
)

if TYPE_CHECKING:
    from tinyllama_tools.calibrate.draws import PairedBlocks

MOST_FRACTION = 10.0


def slowdown(text: str) -> dict[str, float]:
    """`^ffn/=0.05`."""
    pattern, separator, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not separator or not 0 < value <= MOST_FRACTION:
        allowed = f"REGEX=FRACTION with a fraction above 0, at most {MOST_FRACTION:g}"
        raise argparse.ArgumentTypeError(f"'{text}': must be {allowed}, such as ^ffn/=0.05")
    return {pattern: value}


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    add = parser.add_argument_group("measuring (nothing is analysed then)").add_argument
    record = "record A/A blocks for that long, such as 30m"
    add("--record", type=duration_of, metavar="TIME", help=record)
    family = "record A/A blocks of 40 cases, a family of their own for false alarms"
    add("--record-family", type=duration_of, metavar="TIME", help=family)
    slowed = "record that long with cases slowed: all by 2, 5 and 10 %%, then the FFN and the step"
    add("--record-slowed", type=duration_of, metavar="TIME", help=slowed)
    runs = "do that many whole runs of `compare run`, A/A unless --slow is given"
    add("--runs", type=positive, metavar="N", help=runs)
    slow = "what the new side of --runs is slowed by, such as ^ffn/=0.05"
    add("--slow", type=slowdown, default={}, metavar="REGEX=FRACTION", help=slow)
    build = "the build that is calibrated (default: build)"
    add("--build", type=Path, default=PROJECT / "build", metavar="FOLDER", help=build)
    more = "options of `compare run` after --: cases, --pairs, --slice, --threads, --budget"
    add("run_options", nargs="*", metavar="-- OPTIONS", help=more)
    add = parser.add_argument_group("analysis").add_argument
    add("--simulate", action="store_true", help="simulated data only: nothing is measured or read")
    recordings = "A/A recordings to analyse, instead of all that the folder has"
    add("--recordings", type=Path, nargs="+", default=[], metavar="FILE", help=recordings)
    add("--families", type=positive, default=10_000, help="default: %(default)s")
    add("--cases", type=positive, default=40, help="of a family (default: %(default)s)")
    tries = "of detection, a case and slowdown (default: %(default)s)"
    add("--tries", type=positive, default=300, help=tries)
    jobs = "processes that compute (default: %(default)s)"
    add("--jobs", type=positive, default=os.cpu_count() or 1, help=jobs)
    add("--seed", type=positive, default=1, help="of all draws (default: %(default)s)")
    alpha = "chance of a false verdict in a family that is held against (default: %(default)s)"
    add("--alpha", type=fraction, default=ALPHA, help=alpha)
    add("--margin", type=fraction, default=MARGIN, help="as in compare run (default: %(default)s)")
    add("--looks", type=positive, default=LOOKS, help="as in compare run (default: %(default)s)")
    strict = "exit 3 where there are too few families, blocks or runs to show that alpha holds"
    add("--strict", action="store_true", help=strict)
    add = parser.add_argument_group("files").add_argument
    folder = "recordings, runs, and what is made of them (default: results/calibration)"
    add("--folder", type=Path, default=RESULTS / "calibration", help=folder)
    profile = "where the noise profile goes, for `compare` (default: results/noise_profile.json)"
    add("--noise-profile", type=Path, default=DEFAULT_PATH, metavar="FILE", help=profile)


def measures(options: argparse.Namespace) -> bool:
    """Whether something is measured; then nothing is analysed."""
    return any((options.record, options.record_family, options.record_slowed, options.runs))


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.simulate and (measures(options) or options.recordings):
        parser.error("--simulate: reads and measures nothing, so no --record, --recordings, ...")
    if options.slow and not options.runs:
        parser.error("--slow: slows the runs of --runs N, which is missing")
    if options.run_options and not measures(options):
        parser.error(f"-- {' '.join(options.run_options)}: only with --record, ... or --runs")
    return options


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# kinds of recordings. A family: as many cases as one has, so that its families need no case twice
QUIET, FAMILY = "quiet", "family"
# eight components at five shapes that take little time: forty cases
FAMILY_OPTIONS = (
    "--components=embedding,rms_norm,rotary,attention,ffn,block,loss,model",
    "--passes=forward_backward",
    "--variants=baseline",
    "--batch=1,2,3,4,5",
    "--seq=64",
)
# the part that is slowed for attribution, and by how much the full step is to change
INSIDE, STEP_SLOWDOWN = "ffn", 0.05
INSIDE_KIND = f"inside_{INSIDE}"
SLOWED_KINDS = {x: f"slowed_{100 * x:g}_percent" for x in SLOWDOWNS}
# of a kind, before another kind's turn
ROUND_BLOCKS = 10
# of whole runs, one after the other: the next would not do better
MOST_WITHOUT_VERDICT = 3


def fraction_inside(quiet: PairedBlocks, part: str, change: float) -> float:
    """By how much the part has to be slowed, for the full step to change by `change`.

    Raises BadInputError where the recording lacks the step or the part, or no allowed fraction
    does.
    """
    try:
        whole = whole_of(quiet)
    except ValueError as error:
        raise BadInputError(f"{error}; record it, so that a part of it can be slowed") from error
    name = parse_case_name(whole)
    parts = [case for case in quiet.cases if component_of(case) == part]
    if name is None or not parts:
        raise BadInputError(f"{part}: not recorded, so how long it takes is not known")
    whole_seconds, part_seconds = (
        statistics.median(summary.base_seconds for summary in quiet.summaries[case])
        for case in (whole, parts[0])
    )
    found = change * whole_seconds / (layers_by_size()[name.size] * part_seconds)
    if found > MOST_FRACTION:
        raise BadInputError(f"{part} is too small a part of {whole} to slow it by {change:.0%}")
    return found


def _slowed_inside(folder: Path, quiet: PairedBlocks) -> dict[str, float]:
    """The part by what changes the step so, and the step that holds it: where a part is slow the
    step is too. Recordings that are continued are slowed as before."""
    part = f"^{INSIDE}/"
    earlier = recording_paths(folder, INSIDE_KIND)
    if earlier:
        settings = read_recording(earlier[0]).header.settings.get("new_slow") or {}
        if part not in settings:
            raise BadInputError(f"{earlier[0]}: does not say how {part} was slowed; move it away")
        found = float(settings[part])
    else:
        found = fraction_inside(quiet, INSIDE, STEP_SLOWDOWN)
    return {part: found, f"^{WHOLE_STEP}/": STEP_SLOWDOWN}


def _record_slowed(options: argparse.Namespace) -> None:
    """As many blocks of each kind, in rounds of a few, so that no kind has an hour of its own.

    Both sides are one program: only its option differs. Every kind has one round at least.
    """
    settings, program = run_settings(options.run_options), options.build / PROGRAM_IN_BUILD
    quiet = read_recordings(recording_paths(options.folder, QUIET)).blocks
    kinds: dict[str, Mapping[str, float]] = {kind: {".": x} for x, kind in SLOWED_KINDS.items()}
    kinds[INSIDE_KIND] = _slowed_inside(options.folder, quiet)
    started, waiting = time.monotonic(), set(kinds)
    while waiting or time.monotonic() - started < options.record_slowed:
        counts = {kind: blocks_recorded(options.folder, kind) for kind in waiting or kinds}
        kind = min(counts, key=lambda name: (counts[name], list(kinds).index(name)))
        waiting.discard(kind)
        _say(f"recording {kind}, which has {counts[kind]} blocks")
        what = WhatToRecord(kind, program, settings, kinds[kind])
        seconds = options.record_slowed / len(kinds)
        record(what, options.folder, seconds, options.seed, most=ROUND_BLOCKS, say=_say)


def _do_runs(options: argparse.Namespace) -> None:
    """Each run is kept when it is over, with a verdict or without.

    Raises BadInputError after three in a row without one, or where the program cannot start.
    """
    rule = ["--alpha", f"{options.alpha:g}", "--margin", f"{options.margin:g}"]
    more = [*rule, "--looks", str(options.looks), *options.run_options]
    in_a_row = 0
    for number in range(1, options.runs + 1):
        run = run_once(options.build / PROGRAM_IN_BUILD, options.slow, more)
        keep_run(run, options.folder)
        has_verdict = run["exit_status"] != BAD_INPUT
        found = ", ".join(f"{name} {outcome}" for name, outcome in run["outcomes"].items())
        what = found if has_verdict else f"no verdict: {run['reason']}"
        _say(f"run {number} of {options.runs}, {run['seconds'] / 60:.1f} minutes: {what}")
        in_a_row = 0 if has_verdict else in_a_row + 1
        if in_a_row == MOST_WITHOUT_VERDICT:
            raise BadInputError(
                f"{in_a_row} runs in a row without a verdict, the last: {run['reason']}"
            )


def measure(options: argparse.Namespace) -> None:
    """All that the options ask for. Raises BadInputError; what was measured stays."""
    program, own = options.build / PROGRAM_IN_BUILD, options.run_options
    for kind, seconds, words in (
        (QUIET, options.record, own),
        (FAMILY, options.record_family, [*FAMILY_OPTIONS, *own]),
    ):
        if seconds:
            what = WhatToRecord(kind, program, run_settings(words))
            record(what, options.folder, seconds, options.seed, say=_say)
    if options.record_slowed:
        _record_slowed(options)
    if options.runs:
        _do_runs(options)


def recording_row(name: str, recorded: Recorded) -> Json:
    """What was recorded, and how."""
    first = recorded.headers[0]
    return {
        "name": name,
        "blocks": recorded.blocks.blocks,
        "left_out": recorded.left_out,
        "cases": list(recorded.blocks.cases),
        "hours": recorded.hours,
        "started": [header.started for header in recorded.headers],
        "method": first.method,
        "pairs": first.pairs,
        "slice_seconds": first.slice_seconds,
        "sides": [first.base, first.new],
        "block_seconds": recorded.blocks.costs.of(recorded.blocks.cases),
    }


def autocorrelation(logs: Sequence[float]) -> float | None:
    """Of a block's log-ratio with the next block's; None for fewer than three, or all the same.

    Far from 0 it says that blocks are no independent sample, which the test takes them for.
    """
    apart = np.array(logs) - np.mean(logs)
    scale = float((apart**2).sum())
    return float((apart[:-1] * apart[1:]).sum() / scale) if len(logs) >= 3 and scale else None


def noise_rows(data: PairedBlocks) -> list[Json]:
    """Of each case: scatter of whole processes, and of what blocks make of it."""
    rows: list[Json] = []
    for name, summaries in data.summaries.items():
        between, degrees = scatter(summaries)
        logs = [summary.log_ratio for summary in summaries]
        rows.append(
            {
                "case": name,
                "median_seconds": statistics.median(s.base_seconds for s in summaries),
                "processes": between,
                "blocks": statistics.stdev(logs),
                "degrees": degrees,
                "autocorrelation": autocorrelation(logs),
            }
        )
    return rows


EARLIER_HALF, LATER_HALF = "recorded, earlier half", "recorded, later half"


def recorded_part(quiet: Recorded, folder: Path, rule: Rule, effort: Effort) -> Json:
    """What the folder's recordings and runs show. False alarms are counted of the A/A family where
    one was recorded. Raises ValueError where there are too few blocks."""
    paths = {kind: recording_paths(folder, kind) for kind in (*SLOWED_KINDS.values(), INSIDE_KIND)}
    slowed = {kind: read_recordings(found) for kind, found in paths.items() if found}
    family_paths = recording_paths(folder, FAMILY)
    family = read_recordings(family_paths) if family_paths else None
    _, later = quiet.blocks.halves()
    earlier_family, later_family = (family or quiet).blocks.halves()
    _say(f"{effort.families} families of the earlier half of the blocks, and thrice of the later")
    check = false_alarm_row(EARLIER_HALF, earlier_family, rule, effort)
    false_alarms = recorded_rows(LATER_HALF, later_family, rule, effort)
    _say(f"{effort.tries} tries a case and slowdown")
    injected = {x: slowed[kind].blocks for x, kind in SLOWED_KINDS.items() if kind in slowed}
    # the parts and the model are a family of its own, since a step takes longer than all of them
    parts = [name for name in later.cases if component_of(name) != WHOLE_STEP]
    detection = detection_rows(later.only(parts or later.cases), injected, rule, effort)
    inside = slowed.get(INSIDE_KIND)
    design = rule.design(len(quiet.blocks.cases))
    everything = {"A/A": quiet}
    if family:
        everything["A/A, a family of its own"] = family
    for x, kind in SLOWED_KINDS.items():
        if kind in slowed:
            everything[f"every case slowed by {x:.0%}"] = slowed[kind]
    if inside:
        everything[f"slowed inside {INSIDE}"] = inside
    return {
        "recordings": [recording_row(name, found) for name, found in everything.items()],
        "check": check,
        "false_alarms": false_alarms,
        "detection": detection,
        "attribution": [attribution_row(inside.blocks, INSIDE, design, effort)] if inside else [],
        "runs": run_rows(kept_runs(folder)),
        "noise": noise_rows(quiet.blocks),
    }


def document_standing(document: Json) -> str:
    """`broken` where any row of false alarms is, or the check of the earlier half, or the real A/A
    runs of any group; else `not shown` where any row or all real A/A runs are, else `held`."""
    rows = [row["standing"] for row in document["false_alarms"]]
    runs = [row["standing"] for row in document.get("runs", []) if "standing" in row]
    check = [document["check"]["standing"]] if "check" in document else []
    if BROKEN in {*rows, *runs, *check}:
        return BROKEN
    are_runs_shown = "runs" not in document or HELD in runs
    return HELD if are_runs_shown and NOT_SHOWN not in rows else NOT_SHOWN


DOCUMENT, PAGE = "calibration.json", "CALIBRATION.md"
KIND, SCHEMA_VERSION = "tiny_llama calibration", 1
EXPANDED = (
    "targets", "recordings", "false_alarms", "runs", "detection", "attribution", "noise",
)  # fmt: skip


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    _say(str(path))


def _analyse(options: argparse.Namespace, arguments: Sequence[str]) -> Json:
    """The document, written with its page and, of recordings, the noise profile."""
    rule = Rule(options.alpha, options.margin, options.looks)
    effort = Effort(options.families, options.cases, options.tries, options.jobs, options.seed)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    context: Json = {}
    if not options.simulate:
        quiet = read_recordings(options.recordings or recording_paths(options.folder, QUIET))
        header = quiet.headers[0]
        context = nameless_context(header.base_context)
    # what the figures belong to: the commit that was recorded, else the one that computes
    meta = {
        "date": now if options.simulate else header.started,
        "computed": now,
        "commit": str(context.get("git_commit", head_commit(PROJECT) or "unknown")),
        "dirty": bool(context.get("git_dirty", changed_files(PROJECT))),
        "command": shlex.join(["scripts/compare", "calibrate", *names_alone(list(arguments))]),
    }
    _say(f"{effort.families} simulated families of {effort.cases} cases")
    document: Json = {
        "meta": meta,
        **({} if options.simulate else {"context": context}),
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "rule": asdict(rule),
        "effort": asdict(effort),
        "false_alarms": simulated_rows(rule, effort),
    }
    if not options.simulate:
        found = recorded_part(quiet, options.folder, rule, effort)
        document |= {**found, "false_alarms": document["false_alarms"] + found["false_alarms"]}
        document["targets"] = target_rows(document)
        profile = noise_profile(quiet.blocks.summaries, header.base_context, header.started)
        _write(options.noise_profile, json.dumps(profile, indent=1) + "\n")
    _write(options.folder / DOCUMENT, compact_json(document, EXPANDED))
    _write(options.folder / PAGE, calibration_page(document))
    return document


def main(arguments: Sequence[str]) -> int:
    """Measures, or analyses and writes; the exit status."""
    options = parse_options(arguments)
    try:
        if measures(options):
            measure(options)
            return NO_REGRESSION
        document = _analyse(options, arguments)
    except ValueError as error:
        # too few blocks, a rule that cannot be, a part that there is none of
        raise BadInputError(str(error)) from error
    print(calibration_page(document))
    found = document_standing(document)
    if found == BROKEN:
        return REGRESSION
    return STILL_UNCLEAR if found == NOT_SHOWN and options.strict else NO_REGRESSION
