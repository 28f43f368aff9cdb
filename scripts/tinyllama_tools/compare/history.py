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
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.offline
import ruptures
from scipy.ndimage import median_filter
from scipy.stats import mannwhitneyu

from tinyllama_tools.compare.options import fraction, regular_expression
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
RESULTS_TABLE = """CREATE TABLE results (
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
)"""
CASES_TABLE = """CREATE TABLE cases (
  result INTEGER NOT NULL REFERENCES results (number),
  name TEXT NOT NULL,
  seconds REAL CHECK (seconds > 0),
  repetitions INTEGER NOT NULL,
  counters TEXT NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (result, name)
) WITHOUT ROWID"""
STATEMENTS = (
    RESULTS_TABLE,
    CASES_TABLE,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
DEFAULT_STORE = RESULTS / "history.sqlite"
# how long a writer waits for others
WAIT_SECONDS = 60.0
SHORT_COMMIT = 10
COMMIT = re.compile(r"[0-9a-f]{7,64}")


class Machine(NamedTuple):
    """What a series is of: times of two machines are never in one. `threads`: computed with."""

    device: str
    architecture: str
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return ", ".join(part for part in (self.device, self.architecture, threads) if part)


@dataclass(frozen=True)
class Result:
    """A result file. `number`: by which people and pages name it. `date`, `commit_time`: ISO 8601
    in UTC; `commit_time` is empty where git does not know the commit."""

    number: int
    file: str
    machine: Machine
    commit: str
    dirty: bool
    commit_time: str
    date: str
    torch_version: str

    @property
    def label(self) -> str:
        """The commit in short, with a + where tracked files had been changed."""
        return (self.commit[:SHORT_COMMIT] or "no commit") + ("+" if self.dirty else "")

    @property
    def place(self) -> tuple[str, str, int]:
        """Its place in a series: by commit, and by date within a commit. What was measured of
        changed files belongs to no commit, and stands where its date does."""
        at = self.date if self.dirty or not self.commit_time else self.commit_time
        return (at, self.date, self.number)


@dataclass(frozen=True)
class Series:
    """One case on one machine: files in order, with the median seconds of an iteration in each."""

    machine: Machine
    case: str
    results: tuple[Result, ...]
    seconds: tuple[float, ...]


def _utc(at: datetime.datetime) -> str:
    known = at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
    return known.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")


def commit_time(commit: str, project: Path) -> str:
    """When it was committed, in UTC; empty where it is no commit, or none of this repository."""
    # what a file says is text: a branch's name or an option must not reach git
    if not COMMIT.fullmatch(commit):
        return ""
    # whoever keeps the history need not own the checkout
    git = ["git", "-c", "safe.directory=*", "show", "--no-patch", "--format=%ct"]
    git += ["--end-of-options", f"{commit}^0"]
    try:
        found = subprocess.run(git, cwd=project, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    seconds = found.stdout.strip()
    if found.returncode != 0 or not seconds.isdigit():
        return ""
    return _utc(datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc))


def _machine_and_date(path: Path, context: Mapping[str, Any]) -> tuple[Machine, str]:
    """BadInputError where the file does not tell them, or is of a debug build."""
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
    machine = Machine(str(device["name"]), str(device.get("architecture") or ""), threads)
    return machine, _utc(at)


class KnownResultError(BadInputError):
    """This very file is in the history."""


class HistoryStore:
    """An open history; a context manager. BadInputError for what is none, or cannot be written."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """`create`: makes the file where there is none. Without, its absence is an error."""
        self.path = path
        if not create and not path.is_file():
            raise BadInputError(
                f"no history at {path}: begin one with scripts/compare history add FILE..."
            )
        with self._named_errors():
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
            try:
                self._prepare(create)
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> HistoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, path: Path, project: Path = PROJECT) -> Result:
        """Adds one result file whole, or nothing of it. `project`: whose git knows the commits'
        times. BadInputError for what is no result of the suite, KnownResultError for what is in."""
        run = read_stored(path)
        if run.configuration:
            raise bad_file(path, "is of tiny_llama_train", "name a result file of tiny_llama_bench")
        machine, date = _machine_and_date(path, run.context)
        context = {key: value for key, value in run.context.items() if key != "peaks"}
        commit, dirty = str(context.get("git_commit") or ""), bool(context.get("git_dirty"))
        at, now = commit_time(commit, project), _utc(datetime.datetime.now(datetime.timezone.utc))
        with self._named_errors(), self._connection:
            # a writer waits here for the others, and not in the middle of its work
            self._rows("BEGIN IMMEDIATE")
            known = self._rows("SELECT number, added FROM results WHERE digest = ?", run.digest)
            if known:
                raise KnownResultError(
                    f"{path}: this very file is result {known[0][0]} of {self.path.name}, added "
                    f"{known[0][1]}; a result counts once (history add --skip-known passes over it)"
                )
            ((number,),) = self._rows("SELECT coalesce(max(number), 0) + 1 FROM results")
            row = (number, str(path), run.digest, *machine, commit, int(dirty), at, date, now)
            row = (*row, json.dumps(context))
            self._rows(f"INSERT INTO results VALUES ({','.join('?' * len(row))})", *row)
            self._connection.executemany(
                "INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (number, name, case.seconds, case.repetitions, counters, reason)
                    for name, case in run.cases.items()
                    for counters in [json.dumps(dict(case.counters), sort_keys=True)]
                    for reason in [case.failed or case.skipped]
                ],
            )
        torch = str(context.get("torch_version") or "")
        return Result(number, str(path), machine, commit, dirty, at, date, torch)

    def series(self) -> list[Series]:
        """Every case of every machine with its medians; cases without a time are left out."""
        with self._named_errors():
            rows = self._rows(
                "SELECT number, file, device, architecture, threads, git_commit, git_dirty, "
                "commit_time, date, coalesce(json_extract(context, '$.torch_version'), '') "
                "FROM results"
            )
            times = self._rows("SELECT result, name, seconds FROM cases WHERE seconds NOT NULL")
        results = {
            row[0]: Result(row[0], row[1], Machine(*row[2:5]), row[5], bool(row[6]), *row[7:])
            for row in rows
        }
        found: dict[tuple[str, str], list[tuple[Result, float]]] = {}
        for number, name, seconds in times:
            result = results[number]
            found.setdefault((str(result.machine), name), []).append((result, seconds))
        series = []
        for (_, case), points in sorted(found.items()):
            points.sort(key=lambda point: point[0].place)
            files, seconds = zip(*points, strict=True)
            series.append(Series(files[0].machine, case, files, seconds))
        return series

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def _prepare(self, create: bool) -> None:
        """Makes the tables of a new file; otherwise looks whether it is one of this version."""
        if create and self._is_empty():
            with self._connection:
                self._rows("BEGIN IMMEDIATE")
                # another process may have made it meanwhile
                for statement in STATEMENTS if self._is_empty() else ():
                    self._rows(statement)
        if self._rows("PRAGMA application_id") != [(APPLICATION_ID,)]:
            raise BadInputError(
                f"{self.path} is not a history of this suite, and is left as it is: name another "
                "file with --store"
            )
        ((version,),) = self._rows("PRAGMA user_version")
        if version != SCHEMA_VERSION:
            raise BadInputError(
                f"{self.path} has schema version {version}, this program reads {SCHEMA_VERSION}: "
                "use the commit that wrote it, or add its result files to a new --store"
            )

    def _is_empty(self) -> bool:
        tables, kind = (
            self._rows("SELECT 1 FROM sqlite_master"),
            self._rows("PRAGMA application_id"),
        )
        return not tables and kind == [(0,)]

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """SQLite's own errors do not say of which file they are."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise BadInputError(
                f"history {self.path}: {error}; it must be a history of this suite that can be "
                "read and written; restore it, or add the result files to a new --store"
            ) from error


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


