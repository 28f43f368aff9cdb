"""The history: its store, change points, page and command."""

import datetime
import json
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from samples import CONTEXT, FFN, LOSS, document, stopped

from built_programs import write_json
from chromium import PageOpener
from tinyllama_tools.compare import history
from tinyllama_tools.compare.comparison import WORK_COUNTERS, context_differences
from tinyllama_tools.compare.history import commit_time, read_series
from tinyllama_tools.core.app import git
from tinyllama_tools.data import results
from tinyllama_tools.stats.change_points import FEWEST_VALUES
from tools import compare

FIRST_DAY = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc)
FILES, CHANGED_AT = 16, 9
MACHINE = "Some CPU, x86-64 AVX2, 2 threads"
HOSTILE = "</script><b id='hostile'>CPU"


def dated(day: int) -> dict[str, object]:
    """One commit a day."""
    date = (FIRST_DAY + datetime.timedelta(days=day)).isoformat()
    return {"date": date, "git_commit": f"{day:04d}{'ab' * 18}"}


def result(path: Path, day: int, times: dict[str, float], **context: object) -> Path:
    """Of a day, and of its commit where none is named."""
    return write_json(path, document(times, context=dated(day) | context))


def run(*arguments: object) -> int:
    return compare(["history", *(str(argument) for argument in arguments)])


def adding(path: Path, files: Sequence[Path], limit: int = resource.RLIM_INFINITY) -> BaseProcess:
    """A process of its own, whose files may have so many bytes."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sys.exit(run("add", *files, "--store", path))

    process = get_context("fork").Process(target=work)
    process.start()
    return process


def status_of(process: BaseProcess) -> int | None:
    process.join(timeout=60)
    return process.exitcode


def seconds(path: Path) -> list[list[float]]:
    return [[point["seconds"] for point in one["points"]] for one in read_series(path)[0]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen files of one machine, added in another order; LOSS is 30 % faster from the fifth day
    on, and FFN 20 % slower from the tenth. And two of another machine."""
    folder = tmp_path_factory.mktemp("history")
    files = []
    for day in reversed(range(FILES)):
        wobble = (1 + 1e-3 * (day % 4)) * (1.2 if day >= CHANGED_AT else 1.0)
        times = {FFN: 0.010 * wobble, LOSS: 0.005 if day < 4 else 0.0035}
        host = "host_b" if day >= CHANGED_AT else "host_a"
        files.append(result(folder / f"{day}.json", day, times, host_name=host))
    device = {**CONTEXT["device"], "name": HOSTILE}
    files += [result(folder / f"h{day}.json", day, {FFN: 0.1}, device=device) for day in (0, 1)]
    assert run("add", *files, "--store", folder / "history.jsonl") == 0
    return folder / "history.jsonl"


