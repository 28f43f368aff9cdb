"""How often the comparison errs on real machines, and what it finds: recorded, judged, written.

Example: scripts/compare calibrate --record 60m
         scripts/compare calibrate --record 10m --slow 0.05
         scripts/compare calibrate --runs 20 --slow 0.05
         scripts/compare calibrate --recording results/calibration machine_b/blocks_0001.jsonl

--record and --runs measure, and add to what --out has; each block and each run is on disk when
it is done, so nothing is lost where they are interrupted. Without them, all recordings and runs are
analysed. A recording of one build against itself is cut into runs in its order of time, each judged
as by `compare run`; one that is slowed on purpose says how large that change is, for the runs that
are slowed alike. A result with many repetitions (scripts/bench --benchmark_repetitions=30) says how
often the interval of a case's time covers what it should.

Exit status: 0 as it claims; 1 more false alarms than --alpha allows (in a recording, a group of
runs, all of these, or simulated within the margin), or intervals that cover too little; 2 bad
input, or nothing recorded; 3 with --strict, where there are too few runs to tell; 130 interrupted.
"""

import argparse
import contextlib
import io
import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinyllama_tools.calibrate import rates
from tinyllama_tools.calibrate.coverage import LEAST_COVERED, REPETITIONS, coverage_row
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
    BadInputError,
    Json,
    bad_file,
    checkout_state,
    command_text,
    made_by,
    now_text,
    read_json,
    read_lines,
    write_whole,
)
from tinyllama_tools.core.installation import RESULTS, is_prefix, typed
from tinyllama_tools.core.options import (
    add_build_folder,
    add_out,
    fraction,
    positive,
    script_parser,
)
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import compact_json, count_of, duration, markdown_table, template
from tinyllama_tools.data.names import StoredRun, parse_case_name
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.stats.rank_tests import ERROR, LOG_RATIO, WANTED_CONFIDENCE, summarise
from tinyllama_tools.stats.verdicts import (
    ALPHA,
    FEWEST_BLOCKS,
    LOOKS,
    MARGIN,
    NO_REGRESSION,
    REGRESSION,
    STILL_UNCLEAR,
    Outcome,
    look_at,
)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = script_parser("compare calibrate", __doc__, "")
    add = parser.add_argument_group("measuring (nothing is analysed then)").add_argument
    blocks = "record A/A blocks for that long, such as 30m"
    add("--record", type=duration_of, metavar="TIME", help=blocks)
    runs = "do that many whole runs of `compare run`, A/A unless --slow is given"
    add("--runs", type=positive, metavar="N", help=runs)
    slow = (
        "the new side's RMSNorm, an operator of a plug-in, takes that fraction longer in the "
        "forward (default cases: rms_norm, forward)"
    )
    add("--slow", type=fraction, metavar="FRACTION", help=slow)
    add_build_folder(parser, "what is calibrated")
    more = "options of `compare run` after --: cases, --pairs, --slice, --threads, --budget"
    add("run_options", nargs="*", metavar="-- OPTIONS", help=more)
    add = parser.add_argument_group("analysis").add_argument
    sources = "recordings, folders of recordings and runs, results (default: the --out)"
    add("--recording", type=Path, nargs="+", metavar="PATH", help=sources)
    tries = "simulated families of each size and true change (default: %(default)s)"
    add("--tries", type=positive, default=500, help=tries)
    jobs = "processes that compute (default: %(default)s)"
    add("--jobs", type=positive, default=len(os.sched_getaffinity(0)), help=jobs)
    add("--seed", type=positive, default=1, help="of all draws (default: %(default)s)")
    alpha = "chance of a false verdict in a family that is held against (default: %(default)s)"
    add("--alpha", type=fraction, default=ALPHA, help=alpha)
    add("--margin", type=fraction, default=MARGIN, help="as in compare run (default: %(default)s)")
    add("--looks", type=positive, default=LOOKS, help="as in compare run (default: %(default)s)")
    strict = "exit 3 where there are too few runs to show that alpha holds"
    add("--strict", action="store_true", help=strict)
    add = parser.add_argument_group("files").add_argument
    folder = "recordings, runs, and what is made of them (default: results/calibration)"
    add_out(parser, folder, default=RESULTS / "calibration")

    options = parser.parse_args(arguments)
    measures = options.record or options.runs
    if options.slow and not measures:
        parser.error("--slow: slows what --record or --runs measures, which is missing")
    if options.run_options and not measures:
        parser.error(f"-- {' '.join(options.run_options)}: only with --record or --runs")
    return options


