"""scripts/report: what it writes where, what it says, its exit status, and its shell script."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stored import write, write_everything, write_result

import tools
from tinyllama_tools.core.app import INTERRUPTED
from tinyllama_tools.report import command

if TYPE_CHECKING:
    from conftest import ScriptCheckout

WRITTEN, WITH_ERRORS, NOTHING_USABLE = 0, 1, 2
Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return tools.report([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_result(tmp_path_factory.mktemp("result") / "a.json")


def test_the_newest_results_make_a_page_beside_them(tmp_path: Path, capsys: Capture) -> None:
    write_everything(tmp_path)
    assert run("--results-folder", tmp_path) == WRITTEN
    (page,) = tmp_path.glob("report_*.html")
    assert re.fullmatch(r"report_\d{8}T\d{6}Z\.html", page.name)
    assert page.read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == ("", f"wrote {page}")
    assert f"taking {tmp_path / '20260304T050607Z_grid'}: grid study" in said.err


@pytest.mark.parametrize("kind", ["md", "fom"])
def test_texts_go_to_standard_output_or_a_file(
    result: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    assert run(result, "--format", kind, "--title=Mine") == WRITTEN
    shown = capsys.readouterr().out.splitlines()
    path = tmp_path / "new" / "out"
    assert run(result, "--format", kind, "--title=Mine", "-o", path) == WRITTEN
    assert capsys.readouterr().out == ""
    # the time of writing apart
    assert path.read_text(encoding="utf-8").splitlines()[:-1] == shown[:-1]
    ends = {"md": (shown[0], "# Mine"), "fom": (shown[-1], f"SUCCESS: {len(shown) - 1} figures")}
    assert ends[kind][0] == ends[kind][1]


def test_pictures_go_to_a_folder(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    drawn = ["roofline.png", "waterfall.png"]
    monkeypatch.setattr(command, "write_pngs", lambda _, folder: [folder / n for n in drawn])
    assert run(result, "--format=png", "-o", tmp_path / "slides") == WRITTEN
    assert f"wrote 2 files to {tmp_path / 'slides'}" in capsys.readouterr().err
    drawn.clear()
    assert run(result, "--format=png") == NOTHING_USABLE


def test_a_bad_result_beside_a_good_one_is_an_error_that_is_named(
    result: Path, tmp_path: Path, capsys: Capture
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"context": {', encoding="utf-8")
    assert run(bad, tmp_path / "none.json", result, "--format=md") == WITH_ERRORS
    said = capsys.readouterr()
    assert f"error: file {bad}: is cut short" in said.err
    assert f"error: file {tmp_path / 'none.json'}: cannot be read" in said.err
    assert "**error** file" in said.out
    # refused fits are said once a reason, and are no error
    (line,) = (line for line in said.err.splitlines() if "time law" in line)
    assert line.startswith("left out: ") and "and 6 more: 1 size: 3 coefficients" in line


def test_what_cannot_be_read_or_written_ends_with_2(
    result: Path, tmp_path: Path, capsys: Capture
) -> None:
    bad = write(tmp_path / "bad.json", {})
    assert run(bad) == run("--results-folder", tmp_path / "empty") == NOTHING_USABLE
    said = capsys.readouterr().err
    assert "its keys are none" in said
    assert "nothing to report on; measure something: scripts/study --grid tiny small" in said
    for place, why in ((tmp_path, "is a folder"), (bad / "x.md", "cannot be written")):
        assert run(result, "--format=md", "-o", place) == NOTHING_USABLE
        assert why in capsys.readouterr().err
    for options in (["--format", "pdf"], ["--bogus"]):
        with pytest.raises(SystemExit) as ended:
            run(*options)
        assert ended.value.code == NOTHING_USABLE
        assert options[-1] in capsys.readouterr().err


def test_an_interruption_writes_nothing(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "page_of", interrupted)
    assert run(result, "-o", tmp_path / "page.html") == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


DRAWS = ["set up tools", "pictures", "set up tools"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b.json", "-o", "x.html"], ["set up tools", "main a b.json -o x.html"]),
        (["--setup-only"], ["set up tools"]),
        (["--format=png"], [*DRAWS, "main --format=png"]),
        (["--format", "png"], [*DRAWS, "main --format png"]),
    ],
)
def test_the_script_sets_up_what_it_needs_and_no_build(
    checkout: ScriptCheckout, arguments: list[str], said: list[str]
) -> None:
    checkout.stub("say_python", 'shift 3\necho "main $*"')
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as stream:
        stream.write('set_up() { echo "set up $1"; }\nvirtual_python=say_python\n')
        stream.write("set_up_pictures() { echo pictures; }\n")
    done = checkout.run(f"bash scripts/report {shlex.join(arguments)}")
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
