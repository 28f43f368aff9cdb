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

Exit status: 0 no more false alarms than --alpha allows; 1 more, in any row or in the whole runs;
2 bad input, or nothing recorded; 3 with --strict, where there are too few families, blocks or whole
runs to show it; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from tinyllama_tools.calibrate import rates, record
from tinyllama_tools.calibrate.rates import BROKEN, HELD, NOT_SHOWN, PairedBlocks, Settings
from tinyllama_tools.calibrate.record import Recorded, read_recordings, recording_paths, say
from tinyllama_tools.compare.comparison import layers_by_size
from tinyllama_tools.compare.options import duration_of, fraction, run_settings
from tinyllama_tools.compare.stored import DEFAULT_PATH, noise_profile, scatter
from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    changed_files,
    head_commit,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.options import positive
from tinyllama_tools.core.text import compact_json, duration, markdown_table, template
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.rank_tests import BlockSummary
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    BAD_INPUT,
    LOOKS,
    MARGIN,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Outcome,
)

MOST_FRACTION = 10.0


def slowdown(text: str) -> dict[str, float]:
    """`^ffn/=0.05`."""
    pattern, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if "=" not in text or not 0 < value <= MOST_FRACTION:
        allowed = f"REGEX=FRACTION with a fraction above 0, at most {MOST_FRACTION:g}"
        raise argparse.ArgumentTypeError(f"'{text}': must be {allowed}, such as ^ffn/=0.05")
    return {pattern: value}


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    add = parser.add_argument_group("measuring (nothing is analysed then)").add_argument
    blocks = "record A/A blocks for that long, such as 30m"
    add("--record", type=duration_of, metavar="TIME", help=blocks)
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


def _measures(options: argparse.Namespace) -> bool:
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
    if options.simulate and (_measures(options) or options.recordings):
        parser.error("--simulate: reads and measures nothing, so no --record, --recordings, ...")
    if options.slow and not options.runs:
        parser.error("--slow: slows the runs of --runs N, which is missing")
    if options.run_options and not _measures(options):
        parser.error(f"-- {' '.join(options.run_options)}: only with --record, ... or --runs")
    return options


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
SLOWED_KINDS = {x: f"slowed_{100 * x:g}_percent" for x in rates.SLOWDOWNS}
# of a kind, before another kind's turn
ROUND_BLOCKS = 10
# of whole runs, one after the other: the next would not do better
MOST_WITHOUT_VERDICT = 3


# one has no scatter
FEWEST_BLOCKS = 2


def quiet_recordings(options: argparse.Namespace) -> Recorded:
    """Those that were named, or all of the folder's. BadInputError where they have too few
    blocks."""
    paths = options.recordings or recording_paths(options.folder, QUIET)
    found = read_recordings(paths)
    blocks = found.blocks.blocks if found else 0
    if found is None or blocks < FEWEST_BLOCKS:
        named = ", ".join(map(str, paths)) or options.folder
        raise BadInputError(
            f"{named}: blocks in which every case was measured: {blocks}, and at least "
            f"{FEWEST_BLOCKS} are needed; record them: `scripts/compare calibrate --record 30m`"
        )
    return found


def fraction_inside(quiet: PairedBlocks, part: str, change: float) -> float:
    """By how much the part has to be slowed, for the full step to change by `change`.

    Raises BadInputError where the recording lacks the step or the part, or no allowed fraction
    does.
    """
    whole, blocks = rates.whole_of(quiet), quiet.summaries()
    name = parse_case_name(whole)
    cases = [whole, *(case for case in quiet.cases if rates.component_of(case) == part)]
    if name is None or len(cases) == 1:
        raise BadInputError(f"{part}: not recorded, so how long it takes is not known")
    step, own, *_ = (statistics.median(b.base_seconds for b in blocks[case]) for case in cases)
    found = change * step / (layers_by_size()[name.size] * own)
    if found > MOST_FRACTION:
        raise BadInputError(f"{part} is too small a part of {whole} to slow it by {change:.0%}")
    return found


