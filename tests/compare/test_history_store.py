"""The history: its store, change points, page and command."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from history_samples import CASE, OTHER_CASE, entry, result_document, write_result

from chromium import Chromium, Page, chromium
from tinyllama_tools.commands import history as history_command
from tinyllama_tools.commands import history_store as result_file
from tinyllama_tools.commands.history import ADVISORY, page_of
from tinyllama_tools.commands.history_changes import (
    FEWEST_FILES,
    ChangePoint,
    change_indices,
    find_change_points,
)
from tinyllama_tools.commands.history_store import (
    CaseEntry,
    HistoryStore,
    KnownResultError,
    Machine,
    ResultEntry,
    commit_time,
    read_entry,
)
from tinyllama_tools.core.app import PROJECT, BadInputError
from tools import compare


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
from tinyllama_tools.commands.history_store import HistoryStore
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
    for words in commands:
        subprocess.run(["git", *words.split()], cwd=tmp_path, env=environment, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert commit_time(head, tmp_path) == "2026-02-03T02:05:06+00:00"
    assert commit_time("0" * 40, tmp_path) == ""
    assert commit_time("", tmp_path) == ""
    assert commit_time("HEAD", tmp_path / "none") == ""


def noise(kind: str, random: np.random.Generator, files: int) -> np.ndarray:
    """Logarithms of times without a change."""
    if kind == "normal":
        return random.normal(0, 0.05, files)
    if kind == "heavy tails":
        return random.standard_t(3, files) * 0.04
    if kind == "spikes":
        spiked = random.random(files) < 0.1
        return random.normal(0, 0.03, files) + spiked * random.exponential(0.4, files)
    if kind == "two modes":
        return random.normal(0, 0.01, files) + 0.1 * (random.random(files) < 0.3)
    values = random.normal(0, 0.03, files)
    for i in range(1, files):
        values[i] += 0.3 * values[i - 1]
    return values


@pytest.mark.parametrize(
    ("kind", "most"),
    [("normal", 6), ("heavy tails", 6), ("spikes", 6), ("two modes", 6), ("neighbours", 16)],
)
def test_noise_rarely_makes_a_change(kind: str, most: int) -> None:
    """300 series: 6 is beyond what a rate of 1 in 100 gives in 95 of 100 tries; 16 of 3 to 4."""
    random = np.random.default_rng(7)
    lengths = [12, 20, 50] * 100
    found = sum(bool(change_indices(np.exp(noise(kind, random, n)).tolist())) for n in lengths)
    assert found <= most


@pytest.mark.parametrize(("shift", "least"), [(0.2, 98), (0.1, 65)])
def test_a_change_is_found_where_it_is(shift: float, least: int) -> None:
    """Twenty files of 4 % scatter, 100 series."""
    random = np.random.default_rng(8)
    step = np.repeat([0.0, shift], 10)
    found = [change_indices(np.exp(step + random.normal(0, 0.04, 20)).tolist()) for _ in range(100)]
    assert sum(any(abs(i - 10) <= 2 for i in indices) for indices in found) >= least


def test_a_gain_and_a_loss_in_one_series() -> None:
    steps = np.repeat([0.0, -0.3, 0.1], 10)
    values = np.exp(steps + np.random.default_rng(9).normal(0, 0.02, 30))
    assert change_indices(values.tolist()) == [10, 20]


def test_one_bad_file_is_no_change() -> None:
    seconds = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 5.0, 1.0, 1.01, 0.99, 1.0, 1.01]
    assert change_indices(seconds) == []


def test_changes_below_the_margin_are_left_out() -> None:
    seconds = [1.0] * 10 + [1.02] * 10
    assert change_indices(seconds, margin=0.03) == []
    assert change_indices(seconds, margin=0.01) == [10]


def test_too_few_files_have_no_change() -> None:
    half = FEWEST_FILES // 2
    seconds = [1.0] * half + [2.0] * (FEWEST_FILES - half)
    assert change_indices(seconds[1:]) == []
    seconds = [value * (1 + 1e-3 * i) for i, value in enumerate(seconds)]
    assert change_indices(seconds) == [half]


def points_of(path: Path, entries: list[ResultEntry]) -> list[ChangePoint]:
    with HistoryStore(path / "history.sqlite", create=True) as store:
        for one in entries:
            store.add(one)
        return find_change_points(store.series())


def step(index: int) -> dict[str, float]:
    """0.010 s until day 7, 0.012 s from day 8."""
    return {CASE: (0.010 if index < 8 else 0.012) * (1 + 1e-3 * (index % 3))}


def test_a_point_names_the_commit_and_its_files(tmp_path: Path) -> None:
    # added in another order than they were committed in
    (point,) = points_of(tmp_path, [entry(i, step(i)) for i in reversed(range(16))])
    assert point.case == CASE
    assert point.after[0].commit.startswith("0008")
    assert point.before[-1].commit.startswith("0007")
    assert [r.commit[:4] for r in point.after] == [f"{i:04d}" for i in range(8, 16)]
    assert point.ratio == pytest.approx(1.2, rel=5e-3)
    assert point.remark == ""


def test_what_else_changed_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    same = [entry(i, step(i), commit="f" * 40) for i in range(16)]
    (point,) = points_of(tmp_path / "a", same)
    assert "no commit lies between" in point.remark
    (tmp_path / "b").mkdir()
    version = [
        entry(i, step(i), torch_version="2.13.0" if i < 8 else "2.14.0", dirty=i == 8)
        for i in range(16)
    ]
    (point,) = points_of(tmp_path / "b", version)
    assert "libtorch 2.13.0 before, 2.14.0 after" in point.remark
    assert "uncommitted" in point.remark


__all__ = ["chromium"]
CHANGED_AT = 9
# Results are numbered from 1 in the order of adding.
BLOCK = ",".join(str(n) for n in range(CHANGED_AT + 1, 17))
HOSTILE = Machine("</script><b id='hostile'>CPU", "x86-64", 2)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 files of one machine, with one change in one of two cases, and 2 files of another."""
    folder = tmp_path_factory.mktemp("history")
    with HistoryStore(folder / "history.sqlite", create=True) as store:
        for index in range(16):
            wobble = 1 + 1e-3 * (index % 4)
            changed = 0.012 if index >= CHANGED_AT else 0.010
            store.add(entry(index, {CASE: changed * wobble, OTHER_CASE: 0.005 * wobble}))
        for index in range(2):
            store.add(entry(index, {CASE: 0.1}, machine=HOSTILE))
        series = store.series()
    path = folder / "page.html"
    path.write_text(page_of(series, find_change_points(series)), encoding="utf-8")
    return path


