"""A report as HTML, Markdown, pictures and figures of merit.

A figure of merit is a line for the test frameworks of computing centres; integrations/README.md
lists the names. They and their order only depend on what was measured, so that a series can be
followed.
"""

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import json
import math
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.results import MeasuredCase, ResultSet
from tinyllama_tools.models.collectives import ScalingPoint
from tinyllama_tools.report.analysis import HeldOutCell, SeriesFit, headline_steps
from tinyllama_tools.report.document import Cell, Column, Document, Section, Table, count_of, listed
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.sections.left_out import grouped

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PageCell = str | int | float | None
FIRST_ROWS = 50
FEWEST_TO_FILTER = 9
# letters from which a text may be broken after a slash
LONG_TEXT = 24
# of the longest text of a column: from here on it gets so much room
WIDTHS = ((60, "long"), (20, "middle"))
# a bar says nothing where all would be shorter
LEAST_SHARE = 15.0
NOTHING = "\u2013"
LARGEST_IN_FULL = 1e15
SMALLEST_EXPONENT = -4
DEFAULT_DIGITS = 4


@dataclass(frozen=True)
class ColumnView:
    """`digits`: significant ones; `whole`: only whole numbers, shown without a point;
    `share`: percentages of something, shown with a bar of that length; `width`: a class of the
    style sheet, empty for as narrow as it gets."""

    title: str
    unit: str
    numeric: bool
    digits: int
    whole: bool
    share: bool
    width: str = ""


@dataclass(frozen=True)
class CellView:
    """`parts`: the text, cut where a line may break; `share`: percent, None for no bar;
    `is_long`: more text than a row should be high for."""

    parts: tuple[str, ...]
    css: str
    share: float | None
    is_long: bool = False


@dataclass(frozen=True)
class TableView:
    """`rows`: the first FIRST_ROWS; the page's script has all. `is_tool`: filled by the script."""

    id: str
    title: str
    note: str
    columns: tuple[ColumnView, ...]
    rows: tuple[tuple[CellView, ...], ...]
    total: str
    count: str
    has_more: bool
    has_filter: bool
    is_tool: bool = False


def number_text(value: float, column: ColumnView) -> str:
    """So many significant digits, but never fewer than the whole number has: `0.01234`, `12.34`,
    `12,345`; with an exponent below 1e-4 and from 1e15 on. report_text.js writes the same."""
    scientific = f"{value:.{column.digits - 1}e}"
    if column.whole:
        return f"{value:,.0f}" if abs(value) < LARGEST_IN_FULL else _as_in_script(scientific)
    if value == 0:
        return "0"
    exponent = int(scientific.split("e")[1])
    if exponent < SMALLEST_EXPONENT or 10.0**exponent >= LARGEST_IN_FULL:
        return _as_in_script(scientific)
    return f"{value:,.{max(0, column.digits - 1 - exponent)}f}"


def _as_in_script(scientific: str) -> str:
    """`1.2e-05` as JavaScript writes it: `1.2e-5`."""
    return re.sub(r"e([+-])0*(?=\d)", r"e\1", scientific)


def cell_text(value: PageCell, column: ColumnView) -> str:
    """A dash where there is nothing."""
    if value is None or value == "":
        return NOTHING
    return value if isinstance(value, str) else number_text(value, column)


def column_views(table: Json) -> tuple[ColumnView, ...]:
    """Of the table's columns, after a look at all their cells."""
    return tuple(
        _column_view(column, [row[index] for row in table["rows"]])
        for index, column in enumerate(table["columns"])
    )


def _column_view(column: Json, cells: Sequence[PageCell]) -> ColumnView:
    numbers = [cell for cell in cells if isinstance(cell, (int, float))]
    letters = max((len(cell) for cell in cells if isinstance(cell, str)), default=0)
    is_finite = all(math.isfinite(number) for number in numbers)
    numeric = bool(column.get("numeric", True))
    unit = str(column.get("unit", ""))
    return ColumnView(
        title=str(column["title"]),
        unit=unit,
        numeric=numeric,
        digits=max(1, int(column.get("digits") or DEFAULT_DIGITS)),
        whole=is_finite and all(float(number).is_integer() for number in numbers),
        share=unit == "%"
        and all(0 <= number <= 100 for number in numbers)
        and max(numbers, default=0.0) >= LEAST_SHARE,
        width=next((name for most, name in WIDTHS if letters >= most), ""),
    )


