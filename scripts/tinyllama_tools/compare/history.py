"""scripts/compare history: results of many days and commits, kept and looked at.

Advisory: nothing here is a verdict, and no exit status depends on a change point.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
import sqlite3
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import plotly.offline
import ruptures
from scipy.ndimage import median_filter
from scipy.stats import mannwhitneyu

from tinyllama_tools.compare.options import fraction, regular_expression
from tinyllama_tools.compare.sides import git
from tinyllama_tools.core.app import (
    MEASURE_AGAIN,
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    bad_file,
    write_whole,
)
from tinyllama_tools.core.text import change_text, markdown_table, seconds_text, template
from tinyllama_tools.data.results import read_stored
from tinyllama_tools.stats.verdicts import BAD_INPUT, MARGIN

# "tlhi": tells the file from other programs' databases
APPLICATION_ID = 0x746C6869
SCHEMA_VERSION = 1
STATEMENTS = (
    """CREATE TABLE results (
  number INTEGER PRIMARY KEY,
  file TEXT NOT NULL,
  digest TEXT NOT NULL UNIQUE,
  device TEXT NOT NULL,
  architecture TEXT NOT NULL,
  threads INTEGER NOT NULL CHECK (threads > 0),
  git_commit TEXT NOT NULL,
  git_dirty INTEGER NOT NULL CHECK (git_dirty IN (0, 1)),
  commit_time TEXT NOT NULL,
  date TEXT NOT NULL,
  added TEXT NOT NULL,
  context TEXT NOT NULL
)""",
    """CREATE TABLE cases (
  result INTEGER NOT NULL REFERENCES results (number),
  name TEXT NOT NULL,
  seconds REAL CHECK (seconds > 0),
  repetitions INTEGER NOT NULL,
  counters TEXT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (result, name)
) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
# what was measured of changed files belongs to no commit, and stands where its date does
SERIES = """SELECT device, architecture, threads, name,
  number AS result, git_commit AS "commit", git_dirty AS dirty, date, seconds,
  CASE WHEN git_dirty OR commit_time = '' THEN date ELSE commit_time END AS at,
  coalesce(json_extract(context, '$.torch_version'), '') AS libtorch,
  coalesce(json_extract(context, '$.host_name'), '') AS host, file
FROM cases JOIN results ON result = number WHERE seconds NOT NULL
ORDER BY device, architecture, threads, name, at, date, number"""
DEFAULT_STORE = RESULTS / "history.sqlite"
# how long a writer waits for others
WAIT_SECONDS = 60.0
SHORT_COMMIT = 10
COMMIT = re.compile(r"[0-9a-f]{7,64}")


def _utc(at: datetime.datetime) -> str:
    known = at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
    return known.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")


def commit_time(commit: str) -> str:
    """When it was committed, in UTC; empty where it is no commit, or none of this repository."""
    # what a file says is text: a branch's name or an option must not reach git
    if not COMMIT.fullmatch(commit):
        return ""
    name = ("--end-of-options", f"{commit}^0")
    seconds = git(PROJECT, "show", "--no-patch", "--format=%ct", *name) or ""
    if not seconds.isdigit():
        return ""
    return _utc(datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc))


def machine_text(device: str, architecture: str, threads: int) -> str:
    """What a series is of. Machines of one kind are in one, since hosts have other names every time
    in containers and in hosted CI: a change says where the host is another."""
    own = f"{threads} thread{'' if threads == 1 else 's'}"
    return ", ".join(part for part in (device, architecture, own) if part)


def label_of(commit: str, dirty: object) -> str:
    """The commit in short, with a + where tracked files had been changed."""
    return (commit[:SHORT_COMMIT] or "no commit") + ("+" if dirty else "")


@contextlib.contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """The history, whose file `create` makes where there is none. BadInputError for what is none,
    or cannot be read or written, in here or in the body."""
    if not create and not path.is_file():
        raise BadInputError(
            f"no history at {path}: begin one with scripts/compare history add FILE..."
        )
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        with contextlib.closing(connection) as database:
            if create and _is_empty(database):
                with database:
                    database.execute("BEGIN IMMEDIATE")
                    # another process may have made it meanwhile
                    for statement in STATEMENTS if _is_empty(database) else ():
                        database.execute(statement)
            if _pragma(database, "application_id") != APPLICATION_ID:
                raise BadInputError(
                    f"{path} is not a history of this suite, and is left as it is: name another "
                    "file with --store"
                )
            version = _pragma(database, "user_version")
            if version != SCHEMA_VERSION:
                raise BadInputError(
                    f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}: "
                    "use the commit that wrote it, or add its result files to a new --store"
                )
            yield database
    except (sqlite3.Error, OSError) as error:
        # SQLite's own errors do not say of which file they are
        raise BadInputError(
            f"history {path}: {error}; it must be a history of this suite that can be "
            "read and written; restore it, or add the result files to a new --store"
        ) from error


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _is_empty(database: sqlite3.Connection) -> bool:
    tables = database.execute("SELECT 1 FROM sqlite_master").fetchall()
    return not tables and _pragma(database, "application_id") == 0


