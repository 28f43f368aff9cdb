"""scripts/compare history: what it prints, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from history_samples import CASE, OTHER_CASE, entry, result_document, write_result

from tinyllama_tools.core.app import PROJECT
from tinyllama_tools.history import command
from tinyllama_tools.history.command import ADVISORY
from tinyllama_tools.history.store import HistoryStore


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
    return command.main([str(argument) for argument in arguments])


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
        command.main(arguments)
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
from tinyllama_tools.history import command
sys.exit(command.main(["show", "--store", {str(store)!r}]))
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