def table_view(table: Json) -> TableView:
    """`table` as the document has it, its numbers finite."""
    columns, rows = column_views(table), table["rows"]
    total = len(rows)
    first = f"first {FIRST_ROWS} of " if total > FIRST_ROWS else ""
    return TableView(
        id=table["id"],
        title=table["title"],
        note=table.get("note", ""),
        columns=columns,
        rows=tuple(
            tuple(_cell_view(cell, column) for cell, column in zip(row, columns, strict=True))
            for row in rows[:FIRST_ROWS]
        ),
        total=f"{total:,}",
        count=f"{first}{total:,} row{'' if total == 1 else 's'}",
        has_more=total > FIRST_ROWS,
        has_filter=total >= FEWEST_TO_FILTER,
    )


def _cell_view(value: PageCell, column: ColumnView) -> CellView:
    is_share = column.share and isinstance(value, (int, float))
    css = " ".join(name for name, on in (("number", column.numeric), ("share", is_share)) if on)
    share = round(float(value), 2) if is_share else None
    text = cell_text(value, column)
    parts = re.split(r"(?<=/)", text) if len(text) >= LONG_TEXT else [text]
    return CellView(tuple(parts), css, share, len(text) >= WIDTHS[0][0])


def comparison_table() -> TableView:
    """Empty: the page's script fills it with the two results that were chosen."""
    columns = (
        ColumnView("case", "", False, 4, False, False),
        ColumnView("base", "ms", True, 4, False, False),
        ColumnView("new", "ms", True, 4, False, False),
        ColumnView("new / base", "", True, 4, False, False),
        ColumnView("change", "%", True, 3, False, False),
    )
    return TableView(
        id="comparison-cases",
        title="Cases of both results",
        note="Times are medians of one result each; sorted by size of change at first.",
        columns=columns,
        rows=(),
        total="0",
        count="",
        has_more=False,
        has_filter=False,
        is_tool=True,
    )


TEMPLATES = Path(__file__).with_name("templates")
# in this order they make one script
SCRIPTS = (
    "report_unpack.js",
    "report_text.js",
    "report_theme.js",
    "report_labels.js",
    "report_navigation.js",
    "report_plots.js",
    "report_tables.js",
    "report_comparison.js",
    "report_page.js",
)
# colours that the style sheet names
TOKENS = ("ground", "panel", "text", "quiet", "line", "grid", "accent", "soft")
# between the parts of a result's title
SEPARATOR = " \u00b7 "
SET_FACTS = ("device", "commit", "date", "torch", "threads")
# of a section; the others are unfolded when asked for
MOST_FIGURES = 6
# side by side where there is room, if all are of one height
FEWEST_IN_COLUMNS = 3
PLAIN_HEIGHT = 420
PRINT_HEIGHT = 300
ROW_HEIGHT = 26
HEIGHT_WITHOUT_ROWS = 110
HEIGHTS = (240, 1000)
# a number with its unit: `-12.5 %`, `71.2 ms`, `1,024 MiB`, `374.8 GFLOP/s`
NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?\d+(?:,\d{3})*(?:\.\d+)?"
    r"\s?(?:%|[num\u00b5]?s|min|h|[KMGT]?i?B(?:/s)?|[kMGTP]?FLOP(?:s|/s)?|times)(?![\w])"
)


