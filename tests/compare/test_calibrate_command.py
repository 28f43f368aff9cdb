"""`compare calibrate` as users meet it: options, files, exit statuses, whole runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from calibrated_machine import CONTEXT, PARTS, write_recording
from fake_bench import FFN, LOSS, STEP, make_build, starts_of
from tinyllama_tools.calibrate.runs import keep_run, kept_runs, run_once, run_rows

from tinyllama_tools.calibrate import command as calibrate_command
from tinyllama_tools.calibrate import runs as real_runs
from tinyllama_tools.calibrate.command import (
    INSIDE_KIND,
    LATER_HALF,
    SLOWED_KINDS,
    document_standing,
    main,
)
from tinyllama_tools.calibrate.record import WhatToRecord, read_recordings, recording_paths
from tinyllama_tools.compare.recording import read_recording
from tinyllama_tools.core.app import PROJECT, BadInputError, Json

SMALL = ("--families", "20", "--cases", "7", "--tries", "3", "--jobs", "1", "--looks", "2")


def calibrate(folder: Path, *more: str) -> int:
    profile = ("--noise-profile", str(folder / "noise_profile.json"))
    try:
        return main(["--folder", str(folder), *profile, *SMALL, "--alpha", "0.05", *more])
    except BadInputError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def a_run(**more: Any) -> Json:  # noqa: ANN401
    """An A/A run without a false verdict."""
    return {
        "slowdown": {}, "exit_status": 0, "outcomes": {"ffn": "same"}, "seconds": 60.0,
        "started": "2026", "options": [], "culprits": {}, "reason": "", "git_commit": "a",
        "device": "unknown", "threads": None, **more,
    }  # fmt: skip


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
    write_recording(tmp_path / f"{SLOWED_KINDS[0.05]}_0001.jsonl", 20, five, seed=2)
    write_recording(tmp_path / f"{INSIDE_KIND}_0001.jsonl", 20, {"ffn": 0.3}, seed=3)
    keep_run(a_run(), tmp_path)
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
    assert document["meta"]["command"].startswith("scripts/compare calibrate --folder ")
    reached = {row["target"]: row["reached"] for row in document["targets"]}
    assert reached["no `slower` in at least 50 real A/A runs"] == "not shown"
    # of so few families nothing can be said
    assert {r for target, r in reached.items() if target.startswith("false alarms")} == {
        "not shown"
    }
    assert "Case by case at 10%:" in page


def test_false_alarms_are_of_the_family_where_one_was_recorded(tmp_path: Path) -> None:
    write_recording(tmp_path / "quiet_0001.jsonl", 24)
    write_recording(tmp_path / "family_0001.jsonl", 10, seed=2)
    assert calibrate(tmp_path) == 0
    document = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
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
    ],
)
def test_bad_options_are_named(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        calibrate(tmp_path, *options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def fake_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
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
    fake_run(monkeypatch, tmp_path, body)
    run = run_once(Path("program"), {"^ffn/": 0.05}, ["--budget", "1m", "--record", "/a/b/x"])
    assert (run["exit_status"], run["outcomes"]) == (1, {"ffn": "slower"})
    assert (run["culprits"], run["reason"]) == ({"ffn": "rotary"}, "")
    assert (run["git_commit"], run["threads"]) == (CONTEXT["git_commit"], 2)
    assert (run["options"], run["device"]) == (["--budget", "1m", "--record", "x"], "Example CPU")
    keep_run(run, tmp_path)
    assert kept_runs(tmp_path) == [run]


def test_a_run_that_measured_nothing_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_run(monkeypatch, tmp_path, "print('no such build', file=sys.stderr)\nsys.exit(2)\n")
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
    fake_run(monkeypatch, tmp_path, body)
    assert calibrate(tmp_path / "kept", "--runs", "6") == 0
    runs = kept_runs(tmp_path / "kept")
    assert [run["exit_status"] for run in runs] == [2, 2, 0, 2, 2, 0]
    (row,) = run_rows(runs)
    assert (row["slower"]["count"], row["slower"]["trials"]) == (0, 6)
    assert row["without_verdict"] == {"blocks became slower": 4}
    assert (row["options"], row["budget_seconds"]) == (
        "--alpha 0.05 --margin 0.03 --looks 2",
        600,
    )
    write_recording(tmp_path / "kept" / "quiet_0001.jsonl", 24)
    calibrate(tmp_path / "kept")
    page = (tmp_path / "kept" / "CALIBRATION.md").read_text(encoding="utf-8")
    assert "no `slower` in 6 runs, bound 39 %" in page
    assert "counted all the same: 4: blocks became slower" in page


def test_three_runs_in_a_row_without_a_verdict_are_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(monkeypatch, tmp_path, WITHOUT_VERDICT + "sys.exit(2)\n")
    assert calibrate(tmp_path / "kept", "--runs", "9") == 2
    assert "3 runs in a row without a verdict, the last: blocks became" in capsys.readouterr().err
    assert len(kept_runs(tmp_path / "kept")) == 3


def test_runs_are_counted_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    runs = [
        a_run(),
        a_run(outcomes={"ffn": "same", "loss": "faster"}),
        a_run(slowdown={"ffn": 0.1}, outcomes={"ffn": "slower"}),
        a_run(options=["--budget", "9m"]),
        a_run(git_commit="b"),
    ]
    for run in runs:
        keep_run(run, tmp_path)
    with (tmp_path / real_runs.FILE).open("a", encoding="utf-8") as file:
        file.write('{"slowdown"')
    assert kept_runs(tmp_path) == runs
    aa, slow, *others = run_rows(kept_runs(tmp_path))
    assert (aa["slower_or_faster"]["count"], aa["slower_or_faster"]["trials"]) == (1, 2)
    assert (aa["slower"]["count"], aa["by_case"]["ffn"]) == (0, {"same": 2})
    assert (slow["slowdown"], slow["slower"]["count"]) == ("ffn 0.1", 1)
    assert "standing" not in slow
    # other options and another commit are groups of their own
    assert [(row["options"], row["git_commit"], row["runs"]) for row in others] == [
        ("--budget 9m", "a", 1),
        ("", "b", 1),
    ]


@pytest.mark.parametrize("line", ["{}", "[]", "no json"])
def test_a_line_that_is_no_run_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / real_runs.FILE).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"runs\.jsonl: line 1 is no run"):
        kept_runs(tmp_path)


def test_real_runs_take_part_in_the_standing() -> None:
    good, bad, silent = a_run(), a_run(outcomes={"ffn": "slower"}), a_run(exit_status=2)

    def standing_of(*runs: Json) -> str:
        return document_standing({"false_alarms": [], "runs": run_rows(runs)})

    assert standing_of(*[good] * 50) == "held"
    assert standing_of(*[good] * 49) == "not shown"
    assert standing_of(*[good] * 49, silent) == "not shown"
    # one of 51 may be chance at 1 of 1,000; three are not
    assert standing_of(*[good] * 50, bad) == "not shown"
    assert standing_of(*[good] * 50, *[bad] * 3) == "broken"


QUICK = ("--", "--pairs", "2", "--slice", "1ms")
CASES = {STEP: 0.04, FFN: 0.005, LOSS: 0.002}


def measured(folder: Path, build: Path, *more: str) -> int:
    return calibrate(folder / "kept", "--build", str(build), *more)


def recordings(folder: Path, kind: str) -> list[Path]:
    return recording_paths(folder / "kept", kind)


def test_a_recording_has_every_case_in_every_block(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert measured(tmp_path, build, "--record", "1s", *QUICK) == 0
    (path,) = recordings(tmp_path, "quiet")
    found = read_recordings([path])
    assert set(found.blocks.cases) == set(CASES)
    assert found.blocks.blocks >= 1
    assert {len(block.base) for block in read_recording(path).blocks[FFN]} == {2}
    assert found.headers[0].pairs == 2
    # two processes to greet, two to prove, two a block
    assert len(starts_of(build)) == 4 + 2 * found.blocks.blocks
    given = [word for start in starts_of(build) for word in start["arguments"]]
    assert not any(word.startswith("--slow") for word in given)


def test_options_of_run_choose_the_cases(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    measured(tmp_path, build, "--record", "1s", *QUICK, "--components", "ffn", "--threads", "1")
    arguments = starts_of(build)[0]["arguments"]
    assert "--components=ffn" in arguments
    assert "--threads=1" in arguments


def test_a_family_is_a_recording_of_its_own(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert measured(tmp_path, build, "--record", "1s", *QUICK) == 0
    assert not recordings(tmp_path, "family")
    assert measured(tmp_path, build, "--record-family", "1s", *QUICK, "--seq", "32") == 0
    assert len(recordings(tmp_path, "quiet")) == len(recordings(tmp_path, "family")) == 1
    arguments = starts_of(build)[-1]["arguments"]
    assert "--batch=1,2,3,4,5" in arguments
    assert "--seq=32" in arguments, "options after -- replace those of the family"


def test_only_the_new_side_is_slowed(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    measured(tmp_path, build, "--record", "1s", *QUICK)
    quiet = len(starts_of(build))
    assert measured(tmp_path, build, "--record-slowed", "2s", *QUICK) == 0
    assert all(recordings(tmp_path, kind) for kind in (*SLOWED_KINDS.values(), INSIDE_KIND))
    arguments = [start["arguments"] for start in starts_of(build)[quiet:]]
    slowed = [tuple(x for x in given if x.startswith("--slow=")) for given in arguments]
    assert slowed.count(()) == len(slowed) / 2
    assert ("--slow=.=0.05",) in slowed
    # a twentieth of 40 ms, from four layers of 5 ms: a tenth more of each
    (inside,) = {words for words in slowed if len(words) == 2}
    assert inside[1] == "--slow=^full_step/=0.05"
    assert float(inside[0].removeprefix("--slow=^ffn/=")) == pytest.approx(0.1, rel=0.1)
    # a continued recording is slowed as before, whatever the part would need by now
    assert measured(tmp_path, build, "--record-slowed", "1s", *QUICK) == 0
    headers = [read_recording(path).header for path in recordings(tmp_path, INSIDE_KIND)]
    assert len(headers) >= 2
    assert all(header.settings == headers[0].settings for header in headers)


def test_a_recording_that_does_not_say_how_it_was_slowed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(tmp_path / "kept" / "quiet_0001.jsonl", 3)
    write_recording(tmp_path / "kept" / f"{INSIDE_KIND}_0001.jsonl", 3)
    assert measured(tmp_path, tmp_path, "--record-slowed", "1s", *QUICK) == 2
    assert "inside_ffn_0001.jsonl: does not say how" in capsys.readouterr().err


def test_the_slowed_kind_with_least_blocks_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    write_recording(folder / "quiet_0001.jsonl", 3)
    write_recording(folder / f"{SLOWED_KINDS[0.05]}_0001.jsonl", 12, dict.fromkeys(PARTS, 0.05))
    now, order = [0.0], []

    def recorded(what: WhatToRecord, folder: Path, *_: object, most: int, **__: object) -> None:
        order.append(what.kind)
        now[0] += 10
        number = len(recording_paths(folder, what.kind)) + 1
        slow = {"ffn": 0.1} if what.kind == INSIDE_KIND else {}
        write_recording(folder / f"{what.kind}_{number:04d}.jsonl", most, slow)

    monkeypatch.setattr(calibrate_command, "record", recorded)
    monkeypatch.setattr(calibrate_command.time, "monotonic", lambda: now[0])
    assert measured(tmp_path, tmp_path, "--record-slowed", "85s") == 0
    two, five, ten = SLOWED_KINDS.values()
    # each once, whatever it has; then those that have least, until it has as many as they
    assert order == [two, ten, INSIDE_KIND, five, two, ten, INSIDE_KIND, two, ten]


def test_slowing_wants_an_aa_recording_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert measured(tmp_path, build, "--record-slowed", "1s", *QUICK) == 2
    assert "--record 30m" in capsys.readouterr().err


def test_whole_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = make_build(tmp_path / "build", cases={FFN: 0.005})
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "scripts"))
    rule = ("--alpha", "0.3", "--looks", "1")
    assert measured(tmp_path, build, "--runs", "1", *rule, *QUICK, "--budget", "30s") == 0
    (run,) = kept_runs(tmp_path / "kept")
    assert set(run["outcomes"]) == {FFN}
    assert run["seconds"] > 0
    assert run["options"][:2] == ["--alpha", "0.3"]


def test_a_program_that_cannot_stay_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases=CASES, is_served=False)
    assert measured(tmp_path, build, "--record", "1s", *QUICK) == 2
    assert "does not know --serve" in capsys.readouterr().err
