"""A comparison as a comment of a pull request: verdict, regressions, and a folded table of all."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tinyllama_tools.compare.comparison import ComparedCase, Comparison
from tinyllama_tools.compare.gate import REGRESSIONS_ONLY, Gate, failing, growing
from tinyllama_tools.compare.table_rows import (
    HEADER,
    headline_counters,
    in_order,
    is_changed,
    table_rows,
)
from tinyllama_tools.compare.wording import (
    attribution_text,
    colour_of,
    last_line,
    verdict_sentence,
    warning_texts,
)
from tinyllama_tools.core.text import cell, markdown_table

MARKS = {"red": "🔴", "green": "🟢", "yellow": "🟡", "grey": "⚪"}
# GitHub refuses comments of more than 65,536 characters
MOST_CHARACTERS = 60_000
MOST_DETAILS = 20


def _safe(text: str) -> str:
    """Text of files and programs, which is no HTML and cannot end a table's cell or a list."""
    return cell(html.escape(text, quote=False))


def _table(cases: Sequence[ComparedCase]) -> list[str]:
    rows = []
    for row in table_rows(cases):
        name, *figures, verdict, blocks, note = row.cells
        marked = f"{MARKS[colour_of(row.case)]} {verdict}"
        rows.append((f"`{name}`", *figures, marked, blocks, html.escape(note, quote=False)))
    return markdown_table(HEADER, rows)


def _details(case: ComparedCase) -> list[str]:
    lines = [f"- `{case.name}`"]
    lines += [f"  - {text}" for text in headline_counters(case)]
    if case.attribution is not None:
        lines += [f"  - {text}" for text in attribution_text(case.attribution)]
    return lines


def _changed(comparison: Comparison) -> list[str]:
    changed = in_order(filter(is_changed, comparison.cases))
    if not changed:
        return []
    lines = ["", "**What is behind the changes**", ""]
    for case in changed[:MOST_DETAILS]:
        lines += _details(case)
    if len(changed) > MOST_DETAILS:
        lines.append(f"- and {len(changed) - MOST_DETAILS} more in the page")
    return lines


def _regressions(comparison: Comparison) -> list[str]:
    failed = failing(comparison.cases)
    if not failed:
        return []
    shown = in_order(failed)[:MOST_DETAILS]
    lines = ["", "**Regressions**", "", *_table(shown)]
    if len(failed) > len(shown):
        lines += ["", f"and {len(failed) - len(shown)} more in the page"]
    return lines


def _folded(comparison: Comparison, room: int) -> list[str]:
    header, rule, *rows = _table(comparison.cases)
    kept, used = [], len(header) + len(rule)
    for row in rows:
        used += len(row) + 1
        if used > room:
            break
        kept.append(row)
    lines = ["", "<details>", f"<summary>All {len(rows)} cases</summary>", "", header, rule, *kept]
    if len(kept) < len(rows):
        lines += ["", f"and {len(rows) - len(kept)} more in the page"]
    return [*lines, "", "</details>"]


def markdown_of(comparison: Comparison, gate: Gate = REGRESSIONS_ONLY) -> str:
    """At most 60,000 characters, however many cases there are."""
    lines = [
        f"**{_safe(verdict_sentence(comparison, gate))}**",
        "",
        f"`{cell(comparison.base)}` against `{cell(comparison.new)}`, {comparison.method}; "
        f"family-wise alpha {comparison.alpha:g}, margin {100 * comparison.margin:g} %",
    ]
    warnings = warning_texts(comparison)
    if warnings:
        lines += ["", *(f"- ⚠️ {_safe(text)}" for text in warnings)]
    lines += _regressions(comparison)
    grown = len(growing(comparison.cases))
    if grown:
        lines += ["", f"Deterministic counters got worse in {grown} of the cases."]
    lines += _changed(comparison)
    end = ["", last_line(comparison, gate)]
    room = MOST_CHARACTERS - len("\n".join([*lines, *end])) - 200
    if comparison.cases:
        lines += _folded(comparison, room)
    return "\n".join([*lines, *end]) + "\n"
