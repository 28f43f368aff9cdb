"""scripts/compare history: results of many days and commits, kept and looked at.

Advisory: nothing here is a verdict, and no exit status depends on a change point.
"""

import argparse
import datetime
import fcntl
import json
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import plotly.offline
import ruptures
from scipy.ndimage import median_filter
from scipy.stats import mannwhitneyu, median_abs_deviation

from tinyllama_tools.compare.options import regular_expression
from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    bad_file,
    git,
    naming,
    now_text,
    read_lines,
    write_whole,
)
from tinyllama_tools.core.options import fraction, script_parser
from tinyllama_tools.core.text import change_text, count_of, markdown_table, seconds_text, template
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.data.studies import SCHEMAS
from tinyllama_tools.stats.verdicts import BAD_INPUT, MARGIN

# the history's own, by which a file is told from others
KIND = {"history": "tiny_llama", "version": 1}
BEGINNING = json.dumps(KIND)[:-1].encode()
DEFAULT_STORE = RESULTS / "history.jsonl"
SHORT_COMMIT = 10
COMMIT = re.compile(r"[0-9a-f]{7,64}")
# of the points of a series
ORDER = itemgetter("at", "date", "result")


def _utc(text: str) -> str:
    """Of an ISO 8601 time."""
    # Python 3.10 does not read the Z
    at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    known = at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
    return known.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")


def commit_time(commit: str) -> str:
    """When it was committed, in UTC; empty where it is no commit, or none of this repository."""
    # what a file says is text: a branch's name or an option must not reach git
    if not COMMIT.fullmatch(commit):
        return ""
    name = ("--end-of-options", f"{commit}^0")
    found = git(PROJECT, "show", "--no-patch", "--format=%cI", *name)
    return _utc(found) if found else ""


def machine_of(result: Json) -> str:
    """What a series is of. Machines of one kind are in one, since hosts have other names every time
    in containers and in hosted CI: a change says where the host is another."""
    own = count_of(result["threads"], "thread")
    return ", ".join(part for part in (result["device"], result["architecture"], own) if part)


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
            "with --store, or begin one with scripts/compare history add FILE..."
        ) from error
    return found, rest


def result_of(path: Path) -> Json:
    """What is kept of a result file. BadInputError for what is no result of the suite, is of a
    debug build, or does not tell its machine and date."""
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
        at = _utc(date)
    except (ValueError, OverflowError) as error:
        raise bad_file(path, f"date '{date}' is no ISO 8601 time", MEASURE_AGAIN) from error

    def text(of: Mapping[str, Any], key: str) -> str:
        return str(of.get(key) or "")

    commit = text(context, "git_commit")
    return {
        **KIND,
        "file": str(path),
        "digest": run.digest,
        "device": text(device, "name"),
        "architecture": text(device, "architecture"),
        "threads": context["threads"],
        "commit": commit,
        "dirty": bool(context.get("git_dirty")),
        "commit_time": commit_time(commit),
        "date": at,
        "added": now_text(),
        "libtorch": text(context, "torch_version"),
        "host": text(context, "host_name"),
        "cases": {n: case.seconds for n, case in run.cases.items() if case.seconds is not None},
    }


def add_files(store: Path, paths: Sequence[Path], *, skip_known: bool) -> int:
    """Adds each file whole, or nothing of it, and says so; the exit status. BadInputError where the
    history cannot be read, OSError where it cannot be written."""
    status, added = 0, []
    store.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming(store), store.open("ab") as file:
            # other writers are waited for
            fcntl.flock(file, fcntl.LOCK_EX)
            known, rest = read_store(store)
            file.truncate(file.seek(0, os.SEEK_END) - len(rest))
            numbers = {one["digest"]: number for number, one in enumerate(known, start=1)}
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
                    print(f"scripts/compare history: {error}", file=sys.stderr)
                    status = BAD_INPUT
                    continue
                if found["digest"] in numbers:
                    continue
                # one write for the line, so that a reader never sees more than a cut one
                file.write(json.dumps(found).encode() + b"\n")
                file.flush()
                number = numbers[found["digest"]] = len(numbers) + 1
                label = label_of(found["commit"], found["dirty"])
                added.append(f"result {number}: {label} on {machine_of(found)}, {path}")
    finally:
        # not above: that standard output is full is no fault of the store
        for line in added:
            print(line)
    return status


