"""Tables that read well in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Text that cannot end a table's cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
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
