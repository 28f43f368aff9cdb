"""What a report consists of: sections of text, figures and tables. The page, the pictures and the
Markdown are made from this and from nothing else."""

from __future__ import annotations

import configparser
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.core.app import Json, is_number
from tinyllama_tools.core.text import MIB, value_at
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.stats.rank_tests import Median, Quotient

TEMPLATES = Path(__file__).with_name("templates")
KILO, GIGA, GIB = 1e3, 1e9, 2**30


class Kind(Enum):
    """`words`: what it is; `command`: what makes one."""

    STUDY = ("grid study", "scripts/study --grid tiny small")
    SUITE = ("run of the suite", "scripts/bench")
    SCALING = ("data-parallel run", "scripts/scaling --processes 1,2")

    def __init__(self, words: str, command: str) -> None:
        self.words = words
        self.command = command


class Shown(float):
    """A number that is read as a text of its own, and sorted as the number."""

    text: str

    def __new__(cls, value: float, text: str) -> Shown:
        found = super().__new__(cls, value)
        found.text = text
        return found


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


class Fact(NamedTuple):
    """A line of the summary."""

    what: str
    value: str
    note: str


@dataclass(frozen=True)
class Table:
    """`records`: rows by column, `title` or `title [unit]`; all have the columns of the first.
    `is_key`: also shown where there is little room, such as in a pull request."""

    id: str
    title: str
    records: Sequence[Mapping[str, Cell]]
    note: str = ""
    is_key: bool = False

    @property
    def columns(self) -> list[str]:
        return list(self.records[0]) if self.records else []

    @property
    def rows(self) -> list[list[Cell]]:
        return [[record[column] for column in self.columns] for record in self.records]


# of values in s, bytes, FLOP/s and bytes/s, by the unit of their column
SCALES = {
    **{"ms": 1e3, "us": 1e6, "ns": 1e9, "ps": 1e12, "MiB": 1 / MIB, "GiB": 1 / GIB},
    **{"GFLOP/s": 1e-9, "GB/s": 1e-9, "10⁶": 1e-6},
}


def _cell_of(row: Any, path: str, unit: str) -> Cell:  # noqa: ANN401
    value = value_at(row, path)
    if isinstance(value, Shown):
        return value
    if isinstance(value, Quotient):
        return Shown(value.median, value.marked_text())
    if isinstance(value, Median):
        return Shown(value.median, value.text(1 if unit == "%" else 2))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit in SCALES and is_number(value):
        return SCALES[unit] * value
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


# of a table its title, columns and note
TEXTS = configparser.ConfigParser(interpolation=None, delimiters=("=",))
TEXTS.read(TEMPLATES / "tables.ini", encoding="utf-8")


def table_of(identity: str, rows: Iterable[Any], **values: str) -> Table:
    """The table of this name in tables.ini; `values`: what its title and note have in braces.

    Columns are `heading [unit] = path`, with ` | ` between them. A path is of attributes, keys and
    places of a row, any of which may be None; it is left out where it is the heading. Values in s,
    bytes, FLOP/s and bytes/s are scaled to the unit."""
    texts = {name: text.replace("\n", " ") for name, text in TEXTS[identity].items()}
    paths = {}
    for heading, _, path in (of.partition(" = ") for of in texts["columns"].split(" | ")):
        name, _, unit = heading.removesuffix("]").partition(" [")
        paths[heading] = (path or name, unit)
    records = [{heading: _cell_of(row, *of) for heading, of in paths.items()} for row in rows]
    title, note = (texts.get(name, "").format(**values) for name in ("title", "note"))
    return Table(identity, title, records, note, "key" in texts)


SMALL, HALF, FULL = 1, 2, 4


@dataclass(frozen=True)
class Figure:
    """`traces`, axes `x` and `y`, and `barmode` as plotly takes them. `columns`: of the page's
    four. `has_legend`: of its own; else, and of SMALL ones, it is the section's."""

    id: str
    title: str
    traces: Sequence[Json]
    x: Json
    y: Json
    note: str = ""
    barmode: str = "group"
    columns: int = HALF
    has_legend: bool = True

    @property
    def points(self) -> int:
        return sum(len(trace["y"]) for trace in self.traces)

    @property
    def height(self) -> int:
        """In pixels; the legend takes rows of its own, and so do bars that lie."""
        lying = max((len(t["y"]) for t in self.traces if t.get("orientation") == "h"), default=0)
        return 230 if self.columns == SMALL else max(350 + 10 * len(self.traces), 140 + 25 * lying)

    def as_json(self) -> Json:
        """For plotly."""
        layout = {"xaxis": self.x, "yaxis": self.y, "barmode": self.barmode, "colorway": COLOURS}
        if self.x.get("type") == "category":
            layout["scattermode"] = "group"  # side by side, not on top of each other
        is_small = self.columns == SMALL
        layout["showlegend"] = self.has_legend and not is_small
        found = {"title": self.title, "height": self.height, "small": is_small}
        return {**found, "traces": self.traces, "layout": layout}


