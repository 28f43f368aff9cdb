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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.report.analysis import headline_steps, held_out_by_size
from tinyllama_tools.report.document import Cell, Column, Document, Table, compact, count_of, listed
from tinyllama_tools.report.sections.left_out import grouped

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tinyllama_tools.data.results import ResultSet
    from tinyllama_tools.report.inputs import ReportInputs

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
# of any float
ALL_DIGITS = 17


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
    rows: tuple[tuple[CellView, ...], ...] = ()
    total: str = "0"
    count: str = ""
    has_more: bool = False
    has_filter: bool = False
    is_tool: bool = False


def number_text(value: float, column: ColumnView) -> str:
    """So many significant digits, but never fewer than the whole number has: `0.01234`, `12.34`,
    `12,345`; with an exponent below 1e-4 and from 1e15 on. report_text.js writes the same."""
    scientific = f"{value:.{column.digits - 1}e}"
    exponent = int(scientific.split("e")[1])
    if value == 0 or (column.whole and abs(value) < LARGEST_IN_FULL):
        return f"{value:,.0f}"
    if column.whole or exponent < SMALLEST_EXPONENT or 10.0**exponent >= LARGEST_IN_FULL:
        # as JavaScript writes it: `1.2e-5`
        return re.sub(r"e([+-])0*(?=\d)", r"e\1", scientific)
    return f"{value:,.{max(0, column.digits - 1 - exponent)}f}"


def cell_text(value: Cell, column: ColumnView) -> str:
    """A dash where there is nothing."""
    if value is None or value == "":
        return NOTHING
    return value if isinstance(value, str) else number_text(value, column)


def _column_view(column: Json, cells: Sequence[Cell]) -> ColumnView:
    numbers = [cell for cell in cells if isinstance(cell, (int, float))]
    letters = max((len(cell) for cell in cells if isinstance(cell, str)), default=0)
    known = {"unit": "", "numeric": True, "digits": DEFAULT_DIGITS, **column}
    is_share = known["unit"] == "%" and all(0 <= number <= 100 for number in numbers)
    return ColumnView(
        **known,
        whole=all(math.isfinite(number) and float(number).is_integer() for number in numbers),
        share=is_share and max(numbers, default=0.0) >= LEAST_SHARE,
        width=next((name for most, name in WIDTHS if letters >= most), ""),
    )


def column_views(table: Json) -> tuple[ColumnView, ...]:
    """Of the table's columns, after a look at all their cells."""
    return tuple(
        _column_view(column, [row[index] for row in table["rows"]])
        for index, column in enumerate(table["columns"])
    )


def _cell_view(value: Cell, column: ColumnView) -> CellView:
    share = round(float(value), 2) if column.share and isinstance(value, (int, float)) else None
    css = " ".join(["number"] * column.numeric + ["share"] * (share is not None))
    text = cell_text(value, column)
    parts = re.split(r"(?<=/)", text) if len(text) >= LONG_TEXT else [text]
    return CellView(tuple(parts), css, share, len(text) >= WIDTHS[0][0])


def table_view(table: Json) -> TableView:
    """`table` as the document has it, its numbers finite."""
    columns, rows = column_views(table), table["rows"]
    has_more = len(rows) > FIRST_ROWS
    shown = (zip(row, columns, strict=True) for row in rows[:FIRST_ROWS])
    return TableView(
        *(table["id"], table["title"], table.get("note", ""), columns),
        rows=tuple(tuple(_cell_view(cell, column) for cell, column in row) for row in shown),
        total=f"{len(rows):,}",
        count=f"{f'first {FIRST_ROWS} of ' if has_more else ''}{count_of(len(rows), 'row')}",
        has_more=has_more,
        has_filter=len(rows) >= FEWEST_TO_FILTER,
    )


