"""Blocks of two resident processes: opening, order of the sides, interleaved slices."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_bench import FFN, LOSS, NORM, PROGRAM, make_build, requests_of, starts_of
from unanswered import LONG, START, cut_wait_short

from tinyllama_tools.compare import blocks as blocks_module
from tinyllama_tools.compare.blocks import (
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Interleaved,
    Measured,
    Side,
    SliceEffort,
    balanced_order,
)
from tinyllama_tools.compare.served_process import (
    Greeting,
    OpenedCase,
    ServedProgram,
)
from tinyllama_tools.stats.rank_tests import summarise

CASES = [FFN, LOSS, NORM]


def interleaved(base: Path, new: Path, *, seed: int = 1, pairs: int = 4) -> Interleaved:
    programs = {
        Side.BASE: ServedProgram("base", base / PROGRAM),
        Side.NEW: ServedProgram("new", new / PROGRAM),
    }
    return Interleaved(programs, SliceEffort(pairs, 0.015, LONG), seed)


def measured(measurer: Interleaved, index: int, cases: list[str]) -> list[Measured]:
    """A block's cases. That both sides are there is said before the first."""
    ready, *items = measurer.measure(index, cases)
    assert isinstance(ready, BothReady)
    found = [item for item in items if not isinstance(item, BothReady)]
    assert len(found) == len(items)
    return found


def one_block(base: Path, new: Path, cases: list[str], **effort: int) -> dict[str, Measured]:
    """What a block says of each case."""
    return {item.case: item for item in measured(interleaved(base, new, **effort), 1, cases)}


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


ORDERED_CASES = ["a", "b"]
KINDS = ("start", "greet", "ask", "hear", "close case", "close")


class OrderedProcess:
    """Notes who was asked for what."""

    is_running = True

    def __init__(self, name: str, noted: list[tuple[str, str]]) -> None:
        self.name = name
        self.noted = noted
        self._note("start")

    def _note(self, kind: str) -> None:
        self.noted.append((kind, self.name))

    def greet(self) -> Greeting:
        self._note("greet")
        return Greeting((), {})

    def ask_to_open(self, _: str) -> None:
        self._note("ask")

    def opened(self, _: str) -> OpenedCase:
        self._note("hear")
        return OpenedCase(0.001, {})

    def time(self, *_: object) -> list[float]:
        return [0.001]

    def close_case(self, _: str) -> None:
        self._note("close case")

    def close(self, *, wait: bool) -> None:
        assert wait
        self._note("close")


def test_what_both_do_one_does_first_in_this_block_and_the_other_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[tuple[str, str]] = []

    def start_all(programs: Sequence[ServedProgram], **_: object) -> list[OrderedProcess]:
        return [OrderedProcess(program.name, noted) for program in programs]

    monkeypatch.setattr(blocks_module, "start_all", start_all)
    programs = {side: ServedProgram(side.value, Path("program")) for side in Side}
    measurer = Interleaved(programs, SliceEffort(pairs=2), seed=3)
    firsts = []
    for index in range(1, 7):
        noted.clear()
        list(measurer.measure(index, ORDERED_CASES))
        first = noted[0][1]
        other = Side(first).other.value
        for kind in KINDS:
            times = 2 if kind in {"ask", "hear", "close case"} else 1
            assert [name for what, name in noted if what == kind] == [first, other] * times
        firsts.append(first)
    assert [set(firsts[i : i + 2]) for i in (0, 2, 4)] == [{"base", "new"}] * 3


