"""`compare calibrate` as users meet it: options, files, exit statuses, whole runs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from calibrated_machine import CONTEXT, PARTS, case_name, write_recording

from tinyllama_tools.calibrate import runs as real_runs
from tinyllama_tools.calibrate.command import (
    LATER_HALF,
    add_options,
    calibration_document,
    document_standing,
    kind_inside,
    kind_of_slowdown,
    main,
    recordings_of,
)
from tinyllama_tools.calibrate.page import runs_section
from tinyllama_tools.calibrate.rates import Effort, Rule
from tinyllama_tools.calibrate.record import parse_slowdown, slow_arguments
from tinyllama_tools.calibrate.runs import (
    RealRun,
    keep_run,
    kept_runs,
    published_arguments,
    run_once,
    run_rows,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.publish import published_context

SMALL = ("--families", "20", "--cases", "7", "--tries", "3", "--jobs", "1", "--looks", "2")


def calibrate(folder: Path, *more: str) -> int:
    profile = ("--noise-profile", str(folder / "noise_profile.json"))
    return main(["--folder", str(folder), *profile, *SMALL, "--alpha", "0.05", *more])


def kept(folder: Path) -> RealRun:
    """An A/A run without a false verdict, in the folder."""
    run = RealRun({}, 0, {case_name("ffn"): "same"}, 60.0, "2026-01-01T00:00:00")
    keep_run(run, folder)
    return run


def test_simulated_data_need_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, "--simulate") == 0
    page = capsys.readouterr().out
    assert page == (tmp_path / "CALIBRATION.md").read_text(encoding="utf-8") + "\n"
    document = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    names = [row["data"] for row in document["false_alarms"]]
    assert "simulated: drift" in names
    assert all(name in page for name in names)
    assert not (tmp_path / "noise_profile.json").exists()


def test_too_few_families_show_nothing_and_strict_says_so(tmp_path: Path) -> None:
    assert calibrate(tmp_path, "--simulate", "--strict") == 3


def test_recordings_are_analysed_into_document_page_and_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(tmp_path / "quiet_0001.jsonl", 40)
    five = dict.fromkeys(PARTS, 0.05)
    write_recording(tmp_path / f"{kind_of_slowdown(0.05)}_0001.jsonl", 20, five, seed=2)
    write_recording(tmp_path / f"{kind_inside('ffn')}_0001.jsonl", 20, {"ffn": 0.3}, seed=3)
    kept(tmp_path)
    assert calibrate(tmp_path) == 0
    document = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    assert document["meta"]["commit"] == CONTEXT["git_commit"]
    assert [row["name"] for row in document["recordings"]] == [
        "A/A",
        "every case slowed by 5%",
        "slowed inside ffn",
    ]
    assert document["recordings"][0]["block_seconds"] == pytest.approx(4.5)
    found = {(row["slowdown"], row["margin"], row["how"]): row for row in document["detection"]}
    assert set(found) == {
        (0.02, 0.03, "arithmetical"),
        (0.02, 0.01, "arithmetical"),
        (0.05, 0.03, "arithmetical"),
        (0.05, 0.03, "injected"),
        (0.1, 0.03, "arithmetical"),
    }
    assert found[(0.1, 0.03, "arithmetical")]["all"]["found"]["share"] == 1
    assert found[(0.1, 0.03, "arithmetical")]["budget_seconds"] == 300
    assert found[(0.05, 0.03, "arithmetical")]["budget_seconds"] == 600
    assert all(
        row["is_shown"] == (min(row["blocks"]) >= row["looks"][-1]) for row in found.values()
    )
    assert found[(0.02, 0.03, "arithmetical")]["all"]["found"]["share"] == 0
    changes = [case["true_change"] for case in found[(0.05, 0.03, "injected")]["cases"]]
    assert changes == pytest.approx([0.05] * 6, abs=0.02)
    assert document["attribution"][0]["attributed"]["share"] == 1
    assert document["runs"][0]["slower"]["trials"] == 1
    profile = json.loads((tmp_path / "noise_profile.json").read_text(encoding="utf-8"))
    assert profile["device"] == "Example CPU"
    page = capsys.readouterr().out
    for heading in ("Targets", "False alarms", "Detection", "Attribution", "Noise"):
        assert f"## {heading}" in page
    assert "Example CPU (x86-64 AVX2), 2 processors" in page
    assert "nan" not in page
    assert document["check"]["data"] == "recorded, earlier half"
    # seven cases of seven recorded: a half has to hold the last look's blocks
    for row in document["false_alarms"]:
        if row["data"] == "recorded, later half":
            assert (row["blocks"], row["blocks_needed"]) == (20, row["blocks_needed"])
            assert row["standing"] != "held" or row["blocks_needed"] <= 20
    assert str(tmp_path) not in (tmp_path / "calibration.json").read_text(encoding="utf-8")
    assert document["meta"]["command"].startswith("scripts/compare calibrate --families 20")
    reached = {row["target"]: row["reached"] for row in document["targets"]}
    assert reached["no `slower` in at least 50 real A/A runs"] == "not shown"
    assert "Case by case at 10%:" in page


def test_false_alarms_are_of_the_family_where_one_was_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "calibration"
    write_recording(folder / "quiet_0001.jsonl", 24)
    write_recording(folder / "family_0001.jsonl", 10, seed=2)
    recordings = recordings_of(folder, [])
    effort = Effort(families=2, cases=7, tries=2, jobs=1, seed=1)
    document = calibration_document(recordings, [], Rule(0.001, 0.03, 6), effort, lambda _: None)
    rows = [row for row in document["false_alarms"] if row["data"] == LATER_HALF]
    assert {row["blocks"] for row in rows} == {5}
    assert document["check"]["blocks"] == 5
    assert {row["blocks"][0] for row in document["detection"]} == {12}
    blocks = {row["name"]: row["blocks"] for row in document["recordings"]}
    assert blocks == {"A/A": 24, "A/A, a family of its own": 10}


def test_nothing_recorded_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path) == 2
    assert "--record 30m" in capsys.readouterr().err


def test_one_block_has_no_halves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path / "quiet_0001.jsonl", 1)
    assert calibrate(tmp_path) == 2
    assert "1 block: halves need at least 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--simulate", "--record", "1m"), "--simulate"),
        (("--slow", "ffn=0.05"), "--runs"),
        (("--runs", "1", "--slow", "ffn:0.05"), "must be REGEX=FRACTION"),
        (("--runs", "1", "--slow", "ffn=11"), "above 0, at most 10"),
        (("--record", "soon"), "'soon'"),
        (("--", "--pairs", "12"), "--pairs 12"),
        (("--record", "1m", "--publish", "here"), "--publish"),
    ],
)
def test_bad_options_are_named(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        calibrate(tmp_path, *options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """In place of `compare run`: a program that writes a comparison, or does not."""
    script = tmp_path / "run.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--output') + 1])\n" + body,
        encoding="utf-8",
    )
    monkeypatch.setattr(real_runs, "COMMAND", (sys.executable, str(script)))


def test_a_run_is_kept_with_its_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = {"name": "ffn", "outcome": "slower", "attribution": {"culprit": "rotary"}}
    body = (
        f"document = {{'cases': [{case!r}], 'base_context': {CONTEXT!r}}}\n"
        "assert '--slow-new=^ffn/=0.05' in sys.argv\n"
        "(folder / 'comparison.json').write_text(json.dumps(document))\n"
        "sys.exit(1)\n"
    )
    stand_in(monkeypatch, tmp_path, body)
    run = run_once(Path("program"), {"^ffn/": 0.05}, ["--budget", "1m"])
    assert (run.exit_status, dict(run.outcomes)) == (1, {"ffn": "slower"})
    assert run.culprits == {"ffn": "rotary"}
    assert (run.git_commit, run.device, run.threads) == (CONTEXT["git_commit"], "Example CPU", 2)
    assert (run.options, run.has_verdict, run.reason) == (("--budget", "1m"), True, "")
    keep_run(run, tmp_path)
    assert kept_runs(tmp_path) == [run]


def test_a_run_that_measured_nothing_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, "print('no such build', file=sys.stderr)\nsys.exit(2)\n")
    with pytest.raises(BadInputError, match="ended with 2: no such build"):
        run_once(Path("program"), {}, [])


WITHOUT_VERDICT = (
    "case = {'name': 'ffn', 'outcome': 'no verdict'}\n"
    "(folder / 'comparison.json').write_text(json.dumps({'cases': [case]}))\n"
    "print('blocks became slower', file=sys.stderr)\n"
)


def test_a_run_without_a_verdict_is_kept_and_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # every third has a verdict
    body = (
        "marks = pathlib.Path(__file__).with_name('marks')\n"
        "marks.write_text((marks.read_text() if marks.exists() else '') + 'x')\n"
        f"{WITHOUT_VERDICT}sys.exit(0 if len(marks.read_text()) % 3 == 0 else 2)\n"
    )
    stand_in(monkeypatch, tmp_path, body)
    assert calibrate(tmp_path / "kept", "--runs", "6") == 0
    runs = kept_runs(tmp_path / "kept")
    assert [run.exit_status for run in runs] == [2, 2, 0, 2, 2, 0]
    (row,) = run_rows(runs)
    assert (row["slower"]["count"], row["slower"]["trials"]) == (0, 6)
    assert row["without_verdict"] == {"blocks became slower": 4}
    page = "\n".join(runs_section([row]))
    assert "no `slower` in 6 runs, bound 39 %" in page
    assert "counted all the same: 4: blocks became slower" in page
    assert "--alpha 0.05 --margin 0.03 --looks 2" in page
    assert "budget 10 min" in page


def test_three_runs_in_a_row_without_a_verdict_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, tmp_path, WITHOUT_VERDICT + "sys.exit(2)\n")
    assert calibrate(tmp_path / "kept", "--runs", "9") == 2
    assert "3 runs in a row without a verdict, the last: blocks became" in capsys.readouterr().err
    assert len(kept_runs(tmp_path / "kept")) == 3


def test_runs_are_counted_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    quiet = kept(tmp_path)
    wrong = RealRun({}, 1, {"loss": "faster"}, 5.0, "2026")
    slowed = RealRun({"ffn": 0.1}, 1, {"ffn": "slower"}, 5.0, "2026")
    for run in (wrong, slowed):
        keep_run(run, tmp_path)
    with (tmp_path / real_runs.FILE).open("a", encoding="utf-8") as file:
        file.write('{"slowdown"')
    assert kept_runs(tmp_path) == [quiet, wrong, slowed]
    aa, slow = run_rows(kept_runs(tmp_path))
    assert (aa["slower_or_faster"]["count"], aa["slower_or_faster"]["trials"]) == (1, 2)
    assert (aa["slower"]["count"], aa["slower"]["trials"]) == (0, 2)
    assert (slow["slowdown"], slow["slower"]["count"]) == ("ffn 0.1", 1)
    assert "standing" not in slow


def test_runs_of_other_options_or_commits_are_other_groups() -> None:
    run = RealRun({}, 0, {"ffn": "same"}, 60.0, "2026", ("--budget", "5m"), git_commit="a")
    others = [replace(run, options=("--budget", "9m")), replace(run, git_commit="b")]
    rows = run_rows([run, *others, run])
    assert [(r["options"], r["budget_seconds"], r["git_commit"], r["runs"]) for r in rows] == [
        ("--budget 5m", 300, "a", 2),
        ("--budget 9m", 540, "a", 1),
        ("--budget 5m", 300, "b", 1),
    ]


def test_real_runs_take_part_in_the_standing() -> None:
    good = RealRun({}, 0, {"ffn": "same"}, 60.0, "2026")
    bad, silent = replace(good, outcomes={"ffn": "slower"}), replace(good, exit_status=2)

    def standing_of(*runs: RealRun) -> str:
        return document_standing({"false_alarms": [], "runs": run_rows(runs)})

    assert standing_of(*[good] * 50) == "held"
    assert standing_of(*[good] * 49) == "not shown"
    assert standing_of(*[good] * 49, silent) == "not shown"
    # one of 51 may be chance at 1 of 1,000; three are not
    assert standing_of(*[good] * 50, bad) == "not shown"
    assert standing_of(*[good] * 50, *[bad] * 3) == "broken"


def test_what_is_published_names_no_path_and_no_host() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser)
    words = ["--folder", "/a", "--recordings", "/b", "/c", "--alpha", "0.01", "--build=/d"]
    words += ["--publish", "here", "--", "--output", "/e", "--budget", "5m"]
    kept_words = ["--alpha", "0.01", "--publish", "here", "--", "--budget", "5m"]
    assert published_arguments(words, parser) == kept_words
    context = {**CONTEXT, "host_name": "h", "load_avg": [1.0], "executable": "/x"}
    assert published_context(context) == CONTEXT


def test_slowdowns_are_spelled_as_the_program_reads_them() -> None:
    assert parse_slowdown("^ffn/batch=4=0.05") == {"^ffn/batch=4": 0.05}
    assert slow_arguments({"^ffn/": 0.05, ".": 10}) == ("--slow=^ffn/=0.05", "--slow=.=10")
    for text in ("ffn", "ffn=0", "ffn=11", "ffn=fast"):
        with pytest.raises(ValueError, match=r"REGEX=FRACTION"):
            parse_slowdown(text)
