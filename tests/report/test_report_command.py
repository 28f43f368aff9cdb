"""scripts/report: the results that it finds, tells apart, reads and refuses; what it writes where,
what it says, and its exit status."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import DEVICE, change, document, read, write_everything, write_result, write_study

import tools
from built_programs import write_json
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, Json
from tinyllama_tools.report import command
from tinyllama_tools.report.document import Kind, Omission
from tinyllama_tools.report.inputs import ReportInputs, source_of

WRITTEN, WITH_ERRORS, NOTHING_USABLE = 0, 1, 2
Capture = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    return tools.report(arguments)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_result(tmp_path_factory.mktemp("result") / "a.json")


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
    grid, suite, scaling = newest
    for path, kind in (
        (grid / "study.json", Kind.STUDY),
        (suite.parent, Kind.SUITE),
        (scaling / "scaling.json", Kind.SCALING),
        (scaling / "ranks_2.json", Kind.SCALING),
    ):
        assert source_of(path).kind == kind
    with pytest.raises(BadInputError, match=r"holds none of study\.json, results\.json"):
        source_of(tmp_path)
    # what --benchmark_out was called
    own = write_result(tmp_path / "mine/attention.json")
    assert source_of(own.parent) == (Kind.SUITE, own)
    write_result(own.with_name("ffn.json"))
    with pytest.raises(BadInputError, match=r"holds 2 results \(attention\.json, ffn\.json\)"):
        source_of(own.parent)
    taken = re.findall(r"^taking (.*): (.*)$", said.err, re.MULTILINE)
    assert taken == [(str(grid), "grid study"), (str(scaling), "data-parallel run")]
    # one that is named is said to be unfinished
    change(running / "study.json", lambda found: found.pop("finished"))
    journal = '{"header": {}}\n{"case": "a"}\n{"case":"b"}\n{"case": "cut'
    (running / "results.journal.jsonl").write_text(journal, encoding="utf-8")
    reason = only_error(read(running)).reason
    assert "2 cases in its journal; the same command with --resume" in reason


def test_the_newest_results_are_of_one_device_and_others_are_told(
    tmp_path: Path, capsys: Capture
) -> None:
    grid, suite, scaling = write_everything(tmp_path)
    own = write_result(tmp_path / "20250101T000000Z_own/results.json")
    foreign = tmp_path / "20270101T000000Z_scaling"
    shutil.copytree(scaling, foreign)
    for path in foreign.glob("ranks_*.json"):
        change(path, lambda content: content["context"]["device"].update(name="Another CPU"))
    change(foreign / "scaling.json", lambda content: content.update(device="Another CPU"))
    assert run("--results-folder", tmp_path, "--format=md") == WRITTEN
    said = capsys.readouterr()
    # what is newest is of another device than the study, so older ones are taken
    taken = re.findall(r"^taking (.*): .*$", said.err, re.MULTILINE)
    assert taken == [str(path) for path in (grid, own, scaling)]
    reason = "is of Another CPU (cpu, threads: "
    for path in (suite, foreign):
        line = rf"^left out: result .*{path}.*: {re.escape(reason)}.*name both for a page of both$"
        assert re.search(line, said.err, re.MULTILINE), path
    assert f"Tiny LLaMA on {DEVICE}" in said.out
    # files that were made from others: costs, and what fits into which memory
    change(grid / "frontier.json", lambda content: content.update(device="Another CPU"))
    change(grid / "costs.json", lambda content: content["device"].update(name="Another CPU"))
    found = read(grid, scaling)
    assert found.study.costs == () and found.study.frontier is None
    assert all("is of Another CPU" in one.reason and one.is_error for one in found.omissions)
    assert len(found.omissions) == 2


@pytest.mark.parametrize("kind", ["md", "fom"])
def test_texts_go_to_standard_output_or_a_file(
    result: Path, tmp_path: Path, kind: str, capsys: Capture
) -> None:
    given, path = (result, "--title=Mine", f"--format={kind}"), tmp_path / "new" / kind
    assert run(*given) == WRITTEN
    shown = capsys.readouterr().out.splitlines()
    assert run(*given, "-o", path) == WRITTEN
    assert capsys.readouterr().out == ""
    # the time of writing apart
    assert path.read_text(encoding="utf-8").splitlines()[:-1] == shown[:-1]
    said = "# Mine" if kind == "md" else f"SUCCESS: {len(shown) - 1} figures"
    assert said in (shown[0], shown[-1])


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
    assert line.startswith("left out: ")
    assert "and 6 more: only 1 cell of batch and sequence: a law of 3 coefficients" in line


def test_what_cannot_be_read_or_written_ends_with_2(
    result: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = write_json(tmp_path / "bad.json", {})
    assert run(bad) == run("--results-folder", tmp_path / "empty") == NOTHING_USABLE
    said = capsys.readouterr().err
    assert "its keys are none" in said
    assert "nothing to report on; measure something: scripts/study --grid tiny small" in said
    for place, why in ((tmp_path, "is a folder"), (bad / "x.md", "cannot be written")):
        assert run(result, "--format=md", "-o", place) == NOTHING_USABLE
        assert why in capsys.readouterr().err
    # and an interruption writes nothing

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "page_of", interrupted)
    assert run(result, "-o", tmp_path / "page.html") == INTERRUPTED
    assert not (tmp_path / "page.html").exists()


def of_another_run(content: Json) -> None:
    content["context"]["threads"] = 64


def of_other_weights(content: Json) -> None:
    content["context"]["weights"] = {"fingerprint": "x"}


DAMAGES: dict[str, tuple[Callable[[Json], object], str]] = {
    "round_2.json": (lambda it: it["benchmarks"][0].update(real_time=math.nan), "finite number"),
    "round_3.json": (of_another_run, "threads is 64"),
    "products.json": (of_other_weights, "weights is {'fingerprint': 'x'}"),
    "check.json": (of_another_run, "threads is 64"),
    "costs.json": (lambda it: it["cases"][0].update(bytes=-1), "cases[0].bytes: -1 is less"),
    "frontier.json": (lambda it: it.update(limit_bytes=math.inf), "limit_bytes: inf is not"),
}


def test_a_damaged_file_of_a_study_costs_itself_only_and_a_missing_one_is_no_error(
    tmp_path: Path,
) -> None:
    study = write_study(tmp_path / "study", rounds=4)
    write_json(study / "check.json", document("check.json"))
    whole = read(study)
    assert whole.omissions == () and len(whole.main.paths) == 4
    assert whole.main.products and whole.check_cases
    assert whole.study.costs and whole.study.frontier == document("frontier.json")
    for name, (spoil, _) in DAMAGES.items():
        change(study / name, spoil)
    inputs = read(study)
    for error, (name, (_, reason)) in zip(inputs.omissions, DAMAGES.items(), strict=True):
        assert error.is_error and (error.name, reason in error.reason) == (str(study / name), True)
    assert [path.name for path in inputs.main.paths] == ["round_1.json", "round_4.json"]
    assert not (inputs.main.products or inputs.check_cases)
    assert not (inputs.study.costs or inputs.study.frontier)
    for name in DAMAGES:
        (study / name).unlink()
    assert read(study).omissions == ()
    # beside another result it says nothing of its machine
    assert read(write_result(tmp_path / "whole.json"), study).study is None


def test_the_result_with_a_steps_parts_is_the_one_analysed(tmp_path: Path) -> None:
    bare = write_result(tmp_path / "bare.json", "^full_step.*/tiny/f32/batch:8/seq:128/")
    whole = write_result(tmp_path / "whole.json")
    # what was named twice is read once
    inputs = read(bare, whole, whole)
    assert inputs.main.paths == (whole,)
    assert [(one.name, one.is_error) for one in inputs.omissions] == [(str(bare), False)]