# empty: the page's script fills it with the two results that were chosen
COMPARISON_TABLE = TableView(
    "comparison-cases",
    "Cases of both results",
    "Times are medians of one result each; sorted by size of change at first.",
    tuple(
        ColumnView(
            title,
            unit,
            numeric=bool(digits),
            digits=digits or DEFAULT_DIGITS,
            whole=False,
            share=False,
        )
        for title, unit, digits in (
            *(("case", "", 0), ("base", "ms", 4), ("new", "ms", 4)),
            *(("new / base", "", 4), ("change", "%", 3)),
        )
    ),
    is_tool=True,
)
TEMPLATES = Path(__file__).with_name("templates")
# in this order they make one script
SCRIPTS = (
    *("report_unpack.js", "report_text.js", "report_theme.js", "report_labels.js"),
    *("report_navigation.js", "report_plots.js", "report_tables.js", "report_comparison.js"),
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
PLAIN_HEIGHT, PRINT_HEIGHT = 420, 300
ROW_HEIGHT, HEIGHT_WITHOUT_ROWS, HEIGHTS = 26, 110, (240, 1000)
# a number with its unit: `-12.5 %`, `71.2 ms`, `1,024 MiB`, `374.8 GFLOP/s`
NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?\d+(?:,\d{3})*(?:\.\d+)?"
    r"\s?(?:%|[num\u00b5]?s|min|h|[KMGT]?i?B(?:/s)?|[kMGTP]?FLOP(?:s|/s)?|times)(?![\w])"
)
CODE = re.compile(r"`([^`]*)`")


def _wrapped(text: str, pattern: re.Pattern[str], element: str) -> Markup:
    """The text escaped, the last group of each match in an element."""
    form, parts, end = Markup(f"<{element}>{{}}</{element}>"), [], 0
    for found in pattern.finditer(text):
        parts += [escape(text[end : found.start()]), form.format(found[found.re.groups])]
        end = found.end()
    return Markup("").join([*parts, escape(text[end:])])


def numbers_bold(text: str) -> Markup:
    """The text escaped, its quantities in bold: they are what people look for."""
    return _wrapped(text, NUMBER, "b")


def marked(text: str) -> Markup:
    """The text escaped; what stands between backticks is code."""
    return escape(text) if text.count("`") % 2 else _wrapped(text, CODE, "code")


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """gzip in base64: no letter of it can end a script element. The same text gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def _packed_plotly() -> str:
    return _packed(plotly.offline.get_plotlyjs())


def figure_height(figure: Json) -> int:
    """In pixels, without the legend: what the layout asks for, a row a bar where they lie, or
    PLAIN_HEIGHT."""
    asked = figure["layout"].get("height")
    if asked:
        return int(asked)
    own = (t for t in figure["traces"] if not str(t.get("yaxis", "y"))[1:])
    names = {name for trace in own for name in trace.get("y") or () if isinstance(name, str)}
    if not names:
        return PLAIN_HEIGHT
    return min(HEIGHTS[1], max(HEIGHTS[0], HEIGHT_WITHOUT_ROWS + ROW_HEIGHT * len(names)))


def _figure_view(figure: Json) -> Json:
    height = figure_height(figure)
    return {
        **{key: figure[key] for key in ("id", "title", "note")},
        "height": height,
        "print_height": PRINT_HEIGHT if height == PLAIN_HEIGHT else height,
        "is_empty": figure["points"] == 0,
    }


def _section_view(section: Json, views: Mapping[str, TableView]) -> Json:
    """What the template needs. A note that the section has said already is not said again."""
    figures = [_figure_view(one) for one in section["figures"]]
    tables = [views[one["id"]] for one in section["tables"]]
    said = set(section["text"])

    def new(note: str) -> str:
        is_new = note not in said
        said.add(note)
        return note if is_new else ""

    return {
        **section,
        "figures": [one | {"note": new(one["note"])} for one in figures],
        "in_columns": len(figures) >= FEWEST_IN_COLUMNS
        and len({one["height"] for one in figures}) == 1,
        "tables": [replace(one, note=new(one.note)) for one in tables],
    }


def _by_id(document: Json, kind: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for one in (one for section in document["sections"] for one in section[kind]):
        if found.setdefault(one["id"], one) is not one:
            raise ValueError(f"two of the document's {kind} have the id '{one['id']}'")
    return found


def _set_facts(result: Json) -> Sequence[tuple[str, Any]]:
    """Label and value of what the result's title does not say already."""
    said = {"", "None", *str(result["title"]).split(SEPARATOR)}
    facts = {key: result.get(key) for key in SET_FACTS} | {"date": str(result.get("date"))[:10]}
    return [(key, value) for key, value in facts.items() if str(value) not in said]


def _day_and_time(text: str) -> str:
    """`2026-11-22 09:12 UTC` of an ISO time."""
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return f"{moment.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


