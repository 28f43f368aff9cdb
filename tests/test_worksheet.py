"""Parts of a worksheet, and how quiet the machine was."""

from __future__ import annotations

import pytest

from fake_exercise import measured, options
from tinyllama_tools.commands.exercise_1 import MEMORY, PLAIN, planned_runs, sheet_of
from tinyllama_tools.commands.worksheet import (
    MeasuredRun,
    all_of,
    disagreement,
    expected,
    largest,
    megabytes,
    milliseconds,
    number,
    ratio,
    ready,
    share_of,
    tick,
    unanswered,
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


def test_what_is_decided_or_code_is_not_left_blank() -> None:
    boxes = f"**Is it much?**\n\n{tick('yes', 3, 2)}\n{tick('no', None, 4)}"
    answers = "**How much?**\n\nAnswer: 3 MB\n\n| a | b |\n|---|---|\n| 1 | a\\|b |"
    assert unanswered(f"{boxes}\n\n{answers}\n\n```\n_____ [ ]?\n```\n") == []


def test_units() -> None:
    assert megabytes(36.8 * 2**20) == "36.8 MB"
    assert megabytes(1000) == "1,000 bytes"
    assert megabytes(0) == "0.0 MB"
    assert milliseconds(0.0928) == "92.8 ms"
    assert milliseconds(1.5) == "1,500 ms"
    assert number(2873600) == "2,873,600"
    assert number(0.123456, "GB") == "0.1235 GB"
    assert {megabytes(None), milliseconds(None), number(None)} == {"not measured"}


@pytest.mark.parametrize(
    ("low", "high", "held"),
    [
        (50, None, {49.9: False, 50: False, 50.1: True, None: False}),
        (None, 70, {69.9: True, 70: False, None: False}),
        (20, 40, {19.9: False, 20: True, 39.9: True, 40: False, None: False}),
        (60, float("inf"), {59.9: False, 60: True}),
    ],
)
def test_rules_at_their_limits(
    low: float | None, high: float | None, held: dict[float | None, bool]
) -> None:
    assert {v: "- [x]" in tick("Big", v, low, high) for v in held} == held


def test_a_tick_says_number_and_rule() -> None:
    assert tick("Big", 63.25, 50) == "- [x] Big — yes: 63.25 %; rule: above 50 %"
    assert tick("Big", None, 50) == "- [ ] Big — no: not measured; rule: above 50 %"
    assert tick("A", 60, 60, float("inf")).endswith("60 %; rule: from 60 %")
    assert tick("A", 1, float("-inf"), 2, "x").endswith("1 x; rule: below 2 x")
    assert tick("A", 20, 20, 40).endswith("20 %; rule: from 20 to below 40 %")


def test_expected_says_on_which_side() -> None:
    assert expected(60, 50, 100, "samples/sec") == "in the range"
    assert expected(25, 50, 100, "x") == "below the range, by a factor of 2 (25 x)"
    assert expected(300, 50, 100, "x") == "above the range, by a factor of 3 (300 x)"
    assert expected(0, 50, 100, "x") == "below the range (0 x)"
    assert expected(-3, 50, 100, "x") == "below the range (-3 x)"
    assert expected(None, 50, 100, "x") == "not measured"


def test_the_largest_wins_alone() -> None:
    shares = {"a": 10.0, "b": 30.0, "c": None}
    lines = largest(shares, "share").split("\n")
    assert [line[:5] for line in lines] == ["- [ ]", "- [x]", "- [ ]"]
    assert lines[0].endswith("no: 10 % against 30 % of b; rule: the largest share wins")
    assert "[x]" not in largest({"a": None}, "share")


def test_ratios_of_nothing() -> None:
    assert share_of(1, 4) == 25
    assert ratio(3, 2) == 1.5
    assert [share_of(None, 4), share_of(1, 0), ratio(1, None), ratio(1, 0)] == [None] * 4


def test_all_of_them() -> None:
    yes, no = tick("a", 2, 1), tick("b", 1, 1)
    assert all_of("a", 2, 2, "runs").startswith("- [x]")
    assert ready("all", f"{yes}\n{yes}").startswith("- [x]")
    last = "- [ ] all — no: 1 of 2 criteria above hold; rule: all of them"
    assert ready("all", f"{yes}\n{no}") == last


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
    assert "not quiet" not in sheet_of(runs).page
    for step in (runs[MEMORY].summary or {})["steps"]:
        step["time_seconds"] *= 2
    head = sheet_of(runs).page.split("##")[0]
    assert "Warning: the machine was not quiet" in head
    assert f"in {PLAIN}" in head and f"in {MEMORY}" in head