def page_of(document: Json) -> str:
    """The HTML of a report's document (report/document.py, as JSON). Texts are escaped. Numbers
    that are not finite are shown as missing. ValueError: an id that two figures or two tables
    share."""
    document = _finite(document)
    figures = _by_id(document, "figures")
    tables = _by_id(document, "tables")
    views = {identifier: table_view(table) for identifier, table in tables.items()}
    styles = json.loads((TEMPLATES / "report_theme.json").read_text(encoding="utf-8"))
    comparison = document.get("comparison") or {"cases": [], "sets": []}
    tool = comparison_table()
    data = {
        "figures": figures,
        "tables": {
            identifier: {
                "id": identifier,
                "columns": [asdict(column) for column in views[identifier].columns],
                "rows": table["rows"],
            }
            for identifier, table in tables.items()
        },
        "comparison": {**comparison, "columns": [asdict(column) for column in tool.columns]},
        "styles": styles,
    }
    return (
        _environment()
        .get_template("report_page.html.j2")
        .render(
            document=_for_template(document, views),
            title=str(document["title"]).partition(SEPARATOR)[::2],
            generated=_day_and_time(str(document.get("generated", ""))),
            set_facts=_set_facts,
            compared=[one["title"] for one in comparison["sets"]],
            comparison_table=tool,
            most_figures=MOST_FIGURES,
            tokens=TOKENS,
            styles=styles,
            css=_text("report_page.css"),
            early_script=_text("report_early.js"),
            script=_script(),
            plotly_version=plotly.offline.get_plotlyjs_version(),
            plotly=_packed_plotly(),
            data=_packed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        )
    )


def figure_height(figure: Json) -> int:
    """In pixels, without the legend: what the layout asks for, a row a bar where they lie, or
    PLAIN_HEIGHT."""
    asked = figure["layout"].get("height")
    if asked:
        return int(asked)
    names = {
        name
        for trace in figure["traces"]
        for name in trace.get("y") or ()
        if isinstance(name, str) and not str(trace.get("yaxis", "y"))[1:]
    }
    if not names:
        return PLAIN_HEIGHT
    return min(HEIGHTS[1], max(HEIGHTS[0], HEIGHT_WITHOUT_ROWS + ROW_HEIGHT * len(names)))


def numbers_bold(text: str) -> Markup:
    """The text escaped, its quantities in bold: they are what people look for."""
    parts, end = [], 0
    for found in NUMBER.finditer(text):
        parts.append(escape(text[end : found.start()]))
        parts.append(Markup("<b>{}</b>").format(found[0]))
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


def marked(text: str) -> Markup:
    """The text escaped; what stands between backticks is code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    code = (Markup("<code>{}</code>").format(part) for part in parts[1::2])
    plain = (escape(part) for part in parts[::2])
    return Markup("").join(part for pair in zip_longest(plain, code, fillvalue="") for part in pair)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["numbers_bold"] = numbers_bold
    environment.filters["marked"] = marked
    return environment


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _script() -> str:
    """One function, so that plotly and the page's own names do not meet."""
    return '(() => {\n"use strict";\n' + "\n".join(map(_text, SCRIPTS)) + "})();"


def _packed(text: str) -> str:
    """gzip in base64: no letter of it can end a script element. The same text gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def _packed_plotly() -> str:
    return _packed(plotly.offline.get_plotlyjs())


def _finite(value: Any) -> Any:  # noqa: ANN401
    """JSON has no NaN and no infinity; what is not a number is missing."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _by_id(document: Json, kind: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for section in document["sections"]:
        for one in section.get(kind) or ():
            if one["id"] in found:
                raise ValueError(f"two of the document's {kind} have the id '{one['id']}'")
            found[one["id"]] = one
    return found