# ---- what is measured: every block and run is on disk when it is done, so nothing is lost


def next_path(folder: Path, kind: str) -> Path:
    """KIND_NNNN, one above the highest number there is."""
    paths = folder.glob(f"{kind}_[0-9][0-9][0-9][0-9]*")
    taken = [int(path.name.removeprefix(f"{kind}_")[:4]) for path in paths]
    return folder / f"{kind}_{max(taken, default=0) + 1:04d}"


# A library of operators with the namespace SLOW, and the variable that says by which fraction.
SLOW_PLUGIN, SLOW, SPIN = "tests/plugins/libplugin_of_slow.so", "slow::", "SPIN_FRACTION"


def slowdown_of(settings: Json) -> str:
    """What the new side was slowed by on purpose, REGEX=FRACTION, ...; empty for A/A. Recordings
    from before there were plug-ins say it in `new_slow`."""
    if found := settings.get("new_environment", {}).get(SPIN):
        return f"{SLOW}={found}"
    return ", ".join(settings.get("new_slow", []))


def run_options(options: argparse.Namespace) -> list[str]:
    """Of `compare run`, with the same build on both sides. BadInputError where the plug-in of a
    slowdown was not built."""
    slow = []
    if options.slow:
        plugin = options.build_folder / SLOW_PLUGIN
        if not plugin.is_file():
            where = options.build_folder
            remedy = f"build it: cmake --build {where} --target plugin_of_slow"
            if is_prefix(where):
                remedy = "a prefix has none: name the build folder of a checkout, --build-folder"
            raise BadInputError(f"{plugin}: is missing, which slows a side; {remedy}")
        slow = [f"--plugin={plugin}", f"--variants={SLOW}rms_norm", "--components=rms_norm"]
        slow += ["--passes=forward", f"--environment-new={SPIN}={options.slow:g}"]
    sides = [f"--base={options.build_folder}", f"--new={options.build_folder}", "--same"]
    return [*slow, *options.run_options, *sides]


def record_file(options: argparse.Namespace, progress: Progress) -> None:
    """Measures block after block into blocks_NNNN.jsonl until the time is used up; an interrupt
    leaves all that was measured. A block that was begun is finished; the proofs before the first
    one do not count. A case that `compare run` would give up is left out.

    Raises BadInputError where the program cannot be served or has no such case, and where no case
    is left.
    """
    path = next_path(options.out, "blocks").with_suffix(".jsonl")
    settings = run_parser().parse_args(run_options(options))
    # before anything is measured: who else was at work
    load = {"load_average": os.getloadavg()[0]}
    sides = prepare(settings, options.seed, progress)
    # whoever reads it need not know where the program lies
    names = dict.fromkeys(SIDES, Path(PROGRAM_IN_BUILD).name)
    with recording(path, {**sides.header, **names, **load}) as keep:
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
    """One whole run of the command into run_NNNN.

    Raises BadInputError where nothing was measured, as of a program that cannot start.
    """
    folder = next_path(options.out, "run")
    rule = [f"--{name}={getattr(options, name):g}" for name in ("alpha", "margin", "looks")]
    asked = [*rule, *run_options(options), f"--out={folder}"]
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


def made_on(context: Json) -> Json:
    """The machine and the commit that a row's figures belong to."""
    device = context.get("device", {})
    return {
        "git_commit": str(context.get("git_commit", "unknown")),
        "git_dirty": bool(context.get("git_dirty")),
        "device": str(device.get("name", "unknown")),
        "architecture": str(device.get("architecture", "unknown")),
        "processors": context.get("num_cpus"),
        "threads": context.get("threads"),
    }


