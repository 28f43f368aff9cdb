"""Blocks in turn: who runs when, and what one side's failure leaves of the rest."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from turns_stand_in import FFN, LOSS, NORM, PROGRAM, make_build, requests_of, starts_of
from unanswered import LONG, START, cut_wait_short

from tinyllama_tools.compare.blocks import (
    BothReady,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Side,
    SliceEffort,
    TakingTurns,
    balanced_order,
)
from tinyllama_tools.compare.served_process import TurnProgram
from tinyllama_tools.stats.looks import summarise

CASES = [FFN, LOSS, NORM]


def turns(base: Path, new: Path, *, seed: int = 1, pairs: int = 4) -> TakingTurns:
    programs = {
        Side.BASE: TurnProgram("base", base / PROGRAM),
        Side.NEW: TurnProgram("new", new / PROGRAM),
    }
    return TakingTurns(programs, SliceEffort(pairs, 0.015, LONG), seed)


def measured(measurer: TakingTurns, index: int, cases: list[str]) -> list[Measured]:
    """A block's cases. That both sides are there is said before the first."""
    ready, *items = measurer.measure(index, cases)
    assert isinstance(ready, BothReady)
    found = [item for item in items if not isinstance(item, BothReady)]
    assert len(found) == len(items)
    return found


def by_case(items: list[Measured]) -> dict[str, Measured]:
    return {item.case: item for item in items}


def test_a_block_has_every_case_once_from_one_fresh_pair_of_processes(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", factor={FFN: 1.5})
    items = measured(turns(base, new), 1, CASES)
    found = by_case(items)
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
        script = Path(__file__).with_name("turns_stand_in.py").read_text()
        script = script.replace(
            'self.answer({"seconds": [self.one(case) for _ in range(3)]})',
            f'open({str(log)!r}, "a").write({side!r}); self.answer({{"seconds": [1.0]}})',
        )
        (tmp_path / f"script_{side}.py").write_text(script)
        text = program.read_text()
        program.write_text(
            text.replace(
                str(Path(__file__).with_name("turns_stand_in.py").resolve()),
                str(tmp_path / f"script_{side}.py"),
            )
        )
    (item,) = measured(turns(base, new, pairs=6), 1, [FFN])
    assert isinstance(item, CaseBlock)
    asked = [int(letter) for letter in log.read_text()]
    assert asked == [side for first in item.first for side in (first, 1 - first)]


def test_orders_and_paddings_are_drawn_anew_and_repeat_with_the_seed(tmp_path: Path) -> None:
    orders, paddings = [], []
    for run, seed in enumerate((1, 1, 2)):
        base, new = (make_build(tmp_path / f"{side}{run}") for side in ("base", "new"))
        measurer = turns(base, new, seed=seed)
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
    found = by_case(measured(turns(base, new), 3, CASES))
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
    found = by_case(measured(turns(base, new), 1, CASES))
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
    items = measured(turns(base, new), 1, CASES)
    assert len(starts_of(new)) == 2
    assert {item.case for item in items} == set(CASES)
    for item in items:
        assert isinstance(item, CaseFailure)
        assert item.side is Side.NEW
        assert "its start" in item.reason


def test_first_openings_meter_both_sides_and_prove_where_asked(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base")
    new = make_build(tmp_path / "new", wrong=[LOSS], counters={"operators": 21.0})
    items = list(turns(base, new).open_once(CASES, verify=True))
    openings = {(i.case, i.side): i for i in items if isinstance(i, CaseOpening)}
    assert openings[(FFN, Side.BASE)].counters["operators"] == 20
    assert openings[(FFN, Side.NEW)].counters["operators"] == 21
    failures = [item for item in items if isinstance(item, CaseFailure)]
    assert failures == [CaseFailure(0, LOSS, Side.NEW, "gradient differs by 0.5")]
    without = list(turns(base, new).open_once(CASES, verify=False))
    assert all(isinstance(item, CaseOpening) for item in without)


def test_first_openings_give_a_lost_process_one_more_chance(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base")
    once = {"at": "open", "how": "crash", "processes": [1]}
    always = {"at": "open", "how": "crash"}
    new = make_build(tmp_path / "new", trouble={FFN: once, LOSS: always})
    items = list(turns(base, new).open_once(CASES, verify=True))
    of_new = [item for item in items if isinstance(item, CaseFailure)]
    assert [item.case for item in of_new] == [FFN, LOSS, LOSS]
    opened = {i.case for i in items if isinstance(i, CaseOpening) and i.side is Side.NEW}
    assert opened == {FFN, NORM}


def test_skips_carry_their_reason(tmp_path: Path) -> None:
    base = make_build(tmp_path / "base", trouble={NORM: {"at": "open", "how": "skipped"}})
    new = make_build(tmp_path / "new")
    measurer = turns(base, new)
    expected = CaseSkip(NORM, Side.BASE, "told to be skipped")
    assert expected in list(measurer.open_once(CASES, verify=True))
    assert by_case(measured(measurer, 1, CASES))[NORM] == expected
