"""How often the comparison errs on this machine, and what it finds: recorded, resampled, written.

Example: scripts/compare calibrate --record 60m
         scripts/compare calibrate --record-family 60m
         scripts/compare calibrate --record-slowed 60m
         scripts/compare calibrate --runs 50 -- --budget 10m
         scripts/compare calibrate --publish 2core_xeon_avx512

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
import math
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from tinyllama_tools.calibrate.draws import SCENARIOS, PairedBlocks, has_enough_blocks
from tinyllama_tools.calibrate.page import calibration_page, target_rows
from tinyllama_tools.calibrate.rates import (
    BROKEN,
    HELD,
    NOT_SHOWN,
    SIMULATED,
    SLOWDOWNS,
    TEN_MINUTES,
    WHOLE_STEP,
    AttributionRate,
    Effort,
    Rule,
    attribution_rate,
    component_of,
    detection_rows,
    false_alarm_row,
    recorded_rows,
    rows_together,
    simulated_row,
    whole_of,
)
from tinyllama_tools.calibrate.record import (
    MOST_FRACTION,
    QUIET,
    HowLong,
    Recorded,
    WhatToRecord,
    parse_slowdown,
    published_text,
    read_recordings,
    record,
    recording_paths,
    run_settings,
    whole_blocks,
)
from tinyllama_tools.calibrate.runs import (
    RealRun,
    keep_run,
    kept_runs,
    published_arguments,
    run_once,
    run_rows,
)
from tinyllama_tools.compare.comparison import layers_by_size
from tinyllama_tools.compare.noise import DEFAULT_PATH, noise_profile, scatter
from tinyllama_tools.compare.options import duration_of, fraction
from tinyllama_tools.compare.recording import read_recording
from tinyllama_tools.compare.sides import PROGRAM_IN_BUILD
from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    changed_files,
    head_commit,
    write_whole,
)
from tinyllama_tools.core.options import machine, positive
from tinyllama_tools.core.text import compact_json
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.data.publish import published_context
from tinyllama_tools.stats.looks import BlockSummary
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    BAD_INPUT,
    LOOKS,
    MARGIN,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
)

FAMILIES, FAMILY_CASES, TRIES, SEED = 10_000, 40, 300, 1


def slowdown(text: str) -> dict[str, float]:
    """`ffn:0.05,loss:0.1`."""
    try:
        return parse_slowdown(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring (nothing is analysed then)")
    add = group.add_argument
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
    add(
        "run_options",
        nargs="*",
        metavar="-- OPTIONS",
        help="options of `compare run` after --: cases, --pairs, --slice, --threads, --budget",
    )


def _add_analysis(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("analysis")
    add = group.add_argument
    add("--simulate", action="store_true", help="simulated data only: nothing is measured or read")
    recordings = "A/A recordings to analyse, instead of all that the folder has"
    add("--recordings", type=Path, nargs="+", default=[], metavar="FILE", help=recordings)
    add("--families", type=positive, default=FAMILIES, help="default: %(default)s")
    add("--cases", type=positive, default=FAMILY_CASES, help="of a family (default: %(default)s)")
    tries = "of detection, a case and slowdown (default: %(default)s)"
    add("--tries", type=positive, default=TRIES, help=tries)
    jobs = "processes that compute (default: %(default)s)"
    add("--jobs", type=positive, default=os.cpu_count() or 1, help=jobs)
    add("--seed", type=positive, default=SEED, help="of all draws (default: %(default)s)")
    alpha = "chance of a false verdict in a family that is held against (default: %(default)s)"
    add("--alpha", type=fraction, default=ALPHA, help=alpha)
    add("--margin", type=fraction, default=MARGIN, help="as in compare run (default: %(default)s)")
    add("--looks", type=positive, default=LOOKS, help="as in compare run (default: %(default)s)")
    strict = "exit 3 where there are too few families, blocks or runs to show that alpha holds"
    add("--strict", action="store_true", help=strict)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    _add_measuring(parser)
    _add_analysis(parser)
    group = parser.add_argument_group("files")
    group.add_argument(
        "--folder",
        type=Path,
        default=RESULTS / "calibration",
        help="recordings, runs, and what is made of them (default: results/calibration)",
    )
    group.add_argument(
        "--noise-profile",
        type=Path,
        default=DEFAULT_PATH,
        metavar="FILE",
        help="where the noise profile goes, for `compare` (default: results/noise_profile.json)",
    )
    group.add_argument(
        "--publish",
        type=machine,
        metavar="MACHINE",
        help="also write results/CALIBRATION.md, and to results/reference/ "
        "calibration_MACHINE.json and paired_blocks_MACHINE.jsonl",
    )


def measures(options: argparse.Namespace) -> bool:
    """Whether something is measured; then nothing is analysed."""
    asked = (options.record, options.record_family, options.record_slowed, options.runs)
    return any(asked)


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with status 2 where options contradict each other."""
    if options.simulate and (measures(options) or options.recordings or options.publish):
        parser.error("--simulate: reads and measures nothing, so no --record, --recordings, ...")
    if options.publish and measures(options):
        parser.error("--publish: of an analysis, so without --record, --record-... and --runs")
    if options.slow and not options.runs:
        parser.error("--slow: slows the runs of --runs N, which is missing")
    if options.run_options and not measures(options):
        parser.error(f"-- {' '.join(options.run_options)}: only with --record, ... or --runs")


