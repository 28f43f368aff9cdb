"""`compare calibrate` as users meet it: options, files, exit statuses, whole runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from calibrated_machine import CONTEXT, case_name, write_recording

from tinyllama_tools.calibrate import real_runs
from tinyllama_tools.calibrate.command import main
from tinyllama_tools.calibrate.measuring import kind_inside, kind_of_slowdown
from tinyllama_tools.calibrate.real_runs import RealRun, false_runs, keep_run, kept_runs, run_once
from tinyllama_tools.calibrate.slowdown_build import (
    PARTS,
    VARIABLE,
    parse_slowdown,
    slowdown_environment,
    slowdown_program,
)
from tinyllama_tools.compare.errors import CompareError

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
        "every part slowed by 5%",
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
    assert found[(0.02, 0.03, "arithmetical")]["all"]["found"]["share"] == 0
    changes = [case["true_change"] for case in found[(0.05, 0.03, "injected")]["cases"]]
    assert changes == pytest.approx([0.05] * 6, abs=0.02)
    assert document["attribution"][0]["attributed"]["share"] == 1
    assert document["runs"]["quiet"]["false"]["trials"] == 1
    profile = json.loads((tmp_path / "noise_profile.json").read_text(encoding="utf-8"))
    assert profile["device"] == "Example CPU"
    page = capsys.readouterr().out
    for heading in ("False alarms", "Detection", "Side by side", "Attribution", "Noise"):
        assert f"## {heading}" in page
    assert "Example CPU (x86-64 AVX2), 2 processors" in page
    assert "nan" not in page


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
        (("--slow", "ffn:0.05"), "--runs"),
        (("--runs", "1", "--slow", "wheel:0.05"), "'wheel': must be one of embedding"),
        (("--runs", "1", "--slow", "ffn:11"), "above 0, at most 10"),
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
        f"document = {{'cases': [{case!r}], 'arguments': sys.argv[1:]}}\n"
        "assert '--environment-new' in sys.argv and 'A=b' in sys.argv\n"
        "(folder / 'comparison.json').write_text(json.dumps(document))\n"
        "sys.exit(1)\n"
    )
    stand_in(monkeypatch, tmp_path, body)
    run = run_once(Path("program"), {"ffn": 0.05}, {"A": "b"}, ["--budget", "1m"])
    assert (run.exit_status, dict(run.outcomes)) == (1, {"ffn": "slower"})
    assert run.culprits == {"ffn": "rotary"}
    keep_run(run, tmp_path)
    assert kept_runs(tmp_path) == [run]


def test_a_run_that_ends_with_bad_input_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, "print('no such build', file=sys.stderr)\nsys.exit(2)\n")
    with pytest.raises(CompareError, match="ended with 2: no such build"):
        run_once(Path("program"), {}, {}, [])


def test_runs_are_counted_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    quiet = kept(tmp_path)
    wrong = RealRun({}, 1, {"loss": "faster"}, 5.0, "2026")
    slowed = RealRun({"ffn": 0.1}, 1, {"ffn": "slower"}, 5.0, "2026")
    for run in (wrong, slowed):
        keep_run(run, tmp_path)
    with (tmp_path / real_runs.FILE).open("a", encoding="utf-8") as file:
        file.write('{"slowdown"')
    assert kept_runs(tmp_path) == [quiet, wrong, slowed]
    share = false_runs(kept_runs(tmp_path))
    assert share is not None
    assert (share.count, share.trials) == (1, 2)
    assert false_runs([slowed]) is None


def test_slowdowns_are_spelled_as_the_program_reads_them() -> None:
    assert parse_slowdown("ffn:0.05,loss:0.1") == {"ffn": 0.05, "loss": 0.1}
    assert slowdown_environment({"ffn": 0.05, "loss": 0.1}) == {VARIABLE: "ffn:0.05,loss:0.1"}
    assert slowdown_environment({}) == {}
    for text in ("ffn", "ffn:0.05,ffn:0.1", "ffn:fast"):
        with pytest.raises(ValueError, match=r"PART:FRACTION|above 0"):
            parse_slowdown(text)


def test_a_folder_that_is_no_build_has_no_slowdown_build(tmp_path: Path) -> None:
    with pytest.raises(CompareError, match=r"no CMakeCache\.txt"):
        slowdown_program(tmp_path)
    assert not (tmp_path / "slow").exists()