def read_series(store: Path) -> list[Json]:
    """Every case of every machine: {"machine", "case", "points"}, a point a file in the order of
    "at". What was measured of changed files belongs to no commit, and stands where its date does.
    All outputs are made of these objects."""
    series: dict[tuple[str, str], list[Json]] = {}
    keys = ("commit", "dirty", "date", "libtorch", "host", "file")
    for number, one in enumerate(read_store(store)[0], start=1):
        at = one["date"] if one["dirty"] or not one["commit_time"] else one["commit_time"]
        label = label_of(one["commit"], one["dirty"])
        point = {"result": number, "at": at, "label": label, **{key: one[key] for key in keys}}
        for case, seconds in one["cases"].items():
            found = series.setdefault((machine_of(one), case), [])
            found.append({**point, "seconds": seconds})
    return [
        {"machine": machine, "case": case, "points": sorted(points, key=ORDER)}
        for (machine, case), points in sorted(series.items())
    ]


# with fewer, no rank-sum test reaches 0.05 / files
FEWEST_FILES = 11
SHORTEST_SEGMENT = 3
PENALTY = 6.0
CHANCE = 0.05
NEIGHBOURHOOD = 5
FURTHEST_SCATTERS = 3.0
# of a series that repeats itself to the last digit; a thousandth of the time
LEAST_SCATTER = 1e-3


def _scatter(logs: np.ndarray) -> float:
    """Standard deviation of one file, from the differences of neighbours; never 0."""
    deviation = median_abs_deviation(np.diff(logs), scale="normal") / np.sqrt(2)
    return max(float(deviation), LEAST_SCATTER)


