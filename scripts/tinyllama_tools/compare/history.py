"""scripts/compare history: results of many days and commits, kept and looked at.

Advisory: nothing here is a verdict, and no exit status depends on a change point. A series has only
times that can be compared: where settings or work differ, another one begins.
"""

import argparse
import fcntl
import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import plotly.offline

from tinyllama_tools.compare.comparison import (
    PLUG_INS,
    WORK_COUNTERS,
    compared_settings,
    peak_differences,
    utc,
)
from tinyllama_tools.compare.options import regular_expression
from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    BadInputError,
    Json,
    bad_file,
    git,
    naming,
    now_text,
    read_lines,
    schema_problem,
    write_whole,
)
from tinyllama_tools.core.installation import RESULTS, checkout, typed
from tinyllama_tools.core.options import add_out, fraction, script_parser
from tinyllama_tools.core.text import change_text, count_of, markdown_table, seconds_text, template
from tinyllama_tools.data.machine import plugin_texts
from tinyllama_tools.data.names import StoredCase
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.data.studies import SCHEMAS
from tinyllama_tools.stats.change_points import FEWEST_VALUES, change_indices
from tinyllama_tools.stats.verdicts import BAD_INPUT

# how each line begins, by which the file is recognised
KIND = {"history": "tiny_llama", "version": 2}
BEGINNING = b'{"history": "tiny_llama", "version": '
# version of lines that hold no settings, so that nobody knows which of their times are comparable
WITHOUT_SETTINGS = 1
# Smaller changes between files of different days, which are not paired, may be the machine's.
LEAST_CHANGE = 0.03
# The counter of how the work was done. A commit may change it, so that a series goes on when it
# changes; a change point says so.
EFFORT = "hardware_flops"
DEFAULT_STORE = RESULTS / "history.jsonl"
SHORT_COMMIT = 10
COMMIT = re.compile(r"[0-9a-f]{7,64}")
# how the points of a series are sorted
ORDER = itemgetter("at", "date", "result")


def commit_time(commit: str) -> str:
    """When it was committed, in UTC; empty where it is no commit, or none of this repository."""
    # it comes from a file: no name of a branch and no option may reach git
    if not COMMIT.fullmatch(commit):
        return ""
    name = ("--end-of-options", f"{commit}^0")
    found = (folder := checkout()) and git(folder, "show", "--no-patch", "--format=%cI", *name)
    return utc(found) if found else ""


# The one setting that may change within a series, since in containers and in hosted CI each run has
# another host; a change point says so.
HOST = "host_name"


def machine_of(settings: Json) -> str:
    """Device, architecture and threads in words, by which machines are told apart."""
    own = count_of(settings["threads"], "thread")
    parts = (settings["device name"], settings.get("device architecture"), own)
    return ", ".join(part for part in parts if part)


def label_of(commit: str, dirty: bool) -> str:
    """The commit in short, with a + where tracked files had been changed."""
    return (commit[:SHORT_COMMIT] or "no commit") + ("+" if dirty else "")


def read_store(path: Path) -> tuple[list[Json], bytes]:
    """Its results in the order in which they were added, and a last line that was cut short, which
    counts as not added. BadInputError for a file that is no history, or cannot be read."""
    try:
        found, rest = read_lines(path, SCHEMAS["history"])
        if not rest.startswith(BEGINNING[: len(rest)]):
            raise BadInputError(f"{path}: its last line begins otherwise")
    except BadInputError as error:
        raise BadInputError(
            f"{error}; this is no history of the suite, and is left as it is: name another file "
            f"with --store, or begin one with {typed('compare history')} add FILE..."
        ) from error
    return found, rest


