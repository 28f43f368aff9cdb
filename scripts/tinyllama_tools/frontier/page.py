"""The frontier as tables, for a terminal and for frontier.md."""

from __future__ import annotations

from tinyllama_tools.frontier.confirmation import Confirmation
from tinyllama_tools.frontier.points import Frontier, apart_percent
from tinyllama_tools.frontier.prediction import Found
from tinyllama_tools.markdown_table import markdown_table

GIB, MIB = 2**30, 2**20
NOTHING_FITS = "none"


def bytes_text(size: float) -> str:
    """`131.8 MiB`, `8.00 GiB`."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def apart_text(percent: float | None) -> str:
    """`+8.3 %`: how far the prediction is above what was confirmed."""
    return "" if percent is None else f"{percent:+.1f} %"


def _cell(found: Found) -> str:
    """`12`; a star refers to the remarks below the table."""
    return f"{found.largest or NOTHING_FITS}{' *' if found.remark else ''}"


def overview(frontier: Frontier) -> list[str]:
    """A row for each size, variant and dtype; a column for each given value."""
    given = sorted({found.line.given for found in frontier.found})
    rows: dict[tuple[str, str, str], dict[int, str]] = {}
    for found in frontier.found:
        key = (found.line.size, found.line.variant, found.line.dtype)
        rows.setdefault(key, {})[found.line.given] = _cell(found)
    header = [f"{frontier.axis.given} {value}" for value in given]
    table = markdown_table(
        ["size", "variant", "dtype", *header],
        [[*key, *(row.get(value, "") for value in given)] for key, row in rows.items()],
    )
    remarks = dict.fromkeys(found.remark for found in frontier.found if found.remark)
    return [*table, *([""] if remarks else []), *(f"\\* {remark}" for remark in remarks)]


def _tried_cells(frontier: Frontier, found: Found, tried: Confirmation | None) -> list[str]:
    if tried is None:
        return ["", "", "not tried"]
    settled = "" if tried.largest is None else str(tried.largest or NOTHING_FITS)
    apart = apart_text(apart_percent(found.largest, tried.largest))
    return [settled, apart, tried.text(frontier.axis)]


def details(frontier: Frontier) -> list[str]:
    """A row for each line: what it needs and, where that was tried, what was confirmed."""
    axis = frontier.axis
    header = ["size", "variant", "dtype", axis.given, f"{axis.adjective} {axis.searched}", "needs"]
    if frontier.has_tries:
        header += ["confirmed", "apart", "how"]
    rows = []
    for found, tried in zip(frontier.found, frontier.confirmed, strict=True):
        line = found.line
        row = [line.size, line.variant, line.dtype, str(line.given)]
        row += [str(found.largest or NOTHING_FITS), bytes_text(found.predicted_bytes)]
        rows.append(row + (_tried_cells(frontier, found, tried) if frontier.has_tries else []))
    return markdown_table(header, rows)


def facts(frontier: Frontier) -> list[str]:
    """What the tables rest on."""
    axis, room = frontier.axis, frontier.room
    what = f"The {axis.adjective} {axis.searched} whose training step is predicted to fit"
    return [
        f"{what} into {bytes_text(room.limit_bytes)} ({room.source}).",
        f"Memory beyond the formulas: {frontier.overhead.source}.",
    ]


def _made_of(frontier: Frontier) -> str:
    """` on AMD EPYC, commit 0123abcd, 2026-01-31T08:00:00+00:00`, as far as that is known."""
    of = frontier.origin
    parts = (of.device and f"on {of.device}", of.git_commit and f"commit {of.git_commit[:8]}")
    known = [*filter(None, parts), of.date]
    return f" {', '.join(known)}" if any(known) else ""


def page(frontier: Frontier) -> str:
    """frontier.md."""
    axis = frontier.axis
    needs = (
        "`needs`: the predicted peak of that step with the largest measured misfit, of the "
        "smallest step where none fits."
    )
    confirmed = (
        f"`confirmed`: the {axis.adjective} {axis.searched} whose step ran while the next one did "
        "not, each tried in a process of its own; `apart`: how far the prediction is above it."
    )
    lines = [
        f"# Out-of-memory frontier: {axis.adjective} {axis.searched} for each {axis.given}",
        "",
        *facts(frontier),
        "",
        *overview(frontier),
        "",
        *([f"{needs} {confirmed}"] if frontier.has_tries else [needs]),
        "",
        *details(frontier),
        "",
        f"Made by `{frontier.origin.command}`{_made_of(frontier)}.",
    ]
    return "\n".join(lines) + "\n"
