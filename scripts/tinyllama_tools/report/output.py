"""A report as HTML, Markdown, pictures and figures of merit.

A figure of merit is a line for the test frameworks of computing centres; integrations/README.md
lists the names. Names and order depend only on what was measured, so that a series can be followed.
"""

import base64
import functools
import gzip
import json
import math
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import plotly.offline
from markupsafe import Markup, escape
from plotly.utils import PlotlyJSONEncoder

from tinyllama_tools.core.app import BadInputError, is_number, write_whole
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.text import MIB, count_of, markdown_table, template
from tinyllama_tools.data.machine import BYTES, CURVE, FLOPS, MEMORY_BANDWIDTH
from tinyllama_tools.report.document import (
    COLOURS,
    TEMPLATES,
    Document,
    Figure,
    Table,
    cell_text,
    number_text,
    omission_lines,
    scaled,
)
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.order import headline_steps

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# of a table: so that the page can be mailed, and that Markdown suits a pull request
MOST_ROWS, MOST_MARKDOWN_ROWS = 500, 40


def _first(table: Table, most: int) -> Table:
    """At most so many of its rows; where there are more, the note says so."""
    count = len(table.records)
    if count <= most:
        return table
    note = f"The first {most} of {count:,} rows. {table.note}".rstrip()
    return replace(table, records=table.records[:most], note=note)


def marked(text: str) -> Markup:
    """The text escaped; what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def breakable(text: str) -> Markup:
    """The text escaped, with places to break long names of variants and passes."""
    return Markup(re.sub(r"([+_/])", r"\1<wbr>", str(escape(text))))


def _label_of(heading: str) -> Markup:
    """The heading as a string of the style sheet, which a telephone shows in each cell."""
    plain_text = re.sub(r"[\\<>\"\n]", " ", heading.replace(" [", " ").removesuffix("]"))
    return Markup(f'"{plain_text}"')  # nothing is left that ends the string or the element


def _is_number(table: Table, column: int) -> bool:
    """Whether a column has numbers; without a row, whether it has a unit."""
    numbers = any(isinstance(row[column], (int, float)) for row in table.rows)
    return numbers or "[" in table.columns[column]


UNITS = {"%": "percent", "10⁶": "millions"}
SIGNS = {"+-": "half_interval", "/": "_per_", "²": "2"}


def field_name(heading: str) -> str:
    """A column of a table as a CSV names it: `time_ms` of `time [ms]`."""
    title, _, unit = heading.removesuffix("]").partition(" [")
    name = f"{title} {UNITS.get(unit, unit)}"
    for sign, word in SIGNS.items():
        name = name.replace(sign, word)
    return re.sub(r"\W+", "_", name).strip("_")


def _packed(text: str) -> str:
    """gzip in base64, which cannot end a script element; always the same for the same text."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


@functools.cache
def _packed_plotly() -> str:
    return _packed(plotly.offline.get_plotlyjs())


class _Bar(NamedTuple):
    """`width`: in percent of the longest row."""

    series: str
    colour: str
    width: float
    text: str


def _bars_of(figure: Figure) -> list[tuple[str, list[_Bar]]]:
    """By label: plain bars, to look at until plotly has started, which takes a browser seconds.
    Empty for figures with anything but bars, and with values below 0."""
    if any(trace.get("type") != "bar" for trace in figure.traces):
        return []
    rows: dict[str, list[tuple[str, str, float]]] = {}
    for trace, colour in zip(figure.traces, COLOURS * 2, strict=False):
        along, labels = ("x", "y") if trace.get("orientation") == "h" else ("y", "x")
        for label, value in zip(trace[labels], trace[along], strict=True):
            row = rows.setdefault(label, [])
            # what was not measured has no bar
            row += [(trace["name"], colour, value)] if is_number(value) else []
    values = [value for row in rows.values() for _, _, value in row]
    sums = [sum(value for _, _, value in row) for row in rows.values()]
    longest = max(sums if figure.barmode == "stack" else values, default=0)
    if longest <= 0 or min(values) < 0:
        return []
    return [
        (
            label,
            [_Bar(name, c, 100 * value / longest, number_text(value)) for name, c, value in row],
        )
        for label, row in rows.items()
    ]