def result_of(path: Path) -> Json:
    """The history's line of a result file. BadInputError for what is no result of the suite, is of
    a debug build, lacks its machine or date, or would make a line that breaks the schema."""
    run = read_stored(path)
    context, device = run.context, run.context.get("device") or {}
    if run.configuration:
        raise bad_file(path, "is of tiny_llama_train", "name a result file of tiny_llama_bench")
    if context.get("library_build_type") == "debug":
        raise bad_file(path, "is of a debug build, whose times mean nothing", MEASURE_AGAIN)
    if not device.get("name") or type(context.get("threads")) is not int:
        what = "its context names no device or no threads, so it belongs to no machine's series"
        raise bad_file(path, what, MEASURE_AGAIN)
    date = str(context.get("date", ""))
    try:
        at = utc(date)
    except (ValueError, OverflowError) as error:
        raise bad_file(path, f"date '{date}' is no ISO 8601 time", MEASURE_AGAIN) from error

    def figures(case: StoredCase) -> Json:
        known = ((name, case.counters.get(name)) for name in (*WORK_COUNTERS, EFFORT))
        return {"seconds": case.seconds, **{name: v for name, v in known if v is not None}}

    commit, settings = str(context.get("git_commit") or ""), compared_settings(context)
    settings[PLUG_INS] = ", ".join(plugin_texts(context))
    line = {
        **KIND,
        "file": str(path),
        "digest": run.digest,
        "commit": commit,
        "dirty": bool(context.get("git_dirty")),
        "commit_time": commit_time(commit),
        "date": at,
        "added": now_text(),
        "settings": {n: value for n, value in settings.items() if value not in (None, "")},
        "peaks": (context.get("peaks") or {}).get("measured") or {},
        "cases": {n: figures(case) for n, case in run.cases.items() if case.seconds is not None},
    }
    if problem := schema_problem([line], SCHEMAS["history"]):
        raise bad_file(path, problem, MEASURE_AGAIN)
    return line


def add_files(store: Path, paths: Sequence[Path], *, skip_known: bool) -> int:
    """Adds each file whole, or nothing of it, and says so; the exit status. BadInputError where the
    history cannot be read, OSError where it cannot be written."""
    status, added = 0, []
    store.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming(store), store.open("ab") as file:
            # waits for other writers
            fcntl.flock(file, fcntl.LOCK_EX)
            known, rest = read_store(store)
            file.truncate(file.seek(0, os.SEEK_END) - len(rest))
            # a result whose line has no settings may be added again, with them
            numbers = {
                one["digest"]: number
                for number, one in enumerate(known, start=1)
                if one["version"] != WITHOUT_SETTINGS
            }
            count = len(known)
            for path in paths:
                # one bad file keeps none of the others out
                try:
                    found = result_of(path)
                    if found["digest"] in numbers and not skip_known:
                        raise BadInputError(
                            f"{path}: this very file is result {numbers[found['digest']]} of "
                            f"{store.name}; a result counts once (history add --skip-known passes "
                            "over it)"
                        )
                except BadInputError as error:
                    print(f"{typed('compare history')}: {error}", file=sys.stderr)
                    status = BAD_INPUT
                    continue
                if found["digest"] in numbers:
                    continue
                # in one write, so that a reader sees at worst a last line that is cut short
                file.write(json.dumps(found).encode() + b"\n")
                file.flush()
                numbers[found["digest"]] = count = count + 1
                label = label_of(found["commit"], found["dirty"])
                machine = machine_of(found["settings"])
                added.append(f"result {count}: {label} on {machine}, {path}")
    finally:
        # outside of naming(): an error of standard output is not one of the store
        for line in added:
            print(line)
    return status


def meaning_of(one: Json, case: Json) -> Json:
    """Settings and work that a time of this case depends on, and that are the same throughout a
    series: all whose differences `compare` warns of, but for the host, and for plug-ins, whose code
    changes as that of commits does."""
    work = {name: case[name] for name in WORK_COUNTERS if name in case}
    return {
        name: value for name, value in one["settings"].items() if name not in (HOST, PLUG_INS)
    } | work