@dataclass(frozen=True)
class ChangePoint:
    """One change of one case on one machine, for good.

    `before`, `after`: the files of the segments on its two sides, in order; the change lies between
    before[-1] and after[0], whose commit it names. Seconds are the segments' medians.
    """

    machine: Machine
    case: str
    before: tuple[Result, ...]
    after: tuple[Result, ...]
    seconds_before: float
    seconds_after: float

    @property
    def ratio(self) -> float:
        """Seconds after over before: 1.05 is 5 % slower."""
        return self.seconds_after / self.seconds_before

    @property
    def remark(self) -> str:
        """What other than the named commit may be behind it; empty where nothing is known."""
        last, first = self.before[-1], self.after[0]
        remarks = []
        if not first.commit:
            remarks.append("its file names no commit")
        elif first.commit == last.commit and not first.dirty:
            remarks.append("no commit lies between: the machine or its settings changed")
        if first.dirty:
            remarks.append("measured with uncommitted changes")
        if first.torch_version != last.torch_version:
            remarks.append(f"libtorch {last.torch_version} before, {first.torch_version} after")
        return "; ".join(remarks)

    @property
    def where(self) -> str:
        return (
            f"between {self.before[-1].label} and {self.after[0].label}; "
            f"{seconds_text(self.seconds_after)} in {len(self.after)} files after, "
            f"{seconds_text(self.seconds_before)} in {len(self.before)} before"
        )


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