KIND = "tiny_llama calibration"
SCHEMA_VERSION = 1
EARLIER_HALF, LATER_HALF = "recorded, earlier half", "recorded, later half"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recordings:
    """`injected`: by slowdown of every part. `inside`: with one part slowed so that the full step
    is about 5 % slower, by that part. `family`: A/A of a whole family of cases, which false alarms
    are counted of where there is one."""

    quiet: Recorded
    injected: Mapping[float, Recorded] = field(default_factory=dict)
    inside: Mapping[str, Recorded] = field(default_factory=dict)
    family: Recorded | None = None


def simulated_rows(rule: Rule, effort: Effort, say: Say) -> list[Json]:
    """False alarms of every scenario, and of all of them together."""
    rows: list[Json] = []
    each = replace(effort, families=math.ceil(effort.families / len(SCENARIOS)))
    for name in SCENARIOS:
        say(f"{each.families} families, {SIMULATED}{name}")
        rows.append(simulated_row(SIMULATED + name, name, rule, each))
    return [*rows, rows_together(SIMULATED + "all of these", rows)]


def recording_row(name: str, recorded: Recorded) -> Json:
    """What was recorded, and how."""
    first = recorded.headers[0]
    costs = recorded.blocks.costs
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
        "block_seconds": costs.of(recorded.blocks.cases),
    }


def noise_rows(data: PairedBlocks) -> list[Json]:
    """Of each case: scatter of whole processes, and of what blocks make of it."""
    rows: list[Json] = []
    for name, summaries in data.summaries.items():
        between, degrees = scatter(summaries)
        rows.append(
            {
                "case": name,
                "median_seconds": statistics.median(s.base_seconds for s in summaries),
                "processes": between,
                "blocks": statistics.stdev(s.log_ratio for s in summaries),
                "degrees": degrees,
                "autocorrelation": autocorrelation(summaries),
            }
        )
    return rows


def autocorrelation(summaries: Sequence[BlockSummary]) -> float | None:
    """Of a block's log-ratio with the next block's; None for fewer than three, or all the same.

    Far from 0 it says that blocks are no independent sample, which the test takes them for.
    """
    logs = np.array([summary.log_ratio for summary in summaries])
    apart = logs - logs.mean()
    scale = float((apart**2).sum())
    if len(logs) < 3 or scale == 0:
        return None
    return float((apart[:-1] * apart[1:]).sum() / scale)