def _machine_and_date(path: Path, context: Mapping[str, Any]) -> tuple[str, str, int, str]:
    """Device, architecture, threads and date. BadInputError where the file does not tell them, or
    is of a debug build."""
    device, threads = context.get("device") or {}, context.get("threads")
    if context.get("library_build_type") == "debug":
        raise bad_file(path, "is of a debug build, whose times mean nothing", MEASURE_AGAIN)
    if not device.get("name") or type(threads) is not int:
        what = "its context names no device or no threads, so it belongs to no machine's series"
        raise bad_file(path, what, MEASURE_AGAIN)
    text = str(context.get("date", ""))
    try:
        # Python 3.10 does not read the Z
        at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise bad_file(path, f"date '{text}' is no ISO 8601 time", MEASURE_AGAIN) from error
    return str(device["name"]), str(device.get("architecture") or ""), threads, _utc(at)


def add_file(store: Path, path: Path, *, skip_known: bool) -> str:
    """Adds one result file whole, or nothing of it; what to say of it, empty where it was known and
    is passed over. BadInputError for what is no result of the suite, or is in already."""
    run = read_stored(path)
    if run.configuration:
        raise bad_file(path, "is of tiny_llama_train", "name a result file of tiny_llama_bench")
    *machine, date = _machine_and_date(path, run.context)
    context = json.dumps({key: value for key, value in run.context.items() if key != "peaks"})
    commit, dirty = str(run.context.get("git_commit") or ""), bool(run.context.get("git_dirty"))
    at, now = commit_time(commit), _utc(datetime.datetime.now(datetime.timezone.utc))
    with opened(store, create=True) as database, database:
        # a writer waits here for the others, and not in the middle of its work
        database.execute("BEGIN IMMEDIATE")
        find = "SELECT number, added FROM results WHERE digest = ?"
        known = database.execute(find, [run.digest]).fetchone()
        if known and skip_known:
            return ""
        if known:
            raise BadInputError(
                f"{path}: this very file is result {known[0]} of {store.name}, added {known[1]}; "
                "a result counts once (history add --skip-known passes over it)"
            )
        last = "SELECT coalesce(max(number), 0) FROM results"
        number = database.execute(last).fetchone()[0] + 1
        row = (number, str(path), run.digest, *machine, commit, dirty, at, date, now, context)
        database.execute(f"INSERT INTO results VALUES ({','.join('?' * len(row))})", row)
        cases = [
            (number, name, case.seconds, case.repetitions, counters, case.failed or case.skipped)
            for name, case in run.cases.items()
            for counters in [json.dumps(dict(case.counters), sort_keys=True)]
        ]
        database.executemany("INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?)", cases)
    return f"result {number}: {label_of(commit, dirty)} on {machine_text(*machine)}, {path}"


def read_series(store: Path) -> list[Json]:
    """Every case of every machine; cases without a time are left out. Of each {"machine", "case",
    "points"}, a point a file: {"result", "commit", "dirty", "date", "seconds", "libtorch", "host",
    "file"}, and "at", by which they are ordered, and "label". All outputs are made of these
    objects."""
    with opened(store) as database:
        database.row_factory = sqlite3.Row
        rows = database.execute(SERIES).fetchall()
    found = []
    for (*machine, case), group in groupby(rows, key=lambda row: tuple(row)[:4]):
        points = [dict(zip(row.keys()[4:], tuple(row)[4:], strict=True)) for row in group]
        for point in points:
            point["dirty"] = bool(point["dirty"])
            point["label"] = label_of(point["commit"], point["dirty"])
        found.append({"machine": machine_text(*machine), "case": case, "points": points})
    return found


# with fewer, no rank-sum test reaches 0.05 / files
FEWEST_FILES = 11
SHORTEST_SEGMENT = 3
PENALTY = 6.0
CHANCE = 0.05
NEIGHBOURHOOD = 5
FURTHEST_SCATTERS = 3.0
# of a series that repeats itself to the last digit; a thousandth of the time
LEAST_SCATTER = 1e-3
# median absolute deviation to standard deviation, of normal noise
MAD_TO_DEVIATION = 1.4826