def find_change_points(series: Sequence[Series], margin: float = MARGIN) -> list[ChangePoint]:
    """The change points of all series, those of the newest files first."""
    found = []
    for one in series:
        ends = [0, *change_indices(one.seconds, margin), len(one.seconds)]
        parts = [(one.results[a:b], float(np.median(one.seconds[a:b]))) for a, b in pairwise(ends)]
        found += [
            ChangePoint(one.machine, one.case, before, after, seconds_before, seconds_after)
            for (before, seconds_before), (after, seconds_after) in pairwise(parts)
        ]
    return sorted(found, key=lambda point: point.after[0].place, reverse=True)


ADVISORY = (
    "Advisory: results of different days are not paired, so a change point is a hint where to look "
    "and has no stated error rate. Only scripts/compare run gives a verdict."
)
FILE_HEADER = ("result", "commit", "committed", "measured", "libtorch", "file")
CASE_HEADER = ("case", "files", "latest", "against the median")
CHANGE_HEADER = ("change", "commit", "case", "where", "results", "remark")
MOST_FILES = 10


def by_machine(series: Sequence[Series]) -> dict[Machine, list[Series]]:
    found: dict[Machine, list[Series]] = {}
    for one in series:
        found.setdefault(one.machine, []).append(one)
    return found


def file_rows(series: Sequence[Series]) -> list[tuple[str, ...]]:
    """Under FILE_HEADER, in order."""
    files = sorted({r for one in series for r in one.results}, key=lambda result: result.place)
    return [(str(f.number), f.label, f.commit_time, f.date, f.torch_version, f.file) for f in files]


def case_row(one: Series) -> tuple[str, ...]:
    """Under CASE_HEADER: the last value against the median of those before it."""
    *before, last = one.seconds
    against = "the first"
    if before:
        median = statistics.median(before)
        against = f"{change_text(last / median)} of {seconds_text(median)} ({len(before)} before)"
    return one.case, str(len(one.seconds)), seconds_text(last), against


def change_row(point: ChangePoint) -> tuple[str, ...]:
    """Under CHANGE_HEADER."""
    first, last = point.after[0], point.after[-1]
    numbers = f"{first.number} to {last.number}"
    return change_text(point.ratio), first.label, point.case, point.where, numbers, point.remark


