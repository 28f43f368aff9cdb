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

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tinyllama_tools.calibrate import rates
from tinyllama_tools.calibrate.rates import BROKEN, HELD, NOT_SHOWN, PairedBlocks
from tinyllama_tools.compare import run as compare_run
from tinyllama_tools.compare.blocks import (
    SIDES,
    Measuring,
    costs_of,
    prepare,
    read_recording,
    recording,
)
from tinyllama_tools.compare.options import duration_of, run_parser
from tinyllama_tools.compare.sides import PROGRAM_IN_BUILD
from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    changed_files,
    head_commit,
    made_by,
    now_text,
    read_json,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.options import fraction, positive, script_parser
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import compact_json, duration, markdown_table, template
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.rank_tests import summarise
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    FEWEST_BLOCKS,
    LOOKS,
    MARGIN,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Outcome,
)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = script_parser("compare calibrate", __doc__, "")
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

    options = parser.parse_args(arguments)
    measures = options.record or options.runs
    if options.simulate and (measures or options.recording):
        parser.error("--simulate: reads and measures nothing, so no --record, --runs, --recording")
    if options.slow and not options.runs:
        parser.error("--slow: slows the runs of --runs N, which is missing")
    if options.run_options and not measures:
        parser.error(f"-- {' '.join(options.run_options)}: only with --record or --runs")
    return options


# ---- what is measured: every block and run is on disk when it is done, so nothing is lost


def next_path(folder: Path, kind: str) -> Path:
    """KIND_NNNN, with the number after the last."""
    paths = folder.glob(f"{kind}_[0-9][0-9][0-9][0-9]*")
    taken = [int(path.name.removeprefix(f"{kind}_")[:4]) for path in paths]
    return folder / f"{kind}_{max(taken, default=0) + 1:04d}"


def record_file(options: argparse.Namespace, progress: Progress) -> None:
    """Block after block into one file, blocks_NNNN.jsonl, until the time is used up; an interrupt
    leaves all that was measured in it. A block that was begun is finished; the proofs before the
    first one do not count. A case that `compare run` would give up is left out.

    Raises BadInputError where the program cannot be served or has no such case, and where no case
    is left.
    """
    path = next_path(options.folder, "blocks").with_suffix(".jsonl")
    sides = (f"--base={options.build}", f"--new={options.build}")
    settings = run_parser().parse_args([*options.run_options, *sides])
    sides = prepare(settings, options.seed, progress)
    # whoever reads it need not know where the program lies
    names = dict.fromkeys(SIDES, Path(PROGRAM_IN_BUILD).name)
    with recording(path, {**sides.header, **names}) as keep:
        progress.line(f"proving {len(sides.shared)} cases on both sides")
        measuring = Measuring(sides.measurer, sides.shared, keep, progress)
        measuring.open_all(verify=True)
        started = time.monotonic()
        while measuring.open_cases and (passed := time.monotonic() - started) < options.record:
            progress.line(
                f"block {measuring.blocks + 1}, {duration(passed)} of {duration(options.record)}"
            )
            measuring.measure_block()
    if not measuring.open_cases:
        raise BadInputError("every case was skipped or failed: nothing to record")
    progress.line(f"{measuring.blocks} blocks of {len(sides.shared)} cases in {path}")


def run_once(options: argparse.Namespace, progress: Progress) -> None:
    """One whole run of the command into a folder of its own, run_NNNN.

    Raises BadInputError where nothing was measured, as of a program that cannot start.
    """
    folder = next_path(options.folder, "run")
    rule = [f"--{name}={getattr(options, name):g}" for name in ("alpha", "margin", "looks")]
    sides = [f"--base={options.build}", f"--new={options.build}", f"--output={folder}"]
    slow = [f"--slow-new={text}" for text in options.slow]
    asked = [*slow, *rule, *options.run_options, *sides]
    # a wish for help is granted while it can be read
    compare_run.parse_options(asked)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            compare_run.main(asked)
    except BadInputError:
        # one without an answer counts as well
        if not (folder / "comparison.json").is_file():
            raise
    run = read_json(folder / "comparison.json")[0]
    found = ", ".join(f"{case['name']} {case['outcome']}" for case in run["cases"])
    what = found if is_judged(run) else f"no verdict: {run['design']['ended']}"
    progress.line(f"{folder.name}, {run['seconds'] / 60:.1f} minutes: {what}")


# ---- what is read back


def read_blocks(path: Path) -> tuple[PairedBlocks, Json, Json]:
    """The blocks in which every case was measured, in order; how they were made, as a row of the
    document; and the context of the base. A case that was measured in less than
    half of all blocks (skipped, or closed after failures) is left out instead of the blocks.

    BadInputError where it cannot be read, or has too few such blocks, as one cut off early.
    """
    header, items = read_recording(path)
    timed = [item for item in items if "base" in item]
    found = {(item["block"], item["case"]): summarise(item["base"], item["new"]) for item in timed}
    indices, names = (sorted(set(keys)) for keys in zip(*found, strict=True)) if found else ([], [])
    cases = [n for n in names if 2 * sum((i, n) in found for i in indices) >= len(indices)]
    whole = [i for i in indices if cases and all((i, name) in found for name in cases)]
    if len(whole) < FEWEST_BLOCKS:
        raise BadInputError(
            f"{path}: recorded blocks in which every case was measured: {len(whole)}, and at least "
            f"{FEWEST_BLOCKS} are needed; record more: `scripts/compare calibrate --record 30m`"
        )
    costs = costs_of(timed)
    # what came before the first block
    costs = costs._replace(opening=max(0.0, timed[0]["at"] - costs.of([timed[0]["case"]])))
    row = {
        "blocks": len(whole),
        # some case of them failed or was cut short
        "left_out": len(indices) - len(whole),
        "cases": cases,
        "hours": max(item["at"] for item in timed) / 3600,
        **{key: header[key] for key in ("started", "pairs", "slice_seconds")},
        "block_seconds": costs.of(cases),
    }
    values = np.array([[found[i, name] for i in whole] for name in cases])
    return PairedBlocks(tuple(cases), values, costs), row, header["base_context"]


