"""Neither side is always first: in all that both do one is in this block, the other in the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tinyllama_tools.compare import blocks as turns_block
from tinyllama_tools.compare.blocks import SIDES, Side, SideOrder, SliceEffort, TakingTurns
from tinyllama_tools.compare.served_process import Greeting, OpenedCase, TurnProgram

CASES = ["a", "b"]
KINDS = ("start", "greet", "ask", "hear", "close case", "close")


def test_of_every_two_blocks_each_side_comes_first_in_one() -> None:
    found = []
    for seed in range(20):
        order = SideOrder(random.Random(seed))
        sides = [order.next() for _ in range(6)]
        assert all(set(pair) == set(SIDES) for pair in sides)
        firsts = [pair[0] for pair in sides]
        assert [set(firsts[i : i + 2]) for i in (0, 2, 4)] == [set(SIDES)] * 3
        found.append(tuple(firsts))
    assert len(set(found)) > 4


class NotedProcess:
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

    def start_all(programs: Sequence[TurnProgram], **_: object) -> list[NotedProcess]:
        return [NotedProcess(program.name, noted) for program in programs]

    monkeypatch.setattr(turns_block, "start_all", start_all)
    programs = {side: TurnProgram(side.value, Path("program")) for side in Side}
    turns = TakingTurns(programs, SliceEffort(pairs=2), seed=3)
    firsts = []
    for index in range(1, 7):
        noted.clear()
        list(turns.measure(index, CASES))
        first = noted[0][1]
        other = Side(first).other.value
        for kind in KINDS:
            times = 2 if kind in {"ask", "hear", "close case"} else 1
            assert [name for what, name in noted if what == kind] == [first, other] * times
        firsts.append(first)
    assert [set(firsts[i : i + 2]) for i in (0, 2, 4)] == [{"base", "new"}] * 3