def show_text(series: Sequence[Series]) -> str:
    """For each machine: its newest files, and each case's latest time beside those before."""
    lines: list[str] = []
    for machine, own in by_machine(series).items():
        files = file_rows(own)
        lines += [f"{machine}; files: {len(files)}, the newest {MOST_FILES} of which are", ""]
        lines += [*markdown_table(FILE_HEADER, files[-MOST_FILES:]), ""]
        lines += [*markdown_table(CASE_HEADER, map(case_row, own)), ""]
    return "\n".join(lines).rstrip()


def show_as_json(series: Sequence[Series]) -> list[Json]:
    """One object a machine and case, its points in order, seconds of an iteration."""
    return [
        {
            "machine": str(one.machine),
            "case": one.case,
            "points": [
                {
                    "result": result.number,
                    "commit": result.commit,
                    "dirty": result.dirty,
                    "date": result.date,
                    "seconds": seconds,
                }
                for result, seconds in zip(one.results, one.seconds, strict=True)
            ],
        }
        for one in series
    ]


def changes_text(series: Sequence[Series], points: Sequence[ChangePoint]) -> str:
    """The change points, newest first, under the sentence that says what they are worth."""
    enough = sum(len(one.seconds) >= FEWEST_FILES for one in series)
    looked = f"{enough} of {len(series)} series have the {FEWEST_FILES} files that it takes."
    lines = [ADVISORY, looked, ""]
    for machine in dict.fromkeys(point.machine for point in points):
        rows = [change_row(point) for point in points if point.machine == machine]
        lines += [f"{machine}:", "", *markdown_table(CHANGE_HEADER, rows), ""]
    return "\n".join(lines if points else [*lines, "No change point."]).rstrip()


def changes_as_json(points: Sequence[ChangePoint]) -> list[Json]:
    """One object a change point; `advisory` is true of each."""
    return [
        {
            "advisory": True,
            "machine": str(point.machine),
            "case": point.case,
            "ratio": point.ratio,
            "commit": point.after[0].commit,
            "last_commit_before": point.before[-1].commit,
            "seconds_before": point.seconds_before,
            "seconds_after": point.seconds_after,
            "results_before": [result.number for result in point.before],
            "results_after": [result.number for result in point.after],
            "remark": point.remark,
        }
        for point in points
    ]


TEMPLATE = Path(__file__).parent / "templates/history.html.j2"
MOST_CHANGES_AT_THE_TOP = 30
LABEL = 8
MOST_TICKS = 6
# seen on a light and on a dark ground
SERIES_COLOUR, LEVEL_COLOUR, QUIET_COLOUR = "#2f81f7", "#a371f7", "#848d97"


