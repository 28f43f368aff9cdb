"""Numbers of the page's tables as text; report_text.js is held to the same in test_page_tables."""

from __future__ import annotations

import pytest

from tinyllama_tools.report.output import ColumnView, cell_text, column_views, table_view


def column(digits: int = 4, whole: bool = False) -> ColumnView:
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
    assert cell_text(value, column()) == text


def test_a_column_of_whole_numbers_has_no_point() -> None:
    assert cell_text(8, column(whole=True)) == "8"
    assert cell_text(2_873_600, column(whole=True)) == "2,873,600"
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
