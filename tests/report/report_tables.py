"""Reads cells of a report's tables by their names."""

from __future__ import annotations

from tinyllama_tools.report.document import Section, Table


def table(section: Section, identity: str) -> Table:
    return next(one for one in section.tables if one.id == identity)


def cell(of: Table, row: str, column: str) -> object:
    """By the first column's text and the heading."""
    headings = [one.title for one in of.columns]
    found = next(one for one in of.rows if one[0] == row)
    return found[headings.index(column)]