def read_series(store: Path) -> tuple[list[Json], int]:
    """All series, {"machine", "case", "began", "points"}: for each case on each machine one for
    every meaning_of() its times, with a point for each file in the order of "at"; and how many
    results are in no series, since they have no settings. "at" is the time of the commit; of
    uncommitted changes, and where there is no commit, that of measuring. "began": what differs
    between the first point and the one before it, {"older", "newer", "differences"}; None for the
    first series of a case. All outputs are made of these objects."""
    cases: dict[tuple[str, str], list[Json]] = {}
    results = read_store(store)[0]
    keys = ("commit", "dirty", "date", "file", "settings", "peaks")
    for number, one in enumerate(results, start=1):
        if one["version"] == WITHOUT_SETTINGS:
            continue
        at = one["date"] if one["dirty"] or not one["commit_time"] else one["commit_time"]
        label = label_of(one["commit"], one["dirty"])
        point = {"result": number, "at": at, "label": label, **{key: one[key] for key in keys}}
        for name, case in one["cases"].items():
            found = cases.setdefault((machine_of(one["settings"]), name), [])
            found.append({**point, **case, "meaning": meaning_of(one, case)})
    series = []
    for (machine, name), points in sorted(cases.items()):
        own: dict[str, Json] = {}
        before: Json | None = None
        for point in sorted(points, key=ORDER):
            meaning = json.dumps(point["meaning"], sort_keys=True)
            if meaning not in own:
                began = before and _beginning(before, point)
                own[meaning] = {"machine": machine, "case": name, "began": began, "points": []}
            own[meaning]["points"].append(point)
            before = point
        series += own.values()
    return series, sum(one["version"] == WITHOUT_SETTINGS for one in results)


def _beginning(older: Json, newer: Json) -> Json:
    sides = older["meaning"], newer["meaning"]
    pairs = {
        name: [side.get(name, "not said") for side in sides] for side in sides for name in side
    }
    found = [f"{name}: {a} before, {b} after" for name, (a, b) in pairs.items() if a != b]
    return {"older": older, "newer": newer, "differences": "; ".join(found)}


def segments_of(points: Sequence[Json], margin: float) -> list[tuple[int, int, float]]:
    """The segments between change points: indices of the first point and of the one after the last,
    and the median of their seconds."""
    seconds = [point["seconds"] for point in points]
    ends = [0, *change_indices(seconds, margin), len(seconds)]
    return [(start, end, float(np.median(seconds[start:end]))) for start, end in pairwise(ends)]


def _remark(last: Json, first: Json) -> str:
    """What other than the named commit may be the reason of a change; empty if nothing is known."""
    remarks = []
    if not first["commit"]:
        remarks.append("its file names no commit")
    elif first["commit"] == last["commit"] and not first["dirty"]:
        remarks.append("no commit lies between: the machine or its settings changed")
    if first["dirty"]:
        remarks.append("measured with uncommitted changes")
    hosts = [point["settings"].get(HOST, "unknown") for point in (last, first)]
    plugins = [point["settings"].get(PLUG_INS, "none") for point in (last, first)]
    efforts = [point.get(EFFORT) for point in (last, first)]
    for name, (before, after) in (("host", hosts), (PLUG_INS, plugins), (EFFORT, efforts)):
        if before != after:
            remarks.append(f"{name} {before} before, {after} after")
    peaks = ([{"peaks": {"measured": point["peaks"]}}] for point in (last, first))
    return "; ".join([*remarks, *peak_differences(*peaks)])


def change_rows(series: Sequence[Json]) -> list[tuple[str, ...]]:
    """Rows under CHANGE_HEADER, the newest change first. A change lies between the last file before
    it and the first after it; seconds are medians of the files up to the next change."""
    found: list[tuple[tuple[object, ...], tuple[str, ...]]] = []
    for one in series:
        points = one["points"]
        for (start, end, before), (_, last, after) in pairwise(one["segments"]):
            older, newer = points[end - 1], points[end]
            seconds = f"{seconds_text(before)} ({end - start} files) -> "
            seconds += f"{seconds_text(after)} ({last - end} files)"
            numbers = f"{newer['result']} to {points[last - 1]['result']}"
            names = (newer["label"], one["case"], older["label"])
            row = (change_text(after / before), *names, seconds, numbers, _remark(older, newer))
            found.append((ORDER(newer), row))
    return [row for _, row in sorted(found, reverse=True)]