def read_blocks(path: Path) -> tuple[PairedBlocks, Json]:
    """The blocks in which every case was measured, and the document's row on how they were made. A
    case that was measured in less than half of the blocks (skipped, or closed after failures) is
    left out, not the blocks.

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
            f"{FEWEST_BLOCKS} are needed; record more: `{typed('compare calibrate')} --record 30m`"
        )
    costs = costs_of(timed)
    # what came before the first block
    costs = costs._replace(opening=max(0.0, timed[0]["at"] - costs.of([timed[0]["case"]])))
    settings = header.get("settings", {})
    blocks = PairedBlocks(
        tuple(cases), np.array([[found[i, name] for i in whole] for name in cases]), costs
    )
    row = {
        "file": path.name,
        **made_on(header["base_context"]),
        "load_average": header.get("load_average"),
        "slowdown": slowdown_of(settings),
        "blocks": len(whole),
        # some case of them failed or was cut short
        "left_out": len(indices) - len(whole),
        **{key: header[key] for key in ("started", "pairs", "slice_seconds")},
        "block_seconds": costs.of(cases),
        "scatter": list(map(rates.scatter_row, cases, blocks.values)),
    }
    return blocks, row


def recording_row(blocks: PairedBlocks, row: Json, asked: argparse.Namespace) -> Json:
    """The row of an A/A recording, cut into runs in its order of time."""
    design = rates.design_of(asked, len(blocks.cases))
    runs = rates.consecutive_runs(blocks.values, design)
    words = [Counter(verdict.outcome for verdict in run) for run in runs]
    row = {
        **row,
        "runs": len(runs),
        "dependent": sum(verdict.is_dependent for run in runs for verdict in run),
        "verdicts": {w.value: n for w in Outcome if (n := sum(found[w] for found in words))},
    }
    false = sum(not rates.FALSE_WORDS.isdisjoint(found) for found in words)
    return row | _false_alarms(false, len(runs), asked.alpha)


def _false_alarms(false: int, runs: int, alpha: float) -> Json:
    if not runs:
        return {"slower_or_faster": None, "standing": NOT_SHOWN}
    found = rates.share(false, runs)
    return {"slower_or_faster": found, "standing": rates.standing(found, alpha)}


# that have an interval of 95 %
FEWEST_OF_A_SIZE = 6


def size_rows(blocks: PairedBlocks, row: Json) -> list[Json]:
    """The true size of a slowdown on purpose, from a recording of its own: for each slowed case the
    estimate over all blocks, with its interval of 95 %."""
    patterns = [text.rpartition("=")[0] for text in row["slowdown"].split(", ")]
    slowed = [any(re.search(pattern, name) for pattern in patterns) for name in blocks.cases]
    values = blocks.values[slowed]
    if len(values) == 0 or blocks.blocks < FEWEST_OF_A_SIZE:
        raise BadInputError(
            f"{row['file']}, slowed {row['slowdown']}: {len(values)} slowed cases in "
            f"{blocks.blocks} blocks, and at least 1 in {FEWEST_OF_A_SIZE} are needed"
        )
    look = look_at(values[..., LOG_RATIO], values[..., ERROR], WANTED_CONFIDENCE, 0.0)
    names = (name for name, is_slow in zip(blocks.cases, slowed, strict=True) if is_slow)
    ends = np.expm1([look.estimate, look.low, look.high]).T.tolist()
    return [
        {**row, "case": name, "change": change, "interval_95": interval}
        for name, (change, *interval) in zip(names, ends, strict=True)
    ]


def is_judged(run: Json) -> bool:
    """Whether the run reached a look; else its budget was too short."""
    return any(case["p_value"] is not None for case in run["cases"])


# each run's comparison.json on a line, where runs are put together for keeping
TOGETHER = "runs.jsonl"


def finished_runs(folder: Path) -> list[Json]:
    """The runs of a folder in order, without those that were interrupted. BadInputError for a file
    that `compare run` has not written."""
    paths = sorted(folder.glob("run_????/comparison.json"))
    found = [(path, read_json(path)[0]) for path in paths]
    together = folder / TOGETHER
    if together.is_file():
        found += [(together, run) for run in read_lines(together, {"items": {"type": "object"}})[0]]
    runs = []
    for path, run in found:
        with made_by(typed("compare run"), path):
            run_rows([run])
            runs += [run] * (run["design"]["ended"] != "interrupted")
    return runs


# most false alarms a run that all A/A runs together have to show: 300 runs without any do
RUNS_BOUND = 0.01
# of processor, by name and architecture
FEWEST_KINDS = 2


def group_row(runs: Sequence[Json]) -> Json:
    """The row of runs that were asked alike, of one commit and machine; A/A runs have a
    standing."""
    first, context = runs[0], runs[0]["base_context"]
    settings = first["design"]["settings"]
    found = [{case["outcome"] for case in run["cases"]} for run in runs]
    without = [run["design"]["ended"] for run in runs if not is_judged(run)]
    by_case, blamed = defaultdict(Counter), defaultdict(Counter)
    for case in (case for run in runs for case in run["cases"]):
        by_case[case["name"]][case["outcome"]] += 1
        if case["attribution"] and case["outcome"] == Outcome.SLOWER.value:
            blamed[case["name"]][case["attribution"]["culprit"] or "nobody"] += 1
    row = {
        **made_on(context),
        "started": context.get("date", "unknown"),
        "slowdown": slowdown_of(settings),
        "options": command_text(settings["arguments"]),
        "alpha": first["alpha"],
        "margin": first["margin"],
        "budget_seconds": settings["budget_seconds"],
        "runs": len(runs),
        "without_verdict": dict(Counter(without)),
        "by_case": by_case,
        "culprits": blamed,
    }
    if row["slowdown"]:
        return row
    false = {word.value for word in rates.FALSE_WORDS}
    # one that reached no look could not have given a false alarm
    judged = len(runs) - len(without)
    return row | _false_alarms(sum(bool(false & words) for words in found), judged, row["alpha"])


def run_rows(runs: Sequence[Json]) -> list[Json]:
    """A row for each group of runs, in the order of their first run."""
    groups: dict[str, list[Json]] = {}
    for run in runs:
        context, design = run["base_context"], run["design"]
        made_with = made_on(context)
        asked = [design[key] for key in ("settings", "looks", "pairs")]
        key = json.dumps([run["alpha"], run["margin"], asked, made_with], sort_keys=True)
        groups.setdefault(key, []).append(run)
    return [group_row(group) for group in groups.values()]


def all_runs(rows: Sequence[Json], alpha: float) -> Json:
    """The row of all A/A runs of all machines, of recordings and of the command. `held` needs an
    upper bound of RUNS_BOUND and FEWEST_KINDS of processors."""
    counted = [row["slower_or_faster"] for row in rows if row["slower_or_faster"]]
    runs = sum(found["trials"] for found in counted)
    row = {"runs": runs, "kinds": len({(row["device"], row["architecture"]) for row in rows})}
    if not runs:
        return {**row, "standing": NOT_SHOWN}
    found = rates.share(sum(found["count"] for found in counted), runs)
    is_broken = rates.standing(found, alpha) == BROKEN
    is_held = found["upper_bound_95"] <= RUNS_BOUND and row["kinds"] >= FEWEST_KINDS
    word = BROKEN if is_broken else HELD if is_held else NOT_SHOWN
    return {**row, "slower_or_faster": found, "standing": word}


def document_standing(document: Json) -> str:
    """`broken` where any recording, group of A/A runs, change within the margin or coverage is;
    else that of all A/A runs together."""
    sections = ("recordings", "runs", "operating", "coverage")
    standings = [row.get("standing") for name in sections for row in document[name]]
    return BROKEN if BROKEN in standings else document["all_runs"]["standing"]


def case_words(name: str) -> str:
    """`ffn forward_backward`; the whole name where it has no axes."""
    axes = parse_case_name(name)
    return f"{axes.component} {axes.pass_name}" if axes else name


def _aligned(table: re.Match[str]) -> str:
    lines = (re.split(r"(?<!\\)\|", line.strip("|")) for line in table[0].splitlines())
    header, _, *rows = ([cell.strip().replace("\\|", "|") for cell in line] for line in lines)
    return "\n".join([*markdown_table(header, rows), ""])


OUTCOMES = tuple(outcome.value for outcome in rates.JUDGED)
PLOT = "CALIBRATION.svg"


def rendered(name: str, document: Json) -> str:
    """A template beside this file, filled from the document."""
    more = {"case_words": case_words, "duration": duration, "outcomes": OUTCOMES, "plot": PLOT}
    bound = {"runs_bound": RUNS_BOUND, "families": rates.FAMILIES, "least": LEAST_COVERED}
    return template(Path(__file__).with_name(name)).render(d=document, **more, **bound)


def calibration_page(document: Json) -> str:
    """The whole page."""
    text = rendered("page.md.j2", document)
    return re.sub(r"^(?:\|.*\n)+", _aligned, text, flags=re.MULTILINE)


class Sources(NamedTuple):
    """What is analysed: recordings, whole runs, and results with repetitions."""

    recordings: list[tuple[PairedBlocks, Json]]
    runs: list[Json]
    results: list[StoredRun]


def read_sources(options: argparse.Namespace) -> Sources:
    """BadInputError where there is nothing, or something cannot be read."""
    paths = options.recording or [options.out]
    folders = [path for path in paths if path.is_dir()]
    files = [path for path in options.recording or [] if path not in folders]
    files += (file for folder in folders for file in sorted(folder.glob("blocks_????.jsonl")))
    if not files:
        what = f"no recording; make one: `{typed('compare calibrate')} --record 30m`"
        raise BadInputError(f"{', '.join(map(str, paths))}: {what}")
    return Sources(
        [read_blocks(path) for path in files if path.suffix != ".json"],
        [run for folder in folders for run in finished_runs(folder)],
        [read_stored(path) for path in files if path.suffix == ".json"],
    )


def coverage_of(result: StoredRun) -> Json:
    """BadInputError where no case has repetitions enough."""
    row = coverage_row(case.each for case in result.cases.values())
    if not row["pairs"]:
        what = f"no case has {2 * REPETITIONS} repetitions"
        remedy = f"measure with --benchmark_repetitions={10 * REPETITIONS}"
        raise bad_file(result.path, what, remedy)
    started = result.context.get("date", "unknown")
    return {"file": result.path.name, **made_on(result.context), "started": started, **row}


# lists of the document, with a line an entry
EXPANDED = ("recordings", "sizes", "runs", "coverage", "operating")
# that say how blocks scatter
FEWEST_OF_NOISE = 20


def evidence(sources: Sources, options: argparse.Namespace) -> Json:
    """Sections of the document. What is found is simulated with the noise of the A/A recording with
    most cases; `noise` is that recording's row, None where all are too short."""
    same = [(blocks, row) for blocks, row in sources.recordings if not row["slowdown"]]
    slowed = [(blocks, row) for blocks, row in sources.recordings if row["slowdown"]]
    recordings = [recording_row(*one, options) for one in same]
    runs = run_rows(sources.runs)
    found = {
        "recordings": recordings,
        "sizes": [row for one in slowed for row in size_rows(*one)],
        "runs": runs,
        "all_runs": all_runs([*recordings, *(r for r in runs if not r["slowdown"])], options.alpha),
        "coverage": list(map(coverage_of, sources.results)),
        **{"noise": None, "operating": []},
    }
    if enough := [one for one in same if one[0].blocks >= FEWEST_OF_NOISE]:
        widest, row = max(enough, key=lambda one: (len(one[0].cases), one[0].blocks))
        found |= {"noise": row, "operating": rates.operating_rows(widest, options)}
    return found