def _record_slowed(options: argparse.Namespace) -> None:
    """Rounds of a few blocks of each kind, so that no kind has an hour of its own; one at least.

    Both sides are one program: only its option differs. For attribution the part is slowed by what
    changes the step so, and the step with it.
    """
    kinds = {kind: [f".={x:g}"] for x, kind in SLOWED_KINDS.items()}
    found = fraction_inside(quiet_recordings(options).blocks, INSIDE, STEP_SLOWDOWN)
    step = f"^{rates.WHOLE_STEP}/={STEP_SLOWDOWN:g}"
    kinds[INSIDE_KIND] = [f"^{INSIDE}/={found:.6g}", step]
    end = time.monotonic() + options.record_slowed
    while True:
        for kind, slow in kinds.items():
            say(f"recording {kind}")
            seconds = options.record_slowed / len(kinds)
            record.record_kind(kind, options, seconds, slow=slow, most=ROUND_BLOCKS)
        if time.monotonic() > end:
            return


def _do_runs(options: argparse.Namespace) -> None:
    """Each run is kept when it is over, with a verdict or without.

    Raises BadInputError after three in a row without one, or where the program cannot start.
    """
    rule = ["--alpha", f"{options.alpha:g}", "--margin", f"{options.margin:g}"]
    more = [*rule, "--looks", str(options.looks), *options.run_options]
    in_a_row = 0
    for number in range(1, options.runs + 1):
        run = record.run_once(options.build, options.slow, more)
        record.keep_run(run, options.folder)
        found = ", ".join(f"{name} {outcome}" for name, outcome in run["outcomes"].items())
        is_judged = run["exit_status"] != BAD_INPUT
        what = found if is_judged else f"no verdict: {run['reason']}"
        say(f"run {number} of {options.runs}, {run['seconds'] / 60:.1f} minutes: {what}")
        in_a_row = 0 if is_judged else in_a_row + 1
        if in_a_row == MOST_WITHOUT_VERDICT:
            words = f"{in_a_row} runs in a row without a verdict, the last: {run['reason']}"
            raise BadInputError(words)


def measure(options: argparse.Namespace) -> None:
    """All that the options ask for. Raises BadInputError; what was measured stays."""
    if options.record:
        record.record_kind(QUIET, options, options.record)
    if options.record_family:
        record.record_kind(FAMILY, options, options.record_family, words=FAMILY_OPTIONS)
    if options.record_slowed:
        _record_slowed(options)
    if options.runs:
        _do_runs(options)


def noise_row(case: str, blocks: Sequence[BlockSummary]) -> Json:
    """Scatter of whole processes, and of what blocks make of it. `autocorrelation`: of a block's
    log-ratio with the next block's; far from 0 it says that blocks are no independent sample, which
    the test takes them for. None for fewer than three, or all the same."""
    logs = np.array([block.log_ratio for block in blocks])
    apart = logs - logs.mean()
    is_known = len(logs) >= 3 and apart.any()
    found = scatter(blocks)
    return {
        "case": case,
        "median_seconds": statistics.median(block.base_seconds for block in blocks),
        "processes": found["scatter"],
        "blocks": float(logs.std(ddof=1)),
        "degrees": found["degrees"],
        "autocorrelation": float(apart[:-1] @ apart[1:] / (apart @ apart)) if is_known else None,
    }


# A/A runs with a verdict, and without an alarm, that a claim takes
ENOUGH_RUNS = 50


# of a run, beside what was asked of it
MADE_WITH = ("git_commit", "device", "threads")