def _scatter(logs: np.ndarray) -> float:
    """Standard deviation of one file, from the differences of neighbours; never 0."""
    steps = np.diff(logs)
    deviation = MAD_TO_DEVIATION * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)
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


def find_changes(series: Sequence[Json], margin: float = MARGIN) -> list[Json]:
    """Of all series, those of the newest files first. A change lies between the last file before it
    and the first after it, whose commit it names; seconds are medians of the files up to the next
    change. A `ratio` of 1.05 is 5 % slower."""
    found: list[tuple[tuple[object, ...], Json]] = []
    for one in series:
        points, seconds = one["points"], [point["seconds"] for point in one["points"]]
        ends = [0, *change_indices(seconds, margin), len(seconds)]
        parts = [(points[a:b], float(np.median(seconds[a:b]))) for a, b in pairwise(ends)]
        for (before, seconds_before), (after, seconds_after) in pairwise(parts):
            last, first = before[-1], after[0]
            change = {
                "advisory": True,
                "machine": one["machine"],
                "case": one["case"],
                "ratio": seconds_after / seconds_before,
                "commit": first["commit"],
                "last_commit_before": last["commit"],
                "labels": [last["label"], first["label"]],
                "seconds_before": seconds_before,
                "seconds_after": seconds_after,
                "results_before": [point["result"] for point in before],
                "results_after": [point["result"] for point in after],
                "remark": _remark(last, first),
            }
            found.append(((first["at"], first["date"], first["result"]), change))
    return [change for _, change in sorted(found, key=itemgetter(0), reverse=True)]


ADVISORY = (
    "Advisory: results of different days are not paired, so a change point is a hint where to look "
    "and has no stated error rate. Only scripts/compare run gives a verdict."
)
FILE_HEADER = ("result", "commit", "at", "measured", "libtorch", "file")
CASE_HEADER = ("case", "files", "latest", "against the median")
CHANGE_HEADER = ("change", "commit", "case", "before", "seconds", "results", "remark")
MOST_FILES = 10


def file_rows(series: Sequence[Json]) -> list[tuple[str, ...]]:
    """Under FILE_HEADER, in order."""
    keys = ("result", "label", "at", "date", "libtorch", "file")
    points = {point["result"]: point for one in series for point in one["points"]}
    ordered = sorted(points.values(), key=itemgetter("at", "date", "result"))
    return [tuple(str(point[key]) for key in keys) for point in ordered]


def case_row(one: Json) -> tuple[str, ...]:
    """Under CASE_HEADER: the last value against the median of those before it."""
    *before, last = (point["seconds"] for point in one["points"])
    against = "the first"
    if before:
        median = statistics.median(before)
        against = f"{change_text(last / median)} of {seconds_text(median)} ({len(before)} before)"
    return one["case"], str(len(one["points"])), seconds_text(last), against


def change_row(change: Json) -> tuple[str, ...]:
    """Under CHANGE_HEADER."""
    (before, first), numbers = change["labels"], change["results_after"]
    seconds = " -> ".join(
        f"{seconds_text(change[f'seconds_{side}'])} ({len(change[f'results_{side}'])} files)"
        for side in ("before", "after")
    )
    texts = (change_text(change["ratio"]), first, change["case"], before, seconds)
    return (*texts, f"{numbers[0]} to {numbers[-1]}", change["remark"])


def by_machine(rows: Sequence[Json]) -> dict[str, list[Json]]:
    """Series or changes."""
    machines = dict.fromkeys(row["machine"] for row in rows)
    return {name: [row for row in rows if row["machine"] == name] for name in machines}


def show_text(series: Sequence[Json]) -> str:
    """For each machine: its newest files, and each case's latest time beside those before."""
    lines: list[str] = []
    for machine, own in by_machine(series).items():
        files = file_rows(own)
        lines += [f"{machine}; files: {len(files)}, the newest {MOST_FILES} of which are", ""]
        lines += [*markdown_table(FILE_HEADER, files[-MOST_FILES:]), ""]
        lines += [*markdown_table(CASE_HEADER, map(case_row, own)), ""]
    return "\n".join(lines).rstrip()


def changes_text(series: Sequence[Json], changes: Sequence[Json]) -> str:
    """Newest first, under the sentence that says what they are worth."""
    enough = sum(len(one["points"]) >= FEWEST_FILES for one in series)
    looked = f"{enough} of {len(series)} series have the {FEWEST_FILES} files that it takes."
    lines = [ADVISORY, looked, ""]
    for machine, own in by_machine(changes).items():
        lines += [f"{machine}:", "", *markdown_table(CHANGE_HEADER, map(change_row, own)), ""]
    return "\n".join(lines if changes else [*lines, "No change point."]).rstrip()