def page_of(document: Document) -> str:
    """The HTML. Texts are escaped; numbers that are not finite are shown as missing."""
    drawn = {
        figure.id: figure.as_json() | {"device": section.device}
        for section in document.sections
        for figure in section.figures
    }
    # numbers that are not finite become null; plotly takes `<` in names for markup
    data = json.dumps(drawn, cls=PlotlyJSONEncoder, separators=(",", ":")).replace("<", "&lt;")
    return template(TEMPLATES / "report_page.html.j2").render(
        document=document,
        marked=marked,
        breakable=breakable,
        label_of=_label_of,
        is_number=_is_number,
        field_name=field_name,
        first_rows=lambda table: _first(table, MOST_ROWS),
        cell_text=cell_text,
        bars_of=_bars_of,
        colours=COLOURS * 2,
        plotly_version=plotly.offline.get_plotlyjs_version(),
        plotly=_packed_plotly(),
        data=_packed(data),
    )


# as in pyproject.toml; large, and needed for pictures and tests of pages only
DRIVER = "playwright==1.65.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def write_pngs(document: Document, folder: Path) -> list[Path]:
    """Every figure as `<folder>/<its id>.png`, 1600 x 900 pixels, on white. BadInputError where the
    driver or a browser is not installed, or the browser does not start."""
    wanted = [figure.id for section in document.sections for figure in section.figures]
    if not wanted:
        return []
    written = []
    with tempfile.TemporaryDirectory() as place, installed_browser() as browser:
        path = Path(place) / "report.html"
        write_whole(path, page_of(document))
        page = browser.new_page()
        page.set_default_timeout(60_000)  # milliseconds
        page.goto(path.as_uri())
        page.evaluate("reportReady")
        for identity in wanted:
            address = page.evaluate("(id) => reportPng(id)", identity)
            # not before: where no browser starts, no empty folder is left
            folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", identity).lstrip(".")
            written.append(folder / f"{name}.png")
            written[-1].write_bytes(base64.b64decode(address.partition(",")[2]))
    return written