def _around(logs: np.ndarray, points: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each point, the values of the segments before and after it."""
    return list(pairwise(logs[a:b] for a, b in pairwise([0, *points, len(logs)])))


def change_indices(seconds: Sequence[float], margin: float = MARGIN) -> list[int]:
    """Indices of the first values after each change, in order; none of fewer than FEWEST_FILES.

    PELT on the logarithms, single outliers pulled in; each point is confirmed by a rank-sum test.
    `margin`: the least change of the segments' medians, as a fraction. Seconds are positive.
    """
    if len(seconds) < FEWEST_FILES:
        return []
    logs = np.log(np.asarray(seconds, dtype=float))
    scatter = _scatter(logs)
    around = median_filter(logs, size=NEIGHBOURHOOD, mode="nearest")
    calm = np.where(np.abs(logs - around) > FURTHEST_SCATTERS * scatter, around, logs)
    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST_SEGMENT)
    penalty = PENALTY * scatter**2 * np.log(len(logs))
    # the last is the end of the series
    points = list(search.fit(calm.reshape(-1, 1)).predict(pen=penalty))[:-1]
    while points:
        chances = [float(mannwhitneyu(a, b).pvalue) for a, b in _around(logs, points)]
        if max(chances) <= CHANCE / len(logs):
            break
        del points[int(np.argmax(chances))]
    while points:
        sizes = [abs(float(np.median(b) - np.median(a))) for a, b in _around(logs, points)]
        if min(sizes) >= np.log1p(margin):
            break
        del points[int(np.argmin(sizes))]
    return points


def segments_of(points: Sequence[Json], margin: float) -> list[tuple[int, int, float]]:
    """What lies between changes: indices of the first point and of that after the last, and the
    median of their seconds."""
    seconds = [point["seconds"] for point in points]
    ends = [0, *change_indices(seconds, margin), len(seconds)]
    return [(start, end, float(np.median(seconds[start:end]))) for start, end in pairwise(ends)]


def _remark(last: Json, first: Json) -> str:
    """What other than the named commit may be behind a change; empty where nothing is known."""
    remarks = []
    if not first["commit"]:
        remarks.append("its file names no commit")
    elif first["commit"] == last["commit"] and not first["dirty"]:
        remarks.append("no commit lies between: the machine or its settings changed")
    if first["dirty"]:
        remarks.append("measured with uncommitted changes")
    for key in ("libtorch", "host"):
        before, after = last[key] or "unknown", first[key] or "unknown"
        if before != after:
            remarks.append(f"{key} {before} before, {after} after")
    return "; ".join(remarks)


def change_rows(series: Sequence[Json]) -> list[tuple[str, ...]]:
    """Under CHANGE_HEADER, those of the newest files first. A change lies between the last file
    before it and the first after it; seconds are medians of the files up to the next change."""
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


ADVISORY = (
    "Advisory: results of different days are not paired, so a change point is a hint where to look "
    "and has no stated error rate. Only scripts/compare run gives a verdict."
)
FILE_HEADER = ("result", "commit", "at", "measured", "libtorch", "file")
CASE_HEADER = ("case", "files", "latest", "against the median")
CHANGE_HEADER = ("change", "commit", "case", "before", "seconds", "results", "remark")
MOST_FILES = 10


def case_row(one: Json) -> tuple[str, ...]:
    """Under CASE_HEADER: the last value against the median of those before it."""
    *before, last = (point["seconds"] for point in one["points"])
    against = "the first"
    if before:
        median = statistics.median(before)
        against = f"{change_text(last / median)} of {seconds_text(median)} ({len(before)} before)"
    return one["case"], str(len(one["points"])), seconds_text(last), against


def by_machine(series: Sequence[Json]) -> dict[str, list[Json]]:
    """In their order."""
    machines = dict.fromkeys(one["machine"] for one in series)
    return {name: [one for one in series if one["machine"] == name] for name in machines}


def show_text(series: Sequence[Json]) -> str:
    """For each machine: its newest files, and each case's latest time beside those before."""
    lines: list[str] = []
    keys = ("result", "label", "at", "date", "libtorch", "file")
    for machine, own in by_machine(series).items():
        points = {point["result"]: point for one in own for point in one["points"]}
        files = [[str(p[key]) for key in keys] for p in sorted(points.values(), key=ORDER)]
        lines += [f"{machine}; files: {len(files)}, the newest {MOST_FILES} of which are", ""]
        lines += [*markdown_table(FILE_HEADER, files[-MOST_FILES:]), ""]
        lines += [*markdown_table(CASE_HEADER, map(case_row, own)), ""]
    return "\n".join(lines).rstrip()


def changes_text(series: Sequence[Json]) -> str:
    """Newest first, under the sentence that says what they are worth."""
    enough = sum(len(one["points"]) >= FEWEST_FILES for one in series)
    looked = f"{enough} of {len(series)} series have the {FEWEST_FILES} files that it takes."
    lines = [ADVISORY, looked, ""]
    for machine, own in by_machine(series).items():
        if rows := change_rows(own):
            lines += [f"{machine}:", "", *markdown_table(CHANGE_HEADER, rows), ""]
    return "\n".join(lines if lines[3:] else [*lines, "No change point."]).rstrip()


TEMPLATE = Path(__file__).parent / "templates/history.html.j2"
LABEL = 8
MOST_TICKS = 6
# of a point that is pointed at
SHOWN = ("label", "result", "date", "libtorch", "host", "file")


def _chart(one: Json) -> Json:
    """What plotly draws: the medians of the files, and the level of each segment. The page adds
    what all charts share."""
    points, segments = one["points"], one["segments"]
    ticks = range(0, len(points), -(-len(points) // MOST_TICKS))
    return {
        "seconds": [float(f"{point['seconds']:.5g}") for point in points],
        "texts": [", ".join(str(p[key]) for key in SHOWN) for p in points],
        "levels": [(start - 0.4, end - 0.6, level) for start, end, level in segments],
        "ticks": list(ticks),
        "labels": [points[i]["label"][:LABEL] for i in ticks],
        "changes": [
            {"x": end - 0.5, "text": change_text(after / before)}
            for (_, end, before), (_, _, after) in pairwise(segments)
        ],
    }


def page_of(series: Sequence[Json]) -> str:
    """The HTML; texts from files are escaped."""
    articles = [{**one, "number": i, "row": case_row(one)} for i, one in enumerate(series)]
    return template(TEMPLATE).render(
        advisory=ADVISORY,
        fewest=FEWEST_FILES,
        machines=by_machine(articles),
        change_rows=change_rows,
        change_header=CHANGE_HEADER,
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
    page.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html")
    for command in (add, show, changes, page):
        store = "default: results/history.jsonl"
        command.add_argument("--store", type=Path, default=DEFAULT_STORE, help=store)
    for command in (show, changes, page):
        only = "only these cases"
        command.add_argument("--case", type=regular_expression, metavar="REGEX", help=only)
        command.add_argument("--machine", metavar="NAME", help="only machines of such a name")
    for command in (changes, page):
        smaller = "smaller changes are left out (default: %(default)s)"
        command.add_argument("--margin", type=fraction, default=MARGIN, help=smaller)
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Json]:
    every = read_series(options.store)
    found = [
        one
        for one in every
        if (options.case is None or options.case.search(one["case"]))
        and (options.machine or "").lower() in one["machine"].lower()
    ]
    if not found:
        machines = "; ".join(by_machine(every)) or "none"
        case = options.case.pattern if options.case else "any"
        raise BadInputError(
            f"{options.store} has no time of --case {case} on --machine "
            f"{options.machine or 'any'}; its machines: {machines}"
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """`arguments`: what follows `history`. The exit status: 0, 2 or 130."""
    options = parse_options(arguments)
    if options.command == "add":
        return add_files(options.store, options.files, skip_known=options.skip_known)
    series = _chosen(options)
    if options.command == "show":
        print(show_text(series))
        return 0
    for one in series:
        one["segments"] = segments_of(one["points"], options.margin)
    if options.command == "changes":
        print(changes_text(series))
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.output, page_of(series))
        print(options.output)
    return 0
