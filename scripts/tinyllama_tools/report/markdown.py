"""The report as Markdown for a pull request: the summary and the tables that matter most."""

from __future__ import annotations

from collections.abc import Iterator

from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.report.document import Cell, Column, Document, Section, Table
from tinyllama_tools.report.sections.left_out import grouped
from tinyllama_tools.report.wording import listed

NOTHING = "-"
MOST_ROWS = 40


def number_text(value: float, digits: int) -> str:
    """`1,235` of 1234.9 and four significant digits; never in powers of ten, unless tiny."""
    rounded = float(f"{value:.{digits}g}")
    if rounded and abs(rounded) < 1e-4:
        return f"{rounded:.{digits}g}"
    if rounded.is_integer():
        return f"{int(rounded):,}"
    return f"{rounded:,.15g}"


def plain(text: str) -> str:
    """In one line, and no markup but the code between backticks: names come from files."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        parts = ["'".join(parts)]
    shown = [part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts)]
    return "`".join(shown)


def _cell(value: Cell, column: Column) -> str:
    if value is None:
        return NOTHING
    return plain(value) if isinstance(value, str) else number_text(value, column.digits)


def _heading(column: Column) -> str:
    return f"{column.title} [{column.unit}]" if column.unit else column.title


def _table(table: Table) -> Iterator[str]:
    rows = [
        [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:MOST_ROWS]
    ]
    yield f"### {plain(table.title)}"
    yield ""
    yield from markdown_table([_heading(column) for column in table.columns], rows)
    yield ""
    if table.note:
        yield plain(table.note)
        yield ""
    if len(table.rows) > MOST_ROWS:
        yield f"The first {MOST_ROWS} of {len(table.rows):,} rows."
        yield ""


def _section(section: Section) -> Iterator[str]:
    tables = [table for table in section.tables if table.is_key and table.rows]
    if tables:
        yield f"## {section.title}"
        yield ""
    for table in tables:
        yield from _table(table)


def _left_out(document: Document) -> Iterator[str]:
    omissions = document.omissions
    if not omissions:
        return
    yield "## Left out"
    yield ""
    for first, names in grouped(omissions):
        mark = "**error** " if first.is_error else ""
        yield f"- {mark}{plain(f'{first.kind} {listed(names, 3)}: {first.reason}')}"
    yield ""


def markdown_of(document: Document) -> str:
    """Ends with a line break."""
    sentences = (f"- {plain(text)}" for text in document.summary)
    lines = [f"# {plain(document.title)}", "", *sentences, ""]
    for section in document.sections:
        lines += _section(section)
    missing = [section for section in document.sections if section.missing]
    if missing:
        lines += ["## Missing", ""]
        lines += [f"- {section.title}: {plain(section.missing)}" for section in missing]
        lines.append("")
    lines += _left_out(document)
    return "\n".join([*lines, f"Made by `scripts/report`, {document.generated}.", ""])
