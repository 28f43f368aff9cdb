"""Cases of the new side that are slowed on purpose: option --slow of the served program."""

from __future__ import annotations

from collections.abc import Mapping

MOST_FRACTION = 10.0


def slow_arguments(slowdown: Mapping[str, float]) -> tuple[str, ...]:
    """Options of the program for fractions by expression; the expression finds names of cases."""
    return tuple(f"--slow={pattern}={fraction:.6g}" for pattern, fraction in slowdown.items())


def parse_slowdown(text: str) -> dict[str, float]:
    """`^ffn/=0.05`. Raises ValueError naming what is wrong."""
    pattern, separator, number = text.rpartition("=")
    try:
        fraction = float(number)
    except ValueError:
        fraction = 0.0
    if not separator or not 0 < fraction <= MOST_FRACTION:
        allowed = f"REGEX=FRACTION with a fraction above 0, at most {MOST_FRACTION:g}"
        raise ValueError(f"'{text}': must be {allowed}, such as ^ffn/=0.05")
    return {pattern: fraction}
