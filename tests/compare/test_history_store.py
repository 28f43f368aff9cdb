"""The history's file: nothing in it can be changed, and what is not a history is named."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from history_samples import CASE, OTHER_CASE, entry, result_document, write_result

from tinyllama_tools.core.app import PROJECT, BadInputError
from tinyllama_tools.history import store as result_file
from tinyllama_tools.history.store import (
    CaseEntry,
    HistoryStore,
    KnownResultError,
    Machine,
    commit_time,
    read_entry,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results/history.sqlite"


def test_what_is_kept_of_a_file(path: Path, tmp_path: Path) -> None:
    document = result_document({CASE: [0.011, 0.010, 0.013]})
    document["benchmarks"] += [
        {**document["benchmarks"][0], "run_name": OTHER_CASE, "error_occurred": True}
        | {"error_message": "wrong result"}
    ]
    file = write_result(tmp_path / "a.json", document)
    with HistoryStore(path, create=True) as store:
        stored = store.add(read_entry(file))
        (series,) = store.series()
    with contextlib.closing(sqlite3.connect(path)) as database:
        columns = "name, seconds, repetitions, counters, reason"
        rows = database.execute(f"SELECT {columns} FROM cases WHERE result = ?", (stored.number,))
        cases = {
            name: CaseEntry(name, seconds, repetitions, json.loads(counters), reason)
            for name, seconds, repetitions, counters, reason in rows
        }
    assert stored.machine == Machine("Test CPU", "x86-64", 2)
    assert (stored.commit, stored.date) == ("c" * 40, "2026-03-01T12:00:00+00:00")
    assert cases[CASE].seconds == pytest.approx(0.011)
    assert cases[CASE].repetitions == 3
    assert cases[CASE].counters == {"peak_memory_MiB": 3.5, "operators": 21.0}
    assert (cases[OTHER_CASE].seconds, cases[OTHER_CASE].reason) == (None, "wrong result")
    # without a time there is no point in a series
    assert (series.case, [point.seconds for point in series.points]) == (
        CASE,
        [cases[CASE].seconds],
    )


def test_only_a_commit_reaches_git(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answered(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "0\n", "")

    monkeypatch.setattr(result_file.subprocess, "run", answered)
    for word in ("", "HEAD", "--output=x", "main", "abc123", "A" * 40, "a" * 65, "abcdef1\n"):
        assert commit_time(word, PROJECT) == ""
    assert asked == []
    assert commit_time("abcdef1", PROJECT) == "1970-01-01T00:00:00+00:00"
    assert asked[0][-2:] == ["--end-of-options", "abcdef1^0"]


def test_a_debug_build_is_refused(tmp_path: Path) -> None:
    document = result_document({CASE: [0.01]})
    document["context"]["library_build_type"] = "debug"
    with pytest.raises(BadInputError, match=r"a\.json: is of a debug build"):
        read_entry(write_result(tmp_path / "a.json", document))


def test_what_sqlite_rolled_back_itself_keeps_its_own_error(path: Path) -> None:
    with HistoryStore(path, create=True) as store:
        # as a full disk does: the statement fails, and the transaction is over
        store._connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON results "
            "BEGIN SELECT RAISE(ROLLBACK, 'database or disk is full'); END"
        )
        with pytest.raises(BadInputError, match="database or disk is full"):
            store.add(entry(0, {CASE: 0.01}))
        assert store.results() == []


def test_the_same_file_is_refused_by_its_content(path: Path, tmp_path: Path) -> None:
    document = result_document({CASE: [0.01]})
    with HistoryStore(path, create=True) as store:
        store.add(read_entry(write_result(tmp_path / "a.json", document)))
        copy = write_result(tmp_path / "copy.json", document)
        with pytest.raises(KnownResultError, match=r"copy\.json: this very file is result 1"):
            store.add(read_entry(copy))
        assert len(store.results()) == 1


def test_a_file_is_added_whole_or_not_at_all(path: Path) -> None:
    good = entry(0, {CASE: 0.01, OTHER_CASE: 0.02})
    with HistoryStore(path, create=True) as store:
        with pytest.raises(BadInputError, match="CHECK"):
            store.add(entry(1, {CASE: 0.01, OTHER_CASE: -1.0}))
        assert store.results() == []
        store.add(good)
        assert [len(one.points) for one in store.series()] == [1, 1]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE results SET git_commit = 'x'",
        "UPDATE cases SET seconds = 1",
        "DELETE FROM results",
        "DELETE FROM cases",
        "INSERT OR REPLACE INTO results SELECT * FROM results",
        "INSERT OR REPLACE INTO cases SELECT * FROM cases",
        "INSERT OR REPLACE INTO cases SELECT result, name, 1.0, 1, '{}', '' FROM cases",
    ],
)
def test_rows_are_neither_changed_nor_removed(path: Path, statement: str) -> None:
    with HistoryStore(path, create=True) as store:
        store.add(entry(0, {CASE: 0.01}))
    with sqlite3.connect(path) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
        assert connection.execute("SELECT seconds FROM cases").fetchall() == [(0.01,)]


def test_series_are_ordered_by_commit_and_parted_by_machine(path: Path) -> None:
    other = Machine("Test CPU", "x86-64", 8)
    with HistoryStore(path, create=True) as store:
        for index in (3, 1, 2):
            store.add(entry(index, {CASE: index / 100}))
        store.add(entry(0, {CASE: 0.5}, machine=other))
        first, second = store.series()
    assert [point.seconds for point in first.points] == [0.01, 0.02, 0.03]
    assert (second.machine, len(second.points)) == (other, 1)
    assert str(other) == "Test CPU, x86-64, 8 threads"


def test_a_later_measurement_of_an_old_commit_stands_with_that_commit(path: Path) -> None:
    with HistoryStore(path, create=True) as store:
        for index in (0, 1):
            store.add(entry(index, {CASE: 0.01}))
        late = entry(9, {CASE: 0.02})
        old = late.__class__(**{**late.__dict__, "commit_time": entry(0, {}).commit_time})
        store.add(old)
        # what was measured of changed files belongs to no commit: it stands at its date
        store.add(late.__class__(**{**old.__dict__, "dirty": True, "digest": "another"}))
        numbers = [result.number for result in store.results()]
        labels = [result.label for result in store.results()]
    assert numbers == [1, 3, 2, 4]
    assert labels[-1] == "0009ababab+"


def test_a_missing_history_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(BadInputError, match=r"no history at .*history add"):
        HistoryStore(path)
    assert not path.exists()


def test_foreign_and_damaged_files_are_named_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database, but longer than the header of one" * 40)
    with pytest.raises(BadInputError, match=r"history\.sqlite is not a history, or a damaged one"):
        HistoryStore(path, create=True)
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    content = path.read_bytes()
    for create in (True, False):
        with pytest.raises(BadInputError, match="is not a history of this suite"):
            HistoryStore(path, create=create)
    assert path.read_bytes() == content


def test_a_damaged_page_is_named(path: Path) -> None:
    with HistoryStore(path, create=True) as store:
        for index in range(40):
            store.add(entry(index, {f"case {n}": 0.01 for n in range(20)}))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with (
        HistoryStore(path) as store,
        pytest.raises(BadInputError, match=r"history\.sqlite.*damaged"),
    ):
        store.series()


def test_another_version_is_named(path: Path) -> None:
    HistoryStore(path, create=True).__exit__(None, None, None)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(BadInputError, match="schema version 7, this program reads 1"):
        HistoryStore(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=r"history .*file/history\.sqlite"):
        HistoryStore(tmp_path / "file/history.sqlite", create=True)


WRITER = """
import sys
sys.path[:0] = {folders!r}
from pathlib import Path
from history_samples import CASE, entry
from tinyllama_tools.history.store import HistoryStore
for index in range(8):
    with HistoryStore(Path({path!r}), create=True) as store:
        store.add(entry({start} + index, {{CASE: 0.01}}))
