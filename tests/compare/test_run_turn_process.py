"""One resident process: what it is asked, and what becomes of one that does not answer well."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from turns_stand_in import FFN, LOSS, PROGRAM, make_build, requests_of, starts_of

from tinyllama_tools.compare.served_process import (
    SHORT_SPIN,
    WAITING,
    CaseFailedError,
    CaseSkippedError,
    ProcessLostError,
    TurnProcess,
    TurnProgram,
)
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.peers.sides import PLACING

# a guard only, as a busy machine may take seconds to start a program; below the 50 s that a
# program here sleeps
LIMIT = 30.0


def started(build: Path, *, limit: float = LIMIT, padding: int = 0) -> TurnProcess:
    program = TurnProgram("base", build / PROGRAM, ("--threads=1",), {"SIDE": "b"})
    return TurnProcess(program, limit=limit, padding=padding)


def troubled(tmp_path: Path, at: str, how: str) -> Path:
    return make_build(tmp_path / "build", trouble={FFN: {"at": at, "how": how}})


def test_a_case_is_opened_timed_and_closed(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build", within=0.0, between=0.0)
    with started(build) as process:
        greeting = process.greet()
        opened = process.open(FFN, meter=True)
        seconds = process.time(FFN, 0.015)
        process.close_case(FFN)
    assert FFN in greeting.cases
    assert greeting.context["device"] == {"name": "stand-in"}
    assert opened.counters["operators"] == 20
    assert seconds == [pytest.approx(0.010)] * 3
    assert not process.is_running
    asked = [(r["do"], r["case"], r.get("seconds")) for r in requests_of(build)]
    assert asked == [("open", FFN, None), ("time", FFN, 0.015), ("close", FFN, None)]


@pytest.fixture(autouse=True)
def without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has set must not decide about them."""
    for name in (*WAITING, *PLACING):
        monkeypatch.delenv(name, raising=False)


def openmp_settings(**of_side: str) -> dict[str, str]:
    """What a side's process sees of them."""
    found = TurnProgram("base", Path("program"), (), of_side).environment_with(0)
    return {name: found[name] for name in (*WAITING, *PLACING) if name in found}


def test_the_environment_is_padded_and_workers_spin_shortly(tmp_path: Path) -> None:
    build = make_build(tmp_path / "build")
    with started(build, padding=77) as process:
        process.greet()
    (start,) = starts_of(build)
    assert start["arguments"] == ["--threads=1", "--serve"]
    assert start["environment"]["TINY_LLAMA_PADDING"] == "x" * 77
    assert start["environment"].items() >= SHORT_SPIN.items()
    # a passive policy would change what is measured
    assert "OMP_WAIT_POLICY" not in start["environment"]
    assert start["environment"]["SIDE"] == "b"


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "7"), ("KMP_BLOCKTIME", "200")],
)
def test_how_workers_wait_is_the_user_s_choice(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    pinned = {"OMP_PROC_BIND": "true"}
    assert openmp_settings() == {**SHORT_SPIN, **pinned}
    # of one side only
    assert openmp_settings(**{name: value}) == {name: value, **pinned}
    # of both
    monkeypatch.setenv(name, value)
    assert openmp_settings() == {name: value, **pinned}


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_NUM_THREADS", "2"), ("OMP_PROC_BIND", "false"), ("OMP_PLACES", "{0}")]
)
def test_threads_are_placed_as_the_program_would_place_them(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """It pins them where nothing says how; what one side alone sets says it as well."""
    assert openmp_settings()["OMP_PROC_BIND"] == "true"
    assert openmp_settings(**{name: value}) == {**SHORT_SPIN, name: value}
    monkeypatch.setenv(name, value)
    assert openmp_settings() == {**SHORT_SPIN, name: value}


def test_a_side_s_own_setting_goes_before_that_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert openmp_settings(OMP_WAIT_POLICY="passive")["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("crash", "ended with 3 at open ffn/.*; it last said: out of luck"),
        ("signal", "ended by signal SIGSEGV at open ffn/"),
        ("nonsense", r"answered open ffn/.* with '\[\"what\?\"\]'"),
        ("zero", r"answered open with '\{\"seconds\": \[0.0\]\}'"),
    ],
)
def test_a_process_that_fails_to_answer_is_lost(tmp_path: Path, how: str, expected: str) -> None:
    with started(troubled(tmp_path, "open", how)) as process:
        process.greet()
        with pytest.raises(ProcessLostError, match=expected):
            process.open(FFN)
        assert not process.is_running


@pytest.mark.parametrize("how", ["hang", "endless"])
def test_a_process_that_gives_no_answer_in_time_is_killed(tmp_path: Path, how: str) -> None:
    with started(troubled(tmp_path, "time", how)) as process:
        process.greet()
        process.open(FFN)
        # only now: the start and the opening are to be answered, however busy the machine is
        process._limit = 0.3
        began = time.monotonic()
        with pytest.raises(ProcessLostError, match=r"no answer to time ffn/.* within 0\.3 s"):
            process.time(FFN, 0.015)
        # the stand-in sleeps for a minute, or never ends
        assert time.monotonic() - began < 30.0
        assert not process.is_running


def test_times_that_are_none_are_nonsense(tmp_path: Path) -> None:
    with started(troubled(tmp_path, "time", "zero")) as process:
        process.greet()
        process.open(FFN)
        with pytest.raises(ProcessLostError, match="answered time"):
            process.time(FFN, 0.015)


def test_a_failed_or_skipped_case_leaves_the_process_to_the_others(tmp_path: Path) -> None:
    trouble = {
        FFN: {"at": "open", "how": "failed"},
        LOSS: {"at": "open", "how": "skipped"},
    }
    with started(make_build(tmp_path / "build", trouble=trouble)) as process:
        process.greet()
        with pytest.raises(CaseFailedError, match="told to be failed"):
            process.open(FFN)
        with pytest.raises(CaseSkippedError, match="told to be skipped"):
            process.open(LOSS)
        assert process.is_running


def test_a_program_without_turns_is_told_from_one_that_refuses_its_options(tmp_path: Path) -> None:
    with (
        started(make_build(tmp_path / "old", is_resident=False)) as process,
        pytest.raises(BadInputError, match="does not know --serve; compare stored results"),
    ):
        process.greet()
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho 'tiny_llama_bench: --sizes huge: unknown' >&2\nexit 2\n")
    refusing.chmod(0o755)
    program = TurnProgram("new", refusing)
    with (
        TurnProcess(program, limit=LIMIT, padding=0) as process,
        pytest.raises(BadInputError, match="new: tiny_llama_bench: --sizes huge: unknown"),
    ):
        process.greet()


def test_a_program_that_cannot_be_started_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be started: No such file"):
        TurnProcess(TurnProgram("base", tmp_path / "none"), limit=LIMIT, padding=0)


def test_closing_ends_a_process_that_hangs_with_all_its_children(tmp_path: Path) -> None:
    script = tmp_path / "hanging"
    script.write_text(f"#!/bin/sh\nsleep 50 &\necho $! >{tmp_path}/child\nwait\n")
    script.chmod(0o755)
    process = TurnProcess(TurnProgram("base", script), limit=LIMIT, padding=0)
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.close(wait=False)
    child = int((tmp_path / "child").read_text())
    while _is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z" and os.path.exists(f"/proc/{process}")  # noqa: PTH110
