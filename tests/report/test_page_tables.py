"""Tables, numbers and comparisons on the report's page, and its pictures."""

from __future__ import annotations

import csv
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from page_browser import OpenPage, PageOpener
from sample_document import figures_of, sample_document, tables_of

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report import output as png
from tinyllama_tools.report.output import (
    DRIVER,
    ColumnView,
    browser_program,
    cell_text,
    column_views,
    file_name,
    table_view,
    write_pngs,
)

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


def column_of_numbers(digits: int = 4, whole: bool = False) -> ColumnView:
    return ColumnView("time", "ms", True, digits, whole, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (71.2345, "71.23"),
        (0.0123456, "0.01235"),
        (9.99996, "10.00"),
        (12345.6, "12,346"),
        (-3.5, "-3.500"),
        (0.00001234, "1.234e-5"),
        (2.5e20, "2.500e+20"),
        (None, "\u2013"),
        ("", "\u2013"),
        ("compute", "compute"),
    ],
)
def test_significant_digits_but_whole_numbers_in_full(value: float | None, text: str) -> None:
    assert cell_text(value, column_of_numbers()) == text


def test_a_column_of_whole_numbers_has_no_point() -> None:
    assert cell_text(8, column_of_numbers(whole=True)) == "8"
    assert cell_text(2_873_600, column_of_numbers(whole=True)) == "2,873,600"
    table = {"columns": [{"title": "batch"}, {"title": "time"}], "rows": [[8, 8], [16, 8.5]]}
    assert [view.whole for view in column_views(table)] == [True, False]


@pytest.mark.parametrize(
    ("cells", "is_share"), [([0.5, 99.0], True), ([1.0, 104.0], False), ([1.0, 9.0], False)]
)
def test_percentages_of_something_large_are_shares(cells: list[float], is_share: bool) -> None:
    table = {"columns": [{"title": "of the roof", "unit": "%"}], "rows": [[c] for c in cells]}
    assert column_views(table)[0].share is is_share


def test_a_share_has_its_length_and_a_name_its_breaks() -> None:
    columns = [
        {"title": "case", "numeric": False},
        {"title": "of the roof", "unit": "%"},
        {"title": "unit", "numeric": False},
        {"title": "why", "numeric": False},
    ]
    rows = [["attention/backward/baseline", 38.126, "GB/s", "of 214 us, " * 9]]
    view = table_view({"id": "t", "title": "T", "columns": columns, "rows": rows})
    name, share, unit, _ = view.rows[0]
    assert name.parts == ("attention/", "backward/", "baseline")
    assert (share.parts, share.css, share.share) == (("38.13",), "number share", 38.13)
    assert unit.parts == ("GB/s",)
    assert [cell.is_long for cell in view.rows[0]] == [False, False, False, True]
    assert [column.width for column in view.columns] == ["middle", "", "", "long"]
    assert not view.has_more
    assert not view.has_filter


def written_beside(document: dict[str, Any], folder: Path) -> list[Path]:
    """In a thread of its own: the driver of the other tests' browser holds this one."""
    pytest.importorskip("playwright")
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(write_pngs, document, folder).result()


def test_a_file_name_holds_nothing_but_a_name() -> None:
    assert file_name("scaling-ffn") == "scaling-ffn.png"
    assert file_name("../a b/c") == "-a-b-c.png"


def test_without_a_browser_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match="package chromium"):
        write_pngs(sample_document(), tmp_path)


def test_without_the_driver_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(png, "browser_program", lambda: "/bin/false")
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(BadInputError, match="package playwright is not installed"):
        write_pngs(sample_document(), tmp_path)


def test_a_browser_that_does_not_start_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(png, "browser_program", lambda: "/bin/false")
    with pytest.raises(BadInputError, match="/bin/false does not start"):
        written_beside(sample_document(), tmp_path)


def test_the_driver_is_the_one_that_the_tests_use(project_root: Path) -> None:
    lines = (project_root / "requirements-pictures.in").read_text(encoding="utf-8").splitlines()
    assert DRIVER in lines


def test_without_figures_no_browser_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert write_pngs({"title": "t", "sections": []}, tmp_path / "pictures") == []


def test_every_figure_is_a_picture_of_1600_by_900(tmp_path: Path) -> None:
    try:
        browser_program()
    except BadInputError as error:
        pytest.skip(str(error))
    document = sample_document()
    written = written_beside(document, tmp_path / "pictures")
    assert [path.name for path in written] == [f"{one['id']}.png" for one in figures_of(document)]
    for path in written:
        content = path.read_bytes()
        assert [int.from_bytes(content[i : i + 4], "big") for i in (16, 20)] == [1600, 900]
        assert len(content) > 10_000