"""


def test_writers_at_the_same_time_wait_for_each_other(path: Path) -> None:
    """Four at once, which also make the file at once."""
    folders = [str(PROJECT / "scripts"), str(Path(__file__).parent)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER.format(folders=folders, path=str(path), start=100 * n)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    errors = [writer.communicate(timeout=60)[1] for writer in writers]
    assert errors == [""] * 4
    with HistoryStore(path) as store:
        results = store.results()
    assert sorted(result.number for result in results) == list(range(1, 33))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": {}}, "names no device"),
        ({"threads": "two"}, "names no device or no threads"),
        ({"date": "yesterday"}, "date 'yesterday'"),
    ],
)
def test_a_file_without_machine_or_date_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    document = result_document({CASE: [0.01]})
    document["context"] |= change
    with pytest.raises(BadInputError, match=rf"a\.json: .*{message}"):
        read_entry(write_result(tmp_path / "a.json", document))


def test_the_time_of_a_commit_comes_from_git(tmp_path: Path) -> None:
    commands = ["init -q", "-c user.name=a -c user.email=b@c commit -q --allow-empty -m x"]
    environment = {"GIT_COMMITTER_DATE": "2026-02-03T04:05:06+02:00", "HOME": str(tmp_path)}
    for command in commands:
        subprocess.run(["git", *command.split()], cwd=tmp_path, env=environment, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert commit_time(head, tmp_path) == "2026-02-03T02:05:06+00:00"
    assert commit_time("0" * 40, tmp_path) == ""
    assert commit_time("", tmp_path) == ""
    assert commit_time("HEAD", tmp_path / "none") == ""
