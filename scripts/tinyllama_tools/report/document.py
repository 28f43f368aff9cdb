"""What a report consists of: sections of text, figures and tables; numbers as people read them.

The page, the pictures and the Markdown are made from this and from nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.app import Json, is_number

if TYPE_CHECKING:
    from tinyllama_tools.data.names import CaseName

# a measurement has no more of them, and the page stays small
DIGITS = 5
Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """`unit` belongs to every number below it; `digits`: significant ones to show."""

    title: str
    unit: str = ""
    numeric: bool = True
    digits: int = 4


def text_column(title: str) -> Column:
    """A column of words."""
    return Column(title, numeric=False)


@dataclass(frozen=True)
class Table:
    """`is_key`: also shown where there is little room, such as in a pull request."""

    id: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    is_key: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.id}: {len(row)} cells under {len(self.columns)} headings")

    def as_json(self) -> Json:
        """Plain values."""
        texts = {"id": self.id, "title": self.title, "note": self.note}
        return {**texts, "columns": [asdict(c) for c in self.columns], "rows": self.rows}


@dataclass(frozen=True)
class Figure:
    """`traces` and `layout` as plotly takes them. A trace's `role` stands for a colour of the
    theme: measured, fit, predicted, held_out, roof, light or other; without one, `series` is the
    number of its colour, which is its place in the figure where it has none."""

    id: str
    title: str
    traces: Sequence[Json]
    layout: Json
    note: str = ""

    @property
    def points(self) -> int:
        """Of all traces together."""
        return sum(len(trace.get("y", ())) for trace in self.traces)

    def as_json(self) -> Json:
        """Plain values."""
        texts = {"id": self.id, "title": self.title, "note": self.note}
        layout = with_log_ticks(self.layout, self.traces)
        return {**texts, "traces": self.traces, "layout": layout, "points": self.points}


def with_log_ticks(layout: Json, traces: Sequence[Json]) -> Json:
    """Steps of 1, 2 and 5 on logarithmic axes of up to 400 times, then powers of ten; plotly's own
    would meet where they are labelled in full. Less than six times is left to plotly."""
    found = dict(layout)
    for key, axis in layout.items():
        if not isinstance(axis, Mapping) or axis.get("type") != "log" or "tickvals" in axis:
            continue
        letter, place = key[0], key[0] + key[len("xaxis") :]
        own = [trace for trace in traces if trace.get(f"{letter}axis", letter) == place]
        values = [v for trace in own for v in trace.get(letter) or () if is_number(v) and v > 0]
        decades = math.log10(max(values) / min(values)) if values else 0.0
        if decades >= 0.8:
            steps = "D2" if decades < 2.6 else math.ceil(decades / 7)
            found[key] = {**axis, "dtick": steps, "tick0": 0}
    return found


@dataclass(frozen=True)
class Omission:
    """Something that is not in the report. `kind`: file, case, section, or what could not be had
    of it. `is_error`: something went wrong, rather than was not asked for or cannot be said."""

    kind: str
    name: str
    reason: str
    is_error: bool = False


def not_foreseen(error: Exception) -> str:
    """The reason of an omission that is our own fault."""
    return f"not foreseen: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class Section:
    """`missing`: why there is nothing to show and which command makes it; empty where there is.
    `omissions` stand in a section of their own."""

    id: str
    title: str
    text: Sequence[str] = ()
    missing: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    omissions: Sequence[Omission] = ()

    def as_json(self) -> Json:
        """Plain values."""
        return {
            "id": self.id,
            "title": self.title,
            "text": self.text,
            "missing": self.missing,
            "figures": [figure.as_json() for figure in self.figures],
            "tables": [table.as_json() for table in self.tables],
        }


@dataclass(frozen=True)
class Document:
    """The whole report. `sets`: what the results are of; `comparison`: times of all of them;
    `omissions`: everything that was left out, as the last section lists it."""

    title: str
    generated: str
    summary: Sequence[str]
    sets: Sequence[Json]
    sections: Sequence[Section]
    comparison: Json
    omissions: Sequence[Omission] = ()

    @property
    def errors(self) -> int:
        """How many of those went wrong."""
        return sum(omission.is_error for omission in self.omissions)

    def as_json(self) -> Json:
        """What the page and the pictures are drawn from, numbers rounded to DIGITS."""
        keys = ("title", "generated", "summary", "sets", "sections", "comparison")
        found = {key: getattr(self, key) for key in keys}
        return compact({**found, "sections": [section.as_json() for section in self.sections]})


def compact(value: Any, digits: int = DIGITS) -> Any:  # noqa: ANN401
    """The value with every float rounded to `digits`; what is not finite becomes None, since JSON
    has no such number. Whole numbers keep all their digits."""
    if isinstance(value, Mapping):
        return {str(key): compact(item, digits) for key, item in value.items()}
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, Sequence):
        return [compact(item, digits) for item in value]
    if not math.isfinite(value):
        return None
    number = float(f"{value:.{digits}g}")
    # "12" is shorter than "12.0", and there is no "-0"
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
RATE_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MOST_LISTED = 6


def rate_text(value: float, unit: str) -> str:
    """`374.8 GFLOP/s` of 3.748e11 and FLOP/s."""
    size, prefix = next(((s, p) for s, p in RATE_UNITS if value >= s), (1.0, ""))
    return f"{value / size:.4g} {prefix}{unit}"


def bytes_text(value: float) -> str:
    """`131.8 MiB`."""
    power = 0
    while value >= 1024 and power + 1 < len(BYTE_UNITS):
        value, power = value / 1024, power + 1
    return f"{value:.4g} {BYTE_UNITS[power]}"


def percent_text(value: float) -> str:
    """`50.8 %`; a digit after the point where it says something."""
    return f"{value:.0f} %" if abs(value) >= 99.95 else f"{value:.1f} %"


def shape_text(name: CaseName) -> str:
    """`8 x 128`: batch x sequence."""
    return f"{name.batch} x {name.seq}"


def case_text(name: CaseName) -> str:
    """`tiny, optimized, f32, batch 8 x sequence 128`."""
    return f"{name.size}, {name.variant}, {name.dtype}, batch {name.batch} x sequence {name.seq}"


def step_text(name: CaseName) -> str:
    """`tiny, optimized, f32, 8 x 128`: where there is little room."""
    return f"{name.size}, {name.variant}, {name.dtype}, {shape_text(name)}"


def count_of(number: int, thing: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """`a, b, c and 12 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


MEASURED, FIT, PREDICTED, HELD_OUT = "measured", "fit", "predicted", "held_out"
ROOF, LIGHT, OTHER = "roof", "light", "other"
# plotly's symbols and dashes that differ in grey print too
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# more would meet
MOST_TICKS = 10


def axis(
    title: str,
    unit: str = "",
    *,
    log: bool = False,
    ticks: Iterable[float] = (),
    **more: Any,  # noqa: ANN401
) -> Json:
    """An axis with its unit in the title. `ticks`: the values that were measured, which are its
    ticks where they are few."""
    text, values = f"{title} [{unit}]" if unit else title, sorted(set(ticks))
    own = {"tickvals": values} if 2 <= len(values) <= MOST_TICKS else {}
    return {"title": {"text": text}, **({"type": "log"} if log else {}), **own, **more}


def layout(x: Json, y: Json, **more: Any) -> Json:  # noqa: ANN401
    """Of a figure with one pair of axes."""
    return {"xaxis": x, "yaxis": y, **more}


def _trace(first: Json, name: str, x: Sequence[object], y: Sequence[object], role: str) -> Json:
    own_colour = {"role": role} if role else {}
    return {**first, "name": name, "x": list(x), "y": list(y), **own_colour}


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
    kind = {"type": "scatter", "mode": "markers"}
    return {**_trace(kind, name, x, y, role), "marker": {"symbol": symbol}, **more}


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
    kind = {"type": "scatter", "mode": "lines"}
    return {**_trace(kind, name, x, y, role), "line": {"dash": dash}, **more}


def bars(
    name: str, x: Sequence[object], y: Sequence[float], *, role: str = "", **more: object
) -> Json:
    """Upright bars."""
    return {**_trace({"type": "bar"}, name, x, y, role), **more}


def lying_bars(
    name: str, labels: Sequence[str], lengths: Sequence[float], *, role: str = "", **more: object
) -> Json:
    """Bars from left to right, one a label."""
    return {**_trace({"type": "bar", "orientation": "h"}, name, lengths, labels, role), **more}


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