def without_step(data: PairedBlocks) -> PairedBlocks:
    """The parts and the model: a family of its own, since a step takes longer than all of them.

    All cases where there is nothing but the step.
    """
    parts = [name for name in data.cases if component_of(name) != WHOLE_STEP]
    return data.only(parts) if parts else data


def attribution_json(rate: AttributionRate) -> Json:
    """Of one slowed part."""
    return {
        "part": rate.part,
        "change": rate.change,
        "drawing": rate.drawing,
        "found": rate.found.as_json(),
        "attributed": rate.attributed.as_json(),
        "culprits": dict(rate.culprits),
        "blocks": rate.blocks,
        "blocks_needed": rate.blocks_needed,
        "is_shown": has_enough_blocks(rate.blocks, rate.blocks_needed),
    }


def simulated_document(rule: Rule, effort: Effort, say: Say) -> Json:
    """Of simulated data only."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "rule": asdict(rule),
        "effort": asdict(effort),
        "false_alarms": simulated_rows(rule, effort, say),
    }


def calibration_document(
    recordings: Recordings, runs: Sequence[RealRun], rule: Rule, effort: Effort, say: Say
) -> Json:
    """Everything. Raises ValueError where there are too few blocks, DesignError for a bad rule."""
    quiet = recordings.quiet.blocks
    _, later = quiet.halves()
    family = (recordings.family or recordings.quiet).blocks
    earlier_family, later_family = family.halves()
    document = simulated_document(rule, effort, say)
    say(f"{effort.families} families of the earlier half of {family.blocks} blocks")
    check = false_alarm_row(EARLIER_HALF, earlier_family, rule, effort)
    say(f"{effort.families} families of the later half, three times")
    recorded = recorded_rows(LATER_HALF, later_family, rule, effort)
    say(f"{effort.tries} tries a case and slowdown")
    injected = {x: found.blocks for x, found in recordings.injected.items()}
    detection = detection_rows(without_step(later), injected, rule, effort)
    design = rule.design(len(quiet.cases))
    say("attribution")
    blame = [
        attribution_rate(
            found.blocks,
            part,
            design,
            budget=TEN_MINUTES,
            tries=effort.tries,
            seed=effort.seed,
            jobs=effort.jobs,
        )
        for part, found in recordings.inside.items()
    ]
    everything = {
        "A/A": recordings.quiet,
        **({"A/A, a family of its own": recordings.family} if recordings.family else {}),
        **{f"every case slowed by {x:.0%}": found for x, found in recordings.injected.items()},
        **{f"slowed inside {part}": found for part, found in recordings.inside.items()},
    }
    found = {
        **document,
        "recordings": [recording_row(name, found) for name, found in everything.items()],
        "check": check,
        "false_alarms": [*document["false_alarms"], *recorded],
        "detection": detection,
        "attribution": [attribution_json(rate) for rate in blame],
        "runs": run_rows(runs),
        "noise": noise_rows(quiet),
    }
    return {**found, "targets": target_rows(found)}


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


DOCUMENT, PAGE = "calibration.json", "CALIBRATION.md"
# of a file in the repository
MOST_BYTES = 2_000_000
EXPANDED = (
    "targets",
    "recordings",
    "false_alarms",
    "runs",
    "detection",
    "attribution",
    "noise",
)


def _write(files: Mapping[Path, str]) -> list[Path]:
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise BadInputError(f"{path}: cannot be written: {error.strerror}") from error
    return list(files)


def write_calibration(document: Json, folder: Path) -> list[Path]:
    """The document and its page; BadInputError where they cannot be written."""
    text = compact_json(document, EXPANDED)
    return _write({folder / DOCUMENT: text, folder / PAGE: calibration_page(document)})


def write_noise_profile(profile: Json, path: Path) -> list[Path]:
    """For comparisons of stored results; BadInputError where it cannot be written."""
    return _write({path: json.dumps(profile, indent=1) + "\n"})


def small_enough(recorded: Recorded, most_bytes: int = MOST_BYTES) -> str:
    """The recording as text, with as many of its latest blocks as the file may hold."""
    text = published_text(recorded)
    blocks = recorded.blocks
    while len(text) > most_bytes and blocks.blocks > 1:
        fewer = int(blocks.blocks * most_bytes / len(text) * 0.98)
        blocks = _latest(blocks, max(1, fewer))
        text = published_text(Recorded(blocks, recorded.headers, recorded.hours, 0))
    return text


def _latest(blocks: PairedBlocks, count: int) -> PairedBlocks:
    return blocks.part(blocks.blocks - count, blocks.blocks)


def publish(document: Json, quiet: Recorded, results: Path, machine: str) -> list[Path]:
    """The page, the document, and the A/A recording that the tests judge; the paths written.

    Raises BadInputError where one cannot be written.
    """
    reference = results / "reference"
    return _write(
        {
            results / PAGE: calibration_page(document),
            reference / f"calibration_{machine}.json": compact_json(document, EXPANDED),
            reference / f"paired_blocks_{machine}.jsonl": small_enough(quiet),
        }
    )


__all__ = ["add_options", "main", "parse_options"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _meta(arguments: Sequence[str], recordings: Recordings | None) -> Json:
    """What the figures belong to: the commit that was recorded, else the one that computes."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    context = recordings.quiet.headers[0].base_context if recordings else {}
    return {
        "date": recordings.quiet.headers[0].started if recordings else now,
        "computed": now,
        "commit": str(context.get("git_commit", head_commit(PROJECT) or "unknown")),
        "dirty": bool(context.get("git_dirty", changed_files(PROJECT))),
        "command": shlex.join(
            ["scripts/compare", "calibrate", *published_arguments(arguments, _parser())]
        ),
    }