def is_judged(run: Json) -> bool:
    """Whether it reached a look; else its budget was too short."""
    return any(case["p_value"] is not None for case in run["cases"])


def finished_runs(folder: Path) -> list[Json]:
    """All runs of the folder but those that were interrupted, in order. BadInputError for a file
    that `compare run` has not written."""
    runs = []
    for path in sorted(folder.glob("run_????/comparison.json")):
        run, _ = read_json(path)
        with made_by("scripts/compare run", path):
            run_rows([run])
            runs += [run] * (run["design"]["ended"] != "interrupted")
    return runs


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
    without = [run["design"]["ended"] for run in runs if not is_judged(run)]
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


def document_standing(document: Json) -> str:
    """`broken` where any row of false alarms is, or the real A/A runs of any group; else `not
    shown` where any row or all real A/A runs are, else `held`."""
    rows = [row["standing"] for row in document["false_alarms"]]
    runs = [row["standing"] for row in document.get("runs", []) if "standing" in row]
    if BROKEN in {*rows, *runs}:
        return BROKEN
    are_runs_shown = "runs" not in document or HELD in runs
    return HELD if are_runs_shown and NOT_SHOWN not in rows else NOT_SHOWN


def case_words(name: str) -> str:
    """`ffn forward_backward`; the name itself where it is of no known form."""
    axes = parse_case_name(name)
    return f"{axes.component} {axes.pass_name}" if axes else name


def _aligned(table: re.Match[str]) -> str:
    lines = (re.split(r"(?<!\\)\|", line.strip("|")) for line in table[0].splitlines())
    header, _, *rows = ([cell.strip().replace("\\|", "|") for cell in line] for line in lines)
    return "\n".join([*markdown_table(header, rows), ""])


def calibration_page(document: Json) -> str:
    """The whole page, from the document alone."""
    page = template(Path(__file__).with_name("page.md.j2"))
    more = {"case_words": case_words, "duration": duration, "enough_runs": ENOUGH_RUNS}
    text = page.render(d=document, **more)
    return re.sub(r"^(?:\|.*\n)+", _aligned, text, flags=re.MULTILINE)


EXPANDED = ("false_alarms", "runs", "detection", "noise")


def _analyse(options: argparse.Namespace, arguments: Sequence[str], progress: Progress) -> Json:
    """The document, written with its page."""
    blocks, recorded, context = None, {}, {}
    if not options.simulate:
        newest = max(options.folder.glob("blocks_????.jsonl"), default=None)
        if not (path := options.recording or newest):
            what = "no recording; make one: `scripts/compare calibrate --record 30m`"
            raise BadInputError(f"{options.folder}: {what}")
        blocks, recorded, context = read_blocks(path)
    progress.line(f"{options.families} simulated families of {options.cases} cases")
    alarms, more = rates.simulated_rows(options), {}
    if blocks:
        progress.line(f"{options.families} families of the recorded blocks")
        alarms.append(rates.false_alarm_row(blocks, options))
        progress.line(f"{options.tries} tries a case and slowdown")
        more = {
            "context": context,
            "recorded": recorded,
            "detection": rates.detection_rows(blocks, options),
            "runs": run_rows(finished_runs(options.folder)),
            "noise": list(map(rates.noise_row, blocks.cases, blocks.values)),
        }
    document: Json = {
        "kind": "tiny_llama calibration",
        "schema_version": 4,
        # what the figures belong to: the commit that was recorded, else the one that computes
        "meta": {
            "date": recorded.get("started", now_text()),
            "commit": str(context.get("git_commit", head_commit(PROJECT) or "unknown")),
            "dirty": bool(context.get("git_dirty", changed_files(PROJECT))),
            "command": without_folders(shlex.join(["scripts/compare", "calibrate", *arguments])),
        },
        "rule": {key: getattr(options, key) for key in ("alpha", "margin", "looks")},
        "effort": {key: getattr(options, key) for key in ("families", "cases", "tries", "seed")},
        "false_alarms": alarms,
        **more,
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    page = calibration_page(document)
    texts = {"calibration.json": compact_json(document, EXPANDED), "CALIBRATION.md": page}
    for name, text in texts.items():
        write_whole(options.folder / name, text)
        progress.line(str(options.folder / name))
    print(page)
    return document


def main(arguments: Sequence[str]) -> int:
    """Measures, or analyses and writes; the exit status."""
    options, progress = parse_options(arguments), Progress()
    if options.record:
        record_file(options, progress)
    for _ in range(options.runs or 0):
        run_once(options, progress)
    if options.record or options.runs:
        return NO_REGRESSION
    found = document_standing(_analyse(options, arguments, progress))
    if found == BROKEN:
        return REGRESSION
    return STILL_UNCLEAR if found == NOT_SHOWN and options.strict else NO_REGRESSION
