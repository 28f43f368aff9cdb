"""The fallback for builds that cannot stay resident."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from turns_stand_in import FFN, LOSS, NORM, PROGRAM, make_build, starts_of

from tinyllama_tools.compare.blocks import (
    CaseBlock,
    CaseFailure,
    CaseOpening,
    RunningWholes,
    Side,
    SliceEffort,
    suite_case,
)
from tinyllama_tools.compare.served_process import SHORT_SPIN, WAITING, TurnProgram
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.programs import SuiteProgram

CASES = [FFN, LOSS, NORM]
# a guard only: a busy machine may take seconds to start a program
LIMIT = 30.0
ARGUMENTS = ("--components=ffn,loss,rms_norm", "--benchmark_filter=f", "--threads=2")


def wholes(
    base: Path, new: Path, *, limit: float = LIMIT, clock: Callable[[], float] = time.monotonic
) -> RunningWholes:
    programs = {
        Side.BASE: TurnProgram("base", base / PROGRAM, ARGUMENTS),
        Side.NEW: TurnProgram("new", new / PROGRAM, ARGUMENTS, {"SIDE": "n"}),
    }
    return RunningWholes(programs, SliceEffort(3, 0.015, limit), 1, clock)


@pytest.fixture(autouse=True)
def without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has set must not decide about them."""
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)


def old(folder: Path, **behaviour: object) -> Path:
    return make_build(folder, is_resident=False, **behaviour)


def test_a_block_is_one_process_of_each_side(tmp_path: Path) -> None:
    base = old(tmp_path / "base", within=0.0, between=0.0)
    new = old(tmp_path / "new", within=0.0, between=0.0, factor={LOSS: 2.0})
    items = list(wholes(base, new).measure(4, CASES))
    assert [item.case for item in items] == CASES
    assert all(isinstance(item, CaseBlock) and item.index == 4 for item in items)
    loss = items[1]
    assert isinstance(loss, CaseBlock)
    assert loss.block.base == pytest.approx([0.005] * 3)
    assert loss.block.new == pytest.approx([0.010] * 3)
    assert loss.first in {(0, 0, 0), (1, 1, 1)}
    assert len(starts_of(base)) == len(starts_of(new)) == 1
    (start,) = starts_of(new)
    assert "--benchmark_repetitions=3" in start["arguments"]
    assert "--benchmark_min_time=0.015s" in start["arguments"]
    assert "--threads=2" in start["arguments"]
    assert start["environment"]["SIDE"] == "n"
    # as in turns: neither side is to be run under other conditions
    assert start["environment"].items() >= SHORT_SPIN.items()


def test_either_side_comes_first(tmp_path: Path) -> None:
    base, new = old(tmp_path / "base"), old(tmp_path / "new")
    measurer = wholes(base, new)
    found = [item for index in range(8) for item in measurer.measure(index, [FFN])]
    firsts = [item.first[0] for item in found if isinstance(item, CaseBlock)]
    # of every two blocks each side once
    assert [sum(firsts[i : i + 2]) for i in range(0, 8, 2)] == [1] * 4


def test_the_axes_and_the_filter_of_the_run_decide_what_is_listed(tmp_path: Path) -> None:
    base, new = old(tmp_path / "base"), old(tmp_path / "new")
    listed = wholes(base, new).cases()
    assert listed[Side.BASE] == (FFN, LOSS, NORM)
    assert starts_of(base)[0]["arguments"] == [*ARGUMENTS, "--list"]


def test_first_openings_bring_counters_and_proofs(tmp_path: Path) -> None:
    base, new = old(tmp_path / "base"), old(tmp_path / "new", wrong=[LOSS])
    items = list(wholes(base, new).open_once(CASES, verify=True))
    failures = [item for item in items if isinstance(item, CaseFailure)]
    assert failures == [CaseFailure(0, LOSS, Side.NEW, "gradient differs by 0.5")]
    opening = items[0]
    assert isinstance(opening, CaseOpening)
    assert opening.counters["operators"] == 20
    assert "--verify=before" in starts_of(base)[0]["arguments"]