def group_row(runs: Sequence[Json]) -> Json:
    """Runs of the same slowdown, options, commit and machine. Those without a verdict count in
    every denominator. `standing`, of A/A runs: broken where there are false verdicts in more of
    them than alpha allows, beyond doubt; held with 50 verdicts, none of which says `slower`."""
    first = runs[0]
    settings = run_settings(first["options"])
    found = [set(run["outcomes"].values()) for run in runs]
    slower = rates.share(sum(Outcome.SLOWER.value in words for words in found), len(runs))
    false = {Outcome.SLOWER.value, Outcome.FASTER.value}
    either = rates.share(sum(bool(false & words) for words in found), len(runs))
    without = [run["reason"] for run in runs if run["exit_status"] == BAD_INPUT]
    by_case, blamed = defaultdict(Counter), defaultdict(Counter)
    for run in runs:
        for name, outcome in run["outcomes"].items():
            by_case[name][outcome] += 1
        for whole, culprit in run["culprits"].items():
            if run["outcomes"].get(whole) == Outcome.SLOWER.value:
                blamed[whole][culprit or rates.NOBODY] += 1
    row = {
        "slowdown": ", ".join(f"{part} {x:g}" for part, x in first["slowdown"].items()),
        "options": shlex.join(first["options"]),
        "alpha": settings.alpha,
        "budget_seconds": settings.budget,
        **{key: first[key] for key in MADE_WITH},
        "runs": len(runs),
        "seconds": sum(run["seconds"] for run in runs),
        "slower": slower,
        "slower_or_faster": either,
        "without_verdict": dict(Counter(without)),
        "by_case": by_case,
        "culprits": blamed,
    }
    if not first["slowdown"]:
        is_held = len(runs) - len(without) >= ENOUGH_RUNS and slower["count"] == 0
        is_broken = rates.standing(either, settings.alpha) == BROKEN
        row["standing"] = BROKEN if is_broken else HELD if is_held else NOT_SHOWN
    return row


def run_rows(runs: Sequence[Json]) -> list[Json]:
    """A row a group, in the order of their first run."""
    groups: dict[str, list[Json]] = {}
    for run in runs:
        made_with = [run[key] for key in MADE_WITH]
        key = json.dumps([sorted(run["slowdown"].items()), run["options"], made_with])
        groups.setdefault(key, []).append(run)
    return [group_row(group) for group in groups.values()]


def recorded_part(quiet: Recorded, folder: Path, settings: Settings) -> Json:
    """What the folder's recordings and runs show. False alarms are counted of the A/A family where
    one was recorded."""
    names = {FAMILY: "A/A, a family of its own"}
    names |= {kind: f"every case slowed by {x:.0%}" for x, kind in SLOWED_KINDS.items()}
    names |= {INSIDE_KIND: f"slowed inside {INSIDE}"}
    read = {kind: read_recordings(recording_paths(folder, kind)) for kind in names}
    found = {kind: recorded for kind, recorded in read.items() if recorded}
    say(f"{settings.families} families of the recorded blocks")
    alarms = rates.false_alarm_row(found.get(FAMILY, quiet).blocks, settings)
    say(f"{settings.tries} tries a case and slowdown")
    injected = {x: found[kind].blocks for x, kind in SLOWED_KINDS.items() if kind in found}
    # the parts and the model are a family of its own, since a step takes longer than all of them
    cases = quiet.blocks.cases
    parts = [name for name in cases if rates.component_of(name) != rates.WHOLE_STEP]
    detected = rates.detection_rows(quiet.blocks.only(parts or cases), injected, settings)
    design = settings.design(len(cases))
    inside = [found[INSIDE_KIND].blocks] if INSIDE_KIND in found else []
    attributed = [rates.attribution_row(blocks, INSIDE, design, settings) for blocks in inside]
    rows = [("A/A", quiet), *((names[kind], one) for kind, one in found.items())]
    return {
        "recordings": [{"name": name, **one.row} for name, one in rows],
        "false_alarms": [alarms],
        "detection": detected,
        "attribution": attributed,
        "runs": run_rows(record.kept_runs(folder)),
        "noise": [noise_row(*found) for found in quiet.blocks.summaries().items()],
    }


def document_standing(document: Json) -> str:
    """`broken` where any row of false alarms is, or the real A/A runs of any group; else `not
    shown` where any row or all real A/A runs are, else `held`."""
    rows = [row["standing"] for row in document["false_alarms"]]
    runs = [row["standing"] for row in document.get("runs", []) if "standing" in row]
    if BROKEN in {*rows, *runs}:
        return BROKEN
    are_runs_shown = "runs" not in document or HELD in runs
    return HELD if are_runs_shown and NOT_SHOWN not in rows else NOT_SHOWN


