"""scripts/report: the results that it finds, tells apart, reads and refuses; what it writes where,
what it says, its exit status; and its shell script."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stored import (
    change,
    cut_short,
    document,
    read,
    write,
    write_everything,
    write_result,
    write_study,
)

import tools
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json
from tinyllama_tools.report import command
from tinyllama_tools.report.document import Kind, Omission
from tinyllama_tools.report.inputs import ReportInputs, Source, source_of

if TYPE_CHECKING:
    from conftest import ScriptCheckout

WRITTEN, WITH_ERRORS, NOTHING_USABLE = 0, 1, 2
Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return tools.report([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_result(tmp_path_factory.mktemp("result") / "a.json")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = write_study(tmp_path / "study", rounds=2)
    write(folder / "check.json", document("check.json"))
    return folder


def only_error(inputs: ReportInputs) -> Omission:
    (error,) = [omission for omission in inputs.omissions if omission.is_error]
    return error


def test_the_newest_results_make_a_page_beside_them(tmp_path: Path, capsys: Capture) -> None:
    newest = write_everything(tmp_path)
    write_study(tmp_path / "20250101T000000Z_grid")
    # what runs just now hides no other
    running = write_study(tmp_path / "20260501T000000Z_grid", rounds=0)
    assert run("--results-folder", tmp_path) == WRITTEN
    (page,) = tmp_path.glob("report_*.html")
    assert re.fullmatch(r"report_\d{8}T\d{6}Z\.html", page.name)
    assert page.read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == ("", f"wrote {page}")
    taken = re.findall(r"^taking (.*): (.*)$", said.err, re.MULTILINE)
    kinds = ("grid study", "run of the suite", "data-parallel run")
    assert taken == [(str(path), kind) for path, kind in zip(newest, kinds, strict=True)]
    # but a damaged one does; and one that is named is said to be unfinished
    cut_short(write_study(tmp_path / "20260401T000000Z_grid") / "study.json")
    change(running / "study.json", lambda found: found.pop("finished"))
    journal = '{"header": {}}\n{"case": "a"}\n{"case":"b"}\n{"case": "cut'
    (running / "round_1.journal.jsonl").write_text(journal, encoding="utf-8")
    assert run("--results-folder", tmp_path) == WITH_ERRORS
    assert "20260401T000000Z_grid/study.json: is cut short" in capsys.readouterr().err
    reason = only_error(read(running)).reason
    assert "2 cases in its journal; scripts/study --resume" in reason


def test_texts_go_to_standard_output_or_a_file_and_pictures_to_a_folder(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for kind in ("md", "fom"):
        given, path = (result, "--title=Mine", f"--format={kind}"), tmp_path / "new" / kind
        assert run(*given) == WRITTEN
        shown = capsys.readouterr().out.splitlines()
        assert run(*given, "-o", path) == WRITTEN
        assert capsys.readouterr().out == ""
        # the time of writing apart
        assert path.read_text(encoding="utf-8").splitlines()[:-1] == shown[:-1]
        said = "# Mine" if kind == "md" else f"SUCCESS: {len(shown) - 1} figures"
        assert said in (shown[0], shown[-1])
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
    result: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = write(tmp_path / "bad.json", {})
    assert run(bad) == run("--results-folder", tmp_path / "empty") == NOTHING_USABLE
    said = capsys.readouterr().err
    assert "its keys are none" in said
    assert "nothing to report on; measure something: scripts/study --grid tiny small" in said
    for place, why in ((tmp_path, "is a folder"), (bad / "x.md", "cannot be written")):
        assert run(result, "--format=md", "-o", place) == NOTHING_USABLE
        assert why in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        run("--format", "pdf")
    assert ended.value.code == NOTHING_USABLE and "pdf" in capsys.readouterr().err
    # and an interruption writes nothing

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "page_of", interrupted)
    assert run(result, "-o", tmp_path / "page.html") == INTERRUPTED
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("arguments", ["--setup-only", "a.json --format=png", "--format png"])
def test_the_script_sets_up_what_it_needs_and_no_build(
    checkout: ScriptCheckout, arguments: str
) -> None:
    checkout.stub("say_python", 'shift 3\necho "main $*"')
    with (checkout.root / "scripts/lib/set_up.sh").open("a") as stream:
        stream.write('set_up() { echo "set up $1"; }\nvirtual_python=say_python\n')
        stream.write("set_up_pictures() { echo pictures; }\n")
    done = checkout.run(f"bash scripts/report {arguments}")
    more = ["pictures", "set up tools", f"main {arguments}"] if "png" in arguments else []
    assert (done.returncode, done.stdout.splitlines()) == (0, ["set up tools", *more]), done.stderr


def test_every_kind_is_told_apart_and_read_whole(tmp_path: Path) -> None:
    grid, suite, scaling = paths = write_everything(tmp_path)
    for path, expected in {
        grid: Source(Kind.STUDY, grid),
        grid / "study.json": Source(Kind.STUDY, grid),
        suite: Source(Kind.SUITE, suite),
        suite.parent: Source(Kind.SUITE, suite),
        scaling / "scaling.json": Source(Kind.SCALING, scaling),
        scaling / "ranks_2.json": Source(Kind.SCALING, scaling / "ranks_2.json"),
    }.items():
        assert source_of(path) == expected
    with pytest.raises(BadInputError, match=r"holds none of study\.json, results\.json"):
        source_of(tmp_path)
    for content, reason in (([1], "holds no object"), ({"a": 1}, "its keys are a")):
        with pytest.raises(BadInputError, match=reason):
            source_of(write(tmp_path / "x.json", content))
    inputs = read(*paths)
    assert [omission.kind for omission in inputs.omissions] == ["result"]
    assert {len(case.seconds) for case in inputs.main.cases.values()} == {3}
    assert inputs.main.products and inputs.study.frontier == document("frontier.json")
    assert {cost.name.size for cost in inputs.study.costs} >= {"tiny", "very_large"}


def lost(inputs: ReportInputs) -> list[str]:
    found = {
        "products.json": inputs.main.products,
        "costs.json": inputs.study.costs,
        "frontier.json": inputs.study.frontier,
        "check.json": inputs.check_cases,
    }
    return [name for name, part in found.items() if not part]


def of_another_run(content: Json) -> None:
    content["context"]["threads"] = 64


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("products.json", of_another_run, "threads is 64"),
        ("check.json", of_another_run, "threads is 64"),
        ("costs.json", lambda of: of["cases"][0].update(bytes=-1), "cases[0].bytes: -1 is less"),
        ("frontier.json", lambda of: of.update(limit_bytes=math.inf), "limit_bytes: inf is not"),
    ],
)
def test_a_part_that_is_missing_is_no_error_and_a_damaged_one_costs_itself_only(
    study: Path, name: str, spoil: Callable[[Json], object], reason: str
) -> None:
    change(study / name, spoil)
    inputs = read(study)
    assert reason in only_error(inputs).reason and lost(inputs) == [name]
    cut_short(study / name)
    inputs = read(study)
    assert (only_error(inputs).name, lost(inputs)) == (str(study / name), [name])
    (study / name).unlink()
    inputs = read(study)
    assert (inputs.omissions, lost(inputs)) == ((), [name])


BAD_ROUNDS: dict[str, Callable[[Json], object]] = {
    "schema_version is 1, must be 3": lambda d: d["context"].update(schema_version=1),
    "must be a positive, finite number": lambda d: d["benchmarks"][0].update(real_time=math.nan),
    "device.name is 'Another CPU'": lambda d: d["context"]["device"].update(name="Another CPU"),
}


def test_a_bad_round_is_named_and_the_others_stay(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", rounds=11)
    for number, spoil in enumerate(BAD_ROUNDS.values(), start=2):
        change(folder / f"round_{number}.json", spoil)
    inputs = read(folder)
    for number, (reason, error) in enumerate(zip(BAD_ROUNDS, inputs.omissions, strict=True), 2):
        assert error.is_error and error.name == str(folder / f"round_{number}.json")
        assert reason in error.reason
    kept = [path.name for path in inputs.main.paths]
    assert kept == [f"round_{number}.json" for number in (1, *range(5, 12))]


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path, study: Path) -> None:
    bare = write_result(tmp_path / "bare.json", "^full_step.*/tiny/f32/batch:8/seq:128/")
    whole = write_result(tmp_path / "whole.json", device="Whole")
    # what was named twice is read once
    inputs = read(bare, whole, whole)
    assert inputs.main.paths == (whole,)
    assert [(of.name, of.is_error) for of in inputs.omissions] == [(str(bare), False)]
    # a study beside it says nothing of its machine
    assert read(whole, study).study is None
