"""Tables of the report's page in a browser: sorted, filtered, shown in full, copied."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from page_browser import OpenPage, PageOpener
from sample_document import sample_document, tables_of

CARD = "#table-cases"
# keeps what is copied, whatever the browser allows
CLIPBOARD = """() => Object.defineProperty(navigator, "clipboard",
  {value: {writeText: async (text) => { window.copied = text; }}})"""


@pytest.fixture
def cases() -> dict[str, Any]:
    return next(one for one in tables_of(sample_document()) if one["id"] == "cases")


@pytest.fixture
def opened(open_page: PageOpener) -> OpenPage:
    return open_page(sample_document())


def column(opened: OpenPage, index: int, card: str = CARD) -> list[str]:
    script = "([card, index]) => [...document.querySelectorAll(`${card} tbody tr`)]"
    return opened.page.evaluate(
        f"{script}.map((row) => row.cells[index].textContent)", [card, index]
    )


def sort(opened: OpenPage, index: int) -> str | None:
    """Clicks a heading; what its aria-sort is then."""
    opened.page.locator(f"{CARD} th button").nth(index).click()
    return opened.page.locator(f"{CARD} th").nth(index).get_attribute("aria-sort")


def test_a_heading_sorts_up_down_and_back(opened: OpenPage, cases: dict[str, Any]) -> None:
    opened.page.click(f"{CARD} .more")
    names, times = [row[0] for row in cases["rows"]], [row[1] for row in cases["rows"]]
    in_order = [name for _, name in sorted(zip(times, names, strict=True))]
    assert column(opened, 0) == names
    assert sort(opened, 1) == "ascending"
    assert column(opened, 0) == in_order
    assert sort(opened, 1) == "descending"
    assert column(opened, 0) == in_order[::-1]
    assert sort(opened, 1) == "none"
    assert column(opened, 0) == names
    assert opened.said == []


def test_cells_without_a_value_come_last_both_ways(opened: OpenPage, cases: dict[str, Any]) -> None:
    missing = sum(row[3] is None for row in cases["rows"])
    assert missing > 0
    opened.page.click(f"{CARD} .more")
    for order in ("ascending", "descending"):
        assert sort(opened, 3) == order
        shown = column(opened, 3)
        assert [text == "\u2013" for text in shown] == [False] * (64 - missing) + [True] * missing


def test_names_are_sorted_by_the_numbers_in_them(opened: OpenPage) -> None:
    opened.page.click(f"{CARD} .more")
    opened.page.fill(f"{CARD} input", "rms_norm/")
    sort(opened, 0)
    numbers = [int(name.split("variant_")[1].split("/")[0]) for name in column(opened, 0)]
    assert numbers == sorted(numbers)
    assert len(numbers) > 3


def test_headings_answer_to_the_keyboard(opened: OpenPage) -> None:
    opened.page.locator(f"{CARD} th button").nth(1).focus()
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Space")
    assert opened.page.locator(f"{CARD} th").nth(1).get_attribute("aria-sort") == "descending"


def test_script_and_template_write_numbers_alike(opened: OpenPage) -> None:
    def texts() -> list[list[str]]:
        return [column(opened, index, card) for card in (CARD, "#table-shapes") for index in (1, 2)]

    before = texts()
    for card in (CARD, "#table-shapes"):
        for _ in range(3):
            opened.page.locator(f"{card} th button").nth(1).click()
    assert texts() == before


def test_fifty_rows_then_all(opened: OpenPage) -> None:
    assert len(column(opened, 0)) == 50
    opened.page.click(f"{CARD} .more")
    assert len(column(opened, 0)) == 64
    assert opened.page.inner_text(f"{CARD} .count") == "64 rows"
    opened.page.click(f"{CARD} .more")
    assert len(column(opened, 0)) == 50


def test_words_filter_the_rows(opened: OpenPage, cases: dict[str, Any]) -> None:
    opened.page.fill(f"{CARD} input", "FULL_step compute")
    expected = [row[0] for row in cases["rows"] if "full_step" in row[0] and row[5] == "compute"]
    assert column(opened, 0) == expected
    assert expected
    plural = "s" if len(expected) != 1 else ""
    count = opened.page.inner_text(f"{CARD} .count")
    assert count.startswith(f"{len(expected)} of 64 row"), plural
    opened.page.fill(f"{CARD} input", "no such case")
    assert column(opened, 0) == []


def test_markdown_is_copied_as_shown(opened: OpenPage, cases: dict[str, Any]) -> None:
    opened.page.evaluate(CLIPBOARD)
    opened.page.fill(f"{CARD} input", "full_step")
    opened.page.click(f"{CARD} button[data-action=markdown]")
    lines = opened.page.evaluate("copied").splitlines()
    assert lines[0].startswith("| case | time (ms) | of the roof (%) | peak memory (MiB) |")
    assert lines[1] == "|---|---:|---:|---:|---:|---|"
    wanted = [row for row in cases["rows"] if "full_step" in row[0]]
    assert len(lines) == 2 + len(wanted)
    assert lines[2].startswith(f"| {wanted[0][0]} | ")
    assert opened.page.inner_text(f"{CARD} .said") == f"{len(wanted)} rows copied as Markdown"


def test_csv_has_every_row_in_full(opened: OpenPage, cases: dict[str, Any]) -> None:
    opened.page.evaluate(CLIPBOARD)
    opened.page.click(f"{CARD} button[data-action=csv]")
    copied = opened.page.evaluate("copied")
    heading, *rows = csv.reader(io.StringIO(copied))
    assert heading[:2] == ["case", "time (ms)"]
    assert [row[0] for row in rows] == [row[0] for row in cases["rows"]]
    assert [float(row[1]) for row in rows] == [row[1] for row in cases["rows"]]
    with opened.page.expect_download() as download:
        opened.page.click(f"{CARD} button[data-action=save]")
    assert Path(download.value.path()).read_bytes().decode("utf-8") == copied


def test_a_hostile_name_is_text_after_a_redraw(opened: OpenPage, cases: dict[str, Any]) -> None:
    opened.page.click(f"{CARD} .more")
    assert column(opened, 0)[3] == cases["rows"][3][0]
    assert "<script>" in column(opened, 0)[3]
    assert opened.said == []