TEMPLATE = Path(__file__).parent / "templates/history.html.j2"
LABEL = 8
MOST_TICKS = 6
# of a point that is pointed at
SHOWN = ("label", "result", "date", "libtorch", "host")


def _chart(one: Json, changes: Sequence[Json]) -> Json:
    """What plotly draws: the medians of the files, and the level of each segment. The page adds
    what all charts share."""
    points = one["points"]
    numbers = [point["result"] for point in points]
    starts = [numbers.index(change["results_after"][0]) for change in changes]
    levels = [*(c["seconds_before"] for c in changes[:1]), *(c["seconds_after"] for c in changes)]
    edges = pairwise([0, *starts, len(points)])
    # a gap after each
    steps = [
        (x, y)
        for level, (start, end) in zip(levels, edges, strict=False)
        for x, y in ((start - 0.4, level), (end - 0.6, level), (None, None))
    ]
    ticks = range(0, len(points), -(-len(points) // MOST_TICKS))
    return {
        "seconds": [float(f"{point['seconds']:.5g}") for point in points],
        "texts": [", ".join(str(p[key]) for key in SHOWN) for p in points],
        "levels": {"x": [x for x, _ in steps], "y": [y for _, y in steps]},
        "ticks": list(ticks),
        "labels": [points[i]["label"][:LABEL] for i in ticks],
        "changes": [
            {"x": start - 0.5, "text": change_text(change["ratio"])}
            for start, change in zip(starts, changes, strict=True)
        ],
    }


def page_of(series: Sequence[Json], changes: Sequence[Json]) -> str:
    """The HTML; texts from files are escaped. `changes`: of these series."""
    articles = []
    for number, one in enumerate(series):
        own = [c for c in changes if (c["machine"], c["case"]) == (one["machine"], one["case"])]
        # in the order of the files
        more = {"number": number, "row": case_row(one), "chart": _chart(one, own[::-1])}
        articles.append({**one, **more})
    return template(TEMPLATE).render(
        advisory=ADVISORY,
        fewest=FEWEST_FILES,
        changes={machine: map(change_row, own) for machine, own in by_machine(changes).items()},
        change_header=CHANGE_HEADER,
        machines=by_machine(articles),
        file_rows=file_rows,
        file_header=FILE_HEADER,
        charts=[article["chart"] for article in articles],
        plotly=plotly.offline.get_plotlyjs(),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The subcommands add, show, changes and page."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|show|changes|page")
    add = commands.add_parser("add", help="add result files to the history")
    add.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add.add_argument("--skip-known", action="store_true", help="pass over files that are in it")
    show = commands.add_parser("show", help="the files, and each case's latest time")
    changes = commands.add_parser("changes", help="change points; advisory")
    page = commands.add_parser("page", help="trends as one HTML file; advisory")
    page.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html")
    for command in (add, show, changes, page):
        store = "default: results/history.sqlite"
        command.add_argument("--store", type=Path, default=DEFAULT_STORE, help=store)
    for command in (show, changes, page):
        only = "only these cases"
        command.add_argument("--case", type=regular_expression, metavar="REGEX", help=only)
        command.add_argument("--machine", metavar="NAME", help="only machines of such a name")
    for command in (show, changes):
        command.add_argument("--format", choices=("text", "json"), default="text")
    for command in (changes, page):
        smaller = "smaller changes are left out (default: %(default)s)"
        command.add_argument("--margin", type=fraction, default=MARGIN, help=smaller)


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


def _add(options: argparse.Namespace) -> int:
    status = 0
    for path in options.files:
        # one bad file keeps none of the others out
        try:
            said = add_file(options.store, path, skip_known=options.skip_known)
        except BadInputError as error:
            print(f"scripts/compare history: {error}", file=sys.stderr)
            status = BAD_INPUT
        else:
            print(said, end="\n" if said else "")
    return status


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = argparse.ArgumentParser(prog="scripts/compare history", description=__doc__)
    add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """`arguments`: what follows `history`. The exit status: 0, 2 or 130."""
    options = parse_options(arguments)
    if options.command == "add":
        return _add(options)
    series = _chosen(options)
    if options.command == "show":
        print(json.dumps(series) if options.format == "json" else show_text(series))
        return 0
    changes = find_changes(series, options.margin)
    if options.command == "changes":
        is_json = options.format == "json"
        print(json.dumps(changes) if is_json else changes_text(series, changes))
        return 0
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.output, page_of(series, changes))
    except OSError as error:
        raise BadInputError(
            f"--output {options.output}: cannot be written: {error.strerror}; name a file that can"
        ) from error
    print(options.output)
    return 0
