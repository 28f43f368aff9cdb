"""The history in an SQLite file: results per machine and commit, append-only."""

from __future__ import annotations

import datetime
import json
import re
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.app import MEASURE_AGAIN, PROJECT, RESULTS, BadInputError, bad_file
from tinyllama_tools.data.results import read_stored

if TYPE_CHECKING:
    from tinyllama_tools.data.names import StoredCase

# "tlhi": tells the file from other programs' databases.
APPLICATION_ID = 0x746C6869
SCHEMA_VERSION = 1
TABLES = (
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
)
# INSERT OR REPLACE removes a row without asking the triggers of DELETE, so rows that exist are
# refused before that.
REFUSED = {
    "results_are_not_replaced": (
        "INSERT ON results WHEN EXISTS "
        "(SELECT 1 FROM results WHERE digest = NEW.digest OR number = NEW.number)",
        "this result is in it",
    ),
    "cases_are_not_replaced": (
        "INSERT ON cases WHEN EXISTS "
        "(SELECT 1 FROM cases WHERE result = NEW.result AND name = NEW.name)",
        "this case is in it",
    ),
    "results_are_not_changed": ("UPDATE ON results", "no UPDATE"),
    "cases_are_not_changed": ("UPDATE ON cases", "no UPDATE"),
    "results_are_not_removed": ("DELETE ON results", "no DELETE"),
    "cases_are_not_removed": ("DELETE ON cases", "no DELETE"),
}


def _trigger(name: str, when: str, why: str) -> str:
    refusal = f"SELECT RAISE(ABORT, 'the history is append-only: {why}')"
    return f"CREATE TRIGGER {name} BEFORE {when} BEGIN {refusal}; END"


STATEMENTS = (
    *TABLES,
    *(_trigger(name, when, why) for name, (when, why) in REFUSED.items()),
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
SHORT_COMMIT = 10


@dataclass(frozen=True)
class Machine:
    """What a series is of: times of two machines are never in one. `threads`: computed with."""

    device: str
    architecture: str
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return ", ".join(part for part in (self.device, self.architecture, threads) if part)


@dataclass(frozen=True)
class CaseEntry:
    """One case of one file. `seconds`: of an iteration, the median over `repetitions`; None where
    it was skipped or failed, with the `reason`. `counters`: medians too."""

    name: str
    seconds: float | None
    repetitions: int
    counters: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class ResultEntry:
    """One result file. `date`, `commit_time`: ISO 8601 in UTC; `commit_time` is empty where git
    does not know the commit. `digest`: SHA-256 of the file. `context`: without the peaks."""

    file: str
    digest: str
    machine: Machine
    commit: str
    dirty: bool
    commit_time: str
    date: str
    context: Mapping[str, Any]
    cases: tuple[CaseEntry, ...]


@dataclass(frozen=True)
class StoredResult:
    """A result's row, without its cases. `number`: by which people and pages name it."""

    number: int
    file: str
    machine: Machine
    commit: str
    dirty: bool
    commit_time: str
    date: str
    added: str
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
class Point:
    """One case in one file: median seconds of an iteration."""

    result: StoredResult
    seconds: float


@dataclass(frozen=True)
class Series:
    """One case on one machine, its points in order."""

    machine: Machine
    case: str
    points: tuple[Point, ...]


COMMIT = re.compile(r"[0-9a-f]{7,64}")


def read_entry(path: Path, project: Path = PROJECT) -> ResultEntry:
    """One file with its machine, commit and cases. `project`: whose git knows the commits' times.

    BadInputError where the file is no result of this suite or of a debug build, or its machine or
    date is not told.
    """
    run = read_stored(path)
    if run.configuration:
        raise bad_file(path, "is of tiny_llama_train", "name a result file of tiny_llama_bench")
    context = run.context
    if context.get("library_build_type") == "debug":
        raise bad_file(path, "is of a debug build, whose times mean nothing", MEASURE_AGAIN)
    commit = str(context.get("git_commit") or "")
    return ResultEntry(
        file=str(path),
        digest=run.digest,
        machine=_machine(path, context),
        commit=commit,
        dirty=bool(context.get("git_dirty")),
        commit_time=commit_time(commit, project),
        date=_date(path, context),
        context={key: value for key, value in context.items() if key != "peaks"},
        cases=tuple(_case(name, case) for name, case in run.cases.items()),
    )


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
    if found.returncode != 0 or not found.stdout.strip().isdigit():
        return ""
    return _in_utc(datetime.datetime.fromtimestamp(int(found.stdout), datetime.timezone.utc))


def _in_utc(at: datetime.datetime) -> str:
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.timezone.utc)
    return at.astimezone(datetime.timezone.utc).isoformat(timespec="seconds")


def _machine(path: Path, context: Mapping[str, object]) -> Machine:
    device = context.get("device")
    threads = context.get("threads")
    if not isinstance(device, dict) or not device.get("name") or type(threads) is not int:
        raise BadInputError(
            f"{path}: its context names no device or no threads, so that nobody knows which "
            f"machine's series it belongs to; {MEASURE_AGAIN}"
        )
    return Machine(str(device["name"]), str(device.get("architecture") or ""), threads)


def _date(path: Path, context: Mapping[str, object]) -> str:
    text = str(context.get("date", ""))
    try:
        # Python 3.10 does not read the Z
        at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise bad_file(path, f"date '{text}' is no ISO 8601 time", MEASURE_AGAIN) from error
    return _in_utc(at)