def analysed(options: argparse.Namespace, arguments: Sequence[str], progress: Progress) -> Json:
    """The document, written with its page and the page's plot."""
    sources = read_sources(options)
    counts = zip(map(len, sources), ("recording", "run", "result"), strict=True)
    progress.line(", ".join(count_of(number, thing) for number, thing in counts))
    document: Json = {
        "kind": "tiny_llama calibration",
        "schema_version": 6,
        # of the code that judged; each recording and group of runs says what it is of
        "meta": {
            "date": now_text(),
            "commit": checkout_state(),
            "command": command_text([*typed("compare").split(), "calibrate", *arguments]),
        },
        "rule": {key: getattr(options, key) for key in ("alpha", "margin", "looks")},
        "effort": {key: getattr(options, key) for key in ("tries", "seed")},
        **evidence(sources, options),
    }
    document["standing"] = document_standing(document)
    options.out.mkdir(parents=True, exist_ok=True)
    page = calibration_page(document)
    texts = {"calibration.json": compact_json(document, EXPANDED), "CALIBRATION.md": page}
    if document["operating"]:
        texts[PLOT] = rendered("operating.svg.j2", document)
    for name, text in texts.items():
        write_whole(options.out / name, text)
        progress.line(str(options.out / name))
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
    found = analysed(options, arguments, progress)["standing"]
    if found == BROKEN:
        return REGRESSION
    return STILL_UNCLEAR if found == NOT_SHOWN and options.strict else NO_REGRESSION