def test_a_block_has_every_case_once_from_one_fresh_pair_of_processes(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", factor={FFN: 1.5})
    items = measured(interleaved(base, new), 1, CASES)
    found = {item.case: item for item in items}
    assert sorted(found) == sorted(CASES)
    ffn = found[FFN]
    assert isinstance(ffn, CaseBlock)
    assert len(ffn.block.base) == len(ffn.block.new) == 4
    assert summarise(ffn.block).log_ratio == pytest.approx(math.log(1.5), abs=0.05)
    loss = found[LOSS]
    assert isinstance(loss, CaseBlock)
    assert summarise(loss.block).log_ratio == pytest.approx(0, abs=0.05)
    assert len(starts_of(base)) == len(starts_of(new)) == 1


def test_each_side_begins_half_of_the_pairs_in_random_order() -> None:
    orders = {balanced_order(8, random.Random(seed)) for seed in range(20)}
    assert len(orders) > 10
    assert all(sum(order) == 4 for order in orders)
    assert {sum(balanced_order(5, random.Random(seed))) for seed in range(20)} == {2, 3}


def test_who_began_is_who_was_asked_first(tmp_path: Path) -> None:
    base, new = make_build(tmp_path / "base"), make_build(tmp_path / "new")
    log = tmp_path / "order"
    for build, side in ((base, "0"), (new, "1")):
        # the order of both sides' slices, written by the programs themselves
        program = build / PROGRAM
        script = Path(__file__).with_name("fake_bench.py").read_text()
        script = script.replace(
            'self.answer({"seconds": [self.one(case) for _ in range(3)]})',
            f'open({str(log)!r}, "a").write({side!r}); self.answer({{"seconds": [1.0]}})',
        )
        (tmp_path / f"script_{side}.py").write_text(script)
        text = program.read_text()
        program.write_text(
            text.replace(
                str(Path(__file__).with_name("fake_bench.py").resolve()),
                str(tmp_path / f"script_{side}.py"),
            )
        )
    (item,) = measured(interleaved(base, new, pairs=6), 1, [FFN])
    assert isinstance(item, CaseBlock)
    asked = [int(letter) for letter in log.read_text()]
    assert asked == [side for first in item.first for side in (first, 1 - first)]


def test_orders_and_paddings_are_drawn_anew_and_repeat_with_the_seed(tmp_path: Path) -> None:
    orders, paddings = [], []
    for run, seed in enumerate((1, 1, 2)):
        base, new = (make_build(tmp_path / f"{side}{run}") for side in ("base", "new"))
        measurer = interleaved(base, new, seed=seed)
        items = [item for index in (1, 2, 3) for item in measured(measurer, index, CASES)]
        orders.append([item.case for item in items])
        paddings.append([len(s["environment"]["TINY_LLAMA_PADDING"]) for s in starts_of(base)])
    assert orders[0] == orders[1] != orders[2]
    assert paddings[0] == paddings[1] != paddings[2]
    assert len({*paddings[0]}) == 3


@pytest.mark.parametrize("how", ["crash", "signal", "hang", "nonsense"])
@pytest.mark.parametrize("at", ["open", "time", "close"])
def test_a_lost_side_fails_its_case_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, how: str
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", trouble={LOSS: {"at": at, "how": how}})
    if how == "hang":
        cut_wait_short(monkeypatch, new, f"{at} {LOSS}")
    found = {item.case: item for item in measured(interleaved(base, new), 3, CASES)}
    failure = found[LOSS]
    assert isinstance(failure, CaseFailure)
    assert (failure.index, failure.side) == (3, Side.NEW)
    assert at in failure.reason
    assert isinstance(found[FFN], CaseBlock)
    assert isinstance(found[NORM], CaseBlock)
    # the base's process has nothing left open of the case that failed
    asked = requests_of(base)
    assert [r["do"] for r in asked].count("open") == [r["do"] for r in asked].count("close")


def test_a_failed_answer_keeps_the_process(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base", trouble={LOSS: {"at": "time", "how": "failed"}})
    new = make_build(tmp_path / "new")
    found = one_block(base, new, CASES)
    assert found[LOSS] == CaseFailure(1, LOSS, Side.BASE, "told to be failed")
    assert len(starts_of(base)) == 1
    assert isinstance(found[NORM], CaseBlock)


@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_side_that_does_not_start_fails_every_case_without_waiting_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", trouble={"start": {"at": "start", "how": how}})
    if how == "hang":
        cut_wait_short(monkeypatch, new, START)
    items = measured(interleaved(base, new), 1, CASES)
    assert len(starts_of(new)) == 2
    assert {item.case for item in items} == set(CASES)
    for item in items:
        assert isinstance(item, CaseFailure)
        assert item.side is Side.NEW
        assert "its start" in item.reason


def test_first_openings_meter_both_sides_and_prove_where_asked(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", wrong=[LOSS], counters={"operators": 21.0})
    items = list(interleaved(base, new).open_once(CASES, verify=True))
    openings = {(i.case, i.side): i for i in items if isinstance(i, CaseOpening)}
    assert openings[(FFN, Side.BASE)].counters["operators"] == 20
    assert openings[(FFN, Side.NEW)].counters["operators"] == 21
    failures = [item for item in items if isinstance(item, CaseFailure)]
    assert failures == [CaseFailure(0, LOSS, Side.NEW, "gradient differs by 0.5")]
    without = list(interleaved(base, new).open_once(CASES, verify=False))
    assert all(isinstance(item, CaseOpening) for item in without)


def test_first_openings_give_a_lost_process_one_more_chance(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base")
    once = {"at": "open", "how": "crash", "processes": [1]}
    always = {"at": "open", "how": "crash"}
    new = make_build(tmp_path / "new", trouble={FFN: once, LOSS: always})
    items = list(interleaved(base, new).open_once(CASES, verify=True))
    of_new = [item for item in items if isinstance(item, CaseFailure)]
    assert [item.case for item in of_new] == [FFN, LOSS, LOSS]
    opened = {i.case for i in items if isinstance(i, CaseOpening) and i.side is Side.NEW}
    assert opened == {FFN, NORM}


def test_skips_carry_their_reason(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base", trouble={NORM: {"at": "open", "how": "skipped"}})
    new = make_build(tmp_path / "new")
    measurer = interleaved(base, new)
    expected = CaseSkip(NORM, Side.BASE, "told to be skipped")
    assert expected in list(measurer.open_once(CASES, verify=True))
    assert expected in measured(measurer, 1, CASES)