def _case(name: str, case: StoredCase) -> CaseEntry:
    return CaseEntry(
        name, case.seconds, case.repetitions, case.counters, case.failed or case.skipped
    )


DEFAULT_STORE = RESULTS / "history.sqlite"
# how long a writer waits for others
WAIT_SECONDS = 60.0
COLUMNS = (
    "number, file, device, architecture, threads, git_commit, git_dirty, commit_time, date, added, "
    "coalesce(json_extract(context, '$.torch_version'), '')"
)


class KnownResultError(BadInputError):
    """This very file is in the history."""


class HistoryStore:
    """An open history; a context manager. BadInputError for what is none, or cannot be written."""

    def __init__(self, path: Path = DEFAULT_STORE, *, create: bool = False) -> None:
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
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._prepare(create)
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> HistoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, entry: ResultEntry) -> StoredResult:
        """Adds one result file whole, or nothing of it. KnownResultError where it is in already."""
        with self._named_errors(), self._transaction():
            known = self._connection.execute(
                "SELECT number, added FROM results WHERE digest = ?", (entry.digest,)
            ).fetchone()
            if known:
                raise KnownResultError(
                    f"{entry.file}: this very file is result {known[0]} of {self.path.name}, added "
                    f"{known[1]}; a result counts once (history add --skip-known passes over it)"
                )
            number = self._insert_result(entry)
            self._connection.executemany(
                "INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?)",
                (_case_row(number, case) for case in entry.cases),
            )
            row = self._connection.execute(
                f"SELECT {COLUMNS} FROM results WHERE number = ?", (number,)
            ).fetchone()
        return _stored(row)

    def results(self) -> list[StoredResult]:
        """Every file, in the order of their series."""
        with self._named_errors():
            rows = self._connection.execute(f"SELECT {COLUMNS} FROM results").fetchall()
        return sorted((_stored(row) for row in rows), key=lambda result: result.place)

    def series(self) -> list[Series]:
        """Every case of every machine with its medians; cases without a time are left out."""
        ordered = self.results()
        with self._named_errors():
            rows = self._connection.execute(
                "SELECT result, name, seconds FROM cases WHERE seconds NOT NULL"
            ).fetchall()
        medians: dict[int, list[tuple[str, float]]] = {}
        for number, name, seconds in rows:
            medians.setdefault(number, []).append((name, seconds))
        found: dict[tuple[Machine, str], list[Point]] = {}
        for result in ordered:
            for name, seconds in medians.get(result.number, []):
                found.setdefault((result.machine, name), []).append(Point(result, seconds))
        series = [Series(machine, case, tuple(points)) for (machine, case), points in found.items()]
        return sorted(series, key=lambda one: (str(one.machine), one.case))

    def _insert_result(self, entry: ResultEntry) -> int:
        number = self._connection.execute("SELECT coalesce(max(number), 0) + 1 FROM results")
        (next_number,) = number.fetchone()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        machine = entry.machine
        self._connection.execute(
            "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(next_number, entry.file, entry.digest),
                *(machine.device, machine.architecture, machine.threads),
                *(entry.commit, int(entry.dirty), entry.commit_time, entry.date),
                *(now, json.dumps(dict(entry.context))),
            ),
        )
        return next_number

    def _prepare(self, create: bool) -> None:
        """Makes the tables of a new file; otherwise looks whether it is one of this version."""
        if create and self._is_empty():
            with self._transaction():
                # another process may have made it meanwhile
                for statement in STATEMENTS if self._is_empty() else ():
                    self._connection.execute(statement)
        if self._pragma("application_id") != APPLICATION_ID:
            raise BadInputError(
                f"{self.path} is not a history of this suite, and is left as it is: name another "
                "file with --store"
            )
        version = self._pragma("user_version")
        if version != SCHEMA_VERSION:
            raise BadInputError(
                f"{self.path} has schema version {version}, this program reads {SCHEMA_VERSION}: "
                "use the commit that wrote it, or add its result files to a new --store"
            )

    def _is_empty(self) -> bool:
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return tables == (0,) and self._pragma("application_id") == 0

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: a writer waits here for the others, and not in the middle of its work
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # after a full disk and the like SQLite has rolled back itself
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """SQLite's own errors do not say of which file they are."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise BadInputError(
                f"history {self.path}: {error}; it has to be a file that can be "
                "read and written, and no other program may hold it"
            ) from error
        except sqlite3.DatabaseError as error:
            raise BadInputError(
                f"{self.path} is not a history, or a damaged one ({error}): restore "
                "it, or add the result files to a new --store"
            ) from error
        except OSError as error:
            raise BadInputError(f"history {self.path}: {error.strerror}") from error


def _case_row(number: int, case: CaseEntry) -> tuple[object, ...]:
    counters = json.dumps(dict(case.counters), sort_keys=True)
    return (number, case.name, case.seconds, case.repetitions, counters, case.reason)


def _stored(row: tuple[object, ...]) -> StoredResult:
    number, file, device, architecture, threads, commit, dirty, *rest = row
    commit_time, date, added, torch_version = rest
    machine = Machine(str(device), str(architecture), int(str(threads)))
    return StoredResult(
        int(str(number)),
        str(file),
        machine,
        str(commit),
        bool(dirty),
        str(commit_time),
        str(date),
        str(added),
        str(torch_version),
    )
