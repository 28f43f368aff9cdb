"""Parts of a worksheet, and how quiet the machine was."""

from __future__ import annotations

import pytest

from exercise_stand_in import measured, options
from tinyllama_tools.commands.exercise_1 import MEMORY, PLAIN, make_sheet, planned_runs
from tinyllama_tools.commands.worksheet import (
    MeasuredRun,
    Verdict,
    above,
    all_hold,
    below,
    disagreement,
    expected,
    is_largest,
    largest,
    megabytes,
    milliseconds,
    number,
    ratio,
    share_of,
    tick,
    unanswered,
    within,
)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("- Peak memory: _____ MB", "_____"),
        ("| a | b |\n|---|---|\n| 1 |  |", "| 1 |  |"),
        ("| a | b |\n|---|---|\n|  | 1 |", "|  | 1 |"),
        ("- [ ] Attention dominates", "Attention"),
        ("- [x] Attention dominates", "Attention"),
        ("- [ ] Attention dominates — yes: 1 %", "Attention"),
        ("- [x] Attention dominates — no: 1 %", "Attention"),
        ("- [ ] Attention dominates — no: ", "Attention"),
        ("Linear [ ] or not", "Linear"),
        ("**What is the peak?**\n\nnext paragraph", "peak"),
        ("**What is the peak?**\n\nAnswer: ", "peak"),
        ("**What is the peak?**", "peak"),
    ],
)
def test_what_is_left_blank_is_found(place: str, text: str) -> None:
    found = unanswered(f"# Page\n\n{place}\n")
    assert len(found) == 1
    assert text in found[0]


def test_a_page_of_the_parts_has_nothing_left_blank() -> None:
    boxes = [tick("yes, it is", above(3, 2)), tick("no", above(3, 4)), tick("who", above(None, 4))]
    assert boxes[2] == "- [ ] who — no: not measured; rule: above 4 %"
    answered = "**What lies where?**\n\nAnswer: `components[attention/core]`, `table[]`"
    code = "```\n_____ [ ]?\n```"
    table = "| a | b |\n|---|---|\n| 1 | a\\|b |"
    parts = ["**Is it much?**", "", *boxes, "", answered, "", code, "", table]
    assert unanswered("\n".join(parts)) == []


def test_units() -> None:
    assert megabytes(36.8 * 2**20) == "36.8 MB"
    assert megabytes(1000) == "1,000 bytes"
    assert megabytes(0) == "0.0 MB"
    assert milliseconds(0.0928) == "92.8 ms"
    assert milliseconds(1.5) == "1,500 ms"
    assert number(2873600) == "2,873,600"
    assert number(0.123456, "GB") == "0.1235 GB"
    assert {megabytes(None), milliseconds(None), number(None)} == {"not measured"}


def test_rules_at_their_limits() -> None:
    assert [above(v, 50).holds for v in (49.9, 50, 50.1)] == [False, False, True]
    assert [below(v, 70).holds for v in (69.9, 70, None)] == [True, False, False]
    assert [within(v, 20, 40).holds for v in (19.9, 20, 39.9, 40, None)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert within(60, 60, float("inf")).reason == "60 %; rule: from 60 %"
    assert within(1, float("-inf"), 2, "x").reason == "1 x; rule: below 2 x"


def test_expected_says_on_which_side() -> None:
    assert expected(60, 50, 100, "samples/sec") == "in the range"
    assert expected(25, 50, 100, "x") == "below the range, by a factor of 2 (25 x)"
    assert expected(300, 50, 100, "x") == "above the range, by a factor of 3 (300 x)"
    assert expected(0, 50, 100, "x") == "below the range (0 x)"
    assert expected(-3, 50, 100, "x") == "below the range (-3 x)"
    assert expected(None, 50, 100, "x") == "not measured"


def test_the_largest_wins_alone() -> None:
    shares = {"a": 10.0, "b": 30.0, "c": None}
    assert largest(shares) == "b"
    assert largest({"a": None}) is None
    held = [is_largest(shares, name, "share").holds for name in shares]
    assert held == [False, True, False]
    assert is_largest(shares, "a", "share").reason == (
        "10 % against 30 % of b; rule: the largest share wins"
    )


def test_ratios_of_nothing() -> None:
    assert share_of(1, 4) == 25
    assert ratio(3, 2) == 1.5
    assert [share_of(None, 4), share_of(1, 0), ratio(1, None), ratio(1, 0)] == [None] * 4


def test_all_hold() -> None:
    yes, no = Verdict(True, ""), Verdict(False, "")
    assert all_hold([yes, yes], "runs").holds
    assert not all_hold([yes, no], "runs").holds
    assert all_hold([yes, no], "runs").reason == "1 of 2 runs; rule: all of them"


def run(
    name: str, seconds: float, batch: int = 8, steps: int = 5, profiled: int = 0
) -> MeasuredRun:
    """`steps` plain ones of this time after a first slow one, and slow profiled ones."""
    times = [9.0] + steps * [seconds] + profiled * [9.0]
    made = [
        {"step": n, "time_seconds": t, "profiled": n > steps + 1}
        for n, t in enumerate(times, start=1)
    ]
    configuration = {"batch_size": batch, "seq_len": 128, "num_steps": len(times)}
    return MeasuredRun(name, "", {"configuration": configuration, "steps": made})


def test_the_same_work_in_other_times_is_said() -> None:
    found = disagreement([run("a", 0.1), run("b", 0.121, steps=9), run("c", 0.11)])
    assert found.startswith("the machine was not quiet: ")
    assert "100 ms in a and 121 ms in b (medians), 21 % more" in found


@pytest.mark.parametrize(
    "other",
    [
        run("b", 0.119),
        run("b", 0.3, batch=16),
        run("b", 0.3, steps=2),
        run("b", 0.1, profiled=8),
        MeasuredRun("b", "", reason="refused"),
    ],
)
def test_what_says_nothing_of_the_machine(other: MeasuredRun) -> None:
    assert disagreement([run("a", 0.1), other]) == ""
    assert disagreement([]) == ""


def test_it_stands_at_the_head_of_the_worksheet() -> None:
    runs = measured(planned_runs(options(1)))
    assert "not quiet" not in make_sheet(runs).page
    for step in (runs[MEMORY].summary or {})["steps"]:
        step["time_seconds"] *= 2
    head = make_sheet(runs).page.split("##")[0]
    assert "Warning: the machine was not quiet" in head
    assert f"in {PLAIN}" in head and f"in {MEMORY}" in head
