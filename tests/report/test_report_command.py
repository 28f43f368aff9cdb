"""scripts/report: what it writes where, what it says, and its exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from played_grid import Grid
from played_study import write_everything, write_result, write_study

import tools
from tinyllama_tools.core.app import INTERRUPTED, PROJECT
from tinyllama_tools.data.nameless import without_places
from tinyllama_tools.report import build
from tinyllama_tools.report import command as main
from tinyllama_tools.report.command import NOTHING_USABLE, WITH_ERRORS, WRITTEN
from tinyllama_tools.report.inputs import read_inputs
from tinyllama_tools.report.sources import source_of

if TYPE_CHECKING:
    pass

SMALL = Grid(sizes=("tiny",), batches=(8,), seqs=(128,), rounds=1)
PAGE = PROJECT / "docs/report.md"
Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return tools.report([str(argument) for argument in arguments])


def test_a_page_goes_where_o_says(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "new" / "page.html"
    assert run(write_result(tmp_path / "a.json", SMALL), "-o", page) == WRITTEN
    assert page.read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == f"wrote {page}"


def test_without_o_it_goes_to_the_results(tmp_path: Path) -> None:
    write_study(tmp_path / "20260304T050607Z_grid", SMALL)
    assert run("--results-folder", tmp_path) == WRITTEN
    (page,) = tmp_path.glob("report_*.html")
    assert re.fullmatch(r"report_\d{8}T\d{6}Z\.html", page.name)


def test_it_says_what_it_takes_and_what_is_missing(tmp_path: Path, capsys: Capture) -> None:
    folder = write_study(tmp_path / "20260304T050607Z_grid", SMALL)
    assert run("--results-folder", tmp_path, "--format", "md") == WRITTEN
    said = capsys.readouterr()
    assert said.out.startswith("# Tiny LLaMA on Played CPU")
    assert f"taking {folder}: a grid study" in said.err
    assert f"no run of the suite in {tmp_path}: scripts/bench makes one" in said.err
    assert f"no ablation in {tmp_path}: scripts/ablation makes one" in said.err


@pytest.mark.parametrize("kind", ["md", "fom"])
def test_texts_go_to_standard_output_or_a_file(tmp_path: Path, capsys: Capture, kind: str) -> None:
    result = write_result(tmp_path / "a.json", SMALL)
    assert run(result, "--format", kind) == WRITTEN
    shown = capsys.readouterr().out
    assert run(result, "--format", kind, "-o", tmp_path / "out") == WRITTEN
    assert capsys.readouterr().out == ""
    written = (tmp_path / "out").read_text(encoding="utf-8")
    # the time of writing apart
    assert written.splitlines()[:-1] == shown.splitlines()[:-1]


def test_figures_of_merit_end_in_success(tmp_path: Path, capsys: Capture) -> None:
    assert run(write_result(tmp_path / "a.json", SMALL), "--format=fom") == WRITTEN
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"SUCCESS: {len(lines)} figures"


def test_pictures_go_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from tinyllama_tools.report import output as png

    asked: list[Path] = []

    def write_pngs(document: dict[str, object], folder: Path) -> list[Path]:
        assert document["sections"]
        asked.append(folder)
        return [folder / "roofline.png", folder / "waterfall.png"]

    monkeypatch.setattr(png, "write_pngs", write_pngs)
    result = write_result(tmp_path / "a.json", SMALL)
    assert run(result, "--format=png", "-o", tmp_path / "slides") == WRITTEN
    assert run(result, "--format=png", "--results-folder", tmp_path) == WRITTEN
    assert asked[0] == tmp_path / "slides"
    assert re.fullmatch(r"report_\d{8}T\d{6}Z_png", asked[1].name)
    assert f"wrote 2 files to {tmp_path / 'slides'}" in capsys.readouterr().err


def test_a_bad_result_beside_a_good_one_is_an_error_that_is_named(
    tmp_path: Path, capsys: Capture
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"context": {', encoding="utf-8")
    good = write_result(tmp_path / "a.json", SMALL)
    assert run(bad, tmp_path / "none.json", good, "--format=md") == WITH_ERRORS
    said = capsys.readouterr()
    assert f"error: file {bad}: is cut short" in said.err
    assert f"error: file {tmp_path / 'none.json'}: cannot be read" in said.err
    assert "**error** file" in said.out


def test_refused_fits_are_said_once_a_reason_and_are_no_error(
    tmp_path: Path, capsys: Capture
) -> None:
    assert run(write_result(tmp_path / "a.json", SMALL), "--format=md") == WRITTEN
    lines = [line for line in capsys.readouterr().err.splitlines() if "time law" in line]
    assert len(lines) == 1
    assert "and 6 more: 1 size: 3 coefficients" in lines[0]


def test_nothing_usable_ends_with_2(tmp_path: Path, capsys: Capture) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}", encoding="utf-8")
    assert run(bad) == NOTHING_USABLE
    said = capsys.readouterr().err
    assert "its keys are none" in said
    assert "nothing to report on; measure something: scripts/study tiny small" in said
    assert run("--results-folder", tmp_path / "empty") == NOTHING_USABLE


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(["--format", "pdf"], "invalid choice: 'pdf'"), (["--bogus"], "unrecognized arguments")],
)
def test_a_bad_option_ends_with_2(arguments: list[str], what: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == NOTHING_USABLE
    assert what in capsys.readouterr().err


def test_a_file_that_cannot_be_written_ends_with_2(tmp_path: Path, capsys: Capture) -> None:
    result = write_result(tmp_path / "a.json", SMALL)
    assert run(result, "--format=md", "-o", tmp_path) == NOTHING_USABLE
    assert "is a folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert run(result, "--format=md", "-o", tmp_path / "file" / "x.md") == NOTHING_USABLE
    assert "cannot be written" in capsys.readouterr().err


def test_what_nobody_foresaw_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object) -> list[Path]:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(main, "write_report", broken)
    assert run(write_result(tmp_path / "a.json", SMALL)) == NOTHING_USABLE
    assert "not foreseen: RuntimeError: disk on fire" in capsys.readouterr().err


def test_the_title_can_be_chosen(tmp_path: Path, capsys: Capture) -> None:
    run(write_result(tmp_path / "a.json", SMALL), "--format=md", "--title", "Mine")
    assert capsys.readouterr().out.startswith("# Mine\n")


def test_ctrl_c_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "build_document", interrupted)
    assert run(write_result(tmp_path / "a.json", SMALL)) == INTERRUPTED
    assert "scripts/report: interrupted" in capsys.readouterr().err


def test_pictures_of_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from tinyllama_tools.report import output as png

    monkeypatch.setattr(png, "write_pngs", lambda *_: [])
    result = write_result(tmp_path / "a.json", SMALL)
    assert run(result, "--format=png", "-o", tmp_path / "slides") == NOTHING_USABLE
    assert "no figure to draw" in capsys.readouterr().err


def test_folders_of_whoever_measured_stay_out_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a home folder of its own; settings and reasons name it too."""
    home = tmp_path / "jane"
    monkeypatch.setenv("HOME", str(home))
    folder = write_study(home / "measured" / "20260304T050607Z_grid", SMALL)
    bad = folder / "bad.json"
    bad.write_text("{", encoding="utf-8")
    for path in folder.glob("round_*.json"):
        text = path.read_text(encoding="utf-8")
        value = f"{home}/cache:/home/john/lib:/root/lib:{PROJECT}/fixtures"
        path.write_text(text.replace('"0-1"', f'"0-1", "env.X": "{value}"'), encoding="utf-8")
    for kind in ("html", "md"):
        out = tmp_path / f"page.{kind}"
        assert run(folder, bad, f"--format={kind}", "-o", out) == WITH_ERRORS
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "file ~/measured/20260304T050607Z_grid/bad.json: is cut short" in text
    document = without_places(["~", f"{home}/a", f"{home}s/a", f"in {PROJECT}/x", "a/root/b"])
    assert document == ["~", "~/a", f"{home}s/a", "in x", "a/root/b"]
    inputs = read_inputs([source_of(folder), source_of(folder / "study.json")])
    whole = json.dumps(build.build_document(inputs).as_json())
    assert "~/cache:~/lib:~/lib:fixtures" in whole
    for own in (str(home), "/home/john", "/root/", str(PROJECT)):
        assert own not in text and own not in whole, own


@pytest.mark.long
def test_five_thousand_cases_stay_small(tmp_path: Path) -> None:
    """Their page is below 6 MB and their report below 1 GiB; the time depends on the machine."""
    variants = ("baseline", "optimized", *(f"v{number}" for number in range(18)))
    folder = write_study(tmp_path / "study", Grid(variants=variants))
    page = tmp_path / "page.html"
    command = (
        "import resource, sys; from tinyllama_tools.report import command; "
        "status = command.main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, str(folder), "-o", str(page)],
        cwd=PROJECT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[-1]) < 2**20  # KiB
    assert page.stat().st_size < 6e6


def test_every_kind_of_result_makes_a_page(tmp_path: Path, capsys: Capture) -> None:
    write_everything(tmp_path)
    assert run("--results-folder", tmp_path) == WRITTEN
    assert "error" not in capsys.readouterr().err
