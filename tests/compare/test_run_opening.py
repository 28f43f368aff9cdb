"""Both sides open a case at once; how long it takes decides about the number of its pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from turns_stand_in import FFN, LOSS, NORM, PROGRAM, make_build, requests_of, starts_of
from unanswered import LONG

from tinyllama_tools.compare.blocks import (
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseSkip,
    Measured,
    Side,
    SideError,
    SliceEffort,
    TakingTurns,
    _close_case,
    _open_both,
)
from tinyllama_tools.compare.served_process import (
    CaseFailedError,
    CaseSkippedError,
    OpenedCase,
    ProcessLostError,
    TurnProcess,
    TurnProgram,
)

CASES = [FFN, LOSS, NORM]


def one_block(base: Path, new: Path, cases: list[str], pairs: int) -> dict[str, Measured]:
    """What a block says of each case."""
    programs = {
        Side.BASE: TurnProgram("base", base / PROGRAM),
        Side.NEW: TurnProgram("new", new / PROGRAM),
    }
    turns = TakingTurns(programs, SliceEffort(pairs, 0.015, limit=LONG), seed=1)
    items = turns.measure(1, cases)
    return {item.case: item for item in items if not isinstance(item, BothReady)}


@pytest.mark.parametrize(
    ("effort", "seconds", "expected"),
    [
        (SliceEffort(8, 0.015), 0.001, 8),
        # 1.5 / (2 x 0.1) = 7.5
        (SliceEffort(8, 0.015), 0.1, 7),
        # 1.5 / (2 x 0.25) = 3, and 4 are the fewest
        (SliceEffort(8, 0.015), 0.25, 4),
        (SliceEffort(8, 0.015), 60.0, 4),
        # what the user asks for is the most
        (SliceEffort(2, 0.015), 0.001, 2),
        (SliceEffort(2, 0.015), 60.0, 2),
        # the slice is long, not the iteration: 1.5 / (2 x 0.2) = 3.75, and 1.5 / (2 x 0.1) = 7.5
        (SliceEffort(8, 0.2), 0.001, 4),
        (SliceEffort(100, 0.1), 0.001, 7),
    ],
)
def test_a_slow_case_has_fewer_pairs(effort: SliceEffort, seconds: float, expected: int) -> None:
    assert effort.pairs_for(seconds) == expected


def test_pairs_are_counted_by_the_less_disturbed_side(tmp_path: Path) -> None:
    """1.5 / (2 x 0.15) = 5; of the other side's 0.45 s it would be the fewest, 4."""
    slow = {"cases": {FFN: 0.15, LOSS: 0.005}, "within": 0.0, "between": 0.0}
    base = make_build(tmp_path / "base", **slow, factor={FFN: 3.0})
    new = make_build(tmp_path / "new", **slow)
    found = one_block(base, new, [FFN, LOSS], pairs=8)
    counts = {}
    for case, item in found.items():
        assert isinstance(item, CaseBlock)
        assert len(item.block.base) == len(item.block.new) == len(item.first)
        counts[case] = len(item.first)
    assert counts == {FFN: 5, LOSS: 8}


class NotedProcess:
    """Notes what it is asked; `seconds` of an iteration, or the error that it answers with."""

    def __init__(self, name: str, answer: float | Exception, noted: list[str]) -> None:
        self.name = name
        self.answer = answer
        self.noted = noted

    def ask_to_open(self, case: str) -> None:  # noqa: ARG002
        self.noted.append(f"{self.name} asked")

    def opened(self, case: str) -> OpenedCase:  # noqa: ARG002
        self.noted.append(f"{self.name} heard")
        return OpenedCase(self._answer_or_raise(), {})

    def close_case(self, case: str) -> None:  # noqa: ARG002
        self.noted.append(f"{self.name} closes")
        self._answer_or_raise()

    def _answer_or_raise(self) -> float:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


IN_ORDER = ["base asked", "new asked", "base heard", "new heard"]


def test_both_sides_build_at_once() -> None:
    noted: list[str] = []
    pair = {
        Side.BASE: NotedProcess("base", 0.3, noted),
        Side.NEW: NotedProcess("new", 0.2, noted),
    }
    opened: dict[Side, TurnProcess] = {}
    assert _open_both(pair, FFN, opened) == 0.2
    assert noted == IN_ORDER
    assert opened == pair


@pytest.mark.parametrize(
    ("error", "is_skip", "is_lost"),
    [
        (CaseFailedError("no"), False, False),
        (CaseSkippedError("no"), True, False),
        (ProcessLostError("no"), False, True),
    ],
)
@pytest.mark.parametrize("failing", list(Side))
def test_the_other_side_s_answer_is_read_where_one_fails(
    failing: Side, error: Exception, is_skip: bool, is_lost: bool
) -> None:
    noted: list[str] = []
    pair = {
        side: NotedProcess(side.value, error if side is failing else 0.1, noted) for side in Side
    }
    opened: dict[Side, TurnProcess] = {}
    with pytest.raises(SideError, match="no") as raised:
        _open_both(pair, FFN, opened)
    assert noted == IN_ORDER
    assert (raised.value.side, raised.value.is_skip, raised.value.is_lost) == (
        failing, is_skip, is_lost,
    )  # fmt: skip
    assert opened == {side: process for side, process in pair.items() if side is not failing}


@pytest.mark.parametrize(
    ("failing", "asked", "left"),
    [
        (Side.NEW, ["base closes", "new closes"], set()),
        (Side.BASE, ["base closes"], {Side.NEW}),
    ],
)
def test_a_side_that_cannot_close_leaves_the_one_not_yet_asked(
    failing: Side, asked: list[str], left: set[Side]
) -> None:
    noted: list[str] = []
    opened = {
        side: NotedProcess(side.value, ProcessLostError("no") if side is failing else 0.1, noted)
        for side in (Side.BASE, Side.NEW)
    }
    with pytest.raises(SideError, match="no"):
        _close_case(FFN, opened)
    assert noted == asked
    assert set(opened) == left


@pytest.mark.parametrize("how", ["failed", "skipped", "crash"])
@pytest.mark.parametrize("failing", list(Side))
def test_a_side_that_cannot_open_a_case_leaves_the_other_in_step(
    tmp_path: Path, failing: Side, how: str
) -> None:
    builds = {
        side: make_build(
            tmp_path / side.value,
            trouble={LOSS: {"at": "open", "how": how}} if side is failing else {},
            within=0.0,
            between=0.0,
        )
        for side in Side
    }
    found = one_block(builds[Side.BASE], builds[Side.NEW], CASES, pairs=4)
    left = found[LOSS]
    assert isinstance(left, CaseSkip if how == "skipped" else CaseFailure)
    assert left.side is failing
    for case, seconds in ((FFN, 0.010), (NORM, 0.002)):
        item = found[case]
        assert isinstance(item, CaseBlock)
        assert item.block.base == item.block.new == pytest.approx((seconds,) * 4)
    (other,) = set(Side) - {failing}
    # one process all along, which was asked to let go of what it had opened, once
    assert len(starts_of(builds[other])) == 1
    asked = [r["do"] for r in requests_of(builds[other]) if r["case"] == LOSS]
    assert asked == ["open", "close"]
