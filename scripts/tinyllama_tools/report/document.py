"""What a report consists of: sections of text, figures and tables. The page, the pictures and the
Markdown are made from this and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from tinyllama_tools.core.app import Json

if TYPE_CHECKING:
    from tinyllama_tools.data.names import CaseName


# peaks that are no rate of FLOPs
BANDWIDTHS = {
    "memory_bandwidth": "memory bandwidth",
    "cache_bandwidth": "last-level cache bandwidth",
}


class Kind(Enum):
    """`words`: what it is; `command`: what makes one."""

    STUDY = ("a grid study", "scripts/study --grid tiny small")
    SUITE = ("a run of the suite", "scripts/bench")
    TRAINING = ("a training study", "scripts/study tiny small")
    FRONTIER = ("a frontier", "scripts/study --grid tiny small")
    ABLATION = ("an ablation", "scripts/ablation")
    SCALING = ("a data-parallel run", "scripts/scaling --processes 1,2")

    def __init__(self, words: str, command: str) -> None:
        self.words = words
        self.command = command


NO_RESULT = f"no result of the suite was given; make one: {Kind.SUITE.command}"

Cell = str | int | float | None


class Missing(Exception):  # noqa: N818 - it is no error: the message says which command measures it
    """Nothing to show in a section."""


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
class Fact:
    """A line of the summary."""

    what: str
    value: str
    note: str


@dataclass(frozen=True)
class Table:
    """`columns`: `title` or `title [unit]`. `is_key`: also shown where there is little room, such
    as in a pull request."""

    id: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    is_key: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.id}: {len(row)} cells under {len(self.columns)} headings")


@dataclass(frozen=True)
class Figure:
    """`traces` and `layout` as plotly takes them."""

    id: str
    title: str
    traces: Sequence[Json]
    layout: Json
    note: str = ""

    @property
    def points(self) -> int:
        return sum(len(trace["y"]) for trace in self.traces)

    @property
    def height(self) -> int:
        """In pixels: a row a bar where they lie."""
        rows = {name for trace in self.traces for name in trace["y"] if isinstance(name, str)}
        return min(1000, max(240, 110 + 26 * len(rows))) if rows else 420

    def as_json(self) -> Json:
        """For plotly, which would take some names of files for markup."""
        found = {"id": self.id, "title": self.title, "height": self.height}
        layout = {"colorway": COLOURS, **self.layout}
        return {**found, "traces": _plain(self.traces), "layout": _plain(layout)}


@dataclass
class Section:
    """`missing`: why there is nothing to show and which command makes it; empty where there is.
    `omissions` stand in a section of their own."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    missing: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)


@dataclass(frozen=True)
class Document:
    title: str
    generated: str
    facts: Sequence[Fact]
    sections: Sequence[Section]
    omissions: Sequence[Omission]

    @property
    def errors(self) -> int:
        return sum(omission.is_error for omission in self.omissions)

    def as_json(self) -> Json:
        return compact({**asdict(self), "errors": self.errors})


# of a value of a figure: a measurement has no more, and the page stays small
DIGITS = 5


def compact(value: Any) -> Any:  # noqa: ANN401
    """The value with every float rounded to DIGITS; what is not finite becomes None, since JSON
    has no such number. Whole numbers keep all their digits."""
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, Sequence):
        return [compact(item) for item in value]
    if not math.isfinite(value):
        return None
    number = float(f"{value:.{DIGITS}g}")
    # "12" is shorter than "12.0", and there is no "-0"
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def number_text(value: float, digits: int = 4) -> str:
    """So many significant digits, but never fewer than the whole number has: `0.01234`, `12.34`,
    `12,345`; with an exponent below 1e-4 and from 1e15 on."""
    if abs(value) < 1e15 and float(value).is_integer():
        return f"{value:,.0f}"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1]) if math.isfinite(value) else 15
    if not -4 <= exponent < 15:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def cell_text(value: Cell) -> str:
    if value is None or value == "":
        return "\u2013"
    return value if isinstance(value, str) else number_text(value)


BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
RATE_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def rate_text(value: float, unit: str) -> str:
    """`374.8 GFLOP/s` of 3.748e11 and FLOP/s."""
    size, prefix = next(((s, p) for s, p in RATE_UNITS if value >= s), (1.0, ""))
    return f"{value / size:.4g} {prefix}{unit}"


def bytes_text(value: float) -> str:
    """`131.8 MiB`."""
    power = min(len(BYTE_UNITS) - 1, max(0, math.floor(math.log2(max(value, 1)) / 10)))
    return f"{value / 1024**power:.4g} {BYTE_UNITS[power]}"


def shape_text(name: CaseName) -> str:
    """`8 x 128`: batch x sequence."""
    return f"{name.batch} x {name.seq}"


def step_text(name: CaseName) -> str:
    """`tiny, optimized, f32, 8 x 128`."""
    return f"{name.size}, {name.variant}, {name.dtype}, {shape_text(name)}"


def count_of(number: int, thing: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """`a, b, c and 12 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


# Of what was measured, and of what stands beside it; other traces get the next of COLOURS. All have
# a contrast of 3 or more to white and to the page's dark ground.
MEASURED, PREDICTED, HELD_OUT = "#2f7fd1", "#d2601a", "#b055ad"
ROOF, LIGHT, OTHER = "#7a8490", "#13906f", "#8a7a6a"
COLOURS = (
    *("#2f7fd1", "#c26d00", "#13906f", "#c04d8f", "#7d68d6", "#cf4b2d", "#8a7d00", "#6b7b8a"),
    *("#4c9436", "#a9694f"),
)
# plotly's symbols and dashes that differ in grey print too
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def nth(of: Sequence[str], number: int) -> str:
    """Of colours, symbols or dashes, over and over."""
    return of[number % len(of)]


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.replace("<", "&lt;")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def axis(
    title: str,
    unit: str = "",
    *,
    log: bool = False,
    ticks: Iterable[float] = (),
    **more: Any,  # noqa: ANN401
) -> Json:
    """An axis with its unit in the title. `ticks`: the values that were measured, which are its
    ticks where they are few enough not to meet."""
    text, values = f"{title} [{unit}]" if unit else title, sorted(set(ticks))
    own = {"tickvals": values} if 2 <= len(values) <= 10 else {}
    return {"title": {"text": text}, **({"type": "log"} if log else {}), **own, **more}


def layout(x: Json, y: Json, **more: Any) -> Json:  # noqa: ANN401
    return {"xaxis": x, "yaxis": y, **more}


def markers(
    name: str,
    x: Sequence[object],
    y: Sequence[float],
    *,
    colour: str | None = None,
    symbol: str | Sequence[int] = SYMBOLS[0],
    **more: Any,  # noqa: ANN401
) -> Json:
    marker = {"symbol": symbol, "color": colour, "size": 8}
    of = {"type": "scatter", "mode": "markers", "name": name, "x": list(x), "y": list(y)}
    return {**of, "marker": marker, **more}


def line(
    name: str,
    x: Sequence[object],
    y: Sequence[float],
    *,
    colour: str | None = None,
    dash: str = DASHES[0],
    **more: Any,  # noqa: ANN401
) -> Json:
    of = {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y)}
    return {**of, "line": {"dash": dash, "color": colour}, **more}


def bars(
    name: str,
    x: Sequence[object],
    y: Sequence[object],
    *,
    colour: str | None = None,
    **more: object,
) -> Json:
    """Upright ones; with orientation="h" they lie and `y` has their labels."""
    of = {"type": "bar", "name": name, "x": list(x), "y": list(y)}
    return {**of, "marker": {"color": colour}, **more}


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


def grouped(omissions: Iterable[Omission]) -> list[tuple[Omission, list[str]]]:
    """The first of those that share kind and reason, with the names of all of them."""
    found: dict[tuple[str, str], tuple[Omission, list[str]]] = {}
    for omission in omissions:
        _, names = found.setdefault((omission.kind, omission.reason), (omission, []))
        names.append(omission.name)
    return list(found.values())