def small_percent(value: float) -> str:
    """`0.092 %`: two digits, however small."""
    return f"{float(f'{100 * value:.2g}'):g} %"


def bounded(found: Json) -> str:
    """`3 of 10,000, bound 0.078 %`: one-sided, 95 %."""
    bound = small_percent(found["upper_bound_95"])
    return f"{found['count']:,} of {found['trials']:,}, bound {bound}"


def share_words(found: Json) -> str:
    """`97.0 % (95.1 to 98.3)`; two-sided, 95 %."""
    low, high = found["interval_95"]
    return f"{100 * found['share']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def seconds_words(seconds: float | None) -> str:
    """`140 s`; `never` where it was not reached."""
    return "never" if seconds is None else f"{seconds:.0f} s"


def case_words(name: str) -> str:
    """`ffn forward_backward`; the name itself where it is of no known form."""
    axes = parse_case_name(name)
    return f"{axes.component} {axes.pass_name}" if axes else name


WORDS = (bounded, case_words, duration, seconds_words, share_words, small_percent)
CONSTANTS = {"ENOUGH_RUNS": ENOUGH_RUNS, "TEN_MINUTES": rates.TEN_MINUTES}


def _aligned(table: re.Match[str]) -> str:
    lines = (re.split(r"(?<!\\)\|", line.strip("|")) for line in table[0].splitlines())
    header, _, *rows = ([cell.strip().replace("\\|", "|") for cell in line] for line in lines)
    return "\n".join([*markdown_table(header, rows), ""])


def calibration_page(document: Json) -> str:
    """The whole page, from the document alone."""
    page = template(Path(__file__).with_name("page.md.j2"))
    text = page.render(d=document, **CONSTANTS, **{word.__name__: word for word in WORDS})
    return re.sub(r"^(?:\|.*\n)+", _aligned, text, flags=re.MULTILINE)


DOCUMENT, PAGE = "calibration.json", "CALIBRATION.md"
KIND, SCHEMA_VERSION = "tiny_llama calibration", 2
EXPANDED = ("recordings", "false_alarms", "runs", "detection", "attribution", "noise")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    say(str(path))


def _analyse(options: argparse.Namespace, arguments: Sequence[str]) -> Json:
    """The document, written with its page and, of recordings, the noise profile."""
    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    asked, now = asdict(settings), datetime.now(timezone.utc).isoformat(timespec="seconds")
    date, context = now, {}
    if not options.simulate:
        quiet = quiet_recordings(options)
        date, context = quiet.row["started"][0], quiet.context
    # what the figures belong to: the commit that was recorded, else the one that computes
    meta = {
        "date": date,
        "computed": now,
        "commit": str(context.get("git_commit", head_commit(PROJECT) or "unknown")),
        "dirty": bool(context.get("git_dirty", changed_files(PROJECT))),
        "command": without_folders(shlex.join(["scripts/compare", "calibrate", *arguments])),
    }
    say(f"{settings.families} simulated families of {settings.cases} cases")
    document: Json = {
        "meta": meta,
        **({} if options.simulate else {"context": context}),
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "rule": {key: asked.pop(key) for key in ("alpha", "margin", "looks")},
        "effort": asked,
        "false_alarms": rates.simulated_rows(settings),
    }
    if not options.simulate:
        found = recorded_part(quiet, options.folder, settings)
        document |= {**found, "false_alarms": document["false_alarms"] + found["false_alarms"]}
        profile = noise_profile(quiet.blocks.summaries(), context, date)
        _write(options.noise_profile, json.dumps(profile, indent=1) + "\n")
    _write(options.folder / DOCUMENT, compact_json(document, EXPANDED))
    _write(options.folder / PAGE, calibration_page(document))
    return document


def main(arguments: Sequence[str]) -> int:
    """Measures, or analyses and writes; the exit status."""
    options = parse_options(arguments)
    try:
        if _measures(options):
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
