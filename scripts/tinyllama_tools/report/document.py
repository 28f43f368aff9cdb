"""What a report consists of: sections of texts, figures and tables. Every output (page, pictures,
Markdown) is made from this alone.
"""

import configparser
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tinyllama_tools.core.app import Json, is_number
from tinyllama_tools.core.installation import as_typed_here, typed
from tinyllama_tools.core.text import MIB, listed, narrow_tables, section, value_at
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.stats.rank_tests import Median, Quotient

TEMPLATES = Path(__file__).with_name("templates")
KILO, GIGA, GIB = 1e3, 1e9, 2**30


class Kind(Enum):
    """`words`: what it is; `command`: what makes one, or where commands are."""

    STUDY = ("grid study", f"{typed('study')} --grid tiny small")
    SUITE = ("run of the suite", typed("bench"))
    SCALING = ("data-parallel run", f"{typed('scaling')} --processes 1,2")
    GPU = ("check of a GPU", typed("gpu_check"))
    KERNELS = ("file of a profiler", "docs/vendor_profilers.md")

    def __init__(self, words: str, command: str) -> None:
        self.words = words
        self.command = command


class Shown(float):
    """A number that is shown as `text` and sorted as the number."""

    text: str

    def __new__(cls, value: float, text: str) -> "Shown":
        found = super().__new__(cls, value)
        found.text = text
        return found


Cell = str | int | float | None


class Missing(Exception):  # noqa: N818 - it is no error
    """Why a section has nothing to show, and which command measures that."""


@dataclass(frozen=True)
class Omission:
    """Something that the report lacks. `kind`: what `name` is the name of (file, case, section), or
    which figure of it is lacking. `is_error`: something went wrong; otherwise it was not asked for,
    or the data does not support it. `device`: where a report is of several."""

    kind: str
    name: str
    reason: str
    is_error: bool = False
    device: str = ""


class Fact(NamedTuple):
    """A figure of the summary."""

    what: str
    value: str
    note: str


@dataclass(frozen=True)
class Table:
    """`records`: rows, whose cells are named by their column: `title` or `title [unit]`. All rows
    have the columns of the first. `is_key`: also in Markdown, where there is little room."""

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


# by the unit of a column: factor for values in s, bytes, FLOP/s or bytes/s
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


# title, columns and note of each table
TEXTS = configparser.ConfigParser(interpolation=None, delimiters=("=",))
TEXTS.read(TEMPLATES / "tables.ini", encoding="utf-8")


def table_of(identity: str, rows: Iterable[Any], **values: str) -> Table:
    """The table of this name in tables.ini; `values`: for the braces in its title and note.

    Columns are `heading [unit] = path`, with ` | ` between them. A path leads through attributes,
    keys and places of a row, any of which may be None; without one, the heading is the path. Values
    in s, bytes, FLOP/s and bytes/s are scaled to the unit."""
    texts = {name: as_typed_here(text).replace("\n", " ") for name, text in TEXTS[identity].items()}
    columns = {}
    for column in texts["columns"].split(" | "):
        heading, _, path = column.partition(" = ")
        name, _, unit = heading.removesuffix("]").partition(" [")
        columns[heading] = (path or name, unit)
    records = [
        {heading: _cell_of(row, path, unit) for heading, (path, unit) in columns.items()}
        for row in rows
    ]
    title, note = (texts.get(name, "").format(**values) for name in ("title", "note"))
    return Table(identity, title, records, note, "key" in texts)


SMALL, HALF, FULL = 1, 2, 4


@dataclass(frozen=True)
class Figure:
    """`traces`, axes `x` and `y`, and `barmode` as plotly takes them. `columns`: how many of the
    page's four it is wide. Without `has_legend`, and where it is SMALL, the section's legend serves
    it."""

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
        """In pixels; names in the legend and horizontal bars each need room."""
        rows = max((len(t["y"]) for t in self.traces if t.get("orientation") == "h"), default=0)
        return 230 if self.columns == SMALL else max(350 + 10 * len(self.traces), 140 + 25 * rows)

    def as_json(self) -> Json:
        """What report_page.js draws."""
        layout = {"xaxis": self.x, "yaxis": self.y, "barmode": self.barmode, "colorway": COLOURS}
        if self.x.get("type") == "category":
            layout["scattermode"] = "group"  # side by side, not on top of each other
        is_small = self.columns == SMALL
        layout["showlegend"] = self.has_legend and not is_small
        found = {"title": self.title, "height": self.height, "small": is_small}
        return {**found, "traces": self.traces, "layout": layout}


