"""How far a grid is, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from tinyllama_tools.study.grid import GridProgress, Place

NAMES = [f"ffn/forward_backward/baseline/tiny/f32/batch:{b}/seq:8" for b in range(1, 41)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A second each time it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def told(name: str, outcome: str = "1.27 ms") -> str:
    return f"[1/40] {name}  {outcome}"


def measured(progress: GridProgress, clock: Clock, names: list[str], seconds: float = 1.0) -> None:
    for name in names:
        clock.now += seconds
        progress.hear(told(name))


def progress_of(
    stream: io.StringIO, place: Place | None = None, weights: dict[str, float] | None = None
) -> tuple[GridProgress, Clock]:
    clock = Clock()
    progress = GridProgress(weights or dict.fromkeys(NAMES, 1.0), stream, clock)
    progress.begin("round 1/3", NAMES, place=place)
    return progress, clock


def test_cases_of_all_rounds_are_counted() -> None:
    terminal = Terminal()
    progress, clock = progress_of(terminal, Place(2, 3, 1e9))
    measured(progress, clock, NAMES[:3])
    last = terminal.getvalue().rpartition("\r")[2]
    assert last.startswith("round 1/3 [43/120 cases, ")
    assert NAMES[2][:20] in last


def test_time_left_is_that_of_all_rounds() -> None:
    progress, clock = progress_of(Terminal(), Place(1, 3, 1e9))
    assert progress.seconds_left is None
    clock.now += 100  # the peaks, which count for nothing
    measured(progress, clock, NAMES[:21])
    # 19 cases of this round and 80 of the others, a second each
    assert progress.seconds_left == pytest.approx(99)


def test_time_left_of_later_rounds_ends_with_the_budget() -> None:
    progress, clock = progress_of(Terminal(), Place(1, 3, 50.0))
    measured(progress, clock, NAMES[:21])
    # 21 of 50 seconds are spent, 19 this round needs still
    assert progress.seconds_left == pytest.approx(29)
    measured(progress, clock, NAMES[21:], seconds=3.0)
    assert progress.seconds_left == pytest.approx(0)


def test_large_cases_count_for_more() -> None:
    weights = dict.fromkeys(NAMES, 1.0) | {NAMES[-1]: 61.0}
    progress, clock = progress_of(Terminal(), Place(), weights)
    measured(progress, clock, NAMES[:21])
    assert progress.seconds_left == pytest.approx(18 + 61)


def test_what_is_there_already_is_not_measured_again() -> None:
    stream = io.StringIO()
    progress = GridProgress({}, stream, Clock())
    progress.begin("round 1/1", NAMES, [*NAMES[:30], "from another grid"])
    assert "[30/40 cases]" in stream.getvalue()


def test_a_line_of_the_terminal_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    progress, clock = progress_of(terminal)
    measured(progress, clock, NAMES[:2])
    assert len(terminal.getvalue().rpartition("\r")[2].removesuffix("\033[K")) == 39


def test_elsewhere_there_are_a_few_plain_lines() -> None:
    stream = io.StringIO()
    progress, clock = progress_of(stream)
    measured(progress, clock, NAMES)
    text = stream.getvalue()
    assert "\r" not in text and "\033" not in text
    assert len(text.splitlines()) == 11
    assert "[40/40 cases, 0 s left]" in text.splitlines()[-1]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_failure_is_told_at_once(kind: type[io.StringIO]) -> None:
    stream = kind()
    progress, _ = progress_of(stream)
    progress.hear(told(NAMES[4], "FAILED: wrong result: loss differs"))
    assert f"{NAMES[4]}: FAILED: wrong result: loss differs\n" in stream.getvalue()


def test_other_words_of_the_program_are_no_cases() -> None:
    stream = io.StringIO()
    progress, _ = progress_of(stream)
    before = stream.getvalue()
    for line in ("measured peak f32: 369.68 GFLOP/s (oneDNN)", "[1/40] half a", ""):
        progress.hear(line)
    assert stream.getvalue() == before
