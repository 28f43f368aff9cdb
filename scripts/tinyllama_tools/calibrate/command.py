"""How often the comparison errs on this machine, and what it finds: recorded, resampled, written.

Example: scripts/compare calibrate --record 60m
         scripts/compare calibrate --runs 50 -- --budget 10m
         scripts/compare calibrate

--record and --runs measure, and add to what --folder has; each block and each run is on disk when
it is done, so nothing is lost where they are interrupted. Without them, the newest recording and
all runs of the folder are analysed: false alarms a family, detection, and what whole runs said.

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
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path

from tinyllama_tools.calibrate import rates, record
from tinyllama_tools.calibrate.rates import BROKEN, HELD, NOT_SHOWN, Settings
from tinyllama_tools.calibrate.record import Recorded, read_blocks, say
from tinyllama_tools.compare.options import duration_of, fraction
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
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    LOOKS,
    MARGIN,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Outcome,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    add = parser.add_argument_group("measuring (nothing is analysed then)").add_argument
    blocks = "record A/A blocks for that long, such as 30m"
    add("--record", type=duration_of, metavar="TIME", help=blocks)
    runs = "do that many whole runs of `compare run`, A/A unless --slow is given"
    add("--runs", type=positive, metavar="N", help=runs)
    slow = "what the new side of --runs is slowed by, such as ^ffn/=0.05"
    add("--slow", action="append", default=[], metavar="REGEX=FRACTION", help=slow)
    build = "the build that is calibrated (default: build)"
    add("--build", type=Path, default=PROJECT / "build", metavar="FOLDER", help=build)
    more = "options of `compare run` after --: cases, --pairs, --slice, --threads, --budget"
    add("run_options", nargs="*", metavar="-- OPTIONS", help=more)
    add = parser.add_argument_group("analysis").add_argument
    add("--simulate", action="store_true", help="simulated data only: nothing is measured or read")
    recording = "A/A recording to analyse (default: the newest of the folder)"
    add("--recording", type=Path, metavar="FILE", help=recording)
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


def _measures(options: argparse.Namespace) -> bool:
    return bool(options.record or options.runs)


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
    if options.simulate and (_measures(options) or options.recording):
        parser.error("--simulate: reads and measures nothing, so no --record, --runs, --recording")
    if options.slow and not options.runs:
        parser.error("--slow: slows the runs of --runs N, which is missing")
    if options.run_options and not _measures(options):
        parser.error(f"-- {' '.join(options.run_options)}: only with --record or --runs")
    return options


WHOLE_STEP = "full_step"


def newest_recording(folder: Path) -> Path:
    """BadInputError where there is none."""
    paths = sorted(folder.glob("blocks_????.jsonl"))
    if not paths:
        raise BadInputError(
            f"{folder}: no recording; make one: `scripts/compare calibrate --record 30m`"
        )
    return paths[-1]


def measure(options: argparse.Namespace) -> None:
    """All that the options ask for. Raises BadInputError; what was measured stays."""
    if options.record:
        record.record_file(options)
    for number in range(1, (options.runs or 0) + 1):
        run = record.run_once(options)
        found = ", ".join(f"{case['name']} {case['outcome']}" for case in run["cases"])
        what = found if record.is_judged(run) else f"no verdict: {run['design']['ended']}"
        say(f"run {number} of {options.runs}, {run['seconds'] / 60:.1f} minutes: {what}")


# A/A runs with a verdict, and without an alarm, that a claim takes
ENOUGH_RUNS = 50


def group_row(runs: Sequence[Json]) -> Json:
    """Runs that were asked alike, of one commit and machine. Those without a verdict count in every
    denominator. `standing`, of A/A runs: broken where there are false verdicts in more of them than
    alpha allows, beyond doubt; held with 50 verdicts, none of which says `slower`."""
    first, context = runs[0], runs[0]["base_context"]
    settings = first["design"]["settings"]
    found = [{case["outcome"] for case in run["cases"]} for run in runs]
    slower = rates.share(sum(Outcome.SLOWER.value in words for words in found), len(runs))
    false = {Outcome.SLOWER.value, Outcome.FASTER.value}
    either = rates.share(sum(bool(false & words) for words in found), len(runs))
    without = [run["design"]["ended"] for run in runs if not record.is_judged(run)]
    by_case, blamed = defaultdict(Counter), defaultdict(Counter)
    for case in (case for run in runs for case in run["cases"]):
        by_case[case["name"]][case["outcome"]] += 1
        if case["attribution"] and case["outcome"] == Outcome.SLOWER.value:
            blamed[case["name"]][case["attribution"]["culprit"] or "nobody"] += 1
    row = {
        "slowdown": ", ".join(settings["new_slow"]),
        "options": without_folders(shlex.join(settings["arguments"])),
        "alpha": first["alpha"],
        "margin": first["margin"],
        "budget_seconds": settings["budget_seconds"],
        "git_commit": str(context.get("git_commit", "unknown")),
        "device": str(context.get("device", {}).get("name", "unknown")),
        "threads": context.get("threads"),
        "runs": len(runs),
        "seconds": sum(run["seconds"] for run in runs),
        "slower": slower,
        "slower_or_faster": either,
        "without_verdict": dict(Counter(without)),
        "by_case": by_case,
        "culprits": blamed,
    }
    if not settings["new_slow"]:
        is_held = len(runs) - len(without) >= ENOUGH_RUNS and slower["count"] == 0
        is_broken = rates.standing(either, first["alpha"]) == BROKEN
        row["standing"] = BROKEN if is_broken else HELD if is_held else NOT_SHOWN
    return row


def run_rows(runs: Sequence[Json]) -> list[Json]:
    """A row a group, in the order of their first run."""
    groups: dict[str, list[Json]] = {}
    for run in runs:
        context, design = run["base_context"], run["design"]
        made_with = [context.get(key) for key in ("git_commit", "device", "threads")]
        asked = [design[key] for key in ("settings", "looks", "pairs")]
        key = json.dumps([run["alpha"], run["margin"], asked, made_with], sort_keys=True)
        groups.setdefault(key, []).append(run)
    return [group_row(group) for group in groups.values()]


def recorded_part(recorded: Recorded, folder: Path, settings: Settings) -> Json:
    """What the recordings and the folder's runs show."""
    blocks = recorded.blocks
    say(f"{settings.families} families of the recorded blocks")
    alarms = rates.false_alarm_row(blocks, settings)
    say(f"{settings.tries} tries a case and slowdown")
    # the parts and the model are a family of its own, since a step takes longer than all of them
    parts = [name for name in blocks.cases if not name.startswith(f"{WHOLE_STEP}/")]
    detected = rates.detection_rows(blocks.only(parts or blocks.cases), settings)
    return {
        "recorded": recorded.row,
        "false_alarms": [alarms],
        "detection": detected,
        "runs": run_rows(record.finished_runs(folder)),
        "noise": list(map(rates.noise_row, blocks.cases, blocks.values)),
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
KIND, SCHEMA_VERSION = "tiny_llama calibration", 3
EXPANDED = ("false_alarms", "runs", "detection", "noise")


def _analyse(options: argparse.Namespace, arguments: Sequence[str]) -> Json:
    """The document, written with its page."""
    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    asked, now = asdict(settings), datetime.now(timezone.utc).isoformat(timespec="seconds")
    date, context = now, {}
    if not options.simulate:
        recorded = read_blocks(options.recording or newest_recording(options.folder))
        date, context = recorded.row["started"], recorded.context
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
        found = recorded_part(recorded, options.folder, settings)
        document |= {**found, "false_alarms": document["false_alarms"] + found["false_alarms"]}
    options.folder.mkdir(parents=True, exist_ok=True)
    texts = {DOCUMENT: compact_json(document, EXPANDED), PAGE: calibration_page(document)}
    for name, text in texts.items():
        write_whole(options.folder / name, text)
        say(str(options.folder / name))
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