def beginning_rows(series: Sequence[Json]) -> list[tuple[str, ...]]:
    """Rows under BEGINNING_HEADER, the newest first: where other settings or other work began a new
    series."""
    cases: dict[tuple[object, ...], list[str]] = {}
    for one in series:
        if began := one["began"]:
            older, newer = (began[side] for side in ("older", "newer"))
            row = (*ORDER(newer), newer["label"], older["label"], began["differences"])
            cases.setdefault(row, []).append(one["case"])
    return [
        (label, older, f"{names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}", differences)
        for (*_, label, older, differences), names in sorted(cases.items(), reverse=True)
    ]


ADVISORY = (
    "Advisory: results of different days are not paired, so a change point is a hint where to "
    "look. At most 5 % of series without a change show one by chance, as long as neighbouring "
    f"files have an autocorrelation of 0.6 or less. Only {typed('compare run')} gives a verdict."
)
FILE_HEADER = ("result", "commit", "at", "measured", "libtorch", "file")
NEW_SERIES = "new series because"
CASE_HEADER = ("case", "files", "latest", "against the median", NEW_SERIES)
BEGINNING_HEADER = ("commit", "before", "case", NEW_SERIES)
CHANGE_HEADER = ("change", "commit", "case", "before", "seconds", "results", "remark")
MOST_FILES = 10


def case_row(one: Json) -> tuple[str, ...]:
    """A series' row under CASE_HEADER: its last time against the median of those before."""
    *before, last = (point["seconds"] for point in one["points"])
    against = "the first"
    if before:
        median = statistics.median(before)
        against = f"{change_text(last / median)} of {seconds_text(median)} ({len(before)} before)"
    since = one["began"]["differences"] if one["began"] else ""
    return one["case"], str(len(one["points"])), seconds_text(last), against, since


def shown(point: Json, keys: Sequence[str]) -> list[str]:
    """The values of a point, or of its settings, under these keys."""
    return [str({**point["settings"], **point}.get(key, "unknown")) for key in keys]


def by_machine(series: Sequence[Json]) -> dict[str, list[Json]]:
    """The series of each machine, in their order."""
    machines = dict.fromkeys(one["machine"] for one in series)
    return {name: [one for one in series if one["machine"] == name] for name in machines}


def show_text(series: Sequence[Json]) -> str:
    """For each machine: its newest files, and each case's latest time beside those before."""
    lines: list[str] = []
    keys = ("result", "label", "at", "date", "torch_version", "file")
    for machine, own in by_machine(series).items():
        points = {point["result"]: point for one in own for point in one["points"]}
        files = [shown(p, keys) for p in sorted(points.values(), key=ORDER)]
        lines += [f"{machine}; files: {len(files)}, the newest {MOST_FILES} of which are", ""]
        lines += [*markdown_table(FILE_HEADER, files[-MOST_FILES:]), ""]
        lines += [*markdown_table(CASE_HEADER, map(case_row, own)), ""]
    return "\n".join(lines).rstrip()


def series_text(series: Sequence[Json], without_settings: int) -> str:
    """How many series are long enough for change points, and how many results are in none."""
    enough = sum(len(one["points"]) >= FEWEST_VALUES for one in series)
    text = f"{enough} of {len(series)} series have the {FEWEST_VALUES} files that it takes."
    if without_settings:
        text += (
            f" {count_of(without_settings, 'result')} of format version 1 hold no settings, so "
            "that their times cannot be compared: they are in no series until their files are "
            "added again."
        )
    return text


def changes_text(series: Sequence[Json], without_settings: int) -> str:
    """The changes, newest first, below how far they can be trusted."""
    lines = [ADVISORY, series_text(series, without_settings), ""]
    machines = by_machine(series).items()
    found = [(machine, rows) for machine, own in machines if (rows := change_rows(own))]
    for machine, rows in found:
        lines += [f"{machine}:", "", *markdown_table(CHANGE_HEADER, rows), ""]
    lines += [] if found else ["No change point.", ""]
    for machine, own in machines:
        if begun := beginning_rows(own):
            lines += [f"{machine}, where other settings or other work began a new series:", ""]
            lines += [*markdown_table(BEGINNING_HEADER, begun), ""]
    return "\n".join(lines).rstrip()