@dataclass
class Section:
    """`missing`: why there is nothing to show, and which command measures that; empty where there
    is. Tables without rows and figures without points are not kept. `legend`: colours by name, for
    figures without a legend. `omissions` are shown in a section of their own. `device`: where a
    report is of several, each of which has such a section."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    missing: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)
    omissions: list[Omission] = field(default_factory=list)
    device: str = ""

    @property
    def heading(self) -> str:
        return f"{self.title} · {self.device}" if self.device else self.title

    def table(self, identity: str, rows: Iterable[Any], **values: str) -> Table:
        """Adds table_of() these."""
        made = table_of(identity, rows, **values)
        self.tables += [made] if made.records else []
        return made

    def number_tables(self, number: int, first: int = 0) -> None:
        """Keeps the ids of tables from the `first` on unique, where a section repeats them."""
        more = [replace(one, id=f"{one.id}_{number}") for one in self.tables[first:]]
        self.tables[first:] = more

    def figure(self, *values: Any, **more: Any) -> None:  # noqa: ANN401
        """Adds a Figure of these."""
        made = Figure(*values, **more)
        self.figures += [made] if made.points else []

    def leave_out(self, kind: str, name: object, reason: str, *, is_error: bool = False) -> None:
        """Adds an Omission of these."""
        self.omissions.append(Omission(kind, str(name), reason, is_error))

    def label(self, device: str, number: int) -> None:
        """Names the device that it is of, the first, second, ... of a report of several; ids stay
        unique."""
        self.device = device
        if number > 1:
            self.id += f"_{number}"
            self.figures = [replace(one, id=f"{one.id}_{number}") for one in self.figures]
            self.tables = [replace(one, id=f"{one.id}_{number}") for one in self.tables]
        self.omissions = [replace(one, device=device) for one in self.omissions]


@dataclass(frozen=True)
class Document:
    title: str
    generated: str
    facts: Sequence[Fact]
    sections: Sequence[Section]
    omissions: Sequence[Omission]

    @property
    def contents(self) -> dict[str, str]:
        """By title of a section, the id of the first that has it."""
        found: dict[str, str] = {}
        for one in self.sections:
            found.setdefault(one.title, one.id)
        return found

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


def markdown_section(table: Table) -> list[str]:
    """A heading, the note and the table, as lines of Markdown."""
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    note = [table.note, ""] if table.note else []
    return section(table.title, [*note, *narrow_tables(table.columns, rows)])


def scaled(value: float | None, factor: float) -> float | None:
    """None stays None: not known."""
    return None if value is None else factor * value


def shape_text(name: CaseName) -> str:
    """`8 x 128`: batch x sequence."""
    return f"{name.batch} x {name.seq}"


def step_text(name: CaseName) -> str:
    """`tiny, optimized, f32, 8 x 128`."""
    return f"{name.size}, {name.variant}, {name.dtype}, {shape_text(name)}"


def grouped(omissions: Iterable[Omission]) -> list[tuple[Omission, list[str]]]:
    """For each device, kind and reason: the first such omission, and the names of all."""
    found: dict[tuple[str, str, str], tuple[Omission, list[str]]] = {}
    for omission in omissions:
        alike = (omission.device, omission.kind, omission.reason)
        found.setdefault(alike, (omission, []))[1].append(omission.name)
    return list(found.values())


def omission_lines(omissions: Iterable[Omission], most: int) -> list[tuple[bool, str]]:
    """Whether it is an error, and a line of text with at most so many names, of each group."""
    return [
        (
            first.is_error,
            f"{first.device}: " * bool(first.device)
            + f"{first.kind} {listed(names, most)}: {first.reason}",
        )
        for first, names in grouped(omissions)
    ]


# all have a contrast of 3 or more to white; grey is for lines that are not data
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
    """`ticks`: the measured values; they are the axis's ticks where there are few enough."""
    values = sorted(set(ticks))
    own = {"tickvals": values} if 2 <= len(values) <= 10 else {}
    return {"title": {"text": title}, **({"type": "log"} if log else {}), **own, **more}


def bars(series: Mapping[str, Mapping[str, float]], *, horizontal: bool = False) -> list[Json]:
    """`series`: by name, values by label; `horizontal` bars have room for long labels."""
    axes, more = ("yx", {"orientation": "h"}) if horizontal else ("xy", {})
    return [
        {"type": "bar", "name": name, axes[0]: list(own), axes[1]: list(own.values()), **more}
        for name, own in series.items()
    ]


Ends = tuple[list[float], list[float]]


def error_bars(medians: Sequence[Median]) -> Ends:
    """Lower and upper ends of the intervals; the median itself where there is none."""
    ends = [(m.interval.low, m.interval.high) if m.interval else (m.median,) * 2 for m in medians]
    return [low for low, _ in ends], [high for _, high in ends]


def trace(
    name: str,
    x: Iterable[object],
    y: Sequence[float],
    *,
    mode: str = "markers",
    colour: str | Sequence[str] | None = None,
    symbol: str | Sequence[str] = "circle",
    dash: str = "solid",
    size: int = 8,
    ends: Ends | None = None,
    **more: Any,  # noqa: ANN401
) -> Json:
    """Points or lines; `ends`: the lower and the upper ends of their error bars."""
    found = {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y), **more}
    found["marker"] = {"symbol": symbol, "color": colour, "size": size}
    found["line"] = {"color": colour, "dash": dash}
    if ends is not None:
        below, above = ([abs(e - v) for v, e in zip(y, side, strict=True)] for side in ends)
        error = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        found["error_y"] = error
    return found
