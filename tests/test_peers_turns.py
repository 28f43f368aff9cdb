"""Who takes turns when, and what becomes of slow, skipped, failing and interrupted sides."""

import pytest

from tinyllama_tools.data.programs import SuiteCase
from tinyllama_tools.peers.sides import CaseRun, Effort, SideError, SideSkip, measure_case

CASE = SuiteCase("tiny", "f32", 8, 128)
Calls = list[tuple[str, str, int]]


class PlayedSide:
    """Takes `seconds` a step; `trouble` is raised by the method of that name, at that call."""

    def __init__(
        self,
        variant: str,
        seconds: float,
        calls: Calls,
        trouble: dict[str, BaseException] | None = None,
    ) -> None:
        self.variant = variant
        self._seconds = seconds
        self._calls = calls
        self._trouble = trouble or {}

    def _call(self, what: str, steps: int = 0) -> None:
        number = sum(call[:2] == (self.variant, what) for call in self._calls)
        self._calls.append((self.variant, what, steps))
        for key in (what, f"{what} {number}"):
            if key in self._trouble:
                raise self._trouble[key]

    def start(self, case: SuiteCase) -> None:
        assert case == CASE
        self._call("start")

    def wait_until_built(self) -> None:
        self._call("wait_until_built")

    def get_ready(self, case: SuiteCase) -> float:
        assert case == CASE
        self._call("get_ready")
        return self._seconds

    def time(self, case: SuiteCase, steps: int) -> list[float]:
        assert case == CASE
        self._call("time", steps)
        return [self._seconds] * steps


def measure(sides: list[PlayedSide], effort: Effort) -> CaseRun:
    results: list[CaseRun] = []
    measure_case(CASE, sides, effort, lambda _: None, results.append)
    return results[0]


def test_all_are_built_before_any_gets_ready_and_turns_rotate() -> None:
    calls: Calls = []
    sides = [PlayedSide(name, 0.1, calls) for name in "abc"]
    result = measure(sides, Effort(3, 2, 10.0))
    preparations = ("start", "wait_until_built", "get_ready")
    assert [call[:2] for call in calls[:9]] == [
        (name, what) for what in preparations for name in "abc"
    ]
    assert "".join(call[0] for call in calls[9:]) == "abcbcacab"
    assert result.sides["a"].turns == [[0.1, 0.1]] * 3


@pytest.mark.parametrize(
    ("seconds", "turns", "steps"),
    # of 5 turns of 4 steps within 10 s
    [(0.1, 5, 4), (0.5, 5, 4), (0.6, 5, 3), (1.9, 5, 1), (2.4, 4, 1), (9.0, 1, 1), (99.0, 1, 1)],
)
def test_slow_steps_get_fewer_steps_and_then_fewer_turns(
    seconds: float, turns: int, steps: int
) -> None:
    assert Effort(5, 4, 10.0).for_step_of(seconds) == Effort(turns, steps, 10.0)


def test_ratio_is_over_the_turns_that_both_had() -> None:
    calls: Calls = []
    result = measure(
        [PlayedSide("fast", 0.1, calls), PlayedSide("slow", 4.0, calls)], Effort(5, 2, 10)
    )
    assert len(result.sides["fast"].turns) == 5
    assert len(result.sides["slow"].turns) == 2
    ratio = result.ratio("slow", "fast")
    assert ratio is not None
    assert (ratio.turns, round(ratio.median)) == (2, 40)


@pytest.mark.parametrize("method", ["start", "wait_until_built", "get_ready", "time 1"])
def test_who_fails_or_is_skipped_is_out_with_the_reason_and_the_others_go_on(method: str) -> None:
    calls: Calls = []
    sides = [
        PlayedSide("fails", 0.1, calls, {method: SideError("broken")}),
        PlayedSide("skipped", 0.1, calls, {method: SideSkip("too slow")}),
        PlayedSide("well", 0.1, calls),
    ]
    result = measure(sides, Effort(4, 1, 10.0))
    assert (result.sides["fails"].failed, result.sides["fails"].turns) == ("broken", [])
    assert (result.sides["skipped"].skipped, result.sides["skipped"].turns) == ("too slow", [])
    assert len(result.sides["well"].turns) == 4
    assert result.ratio("fails", "well") is None
    # in turn 1 for the last time
    assert [call[0] for call in calls[-2:]] == ["well", "well"]


def test_interrupt_leaves_the_turns_that_were_finished() -> None:
    calls: Calls = []
    sides = [
        PlayedSide("a", 0.1, calls),
        PlayedSide("b", 0.1, calls, {"time 2": KeyboardInterrupt()}),
    ]
    results: list[CaseRun] = []
    with pytest.raises(KeyboardInterrupt):
        measure_case(CASE, sides, Effort(5, 1, 10.0), lambda _: None, results.append)
    assert (len(results[0].sides["a"].turns), len(results[0].sides["b"].turns)) == (3, 2)