def _chart(one: Series, points: Sequence[ChangePoint]) -> Json:
    """What plotly draws: the medians of the files, and the level of each segment."""
    count, every = len(one.seconds), max(1, -(-len(one.seconds) // MOST_TICKS))
    milliseconds = [float(f"{1e3 * seconds:.5g}") for seconds in one.seconds]
    texts = [
        f"{r.label}, result {r.number}, {r.date}, libtorch {r.torch_version}" for r in one.results
    ]
    level: Json = {"x": [], "y": [], "mode": "lines", "hoverinfo": "skip"}
    starts = [one.results.index(point.after[0]) for point in points]
    levels = [*(point.seconds_before for point in points[:1]), *(p.seconds_after for p in points)]
    for seconds, (start, end) in zip(levels, pairwise([0, *starts, count]), strict=False):
        level["x"] += [start - 0.4, end - 0.6, None]
        level["y"] += [1e3 * seconds, 1e3 * seconds, None]
    axis = {"fixedrange": True, "zeroline": False, "gridcolor": "rgba(128,128,128,0.2)"}
    ticks = list(range(0, count, every))
    layout = {
        "margin": {"l": 50, "r": 10, "t": 24, "b": 40},
        "showlegend": False,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": QUIET_COLOUR, "size": 11},
        "xaxis": {
            **axis,
            "tickvals": ticks,
            "ticktext": [one.results[i].label[:LABEL] for i in ticks],
        },
        "yaxis": {**axis, "title": {"text": "ms"}},
        "annotations": [
            {"x": start - 0.5, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
            | {"text": change_text(point.ratio), "font": {"color": LEVEL_COLOUR}}
            for start, point in zip(starts, points, strict=True)
        ],
    }
    series = {
        "x": list(range(count)),
        "y": milliseconds,
        "mode": "lines+markers",
        "line": {"color": SERIES_COLOUR, "width": 1},
        "text": texts,
        "hovertemplate": "%{y:.4g} ms<br>%{text}<extra></extra>",
    }
    level["line"] = {"color": LEVEL_COLOUR, "width": 2, "dash": "dash"}
    return {"data": [series, level], "layout": layout}


def page_of(series: Sequence[Series], points: Sequence[ChangePoint]) -> str:
    """The HTML; texts from files are escaped. `points`: those of these series."""
    cases, charts = [], []
    for number, one in enumerate(series):
        own = [p for p in points[::-1] if (p.machine, p.case) == (one.machine, one.case)]
        cases.append((f"case-{number}", one, case_row(one), own))
        charts.append(_chart(one, own))
    anchors = {(one.machine, one.case): anchor for anchor, one, *_ in cases}
    machines = by_machine(series)
    return template(TEMPLATE).render(
        advisory=ADVISORY,
        fewest=FEWEST_FILES,
        points=points[:MOST_CHANGES_AT_THE_TOP],
        more=len(points[MOST_CHANGES_AT_THE_TOP:]),
        anchors=anchors,
        change_row=change_row,
        machines=[
            (machine, [case for case in cases if case[1].machine == machine], file_rows(own))
            for machine, own in machines.items()
        ],
        file_header=FILE_HEADER,
        charts=charts,
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


def _chosen(options: argparse.Namespace) -> list[Series]:
    with HistoryStore(options.store) as store:
        every = store.series()
    found = [
        one
        for one in every
        if (options.case is None or options.case.search(one.case))
        and (options.machine is None or options.machine.lower() in str(one.machine).lower())
    ]
    if not found:
        machines = "; ".join(dict.fromkeys(str(one.machine) for one in every)) or "none"
        case = options.case.pattern if options.case else "any"
        raise BadInputError(
            f"{options.store} has no time of --case {case} on --machine "
            f"{options.machine or 'any'}; its machines: {machines}"
        )
    return found


def _add(options: argparse.Namespace) -> int:
    status = 0
    with HistoryStore(options.store, create=True) as store:
        for path in options.files:
            # one bad file keeps none of the others out
            try:
                stored = store.add(path)
            except BadInputError as error:
                if not (options.skip_known and isinstance(error, KnownResultError)):
                    print(f"scripts/compare history: {error}", file=sys.stderr)
                    status = BAD_INPUT
            else:
                print(f"result {stored.number}: {stored.label} on {stored.machine}, {path}")
    return status


def main(arguments: Sequence[str]) -> int:
    """`arguments`: what follows `history`. The exit status: 0, 2 or 130."""
    parser = argparse.ArgumentParser(prog="scripts/compare history", description=__doc__)
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.command == "add":
        return _add(options)
    series = _chosen(options)
    if options.command == "show":
        is_json = options.format == "json"
        print(json.dumps(show_as_json(series)) if is_json else show_text(series))
        return 0
    points = find_change_points(series, options.margin)
    if options.command == "changes":
        is_json = options.format == "json"
        print(json.dumps(changes_as_json(points)) if is_json else changes_text(series, points))
        return 0
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.output, page_of(series, points))
    except OSError as error:
        raise BadInputError(
            f"--output {options.output}: cannot be written: {error.strerror}; name a file that can"
        ) from error
    print(options.output)
    return 0
