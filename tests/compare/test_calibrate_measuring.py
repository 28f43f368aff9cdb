"""Recording and whole runs with a program that stays resident, as `compare calibrate` starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from calibrated_machine import PARTS, write_recording
from fake_bench import FFN, LOSS, STEP, make_build, starts_of

from tinyllama_tools.calibrate import command as measuring
from tinyllama_tools.calibrate.command import (
    _fraction_recorded,
    kind_inside,
    kind_of_slowdown,
    main,
    recordings_of,
)
from tinyllama_tools.calibrate.rates import SLOWDOWNS
from tinyllama_tools.calibrate.record import HowLong, WhatToRecord, next_path
from tinyllama_tools.calibrate.runs import kept_runs
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter
from tinyllama_tools.core.app import PROJECT, BadInputError

QUICK = ("--", "--pairs", "2", "--slice", "1ms")
CASES = {STEP: 0.04, FFN: 0.005, LOSS: 0.002}


def calibrate(folder: Path, build: Path, *more: str) -> int:
    return main(["--folder", str(folder / "kept"), "--build", str(build), *more])


def test_a_recording_has_every_case_in_every_block(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert calibrate(tmp_path, build, "--record", "1s", *QUICK) == 0
    found = recordings_of(tmp_path / "kept", []).quiet
    assert set(found.blocks.cases) == set(CASES)
    assert found.blocks.blocks >= 1
    assert {len(block.base) for block in found.blocks.slices[FFN]} == {2}
    assert found.headers[0].pairs == 2
    # two processes to greet, two to prove, two a block
    assert len(starts_of(build)) == 4 + 2 * found.blocks.blocks
    given = [word for start in starts_of(build) for word in start["arguments"]]
    assert not any(word.startswith("--slow") for word in given)


def test_options_of_run_choose_the_cases(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    calibrate(tmp_path, build, "--record", "1s", *QUICK, "--components", "ffn", "--threads", "1")
    arguments = starts_of(build)[0]["arguments"]
    assert "--components=ffn" in arguments
    assert "--threads=1" in arguments


def test_a_family_is_a_recording_of_its_own(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert calibrate(tmp_path, build, "--record", "1s", *QUICK) == 0
    assert recordings_of(tmp_path / "kept", []).family is None
    assert calibrate(tmp_path, build, "--record-family", "1s", *QUICK, "--seq", "32") == 0
    found = recordings_of(tmp_path / "kept", [])
    assert found.family is not None
    assert len(found.quiet.headers) == len(found.family.headers) == 1
    arguments = starts_of(build)[-1]["arguments"]
    assert "--batch=1,2,3,4,5" in arguments
    assert "--seq=32" in arguments, "options after -- replace those of the family"


def test_only_the_new_side_is_slowed(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    calibrate(tmp_path, build, "--record", "1s", *QUICK)
    quiet = len(starts_of(build))
    assert calibrate(tmp_path, build, "--record-slowed", "2s", *QUICK) == 0
    found = recordings_of(tmp_path / "kept", [])
    assert set(found.injected) == set(SLOWDOWNS)
    assert set(found.inside) == {"ffn"}
    arguments = [start["arguments"] for start in starts_of(build)[quiet:]]
    slowed = [tuple(x for x in given if x.startswith("--slow=")) for given in arguments]
    assert slowed.count(()) == len(slowed) / 2
    assert ("--slow=.=0.05",) in slowed
    # a twentieth of 40 ms, from four layers of 5 ms: a tenth more of each
    (inside,) = {words for words in slowed if len(words) == 2}
    assert inside[1] == "--slow=^full_step/=0.05"
    assert float(inside[0].removeprefix("--slow=^ffn/=")) == pytest.approx(0.1, rel=0.1)
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names >= {f"{kind_of_slowdown(0.05)}_0001.jsonl", f"{kind_inside('ffn')}_0001.jsonl"}


def test_slowed_kinds_take_turns_the_one_with_least_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    five = dict.fromkeys(PARTS, 0.05)
    folder = tmp_path / "kept"
    write_recording(folder / "quiet_0001.jsonl", 3)
    write_recording(folder / f"{kind_of_slowdown(0.05)}_0001.jsonl", 12, five)
    now, order = [0.0], []

    def recorded(what: WhatToRecord, folder: Path, how: HowLong, *_: object, **__: object) -> None:
        assert how.blocks is not None
        order.append(what.kind)
        now[0] += 10
        write_recording(next_path(folder, what.kind), how.blocks)

    monkeypatch.setattr(measuring, "record", recorded)
    monkeypatch.setattr(measuring.time, "monotonic", lambda: now[0])
    assert calibrate(tmp_path, tmp_path, "--record-slowed", "85s") == 0
    two, ten, inside = kind_of_slowdown(0.02), kind_of_slowdown(0.10), kind_inside("ffn")
    # each once, whatever it has; then those that have least, until it has as many as they
    assert order == [two, ten, inside, kind_of_slowdown(0.05), two, ten, inside, two, ten]


def test_a_continued_recording_is_slowed_as_before(tmp_path: Path) -> None:
    assert _fraction_recorded(tmp_path, "ffn") is None
    slow = {"^ffn/": 0.125, "^full_step/": 0.05}
    settings = {"new_slow": slow}
    header = RecordingHeader("p", "p", "interleaved", 2, 0.1, 1, "2026", settings=settings)
    with RecordingWriter(tmp_path / f"{kind_inside('ffn')}_0001.jsonl", header):
        pass
    assert _fraction_recorded(tmp_path, "ffn") == 0.125
    older = tmp_path / "older"
    write_recording(next_path(older, kind_inside("ffn")), 2)
    with pytest.raises(BadInputError, match=r"inside_ffn_0001\.jsonl: made before"):
        _fraction_recorded(older, "ffn")


def test_slowing_wants_an_aa_recording_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases=CASES)
    assert calibrate(tmp_path, build, "--record-slowed", "1s", *QUICK) == 2
    assert "--record 30m" in capsys.readouterr().err


def test_whole_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = make_build(tmp_path / "build", cases={FFN: 0.005})
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "scripts"))
    rule = ("--alpha", "0.3", "--looks", "1")
    assert calibrate(tmp_path, build, "--runs", "1", *rule, *QUICK, "--budget", "30s") == 0
    (run,) = kept_runs(tmp_path / "kept")
    assert set(run.outcomes) == {FFN}
    assert run.seconds > 0
    assert run.options[:2] == ("--alpha", "0.3")


def test_a_program_that_cannot_stay_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = make_build(tmp_path / "build", cases=CASES, is_served=False)
    assert calibrate(tmp_path, build, "--record", "1s", *QUICK) == 2
    assert "does not know --serve" in capsys.readouterr().err
