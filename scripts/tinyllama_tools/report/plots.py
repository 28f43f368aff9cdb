"""Traces and layouts of plotly, as plain objects. Colours are the theme's, by a trace's role."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinyllama_tools.core.app import Json

MEASURED, FIT, PREDICTED, HELD_OUT = "measured", "fit", "predicted", "held_out"
ROOF, LIGHT, OTHER = "roof", "light", "other"
# plotly's symbols and dashes that differ in grey print too
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def axis(title: str, unit: str = "", *, log: bool = False, **more: Any) -> Json:  # noqa: ANN401
    """An axis with its unit in the title."""
    text = f"{title} [{unit}]" if unit else title
    return {"title": {"text": text}, **({"type": "log"} if log else {}), **more}


def layout(x: Json, y: Json, **more: Any) -> Json:  # noqa: ANN401
    """Of a figure with one pair of axes."""
    return {"xaxis": x, "yaxis": y, **more}


def markers(
    name: str,
    x: Sequence[object],
    y: Sequence[float],
    *,
    role: str = "",
    symbol: str = SYMBOLS[0],
    **more: Any,  # noqa: ANN401
) -> Json:
    """Points without lines between them."""
    return _scatter("markers", name, x, y, role) | {"marker": {"symbol": symbol}} | more


def line(
    name: str,
    x: Sequence[object],
    y: Sequence[float],
    *,
    role: str = "",
    dash: str = DASHES[0],
    **more: Any,  # noqa: ANN401
) -> Json:
    """A line without points."""
    return _scatter("lines", name, x, y, role) | {"line": {"dash": dash}} | more


def bars(
    name: str,
    x: Sequence[object],
    y: Sequence[float],
    *,
    role: str = "",
    **more: Any,  # noqa: ANN401
) -> Json:
    """Upright bars."""
    return {"type": "bar", "name": name, "x": list(x), "y": list(y)} | _role(role) | more


def lying_bars(
    name: str,
    labels: Sequence[str],
    lengths: Sequence[float],
    *,
    role: str = "",
    **more: Any,  # noqa: ANN401
) -> Json:
    """Bars from left to right, one a label."""
    bar = {"type": "bar", "orientation": "h", "name": name, "x": list(lengths), "y": list(labels)}
    return bar | _role(role) | more


def error_bars(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Json:
    """From low to high around the values."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [h - v for v, h in zip(values, high, strict=True)],
        "arrayminus": [v - lo for v, lo in zip(values, low, strict=True)],
    }


def spaced(first: float, last: float, count: int) -> list[float]:
    """`count` values from first to last, evenly on a logarithmic axis; both above 0."""
    if count < 2 or first >= last:
        return [first]
    step = math.log(last / first) / (count - 1)
    return [first * math.exp(step * i) for i in range(count - 1)] + [last]


def _scatter(mode: str, name: str, x: Sequence[object], y: Sequence[float], role: str) -> Json:
    trace = {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y)}
    return trace | _role(role)


def _role(role: str) -> Json:
    return {"role": role} if role else {}