def test_files_are_added_shown_and_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands with its commit, whenever it was measured; one of changed files, and one of no
    known commit, with its date."""
    environment = {"GIT_COMMITTER_DATE": "2026-02-03T04:05:06+02:00", "HOME": str(tmp_path)}
    for words in ("init -q", "-c user.name=a -c user.email=b@c commit -q --allow-empty -m x"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, env=environment, check=True)
    commit = {"git_commit": git(tmp_path, "rev-parse", "HEAD")}
    monkeypatch.setattr(history, "checkout", lambda: tmp_path)
    assert commit_time(commit["git_commit"]) == "2026-02-03T02:05:06+00:00"
    path = tmp_path / "results/history.jsonl"
    files = [
        result(tmp_path / "a.json", 0, {FFN: 0.02}),
        result(tmp_path / "b.json", 5, {FFN: 0.01}, **commit),
        result(tmp_path / "c.json", 5, {FFN: 0.03}, git_dirty=True, **commit),
    ]
    context = {"date": (FIRST_DAY + datetime.timedelta(days=2)).isoformat()}
    failed = document({FFN: 0.025}, more=[stopped(LOSS, failed="wrong result")], context=context)
    files.append(write_json(tmp_path / "d.json", failed))
    assert run("add", *files, "--store", path) == 0
    said = capsys.readouterr().out
    assert f"result 3: {commit['git_commit'][:10]}+ on {MACHINE}" in said
    assert seconds(path) == [[0.01, 0.02, 0.025, 0.03]]
    assert run("show", "--store", path) == 0
    # 30 ms against the median of 10, 20 and 25
    assert "+50.0 % of 20 ms (3 before)" in capsys.readouterr().out
    before = path.read_bytes()
    assert run("add", files[0], "--store", path) == 2
    assert "this very file is result 1 of history.jsonl" in capsys.readouterr().err
    assert run("add", files[0], "--skip-known", "--store", path) == 0
    assert capsys.readouterr().err == ""
    assert path.read_bytes() == before
    # only a commit reaches git
    monkeypatch.setattr(history, "git", lambda *_: pytest.fail("asked"))
    for word in ("", "HEAD", "--out=x", "abc123", "abcdef1\n"):
        assert commit_time(word) == ""


def test_one_bad_file_keeps_no_other_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, good = tmp_path / "history.jsonl", document({FFN: 0.01})
    bad = {tmp_path / "absent.json": "cannot be read"}
    for key, value, expected in (
        ("library_build_type", "debug", "is of a debug build"),
        ("device", {}, "names no device"),
        ("threads", None, "names no device or no threads"),
        ("date", "yesterday", "date 'yesterday'"),
        # before the first year, in UTC
        ("date", "0001-01-01T00:00:00+05:00", "date '0001-01-01T00:00:00+05:00'"),
    ):
        found = document({FFN: 0.01}, context={key: value})
        bad[write_json(tmp_path / f"{len(bad)}.json", found)] = expected
    assert run("add", *bad, write_json(tmp_path / "good.json", good), "--store", path) == 2
    said = capsys.readouterr()
    for line, (file, expected) in zip(said.err.splitlines(), bad.items(), strict=True):
        assert f"{file}: " in line
        assert expected in line
    assert "result 1:" in said.out


def test_a_file_is_added_whole_or_not_at_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a full disk, as a limit makes it; and where a writer was killed within a line."""
    path = tmp_path / "history.jsonl"
    files = [write_json(tmp_path / f"{s}.json", document({FFN: s})) for s in (0.01, 0.02, 0.03)]
    assert run("add", files[0], "--store", path) == 0
    first = path.read_bytes()
    limit = len(first) + 100
    assert status_of(adding(path, files[1:], limit)) == 2
    assert "history.jsonl: File too large" in capfd.readouterr().err
    assert path.stat().st_size == limit
    assert seconds(path) == [[0.01]]
    assert run("add", files[1], "--store", path) == 0
    assert seconds(path) == [[0.01, 0.02]]
    whole = path.read_bytes()
    for cut in (1, len(first) - 1, len(first), len(first) + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert run("add", files[2], "--store", path) == 0
        assert seconds(path) == ([[0.03]] if cut < len(first) else [[0.01, 0.03]])


def test_files_that_are_no_history_are_named_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = tmp_path / "history.jsonl", write_json(tmp_path / "a.json", document({FFN: 0.01}))
    assert run("add", file, "--store", path) == 0
    line = path.read_bytes()
    for text, expected in (
        (b"songs\n", "line 1 cannot be read"),
        (b"songs", "its last line begins otherwise"),
        (line.replace(b'"version": 2', b'"version": 3'), "[0].version: 3 is not one of"),
        (line + line.replace(b"0.01", b"-0.1"), "[1].cases"),
        (line.replace(b'"threads"', b'"thread"') + line, "[0].settings: 'threads' is"),
        (line[:40] + b"\n", "line 1 cannot be read"),
    ):
        path.write_bytes(text)
        for words in (["show"], ["add", file]):
            assert run(*words, "--store", path) == 2
            said = capsys.readouterr().err
            assert "is no history of the suite, and is left as it is" in said
            assert expected in said
            assert path.read_bytes() == text
    assert run("show", "--store", tmp_path / "absent") == 2
    assert "begin one with scripts/compare history add" in capsys.readouterr().err


def test_writers_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    """Four at once, which also make the file at once."""
    path = tmp_path / "history.jsonl"
    files = [result(tmp_path / f"{day}.json", day, {FFN: 1.0 + day}) for day in range(32)]
    writers = [adding(path, files[8 * writer : 8 * writer + 8]) for writer in range(4)]
    assert list(map(status_of, writers)) == [0] * 4
    assert seconds(path) == [[1.0 + day for day in range(32)]]


# Each changes what a time means, whatever the commit.
MEANINGS: dict[str, dict[str, object]] = {
    "schema_version": {"schema_version": results.SCHEMA_VERSION + 1},
    "cold_cache": {"cold_cache": True},
    "torch_version": {"torch_version": "2.14.0"},
    "setting float32_matmul_precision": {"settings": {"float32_matmul_precision": "medium"}},
    "setting blas": {"settings": {"blas": "mkl"}},
    "weights fingerprint": {"weights": {"fingerprint": "trained"}},
    "device driver_version": {"device": CONTEXT["device"] | {"driver_version": "6.4"}},
    "model_flops": {},
    "parameters": {},
}


@pytest.mark.parametrize("what", MEANINGS)
def test_where_times_mean_something_else_a_series_ends_and_no_commit_is_blamed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of 40 % that comes with it; and what compare warns of ends a series, in one list."""
    path = tmp_path / "history.jsonl"
    for day in range(2 * FEWEST_VALUES):
        is_after = day >= FEWEST_VALUES
        if is_after and what == "schema_version":
            monkeypatch.setattr(results, what.upper(), MEANINGS[what][what])
        times = {FFN: 0.014 if is_after else 0.010, LOSS: 0.005}
        counters = {FFN: {what: 2e9}} if what in WORK_COUNTERS and is_after else {}
        own = MEANINGS[what] if is_after else {}
        found = document(times, counters=counters, context=dated(day) | own)
        assert run("add", write_json(tmp_path / f"{day}.json", found), "--store", path) == 0
    capsys.readouterr()
    assert run("changes", "--store", path) == 0
    shown = re.sub(" +", " ", capsys.readouterr().out)
    assert "No change point." in shown and "+40" not in shown
    begun = f"{FEWEST_VALUES:04d}ababab"
    both = "" if what in WORK_COUNTERS else " and 1 more"
    assert re.search(rf"^\| {begun} \| \w+ \| {FFN}{both} \| .*{what}: ", shown, re.MULTILINE)
    assert run("page", "-o", tmp_path / "page.html", "--store", path) == 0
    assert "a new series because" in (tmp_path / "page.html").read_text("utf-8")
    if what not in WORK_COUNTERS:
        sides = (document({FFN: 1.0}, context=own)["context"] for own in ({}, MEANINGS[what]))
        assert any(text.startswith(what) for text in context_differences(*([of] for of in sides)))


def test_a_setting_that_comes_back_goes_on_with_its_series_and_is_no_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nightly runs of two kinds, one 40 % slower; effort that grows is a step with its reason."""
    path = tmp_path / "history.jsonl"
    for day in range(4 * FEWEST_VALUES):
        is_cold, effort = day % 2 == 1, 2e9 if day >= 2 * FEWEST_VALUES else 1e9
        counters = {LOSS: {"hardware_flops": effort}}
        times = {FFN: 0.014 if is_cold else 0.010, LOSS: 5e-12 * effort}
        found = document(times, counters=counters, context=dated(day) | {"cold_cache": is_cold})
        assert run("add", write_json(tmp_path / f"{day}.json", found), "--store", path) == 0
    capsys.readouterr()
    assert [len(of) for of in seconds(path)] == 4 * [2 * FEWEST_VALUES]
    assert run("changes", "--store", path) == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"^\| \+.*", shown, re.MULTILINE)
    assert len(rows) == 2 and all(f"| {LOSS} " in row for row in rows)
    assert all("hardware_flops 1000000000.0 before, 2000000000.0 after" in row for row in rows)
    assert shown.count("cold_cache: False before, True after") == 1