@contextmanager
def installed_browser() -> Iterator["Browser"]:
    """The installed Chromium, headless; BadInputError where it or its driver is missing."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise BadInputError(
            f"no browser to draw the pictures with: none of {', '.join(BROWSERS)} is installed; "
            "install the distribution's package chromium (apt-get install chromium), or write "
            "--format html"
        )
    try:
        # not at the top: all other outputs work without the driver
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


def plain(text: str) -> str:
    """In one line and without markup: names come from files."""
    return " ".join(text.split()).replace("<", "&lt;")


def markdown_of(document: Document) -> str:
    """Summary, key tables, and what is missing or left out; ends with a line break."""
    lines = [f"# {plain(document.title)}", ""]
    facts = [[plain(text) for text in fact] for fact in document.facts]
    lines += [*markdown_table(("what", "value", "of"), facts), ""] if facts else []
    for section in document.sections:
        tables = [_first(table, MOST_MARKDOWN_ROWS) for table in section.tables if table.is_key]
        lines += [f"## {section.heading}", ""] if tables else []
        for table in tables:
            rows = [[plain(cell_text(cell)) for cell in row] for row in table.rows]
            lines += [f"### {plain(table.title)}", "", *markdown_table(table.columns, rows), ""]
            lines += [plain(table.note), ""] if table.note else []
    missing = ", ".join(section.heading for section in document.sections if section.missing)
    if missing:
        lines += [f"Not measured: {missing}. The page says what each would take.", ""]
    lines += ["## Left out", ""] if document.omissions else []
    for is_error, line in omission_lines(document.omissions, 3):
        lines.append(f"- {'**error** ' if is_error else ''}{plain(line)}")
    return "\n".join([*lines, "", f"Made by `{typed('report')}`, {document.generated}.", ""])


# ---- figures of merit

# units of the counters, as tiny_llama_bench --figures-of-merit writes them
COUNTERS = {
    "samples_per_second": "samples/s",
    "tokens_per_second": "tokens/s",
    "TFLOPS": "TFLOP/s",
    **dict.fromkeys(("MFU_percent", "peak_percent", "roof_percent"), "%"),
    "peak_memory_MiB": "MiB",
}


def _figures(inputs: ReportInputs) -> Iterator[tuple[str, float | None, str]]:
    """Name, value and unit of peaks and headline steps; of held-out cells by size; of predicted
    steps; of steps over several ranks. A value of None is not known."""
    measured = (inputs.main.context.get("peaks") or {}).get("measured") or {}
    for name in sorted(set(measured) - {MEMORY_BANDWIDTH, CURVE}):
        yield f"peak/gemm/{name}/TFLOPS", scaled(measured[name].get(FLOPS), 1e-12), "TFLOP/s"
    memory = measured.get(MEMORY_BANDWIDTH, {}).get(BYTES)
    yield f"peak/{MEMORY_BANDWIDTH}", scaled(memory, 1e-9), "GB/s"
    shares = {times.step: times.share_percent for times in inputs.steps}
    for step in headline_steps(inputs.main):
        yield f"{step.name}/time", step.median_seconds, "s"
        for counter, unit in COUNTERS.items():
            name = counter.removesuffix("_MiB")
            yield f"{step.name}/{name}", step.counters.get(counter), unit
        yield f"{step.name}/speed_of_light_percent", shares.get(step.name), "%"
    for size, found in inputs.held_out.items():
        error = statistics.median(abs(held.error_percent) for held in found)
        covered = 100 * sum(held.is_covered for held in found) / len(found)
        yield f"held_out/time/{size}/median_error_percent", error, "%"
        yield f"held_out/time/{size}/covered_percent", covered, "%"
    for step in inputs.predictions.steps:
        one = step.prediction
        for end, seconds in (("", one.seconds), ("_low", one.low), ("_high", one.high)):
            yield f"{step.name}/predicted_time{end}", seconds, "s"
        yield f"{step.name}/predicted_memory", one.cost.predicted_memory_bytes / MIB, "MiB"
    known = set()
    for run in inputs.scalings:
        by_ranks = {result.ranks: result for result in run.analysis.results}
        for point in run.analysis.points:
            result = by_ranks[point.ranks]
            # a name stands for one figure: of several runs with the same step, the first counts
            if (name := result.steps[point.mode].name) not in known:
                known.add(name)
                yield f"{name}/time", point.seconds.median, "s"
                whole, lost = point.efficiency, point.communication
                yield f"{name}/{result.scaling}_efficiency_percent", whole and whole.median, "%"
                yield f"{name}/communication_percent", lost and lost.median, "%"


def refuse_several(inputs: ReportInputs, what: str) -> None:
    """BadInputError for results of several devices."""
    if inputs.others:
        names = "; ".join(one.device for one in inputs.devices)
        raise BadInputError(
            f"{what}: of one device, and these results of {len(inputs.devices)} ({names}): name "
            "those of one"
        )


def figures_of_merit(inputs: ReportInputs, errors: int = 0) -> str:
    """The lines; the last begins with SUCCESS: or FAILED:, as that of tiny_llama_bench
    --figures-of-merit. BadInputError for several devices, which the names do not tell apart."""
    refuse_several(inputs, "figures of merit")
    lines = [
        f"FOM {name} = {value:.6g} {unit}"
        for name, value, unit in _figures(inputs)
        # without those that are not known
        if value is not None and math.isfinite(value)
    ]
    last = f"SUCCESS: {len(lines)} figures" if lines else "FAILED: no figure"
    if errors:
        last = f"FAILED: {count_of(errors, 'error')}, {len(lines)} figures"
    return "\n".join([*lines, last, ""])