@dataclass
class Section:
    """`missing`: why there is nothing to show and which command makes it; empty where there is.
    `omissions` stand in a section of their own. Tables without rows and figures without points are
    not kept. `legend`: of its small figures, colours by name."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    missing: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)
    omissions: list[Omission] = field(default_factory=list)

    def table(self, identity: str, rows: Iterable[Any], **values: str) -> Table:
        """Adds one as table_of() makes it."""
        made = table_of(identity, rows, **values)
        self.tables += [made] if made.records else []
        return made

    def figure(self, *of: Any, **more: Any) -> None:  # noqa: ANN401
        """Adds the Figure of these."""
        made = Figure(*of, **more)
        self.figures += [made] if made.points else []

    def leave_out(self, kind: str, name: object, reason: str, *, is_error: bool = False) -> None:
        """Adds an Omission."""
        self.omissions.append(Omission(kind, str(name), reason, is_error))


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


def number_text(value: float) -> str:
    """Four significant digits, but never fewer than the whole number has: `0.01234`, `12.34`,
    `12,345`; with an exponent below 1e-4 and from 1e15 on."""
    if abs(value) < 1e15 and float(value).is_integer():
        return f"{value:,.0f}"
    exponent = int(f"{value:.3e}".split("e")[1])
    return f"{value:,.{max(0, 3 - exponent)}f}" if -4 <= exponent < 15 else f"{value:.3e}"


def cell_text(value: Cell) -> str:
    if isinstance(value, Shown):
        return value.text
    if isinstance(value, str):
        return value or "\u2013"
    return "\u2013" if value is None or not math.isfinite(value) else number_text(value)


def scaled(value: float | None, factor: float) -> float | None:
    """None of what is not known."""
    return None if value is None else factor * value


def shape_text(name: CaseName) -> str:
    """`8 x 128`: batch x sequence."""
    return f"{name.batch} x {name.seq}"


def step_text(name: CaseName) -> str:
    """`tiny, optimized, f32, 8 x 128`."""
    return f"{name.size}, {name.variant}, {name.dtype}, {shape_text(name)}"


def grouped(omissions: Iterable[Omission]) -> list[tuple[Omission, list[str]]]:
    """The first of those that share kind and reason, with the names of all of them."""
    found: dict[tuple[str, str], tuple[Omission, list[str]]] = {}
    for omission in omissions:
        _, names = found.setdefault((omission.kind, omission.reason), (omission, []))
        names.append(omission.name)
    return list(found.values())


# all have a contrast of 3 or more to white; what stands beside the data is grey
GREY = "#7a8490"
COLOURS = (
    *("#2f7fd1", "#c26d00", "#13906f", "#c04d8f", "#7d68d6", "#cf4b2d", "#8a7d00", "#6b7b8a"),
    *("#4c9436", "#a9694f", "#8a7a6a"),
)


def axis(
    title: str,
    *,
    log: bool = False,
    ticks: Iterable[float] = (),
    **more: Any,  # noqa: ANN401
) -> Json:
    """`ticks`: the values that were measured, which are its ticks where they are few enough not to
    meet."""
    values = sorted(set(ticks))
    own = {"tickvals": values} if 2 <= len(values) <= 10 else {}
    return {"title": {"text": title}, **({"type": "log"} if log else {}), **own, **more}


def bars(series: Mapping[str, Mapping[str, float]], *, lying: bool = False) -> list[Json]:
    """Values by label of each series; `lying`: room for long labels beside them."""
    axes, more = ("yx", {"orientation": "h"}) if lying else ("xy", {})
    return [
        {"type": "bar", "name": name, axes[0]: list(of), axes[1]: list(of.values()), **more}
        for name, of in series.items()
    ]


def trace(
    name: str,
    x: Iterable[object],
    y: Sequence[float],
    *,
    mode: str = "markers",
    colour: str | Sequence[str] | None = None,
    symbol: str | Sequence[int] = "circle",
    dash: str = "solid",
    size: int = 8,
    ends: tuple[Sequence[float], Sequence[float]] | None = None,
    **more: Any,  # noqa: ANN401
) -> Json:
    """Points or lines; `ends`: what their error bars reach from and to."""
    found = {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y), **more}
    found["marker"] = {"symbol": symbol, "color": colour, "size": size}
    found["line"] = {"color": colour, "dash": dash}
    if ends is not None:
        below, above = ([abs(end - v) for v, end in zip(y, of, strict=True)] for of in ends)
        error = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        found["error_y"] = error
    return found