def test_results_of_before_settings_were_kept_are_in_no_series_until_they_are_added_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = tmp_path / "history.jsonl", result(tmp_path / "a.json", 0, {FFN: 0.01})
    assert run("add", file, "--store", path) == 0
    line = json.loads(path.read_text())
    del line["settings"], line["peaks"]
    path.write_text(json.dumps(line | {"version": 1, "cases": {FFN: 0.01}, "threads": 2}) + "\n")
    assert run("show", "--store", path) == 2
    assert "1 result of format version 1 hold no settings" in capsys.readouterr().err
    assert run("add", file, "--store", path) == 0
    assert "result 2:" in capsys.readouterr().out
    assert seconds(path) == [[0.01]]
    assert run("changes", "--store", path) == 0
    assert "in no series until their files are added again" in capsys.readouterr().out
    assert run("add", file, "--store", path) == 2


def test_another_build_of_a_plug_in_is_in_the_series_and_named_beside_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mine = tmp_path / "history.jsonl", FFN.replace("/baseline/", "/my::swiglu/")
    for day in range(2 * FEWEST_VALUES):
        is_after = day >= FEWEST_VALUES
        known = {"file": "libmy.so", "sha256": 64 * "ab"[is_after], "operators": ["my::swiglu"]}
        found = document(
            {mine: 0.014 if is_after else 0.010}, context=dated(day) | {"plugins": [known]}
        )
        assert run("add", write_json(tmp_path / f"{day}.json", found), "--store", path) == 0
    capsys.readouterr()
    assert run("changes", "--store", path) == 0
    (row,) = re.findall(r"^\| [+-].*", capsys.readouterr().out, re.MULTILINE)
    assert "+40" in row and mine in row
    names = (f"libmy.so (SHA-256 {12 * digit})" for digit in "ab")
    assert "plug-ins {} before, {} after".format(*names) in row


