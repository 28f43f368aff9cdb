"""The history in an SQLite file: results per machine and commit, append-only."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tinyllama_tools.core.app import RESULTS, BadInputError
from tinyllama_tools.history.entries import (
    CaseEntry,
    Machine,
    Point,
    ResultEntry,
    Series,
    StoredResult,
)
from tinyllama_tools.history.schema import APPLICATION_ID, SCHEMA_VERSION, STATEMENTS

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