def page_of(document: Json) -> str:
    """The HTML of a report's document (report/document.py, as JSON). Texts are escaped. Numbers
    that are not finite are shown as missing. ValueError: an id that two figures or two tables
    share."""
    document = compact(document, ALL_DIGITS)
    figures, tables = _by_id(document, "figures"), _by_id(document, "tables")
    views = {identifier: table_view(table) for identifier, table in tables.items()}
    styles = json.loads(_text("report_theme.json"))
    comparison = document["comparison"]

    def columns(view: TableView) -> list[Json]:
        return [asdict(column) for column in view.columns]

    data = {
        "figures": figures,
        "tables": {
            key: {"id": key, "columns": columns(views[key]), "rows": table["rows"]}
            for key, table in tables.items()
        },
        "comparison": {**comparison, "columns": columns(COMPARISON_TABLE)},
        "styles": styles,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"numbers_bold": numbers_bold, "marked": marked}
    sections = [_section_view(section, views) for section in document["sections"]]
    return environment.get_template("report_page.html.j2").render(
        document={**document, "sections": sections},
        title=document["title"].partition(SEPARATOR)[::2],
        generated=_day_and_time(document["generated"]),
        set_facts=_set_facts,
        compared=[one["title"] for one in comparison["sets"]],
        comparison_table=COMPARISON_TABLE,
        most_figures=MOST_FIGURES,
        tokens=TOKENS,
        styles=styles,
        css=_text("report_page.css"),
        early_script=_text("report_early.js"),
        # one function, so that plotly and the page's own names do not meet
        script='(() => {\n"use strict";\n' + "\n".join(map(_text, SCRIPTS)) + "})();",
        plotly_version=plotly.offline.get_plotlyjs_version(),
        plotly=_packed_plotly(),
        data=_packed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
    )


# as in requirements-pictures.in: only pictures and tests of pages need it, and it is large
DRIVER = "playwright==1.65.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DATA_ADDRESS = "data:image/png;base64,"
PAGE_TIMEOUT_MS = 60_000


def write_pngs(document: Json, folder: Path) -> list[Path]:
    """`<folder>/<figure's id>.png` of every figure that has points, in the document's order:
    1600 x 900 pixels, light. BadInputError where the driver or a browser is not installed, or
    the browser does not start."""
    figures = (figure for section in document["sections"] for figure in section["figures"])
    wanted = [figure["id"] for figure in figures if figure["points"]]
    written: list[Path] = []
    if not wanted:
        return written
    with tempfile.TemporaryDirectory() as place, installed_browser() as browser:
        path = Path(place) / "report.html"
        path.write_text(page_of(document), encoding="utf-8")
        page = browser.new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        page.goto(path.as_uri())
        page.evaluate("reportReady")
        for identifier in wanted:
            address = page.evaluate("(id) => reportPng(id)", identifier)
            # only now: where no browser starts, no empty folder is left
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / file_name(identifier))
            written[-1].write_bytes(base64.b64decode(address.removeprefix(DATA_ADDRESS)))
    return written


