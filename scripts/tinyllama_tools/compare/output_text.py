"""A comparison for a terminal: an aligned table, what is behind each change, the counts last."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.compare.comparison import ComparedCase, Comparison
from tinyllama_tools.compare.gate import REGRESSIONS_ONLY, Gate, growing
from tinyllama_tools.compare.table_rows import (
    HEADER,
    Row,
    headline_counters,
    in_order,
    is_changed,
    table_rows,
)
from tinyllama_tools.compare.wording import (
    attribution_text,
    colour_of,
    last_line,
    p_value_text,
    verdict_sentence,
    verdict_text,
    warning_texts,
)

CODES = {"red": "31", "green": "32", "yellow": "33", "grey": "90"}
LEFT = {"case", "verdict", "note"}
GAP = "  "


def _paint(text: str, colour: str, *, use_colour: bool) -> str:
    return f"\033[{CODES[colour]}m{text}\033[0m" if use_colour else text


def _table(rows: Sequence[Row], *, colour: bool) -> list[str]:
    widths = [
        max(len(cells[i]) for cells in (HEADER, *(row.cells for row in rows)))
        for i in range(len(HEADER))
    ]

    def padded(cells: Sequence[str]) -> list[str]:
        return [
            text.ljust(width) if title in LEFT else text.rjust(width)
            for text, title, width in zip(cells, HEADER, widths, strict=True)
        ]

    lines = [GAP.join(padded(HEADER)).rstrip()]
    verdict = HEADER.index("verdict")
    for row in rows:
        cells = padded(row.cells)
        # padding first, so that invisible codes do not shift the columns
        last = GAP.join(cells[verdict + 1 :]).rstrip()
        painted = _paint(cells[verdict], colour_of(row.case), use_colour=colour)
        lines.append(GAP.join([*cells[:verdict], painted, last]).rstrip())
    return lines


def _details(case: ComparedCase) -> list[str]:
    lines = [f"{verdict_text(case)}: {case.name}"]
    lines += [f"  {text}" for text in headline_counters(case)]
    if case.p_value is not None:
        lines.append(f"  {p_value_text(case.p_value)}")
    if case.attribution is not None:
        lines += [f"  {text}" for text in attribution_text(case.attribution)]
    return lines


def _head(comparison: Comparison) -> list[str]:
    lines = [
        f"base: {comparison.base}",
        f"new:  {comparison.new}",
        f"method: {comparison.method}; family-wise alpha {comparison.alpha:g}, "
        f"margin {100 * comparison.margin:g} %",
    ]
    return [*lines, *(f"warning: {text}" for text in warning_texts(comparison)), ""]


def text_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY, *, colour: bool = False) -> str:
    """The whole text; the last line has the counts and the meaning of the exit status."""
    lines = _head(comparison)
    if comparison.cases:
        lines += [*_table(table_rows(comparison.cases), colour=colour), ""]
    for case in in_order(filter(is_changed, comparison.cases)):
        lines += [*_details(case), ""]
    grown = len(growing(comparison.cases))
    if grown:
        lines += [f"deterministic counters that got worse: in {grown} of the cases above", ""]
    sentence = verdict_sentence(comparison, gate)
    lines.append(_paint(sentence, gate.colour(comparison), use_colour=colour))
    lines.append(last_line(comparison, gate))
    return "\n".join(lines) + "\n"
