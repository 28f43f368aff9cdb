"""Roofline points of the components that an operator profile tells apart."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.suite_run import Json

# The point of the whole step is nobody's ancestor.
WHOLE = "step"


def roofline_point(points: Sequence[Json], component: str) -> Json | None:
    """The component's own point, else that of its nearest ancestor; None where neither has one.

    `attention/core` is drawn as part of `attention`, `attention/rotary` has a point of its own.
    """
    by_name = {point["name"]: point for point in points if point["name"] != WHOLE}
    name = component
    while name:
        if name in by_name:
            return by_name[name]
        name = name.rpartition("/")[0]
    return None