def _analyse(options: argparse.Namespace, arguments: Sequence[str]) -> Json:
    rule = Rule(options.alpha, options.margin, options.looks)
    effort = Effort(options.families, options.cases, options.tries, options.jobs, options.seed)
    if options.simulate:
        document = {"meta": _meta(arguments, None), **simulated_document(rule, effort, _say)}
        paths = write_calibration(document, options.folder)
    else:
        recordings = recordings_of(options.folder, options.recordings)
        header = recordings.quiet.headers[0]
        runs = kept_runs(options.folder)
        document = {
            "meta": _meta(arguments, recordings),
            "context": published_context(header.base_context),
            **calibration_document(recordings, runs, rule, effort, _say),
        }
        profile = noise_profile(recordings.quiet.blocks, header.base_context, header.started)
        paths = write_noise_profile(profile, options.noise_profile)
        paths += write_calibration(document, options.folder)
        if options.publish:
            paths += publish(document, recordings.quiet, RESULTS, options.publish)
    for path in paths:
        _say(str(path))
    return document


def _status(document: Json, *, strict: bool) -> int:
    standing = document_standing(document)
    if standing == BROKEN:
        return REGRESSION
    return STILL_UNCLEAR if standing == NOT_SHOWN and strict else NO_REGRESSION


def _check_publishable(options: argparse.Namespace) -> None:
    changed = changed_files(PROJECT) if options.publish else ""
    if changed:
        raise BadInputError(f"--publish: commit first, these files are changed:\n{changed}")


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    _check_publishable(options)
    try:
        if measures(options):
            measure(options, _say)
            return NO_REGRESSION
        document = _analyse(options, arguments)
    except ValueError as error:
        # too few blocks, a rule that cannot be, a part that there is none of
        raise BadInputError(str(error)) from error
    print(calibration_page(document))
    return _status(document, strict=options.strict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/compare calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    return parser


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = _parser()
    options = parser.parse_args(arguments)
    check_options(parser, options)
    return options


def main(arguments: Sequence[str]) -> int:
    """Measures, or analyses and writes; the exit status."""
    options = parse_options(arguments)
    try:
        return _run(options, arguments)
    except BadInputError as error:
        print(f"scripts/compare calibrate: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; what was recorded stays in the folder", file=sys.stderr)
        return INTERRUPTED