def _for_template(document: Json, views: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with what the template needs of their figures and tables."""
    sections = []
    for section in document["sections"]:
        said = set(section.get("text") or ())
        figures = [
            _figure_view(one) | {"note": _new(one.get("note", ""), said)}
            for one in section.get("figures") or ()
        ]
        shown = (views[one["id"]] for one in section.get("tables") or ())
        tables = [replace(table, note=_new(table.note, said)) for table in shown]
        heights = {one["height"] for one in figures}
        sections.append(
            {
                "id": section["id"],
                "title": section["title"],
                "text": section.get("text") or [],
                "missing": section.get("missing") or "",
                "figures": figures,
                "in_columns": len(figures) >= FEWEST_IN_COLUMNS and len(heights) == 1,
                "tables": tables,
            }
        )
    return {
        "title": document["title"],
        "generated": document.get("generated", ""),
        "summary": document.get("summary") or [],
        "sets": document.get("sets") or [],
        "sections": sections,
    }


def _new(note: str, said: set[str]) -> str:
    """The note, unless the section has said it already."""
    is_new = note not in said
    said.add(note)
    return note if is_new else ""


def _figure_view(figure: Json) -> dict[str, Any]:
    texts = {"id": figure["id"], "title": figure["title"], "note": figure.get("note", "")}
    height = figure_height(figure)
    printed = PRINT_HEIGHT if height == PLAIN_HEIGHT else height
    sizes = {"height": height, "print_height": printed, "is_empty": figure["points"] == 0}
    return {**texts, **sizes}


def _set_facts(result: Json) -> Sequence[tuple[str, Any]]:
    """Label and value of what the result's title does not say already."""
    said = {"", "None", *str(result["title"]).split(SEPARATOR)}
    facts = {key: result.get(key) for key in SET_FACTS} | {"date": str(result.get("date"))[:10]}
    return [(key, value) for key, value in facts.items() if str(value) not in said]


def _day_and_time(text: str) -> str:
    """`2026-11-22 09:12 UTC` of an ISO time; the text itself where it is none."""
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return f"{moment.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


# as in requirements-pictures.in: only pictures and tests of pages need it, and it is large
DRIVER = "playwright==1.65.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1600, 900
DATA_ADDRESS = "data:image/png;base64,"
PAGE_TIMEOUT_MS = 60_000


def write_pngs(document: Json, folder: Path) -> list[Path]:
    """`<folder>/<figure's id>.png` of every figure that has points, in the document's order:
    WIDTH x HEIGHT pixels, light. BadInputError where the driver or a browser is not installed, or
    the browser does not start."""
    wanted = [
        figure["id"]
        for section in document["sections"]
        for figure in section.get("figures") or ()
        if figure["points"] > 0
    ]
    if not wanted:
        return []
    written = []
    for identifier, content in _drawn(document, wanted):
        # only now: where no browser starts, no empty folder is left
        folder.mkdir(parents=True, exist_ok=True)
        written.append(folder / file_name(identifier))
        written[-1].write_bytes(content)
    return written


def _drawn(document: Json, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Each figure's id with its picture."""
    with tempfile.TemporaryDirectory() as place, installed_browser() as browser:
        path = Path(place) / "report.html"
        path.write_text(page_of(document), encoding="utf-8")
        page = browser.new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        page.goto(path.as_uri())
        page.evaluate("reportReady")
        for identifier in wanted:
            address = page.evaluate("(id) => reportPng(id)", identifier)
            yield identifier, base64.b64decode(address.removeprefix(DATA_ADDRESS))


def file_name(identifier: str) -> str:
    """Of a figure's picture; what may not stand in a file's name becomes `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", identifier).lstrip(".") + ".png"


def browser_program() -> str:
    """The installed Chromium; BadInputError where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        names = ", ".join(BROWSERS)
        raise BadInputError(
            f"no browser to draw the pictures with: none of {names} is installed; install the "
            "distribution's package chromium (apt-get install chromium), or write --format html"
        )
    return found


@contextmanager
def installed_browser() -> Iterator[Browser]:
    """The installed Chromium without a window; BadInputError where it or its driver is missing."""
    program = browser_program()
    try:
        # Not on top: everything else of a report works without the driver.
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise BadInputError(
            "no driver of the browser: the Python package playwright is not installed; run "
            f"`{sys.executable} -m pip install {DRIVER}`, or write --format html"
        ) from None
    with sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=program)
        except Error as error:
            first = error.message.splitlines()[0]
            raise BadInputError(
                f"{program} does not start: {first}; try it on a shell, or write --format html"
            ) from None
        try:
            yield browser
        finally:
            browser.close()


MARKDOWN_NOTHING = "-"
MOST_ROWS = 40


def markdown_number(value: float, digits: int) -> str:
    """`1,235` of 1234.9 and four significant digits; never in powers of ten, unless tiny."""
    rounded = float(f"{value:.{digits}g}")
    if rounded and abs(rounded) < 1e-4:
        return f"{rounded:.{digits}g}"
    if rounded.is_integer():
        return f"{int(rounded):,}"
    return f"{rounded:,.15g}"


def plain(text: str) -> str:
    """In one line, and no markup but the code between backticks: names come from files."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        parts = ["'".join(parts)]
    shown = [part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts)]
    return "`".join(shown)


def _cell(value: Cell, column: Column) -> str:
    if value is None:
        return MARKDOWN_NOTHING
    return plain(value) if isinstance(value, str) else markdown_number(value, column.digits)


def _heading(column: Column) -> str:
    return f"{column.title} [{column.unit}]" if column.unit else column.title


def _table(table: Table) -> Iterator[str]:
    rows = [
        [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:MOST_ROWS]
    ]
    yield f"### {plain(table.title)}"
    yield ""
    yield from markdown_table([_heading(column) for column in table.columns], rows)
    yield ""
    if table.note:
        yield plain(table.note)
        yield ""
    if len(table.rows) > MOST_ROWS:
        yield f"The first {MOST_ROWS} of {len(table.rows):,} rows."
        yield ""


def _section(section: Section) -> Iterator[str]:
    tables = [table for table in section.tables if table.is_key and table.rows]
    if tables:
        yield f"## {section.title}"
        yield ""
    for table in tables:
        yield from _table(table)


def _left_out(document: Document) -> Iterator[str]:
    omissions = document.omissions
    if not omissions:
        return
    yield "## Left out"
    yield ""
    for first, names in grouped(omissions):
        mark = "**error** " if first.is_error else ""
        yield f"- {mark}{plain(f'{first.kind} {listed(names, 3)}: {first.reason}')}"
    yield ""


def markdown_of(document: Document) -> str:
    """Ends with a line break."""
    sentences = (f"- {plain(text)}" for text in document.summary)
    lines = [f"# {plain(document.title)}", "", *sentences, ""]
    for section in document.sections:
        lines += _section(section)
    missing = [section for section in document.sections if section.missing]
    if missing:
        titles = ", ".join(section.title for section in missing)
        lines += [f"Not measured: {titles}. The page says what each would take.", ""]
    lines += _left_out(document)
    return "\n".join([*lines, f"Made by `scripts/report`, {document.generated}.", ""])


# as tiny_llama_bench --figures-of-merit names them
COUNTERS = (
    ("samples_per_second", "samples_per_second", "samples/s"),
    ("tokens_per_second", "tokens_per_second", "tokens/s"),
    ("TFLOPS", "TFLOPS", "TFLOP/s"),
    ("MFU_percent", "MFU_percent", "%"),
    ("peak_percent", "peak_percent", "%"),
    ("roof_percent", "roof_percent", "%"),
    ("peak_memory_MiB", "peak_memory", "MiB"),
)
BANDWIDTHS = ("memory_bandwidth", "cache_bandwidth")
TERA, GIGA, MIB = 1e12, 1e9, 2**20


@dataclass(frozen=True)
class FigureOfMerit:
    """`name` has no blank."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"FOM {self.name} = {self.value:.6g} {self.unit}"


def _peaks(results: ResultSet) -> Iterator[FigureOfMerit]:
    measured = (results.context.get("peaks") or {}).get("measured") or {}
    for name in sorted(set(measured) - set(BANDWIDTHS)):
        rate = measured[name].get("flops_per_second")
        if rate:
            yield FigureOfMerit(f"peak/gemm/{name}/TFLOPS", rate / TERA, "TFLOP/s")
    for name in BANDWIDTHS:
        rate = measured.get(name, {}).get("bytes_per_second")
        if rate:
            yield FigureOfMerit(f"peak/{name}", rate / GIGA, "GB/s")


def _of_step(step: MeasuredCase) -> Iterator[FigureOfMerit]:
    yield FigureOfMerit(f"{step.name}/time", step.median_seconds, "s")
    for counter, name, unit in COUNTERS:
        if counter in step.counters:
            yield FigureOfMerit(f"{step.name}/{name}", step.counters[counter], unit)


def _of_steps(inputs: ReportInputs, results: ResultSet) -> Iterator[FigureOfMerit]:
    lights = {light.step: light for light in inputs.lights[0]}
    for step in headline_steps(results):
        yield from _of_step(step)
        light = lights.get(step.name)
        if light is not None and light.share_percent is not None:
            name = f"{step.name}/speed_of_light_percent"
            yield FigureOfMerit(name, light.share_percent, "%")


def _held_out(what: str, fits: list[SeriesFit]) -> Iterator[FigureOfMerit]:
    """By size, over all held-out cells of all series."""
    by_size: dict[str, list[HeldOutCell]] = {}
    for fit in fits:
        by_size.setdefault(fit.series.name.size, []).extend(fit.held_out)
    for size, found in by_size.items():
        if not found:
            continue
        name = f"held_out/{what}/{size}"
        # counted memory is met to the last bit, which is no figure
        error = round(statistics.median(abs(held.error_percent) for held in found), 6)
        covered = 100 * sum(held.is_covered for held in found) / len(found)
        yield FigureOfMerit(f"{name}/median_error_percent", error, "%")
        yield FigureOfMerit(f"{name}/covered_percent", covered, "%")


def _predicted(inputs: ReportInputs) -> Iterator[FigureOfMerit]:
    for step in inputs.predictions.steps:
        of, name = step.prediction, f"{step.prediction.name}"
        yield FigureOfMerit(f"{name}/predicted_time", of.seconds, "s")
        yield FigureOfMerit(f"{name}/predicted_time_low", of.low, "s")
        yield FigureOfMerit(f"{name}/predicted_time_high", of.high, "s")
        yield FigureOfMerit(f"{name}/predicted_memory", of.memory_bytes / MIB, "MiB")


def _of_point(name: str, scaling: str, point: ScalingPoint) -> Iterator[FigureOfMerit]:
    yield FigureOfMerit(f"{name}/time", point.seconds.median, "s")
    if point.efficiency is not None:
        percent = point.efficiency.median
        yield FigureOfMerit(f"{name}/{scaling}_efficiency_percent", percent, "%")
    if point.communication is not None:
        percent = point.communication.median
        yield FigureOfMerit(f"{name}/communication_percent", percent, "%")


def _data_parallel(inputs: ReportInputs) -> Iterator[FigureOfMerit]:
    """A step that several runs have is the first run's: a name stands for one figure."""
    known: set[str] = set()
    for run in inputs.scalings:
        for result in run.analysis.results:
            for point in (p for p in run.analysis.points if p.ranks == result.ranks):
                name = str(result.steps[point.mode].name)
                if name not in known:
                    known.add(name)
                    yield from _of_point(name, result.scaling, point)


def figures_of_merit(inputs: ReportInputs) -> list[FigureOfMerit]:
    """Of the first result, and of every data-parallel run."""
    results = inputs.main
    if results is None:
        return list(_data_parallel(inputs))
    found = (
        _peaks(results),
        _of_steps(inputs, results),
        _held_out("time", inputs.time_fits),
        _held_out("memory", inputs.memory_fits),
        _predicted(inputs),
        _data_parallel(inputs),
    )
    # what is no number is no figure
    return [one for figures in found for one in figures if math.isfinite(one.value)]


def figures_text(figures: list[FigureOfMerit], errors: int) -> str:
    """The lines, and at the end SUCCESS: or FAILED:, which are looked for as those of
    tiny_llama_bench --figures-of-merit are."""
    lines = [str(figure) for figure in figures]
    if errors:
        lines.append(f"FAILED: {count_of(errors, 'error')}, {len(figures)} figures")
    elif figures:
        lines.append(f"SUCCESS: {len(figures)} figures")
    else:
        lines.append("FAILED: no figure")
    return "\n".join(lines) + "\n"