def test_one_file_of_less_than_six_megabytes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 6_000_000
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"']?(https?:)?//", text)
    assert text.count("plotly.js v") == 1


def test_it_says_that_it_is_advisory(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert ADVISORY in text
    assert "Change points (advisory)" in text


def test_a_change_point_names_its_commit_and_links_to_its_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count(f'href="#result-{CHANGED_AT + 1}" data-block="{BLOCK}"') == 2
    assert f"<b>{CHANGED_AT:04d}ababab</b>, between {CHANGED_AT - 1:04d}ababab and" in text
    for number in range(1, 19):
        assert f'<tr id="result-{number}">' in text


@pytest.fixture(scope="module")
def opened(page: Path, chromium: Chromium) -> Page:
    return chromium.open(page.as_uri(), milliseconds=5000)


def test_charts_are_drawn_without_an_error(opened: Page) -> None:
    assert opened.console == []
    # those in view: the other machine's, which comes first, and the next one
    assert opened.document.count('data-drawn="yes"') == 2
    # the markers of every file, and the change of the one case that changed
    assert opened.document.count('class="point"') == 2 + 16
    assert re.findall(r'class="annotation-text"[^>]*>([^<]*)<', opened.document) == ["+20.1 %"]
    assert "too few files for change points" in opened.document


def test_names_of_devices_are_text(opened: Page) -> None:
    assert 'id="hostile"' not in opened.document
    assert opened.document.count("&lt;b id='hostile'&gt;CPU, x86-64, 2 threads") == 1


# Clicks and types, and tells what came of it to the page that it is a frame of.
INNER = """<script>
document.querySelector("#changes a[data-block]").click();
const search = document.getElementById("search");
search.value = "LOSS";
search.dispatchEvent(new Event("input"));
addEventListener("load", () => setTimeout(() => {
  const texts = (selector, text) => [...document.querySelectorAll(selector)].map(text);
  parent.postMessage(JSON.stringify({
    marked: texts("tr.marked", (row) => row.id.replace("result-", "")).join(),
    open: document.querySelector("tr.marked").closest("details").open,
    hidden: texts(".case[hidden]", (one) => one.dataset.name),
    shown: texts(".case:not([hidden])", (one) => one.dataset.name),
    width: document.documentElement.scrollWidth, window: innerWidth,
  }), "*");
}, 2000));
</script></body>"""
OUTER = """<!doctype html><link rel="icon" href="data:,"><pre id="said"></pre>
<iframe src="inner.html" style="width:360px;height:700px;border:0"></iframe><script>
addEventListener("message", (event) => {
  document.getElementById("said").textContent = event.data;
});
</script>"""


def test_links_search_and_width_on_a_phone(page: Path, chromium: Chromium) -> None:
    inner = page.read_text(encoding="utf-8").replace("</body>", INNER)
    page.with_name("inner.html").write_text(inner, encoding="utf-8")
    page.with_name("outer.html").write_text(OUTER, encoding="utf-8")
    opened = chromium.open(page.with_name("outer.html").as_uri(), milliseconds=8000)
    assert opened.console == []
    said = re.search(r'<pre id="said">(.+?)</pre>', opened.document)
    assert said, opened
    found = json.loads(said[1])
    # the rows of the results after the change, and the folded list of files opened for them
    assert (found["marked"], found["open"]) == (BLOCK, True)
    assert found["hidden"] == [CASE, CASE]
    assert found["shown"] == [OTHER_CASE]
    # nothing is wider than the window of a phone
    assert found["width"] <= found["window"] == 360


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Sixteen files; one case is 20 % slower from the tenth on."""
    path = tmp_path / "history.sqlite"
    with HistoryStore(path, create=True) as opened:
        for index in range(16):
            seconds = 0.010 * (1 + 1e-3 * (index % 4)) * (1.2 if index >= 9 else 1.0)
            opened.add(entry(index, {CASE: seconds, OTHER_CASE: 0.005 + 1e-6 * index}))
    return path


def run(*arguments: object) -> int:
    return compare(["history", *(str(argument) for argument in arguments)])


def test_files_are_added_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results/history.sqlite"
    files = [
        write_result(
            tmp_path / f"{n}.json", result_document({CASE: [0.01 * n]}, commit=str(n) * 40)
        )
        for n in (1, 2)
    ]
    assert run("add", *files, "--store", path) == 0
    assert "result 2: 2222222222 on Test CPU, x86-64, 2 threads" in capsys.readouterr().out
    assert run("show", "--store", path) == 0
    shown = capsys.readouterr().out
    assert "Test CPU, x86-64, 2 threads: 2 files" in shown
    assert "| 20 ms" in shown
    assert "+100.0 % of 10 ms (1 before)" in shown
    assert run("show", "--store", path, "--format", "json") == 0
    (series,) = json.loads(capsys.readouterr().out)
    assert [point["seconds"] for point in series["points"]] == pytest.approx([0.01, 0.02])


def test_one_bad_file_keeps_no_other_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.sqlite"
    good = write_result(tmp_path / "good.json", result_document({CASE: [0.01]}))
    broken = tmp_path / "broken.json"
    broken.write_text(good.read_text()[:-50])
    zero = write_result(tmp_path / "zero.json", result_document({CASE: [0.0]}))
    foreign = PROJECT / "results/reference/ablation_2core_xeon_avx512.json"
    bad = (broken, zero, foreign, tmp_path / "absent.json")
    assert run("add", *bad, good, "--store", path) == 2
    said = capsys.readouterr()
    assert f"{broken}: is cut short" in said.err
    assert f"{zero}: {CASE}" in said.err
    assert f"{foreign}: is no result" in said.err
    assert "absent.json" in said.err
    assert len(said.err.splitlines()) == len(bad)
    assert "result 1:" in said.out


def test_a_known_file_is_refused_or_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.sqlite"
    file = write_result(tmp_path / "a.json", result_document({CASE: [0.01]}))
    assert run("add", file, "--store", path) == 0
    assert run("add", file, "--store", path) == 2
    assert "this very file is result 1 of history.sqlite" in capsys.readouterr().err
    assert run("add", file, "--skip-known", "--store", path) == 0
    assert capsys.readouterr().err == ""


def test_changes_are_advisory_and_never_an_exit_status(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("changes", "--store", store) == 0
    shown = capsys.readouterr().out
    assert ADVISORY in shown
    assert "2 of 2 series" in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("| +")]
    assert "+20.1 %" in row
    assert "| 0009ababab |" in row
    assert "| 10 to 16 |" in row
    assert run("changes", "--store", store, "--format", "json") == 0
    (point,) = json.loads(capsys.readouterr().out)
    assert point["advisory"] is True
    assert point["case"] == CASE
    assert point["results_after"] == list(range(10, 17))
    assert run("changes", "--store", store, "--margin", "0.5") == 0
    assert "No change point." in capsys.readouterr().out


def test_cases_and_machines_are_chosen(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--case", "^loss/", "--machine", "test cpu", "--store", store) == 0
    shown = capsys.readouterr().out
    assert OTHER_CASE in shown
    assert CASE not in shown
    for wrong in (["--case", "^los$"], ["--machine", "MI300X"]):
        assert run("show", *wrong, "--store", store) == 2
        said = capsys.readouterr().err
        assert wrong[1] in said
        assert "its machines: Test CPU, x86-64, 2 threads" in said


def test_the_page_is_written(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new/page.html"
    assert run("page", "-o", page, "--store", store) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert OTHER_CASE in page.read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    assert run("page", "-o", tmp_path / "file/page.html", "--store", store) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "--case", "("], "'(': is no regular expression"),
        (["changes", "--margin", "3"], "'3'"),
        (["page"], "-o"),
        ([], "add|show|changes|page"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        history_command.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_without_a_history_the_way_to_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", "--store", tmp_path / "none.sqlite") == 2
    assert "history add" in capsys.readouterr().err


def test_neither_torch_nor_a_build_is_needed(store: Path) -> None:
    """As in an environment of requirements-tools.txt alone."""
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "pandas", "tensorboard", "yaml"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from tinyllama_tools.commands import history
sys.exit(history.main(["show", "--store", {str(store)!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(PROJECT / "scripts"), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert CASE in done.stdout
