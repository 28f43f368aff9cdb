"""How an ablation's numbers are written."""

from __future__ import annotations

NOTHING = "-"


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
