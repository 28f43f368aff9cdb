"""A document's tables as the page shows them first: texts, alignment, the first rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
Cell = str | int | float | None

FIRST_ROWS = 50
FEWEST_TO_FILTER = 9
# letters from which a text may be broken after a slash
LONG_TEXT = 24
# of the longest text of a column: from here on it gets so much room
WIDTHS = ((60, "long"), (20, "middle"))
# a bar says nothing where all would be shorter
LEAST_SHARE = 15.0
NOTHING = "\u2013"
LARGEST_IN_FULL = 1e15
SMALLEST_EXPONENT = -4
DEFAULT_DIGITS = 4


@dataclass(frozen=True)
class ColumnView:
    """`digits`: significant ones; `whole`: only whole numbers, shown without a point;
    `share`: percentages of something, shown with a bar of that length; `width`: a class of the
    style sheet, empty for as narrow as it gets."""

    title: str
    unit: str
    numeric: bool
    digits: int
    whole: bool
    share: bool
    width: str = ""


@dataclass(frozen=True)
class CellView:
    """`parts`: the text, cut where a line may break; `share`: percent, None for no bar;
    `is_long`: more text than a row should be high for."""

    parts: tuple[str, ...]
    css: str
    share: float | None
    is_long: bool = False


@dataclass(frozen=True)
class TableView:
    """`rows`: the first FIRST_ROWS; the page's script has all. `is_tool`: filled by the script."""

    id: str
    title: str
    note: str
    columns: tuple[ColumnView, ...]
    rows: tuple[tuple[CellView, ...], ...]
    total: str
    count: str
    has_more: bool
    has_filter: bool
    is_tool: bool = False


def number_text(value: float, column: ColumnView) -> str:
    """So many significant digits, but never fewer than the whole number has: `0.01234`, `12.34`,
    `12,345`; with an exponent below 1e-4 and from 1e15 on. report_text.js writes the same."""
    scientific = f"{value:.{column.digits - 1}e}"
    if column.whole:
        return f"{value:,.0f}" if abs(value) < LARGEST_IN_FULL else _as_in_script(scientific)
    if value == 0:
        return "0"
    exponent = int(scientific.split("e")[1])
    if exponent < SMALLEST_EXPONENT or 10.0**exponent >= LARGEST_IN_FULL:
        return _as_in_script(scientific)
    return f"{value:,.{max(0, column.digits - 1 - exponent)}f}"


def _as_in_script(scientific: str) -> str:
    """`1.2e-05` as JavaScript writes it: `1.2e-5`."""
    return re.sub(r"e([+-])0*(?=\d)", r"e\1", scientific)


def cell_text(value: Cell, column: ColumnView) -> str:
    """A dash where there is nothing."""
    if value is None or value == "":
        return NOTHING
    return value if isinstance(value, str) else number_text(value, column)


def column_views(table: Json) -> tuple[ColumnView, ...]:
    """Of the table's columns, after a look at all their cells."""
    return tuple(
        _column_view(column, [row[index] for row in table["rows"]])
        for index, column in enumerate(table["columns"])
    )


def _column_view(column: Json, cells: Sequence[Cell]) -> ColumnView:
    numbers = [cell for cell in cells if isinstance(cell, (int, float))]
    letters = max((len(cell) for cell in cells if isinstance(cell, str)), default=0)
    is_finite = all(math.isfinite(number) for number in numbers)
    numeric = bool(column.get("numeric", True))
    unit = str(column.get("unit", ""))
    return ColumnView(
        title=str(column["title"]),
        unit=unit,
        numeric=numeric,
        digits=max(1, int(column.get("digits") or DEFAULT_DIGITS)),
        whole=is_finite and all(float(number).is_integer() for number in numbers),
        share=unit == "%"
        and all(0 <= number <= 100 for number in numbers)
        and max(numbers, default=0.0) >= LEAST_SHARE,
        width=next((name for most, name in WIDTHS if letters >= most), ""),
    )


def table_view(table: Json) -> TableView:
    """`table` as the document has it, its numbers finite."""
    columns, rows = column_views(table), table["rows"]
    total = len(rows)
    first = f"first {FIRST_ROWS} of " if total > FIRST_ROWS else ""
    return TableView(
        id=table["id"],
        title=table["title"],
        note=table.get("note", ""),
        columns=columns,
        rows=tuple(
            tuple(_cell_view(cell, column) for cell, column in zip(row, columns, strict=True))
            for row in rows[:FIRST_ROWS]
        ),
        total=f"{total:,}",
        count=f"{first}{total:,} row{'' if total == 1 else 's'}",
        has_more=total > FIRST_ROWS,
        has_filter=total >= FEWEST_TO_FILTER,
    )


def _cell_view(value: Cell, column: ColumnView) -> CellView:
    is_share = column.share and isinstance(value, (int, float))
    css = " ".join(name for name, on in (("number", column.numeric), ("share", is_share)) if on)
    share = round(float(value), 2) if is_share else None
    text = cell_text(value, column)
    parts = re.split(r"(?<=/)", text) if len(text) >= LONG_TEXT else [text]
    return CellView(tuple(parts), css, share, len(text) >= WIDTHS[0][0])


def comparison_table() -> TableView:
    """Empty: the page's script fills it with the two results that were chosen."""
    columns = (
        ColumnView("case", "", False, 4, False, False),
        ColumnView("base", "ms", True, 4, False, False),
        ColumnView("new", "ms", True, 4, False, False),
        ColumnView("new / base", "", True, 4, False, False),
        ColumnView("change", "%", True, 3, False, False),
    )
    return TableView(
        id="comparison-cases",
        title="Cases of both results",
        note="Times are medians of one result each; sorted by size of change at first.",
        columns=columns,
        rows=(),
        total="0",
        count="",
        has_more=False,
        has_filter=False,
        is_tool=True,
    )