TEMPLATE = Path(__file__).parent / "templates/history.html.j2"
LABEL = 8
MOST_TICKS = 6
# what a chart shows of the point under the mouse
SHOWN = ("label", "result", "date", "torch_version", HOST, "file")


def _chart(one: Json) -> Json:
    """What plotly draws of a series: the times of the files, and the level of each segment. The
    page adds what is the same in all charts."""
    points, segments = one["points"], one["segments"]
    ticks = range(0, len(points), -(-len(points) // MOST_TICKS))
    return {
        "seconds": [float(f"{point['seconds']:.5g}") for point in points],
        "texts": [", ".join(shown(p, SHOWN)) for p in points],
        "levels": [(start - 0.4, end - 0.6, level) for start, end, level in segments],
        "ticks": list(ticks),
        "labels": [points[i]["label"][:LABEL] for i in ticks],
        "changes": [
            {"x": end - 0.5, "text": change_text(after / before)}
            for (_, end, before), (_, _, after) in pairwise(segments)
        ],
    }


def page_of(series: Sequence[Json], without_settings: int) -> str:
    """The HTML; texts from files are escaped."""
    articles = [{**one, "number": i, "row": case_row(one)} for i, one in enumerate(series)]
    return template(TEMPLATE).render(
        advisory=ADVISORY,
        series_text=series_text(series, without_settings),
        machines=by_machine(articles),
        change_rows=change_rows,
        change_header=CHANGE_HEADER,
        beginning_rows=beginning_rows,
        beginning_header=BEGINNING_HEADER,
        charts=list(map(_chart, series)),
        plotly=plotly.offline.get_plotlyjs(),
    )


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = script_parser("compare history", __doc__, "")
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|show|changes|page")
    add = commands.add_parser("add", help="add result files to the history")
    add.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add.add_argument("--skip-known", action="store_true", help="pass over files that are in it")
    show = commands.add_parser("show", help="the files, and each case's latest time")
    changes = commands.add_parser("changes", help="change points; advisory")
    page = commands.add_parser("page", help="trends as one HTML file; advisory")
    add_out(page, "the page", "FILE.html", required=True)
    for command in (add, show, changes, page):
        store = "default: results/history.jsonl"
        command.add_argument("--store", type=Path, default=DEFAULT_STORE, help=store)
    for command in (show, changes, page):
        only = "only these cases"
        command.add_argument("--filter", type=regular_expression, metavar="REGEX", help=only)
        command.add_argument("--machine", metavar="NAME", help="only machines of such a name")
    for command in (changes, page):
        smaller = "smaller changes are left out (default: %(default)s)"
        command.add_argument("--margin", type=fraction, default=LEAST_CHANGE, help=smaller)
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> tuple[list[Json], int]:
    """read_series(), with those of --filter and --machine alone."""
    every, without_settings = read_series(options.store)
    found = [
        one
        for one in every
        if (options.filter is None or options.filter.search(one["case"]))
        and (options.machine or "").lower() in one["machine"].lower()
    ]
    if not found:
        machines = "; ".join(by_machine(every)) or "none"
        case = options.filter.pattern if options.filter else "any"
        raise BadInputError(
            f"{options.store} has no time of --filter {case} on --machine "
            f"{options.machine or 'any'}; its machines: {machines}. "
            f"{series_text(every, without_settings)}"
        )
    return found, without_settings


def main(arguments: Sequence[str]) -> int:
    """`arguments`: what follows `history`. The exit status: 0, 2 or 130."""
    options = parse_options(arguments)
    if options.command == "add":
        return add_files(options.store, options.files, skip_known=options.skip_known)
    series, without_settings = _chosen(options)
    if options.command == "show":
        print(show_text(series))
        return 0
    for one in series:
        one["segments"] = segments_of(one["points"], options.margin)
    if options.command == "changes":
        print(changes_text(series, without_settings))
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.out, page_of(series, without_settings))
        print(options.out)
    return 0