def file_name(identifier: str) -> str:
    """Of a figure's picture; what may not stand in a file's name becomes `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", identifier).lstrip(".") + ".png"


def browser_program() -> str:
    """The installed Chromium; BadInputError where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise BadInputError(
            f"no browser to draw the pictures with: none of {', '.join(BROWSERS)} is installed; "
            "install the distribution's package chromium (apt-get install chromium), or write "
            "--format html"
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


MOST_ROWS = 40


def markdown_number(value: float, digits: int) -> str:
    """`1,235` of 1234.9 and four significant digits; never in powers of ten, unless tiny."""
    rounded = float(f"{value:.{digits}g}")
    if rounded and abs(rounded) < 1e-4:
        return f"{rounded:.{digits}g}"
    return f"{int(rounded):,}" if rounded.is_integer() else f"{rounded:,.15g}"


def plain(text: str) -> str:
    """In one line, and no markup but the code between backticks: names come from files."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        parts = ["'".join(parts)]
    shown = [part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts)]
    return "`".join(shown)


def _cell(value: Cell, column: Column) -> str:
    if value is None:
        return "-"
    return plain(value) if isinstance(value, str) else markdown_number(value, column.digits)


def _table(table: Table) -> list[str]:
    headings = [f"{of.title} [{of.unit}]" if of.unit else of.title for of in table.columns]
    rows = [
        [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:MOST_ROWS]
    ]
    lines = [f"### {plain(table.title)}", "", *markdown_table(headings, rows), ""]
    if table.note:
        lines += [plain(table.note), ""]
    if len(table.rows) > MOST_ROWS:
        lines += [f"The first {MOST_ROWS} of {len(table.rows):,} rows.", ""]
    return lines


def markdown_of(document: Document) -> str:
    """Summary, key tables, and what is missing or left out; ends with a line break."""
    lines = [f"# {plain(document.title)}", "", *(f"- {plain(t)}" for t in document.summary), ""]
    for section in document.sections:
        tables = [table for table in section.tables if table.is_key and table.rows]
        lines += [f"## {section.title}", ""] if tables else []
        lines += [line for table in tables for line in _table(table)]
    missing = [section.title for section in document.sections if section.missing]
    if missing:
        titles = ", ".join(missing)
        lines += [f"Not measured: {titles}. The page says what each would take.", ""]
    if document.omissions:
        lines += ["## Left out", ""]
        for first, names in grouped(document.omissions):
            mark = "**error** " if first.is_error else ""
            lines.append(f"- {mark}{plain(f'{first.kind} {listed(names, 3)}: {first.reason}')}")
        lines.append("")
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


# None: not known
Row = tuple[str, float | None, str]


def _of_results(inputs: ReportInputs, results: ResultSet) -> Iterator[Row]:
    """Peaks, then the headline steps."""
    measured = (results.context.get("peaks") or {}).get("measured") or {}
    for name in sorted(set(measured) - set(BANDWIDTHS)):
        rate = measured[name].get("flops_per_second")
        yield f"peak/gemm/{name}/TFLOPS", rate / TERA if rate else None, "TFLOP/s"
    for name in BANDWIDTHS:
        rate = measured.get(name, {}).get("bytes_per_second")
        yield f"peak/{name}", rate / GIGA if rate else None, "GB/s"
    shares = {light.step: light.share_percent for light in inputs.lights[0]}
    for step in headline_steps(results):
        yield f"{step.name}/time", step.median_seconds, "s"
        for counter, name, unit in COUNTERS:
            yield f"{step.name}/{name}", step.counters.get(counter), unit
        yield f"{step.name}/speed_of_light_percent", shares.get(step.name), "%"


def _of_models(inputs: ReportInputs) -> Iterator[Row]:
    """Held-out cells by size, over all series, then predicted steps."""
    for what, fits in (("time", inputs.time_fits), ("memory", inputs.memory_fits)):
        for size, found in held_out_by_size(fits).items():
            # counted memory is met to the last bit, which is no figure
            error = round(statistics.median(abs(held.error_percent) for held in found), 6)
            covered = 100 * sum(held.is_covered for held in found) / len(found)
            yield f"held_out/{what}/{size}/median_error_percent", error, "%"
            yield f"held_out/{what}/{size}/covered_percent", covered, "%"
    for of in (step.prediction for step in inputs.predictions.steps):
        for end, seconds in (("", of.seconds), ("_low", of.low), ("_high", of.high)):
            yield f"{of.name}/predicted_time{end}", seconds, "s"
        yield f"{of.name}/predicted_memory", of.memory_bytes / MIB, "MiB"


def _of_ranks(inputs: ReportInputs) -> Iterator[Row]:
    """A step that several runs have is the first run's: a name stands for one figure."""
    known: set[str] = set()
    for run in inputs.scalings:
        for result in run.analysis.results:
            for point in run.analysis.points:
                name = str(result.steps[point.mode].name) if point.ranks == result.ranks else ""
                if not name or name in known:
                    continue
                known.add(name)
                yield f"{name}/time", point.seconds.median, "s"
                shares = {
                    f"{result.scaling}_efficiency": point.efficiency,
                    "communication": point.communication,
                }
                for what, share in shares.items():
                    yield f"{name}/{what}_percent", share.median if share else None, "%"


def figures_of_merit(inputs: ReportInputs) -> list[FigureOfMerit]:
    """Of the first result, and of every data-parallel run."""
    rows = [*_of_ranks(inputs)]
    if inputs.main is not None:
        rows = [*_of_results(inputs, inputs.main), *_of_models(inputs), *rows]
    # what is no number is no figure
    return [
        FigureOfMerit(name, value, unit)
        for name, value, unit in rows
        if value is not None and math.isfinite(value)
    ]


def figures_text(figures: list[FigureOfMerit], errors: int) -> str:
    """The lines, and at the end SUCCESS: or FAILED:, which are looked for as those of
    tiny_llama_bench --figures-of-merit are."""
    last = f"SUCCESS: {len(figures)} figures" if figures else "FAILED: no figure"
    if errors:
        last = f"FAILED: {count_of(errors, 'error')}, {len(figures)} figures"
    return "\n".join([*map(str, figures), last]) + "\n"
