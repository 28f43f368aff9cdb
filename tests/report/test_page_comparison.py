"""The choice of two results in the report's page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from page_browser import OpenPage, PageOpener
from sample_document import sample_document

TOOL = "#compare"


@pytest.fixture
def opened(open_page: PageOpener) -> OpenPage:
    return open_page(sample_document())


def names(opened: OpenPage) -> list[str]:
    script = "[...document.querySelectorAll('#table-comparison-cases tbody tr')]"
    return opened.page.evaluate(f"{script}.map((row) => row.cells[0].textContent)")


def ratios(base: int, new: int) -> dict[str, float]:
    """By name, largest change first."""
    comparison: dict[str, Any] = sample_document()["comparison"]
    one, other = (comparison["sets"][index]["seconds"] for index in (base, new))
    found = {
        name: b / a
        for name, a, b in zip(comparison["cases"], one, other, strict=True)
        if a is not None and b is not None
    }
    return dict(sorted(found.items(), key=lambda item: -max(item[1], 1 / item[1])))


def test_it_says_that_it_is_no_verdict(opened: OpenPage) -> None:
    text = opened.page.inner_text(f"{TOOL} .notice")
    assert "One run a side gives no verdict" in text
    assert "scripts/compare run" in text


def test_the_first_two_results_come_first_by_size_of_change(opened: OpenPage) -> None:
    expected = ratios(0, 1)
    assert len(expected) > 50
    assert names(opened) == list(expected)[:50]
    sentence = opened.page.inner_text(f"{TOOL} .ratio-sentence")
    assert sentence.startswith(f"{len(expected)} cases in both; ")
    assert "The 40 largest changes are drawn." in sentence


def test_another_result_is_chosen(opened: OpenPage) -> None:
    opened.draw_all()
    opened.page.select_option(f"{TOOL} select[name=new]", "2")
    expected = ratios(0, 2)
    assert names(opened) == list(expected)[:50]
    opened.draw_all()
    drawn = opened.page.evaluate(
        """() => document.querySelector("#figure-comparison .plot")._fullData
          .flatMap((trace) => [...trace.x])"""
    )
    assert sorted(drawn) == pytest.approx(sorted([*expected.values()][:40]))
    assert opened.said == []


def test_the_same_result_on_both_sides_changes_places(opened: OpenPage) -> None:
    opened.page.select_option(f"{TOOL} select[name=base]", "1")
    assert opened.page.input_value(f"{TOOL} select[name=new]") == "0"
    assert names(opened) == list(ratios(1, 0))[:50]


def test_words_choose_cases_of_table_and_plot(opened: OpenPage) -> None:
    opened.draw_all()
    opened.page.fill(f"{TOOL} input[name=cases]", "loss")
    expected = [name for name in ratios(0, 1) if "loss" in name]
    assert names(opened) == expected
    plots = opened.draw_all()
    assert plots["comparison"]["points"] == len(expected) > 0
    opened.page.fill(f"{TOOL} input[name=cases]", "no such case")
    assert not opened.page.is_visible("#figure-comparison")
    sentence = opened.page.inner_text(f"{TOOL} .ratio-sentence")
    assert re.match(r"No case is in both results with this filter; \d+ only in the base", sentence)
    opened.page.fill(f"{TOOL} input[name=cases]", "")
    assert opened.draw_all()["comparison"]["points"] == 40


def test_kinds_of_change_differ_in_their_marks(opened: OpenPage) -> None:
    opened.draw_all()
    marks = opened.page.evaluate(
        """() => document.querySelector("#figure-comparison .plot")._fullData
          .map((trace) => [trace.name, trace.marker.symbol])"""
    )
    assert {"slower": "triangle-right", "faster": "triangle-left"}.items() <= dict(marks).items()
