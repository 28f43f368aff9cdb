"""Numbers of a profile as people read them; a figure that was not measured is a dash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.markdown_table import markdown_table
from tinyllama_tools.suite_run import PROJECT

NOT_MEASURED = "-"
MIB = 2**20


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """`12.3 %`."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.{digits}f}{' ' if unit else ''}{unit}"


def milliseconds(seconds: float | None) -> str:
    """`12.345`, of seconds."""
    return number(None if seconds is None else 1e3 * seconds, 3)


def mebibytes(size: float | None) -> str:
    """`131.8 MiB`."""
    return number(None if size is None else size / MIB, 1, "MiB")


def shown(path: Path) -> str:
    """Relative to the checkout where it is inside."""
    whole = path.resolve()
    return str(whole.relative_to(PROJECT)) if whole.is_relative_to(PROJECT) else str(path)


def percent(value: float | None) -> str:
    """`12.3 %`."""
    return number(value, 1, "%")


def speedup(value: float | None) -> str:
    """`1.08x`."""
    return NOT_MEASURED if value is None else f"{value:.2f}x"


def rate(value: float | None, unit: str) -> str:
    """`1.70e+11 FLOP/s`."""
    return NOT_MEASURED if value is None else f"{value:.3g} {unit}"


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A heading of the second level and what is below it."""
    return [f"## {title}", "", *lines, ""]


def facts(rows: Sequence[tuple[str, str]]) -> list[str]:
    """A table of two columns."""
    return markdown_table(("", "value"), rows)