def test_changes_are_advisory_and_name_commit_and_files_the_newest_first(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("changes", "--store", store) == 0
    shown = capsys.readouterr().out
    assert "Advisory: results of different days are not paired" in shown
    assert "2 of 3 series have the 11 files" in shown
    row, older = re.findall(r"^\| [+-].*", shown, re.MULTILINE)
    assert older.startswith("| -30.0 % | 0004ababab | loss/")
    assert [cell.strip() for cell in row.strip("| ").split(" | ")] == [
        "+20.1 %", "0009ababab", FFN, "0008ababab", "10.01 ms (9 files) -> 12.02 ms (7 files)",
        # added from the last day to the first
        f"{FILES - CHANGED_AT} to 1",
        # machines of one kind are in one series, and a change does not hide that they are two
        "host host_a before, host_b after",
    ]  # fmt: skip
    assert run("changes", "--store", store, "--margin", "0.5") == 0
    assert "No change point." in capsys.readouterr().out
    # cases and machines that are chosen
    assert run("show", "--filter", "^loss/", "--machine", "some cpu", "--store", store) == 0
    shown = capsys.readouterr().out
    assert (LOSS in shown, FFN in shown, HOSTILE in shown) == (True, False, False)
    for wrong in (["--filter", "^los$"], ["--machine", "MI300X"]):
        assert run("show", *wrong, "--store", store) == 2
        said = capsys.readouterr().err
        assert wrong[1] in said
        assert MACHINE in said


def test_the_page_draws_and_searches(
    store: Path, tmp_path: Path, open_page: PageOpener, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new/page.html"
    assert run("page", "-o", page, "--store", store) == 0
    assert capsys.readouterr().out.strip() == str(page)
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"']?(https?:)?//", text)
    charts = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    (chart,) = [c for c in charts if any(of["x"] == CHANGED_AT - 0.5 for of in c["changes"])]
    sides = [np.median(chart["seconds"][:CHANGED_AT]), np.median(chart["seconds"][CHANGED_AT:])]
    assert [level for *_, level in chart["levels"]] == pytest.approx(sides, rel=1e-4)
    opened = open_page(page)
    opened.page.wait_for_selector(".annotation-text", state="attached")
    assert opened.said == []
    # the markers of every file, and the change of each case that changed
    assert opened.document.count('class="point"') >= 2 + FILES
    assert opened.texts(".annotation-text") == ["+20.1 %", "-30.0 %"]
    assert opened.page.locator(".shapelayer path").count() == 4
    # names of devices are text
    assert 'id="hostile"' not in opened.document
    opened.page.locator("#search").type("LOSS")
    assert opened.texts("article:not([hidden]) h3") == [LOSS]
    (tmp_path / "file").write_text("")
    assert run("page", "-o", tmp_path / "file/page.html", "--store", store) == 2
    assert "file: " in capsys.readouterr().err