def test_a_crash_in_one_case_is_its_own(tmp_path: Path) -> None:
    base = old(tmp_path / "base")
    new = old(tmp_path / "new", trouble={LOSS: {"at": "time", "how": "crash"}})
    items = list(wholes(base, new).measure(1, CASES))
    assert [type(item) for item in items] == [CaseBlock, CaseFailure, CaseBlock]
    failure = items[1]
    assert isinstance(failure, CaseFailure)
    assert failure.side is Side.NEW
    assert "ended with 3: out of luck" in failure.reason


def test_a_process_that_hangs_is_killed(tmp_path: Path) -> None:
    base = old(tmp_path / "base", trouble={FFN: {"at": "time", "how": "hang"}})
    (item,) = wholes(base, old(tmp_path / "new"), limit=0.3).measure(1, [FFN])
    assert isinstance(item, CaseFailure)
    assert item.side is Side.BASE
    assert "was killed: it took more than 0.6 s" in item.reason


def test_a_hang_costs_little_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many cases share the process: how long it should take is known from the openings."""
    base, new = old(tmp_path / "base"), old(tmp_path / "new")
    limits: list[float] = []
    run = subprocess.run

    def noted(command: Sequence[str], **options: object) -> object:
        if command[0] == str(new / PROGRAM):
            limits.append(options["timeout"])
            # processes 1 to 3 open the cases, the fourth measures them all: as if it had hung, and
            # its time had passed
            if len(limits) == 4:
                raise subprocess.TimeoutExpired(command, options["timeout"])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    # each opening takes a second, however long it does in truth
    measurer = wholes(base, new, clock=itertools.count().__next__)
    list(measurer.open_once(CASES, verify=True))
    items = list(measurer.measure(1, CASES))
    assert [type(item) for item in items] == [CaseBlock] * 3
    # One limit, and not one for each case and the start; that it is kept to, the test before shows.
    # With it twice what the openings let expect: a second and three slices of 15 ms for each case.
    together, alone = (LIMIT + 2 * cases * (1 + 3 * 0.015) for cases in (3, 1))
    assert limits == pytest.approx([2 * LIMIT] * 3 + [together] + [alone] * 3)
    assert len(starts_of(new)) == 3 + 3


@pytest.mark.parametrize("seconds", [0.0, float("nan")])
def test_times_that_are_none_fail_the_case_only(tmp_path: Path, seconds: float) -> None:
    base, new = old(tmp_path / "base"), old(tmp_path / "new", factor={LOSS: seconds})
    measurer = wholes(base, new)
    opened = [item for item in measurer.open_once(CASES, verify=False) if item.case == LOSS]
    assert [type(item) for item in opened] == [CaseOpening, CaseFailure]
    items = list(measurer.measure(1, CASES))
    assert [type(item) for item in items] == [CaseBlock, CaseFailure, CaseBlock]
    failure = items[1]
    assert isinstance(failure, CaseFailure)
    assert (failure.side, failure.reason.split(" s: ")[1]) == (
        Side.NEW, "must be positive and finite",
    )  # fmt: skip


def test_a_result_file_that_cannot_be_read_fails_the_case_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(*_: object, **__: object) -> None:
        json.loads('{"context":')

    monkeypatch.setattr(SuiteProgram, "run", half)
    (item,) = wholes(old(tmp_path / "base"), old(tmp_path / "new")).measure(1, [FFN])
    assert isinstance(item, CaseFailure)
    assert "result file cannot be read: JSONDecodeError" in item.reason


def test_names_that_are_no_cases_are_named() -> None:
    assert suite_case(FFN).name == FFN
    with pytest.raises(BadInputError, match="case 'peak/bandwidth': must be"):
        suite_case("peak/bandwidth")
