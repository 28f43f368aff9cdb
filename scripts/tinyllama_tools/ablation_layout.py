"""Tables of text that read well in a terminal and as Markdown, and how numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING = "-"


def cell(text: str) -> str:
    """Text that cannot end a table's cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table with columns of equal width; numbers are not told from text."""
    lines = [list(header), *([cell(text) for text in row] for row in rows)]
    for line in lines:
        if len(line) != len(header):
            raise ValueError(f"{len(line)} cells under {len(header)} headings: {line}")
    # a long reason must not widen its whole column
    short = [[text for text in column if len(text) <= 40] for column in zip(*lines, strict=True)]
    widths = [max([3, *(len(text) for text in column)]) for column in short]
    texts = [" | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in lines]
    rule = "|".join("-" * (width + 2) for width in widths)
    return [f"| {texts[0]} |", f"|{rule}|", *(f"| {text} |" for text in texts[1:])]


def number(value: float | None, digits: int = 1) -> str:
    """With so many digits after the point, thousands set apart."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number."""
    return number(value, 0)


def mebibytes(value: float | None) -> str:
    """Small ones with a digit more."""
    return number(value, 2 if value is not None and value < 10 else 1)


def times(value: float | None) -> str:
    """A ratio such as 0.45."""
    return number(value, 2)


def error(value: float | None) -> str:
    """A relative error."""
    return NOTHING if value is None else f"{value:.1e}"


def milliseconds(seconds: float | None) -> str:
    """Three or four digits."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:,.1f}"
