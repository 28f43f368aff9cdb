"""A report as HTML, Markdown, pictures and figures of merit.

A figure of merit is a line for the test frameworks of computing centres; integrations/README.md
lists the names. They and their order only depend on what was measured, so that a series can be
followed.
"""

from __future__ import annotations

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
from tinyllama_tools.core.text import MIB, count_of, listed, markdown_table, template
from tinyllama_tools.data.machine import BYTES, CURVE, FLOPS, MEMORY_BANDWIDTH
from tinyllama_tools.report.document import (
    COLOURS,
    TEMPLATES,
    Document,
    Figure,
    Table,
    cell_text,
    grouped,
    number_text,
    scaled,
)
from tinyllama_tools.report.order import headline_steps

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tinyllama_tools.report.inputs import ReportInputs


# of a table: the page has to be mailed, Markdown is for a pull request
MOST_ROWS, MOST_MARKDOWN_ROWS = 500, 40


def _first(table: Table, most: int) -> Table:
    """So many of its rows; where there are more, the note says so."""
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
    """A string of a style sheet; where a table has no room for headings, each cell has its own."""
    plain_text = re.sub(r"[\\<>\"\n]", " ", heading.replace(" [", " ").removesuffix("]"))
    return Markup(f'"{plain_text}"')  # nothing is left that ends the string or the element


def _packed(text: str) -> str:
    """gzip in base64: no letter of it can end a script element. The same text gives the same."""
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
    """By label, of a figure of bars alone: what is there before plotly, which takes a browser
    seconds to start. Nothing of other figures, and of values below 0."""
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
        (label, [_Bar(*of, 100 * value / longest, number_text(value)) for *of, value in row])
        for label, row in rows.items()
    ]


def page_of(document: Document) -> str:
    """The HTML. Texts are escaped; numbers that are not finite are shown as missing."""
    figures = (figure for section in document.sections for figure in section.figures)
    drawn = {figure.id: figure.as_json() for figure in figures}
    # not finite is null; plotly would take some names of files for markup
    data = json.dumps(drawn, cls=PlotlyJSONEncoder, separators=(",", ":")).replace("<", "&lt;")
    return template(TEMPLATES / "report_page.html.j2").render(
        document=document,
        marked=marked,
        breakable=breakable,
        label_of=_label_of,
        first_rows=lambda table: _first(table, MOST_ROWS),
        cell_text=cell_text,
        bars_of=_bars_of,
        colours=COLOURS * 2,
        plotly_version=plotly.offline.get_plotlyjs_version(),
        plotly=_packed_plotly(),
        data=_packed(data),
    )


# as in pyproject.toml: only pictures and tests of pages need it, and it is large
DRIVER = "playwright==1.65.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def write_pngs(document: Document, folder: Path) -> list[Path]:
    """`<folder>/<figure's id>.png` of every figure, in the document's order: 1600 x 900 pixels,
    light. BadInputError where the driver or a browser is not installed, or the browser does not
    start."""
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
            # only now: where no browser starts, no empty folder is left
            folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", identity).lstrip(".")
            written.append(folder / f"{name}.png")
            written[-1].write_bytes(base64.b64decode(address.partition(",")[2]))
    return written


@contextmanager
def installed_browser() -> Iterator[Browser]:
    """The installed Chromium without a window; BadInputError where it or its driver is missing."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise BadInputError(
            f"no browser to draw the pictures with: none of {', '.join(BROWSERS)} is installed; "
            "install the distribution's package chromium (apt-get install chromium), or write "
            "--format html"
        )
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


def plain(text: str) -> str:
    """In one line, and no markup: names come from files."""
    return " ".join(text.split()).replace("<", "&lt;")


def markdown_of(document: Document) -> str:
    """Summary, key tables, and what is missing or left out; ends with a line break."""
    lines = [f"# {plain(document.title)}", ""]
    facts = [[plain(text) for text in fact] for fact in document.facts]
    lines += [*markdown_table(("what", "value", "of"), facts), ""] if facts else []
    for section in document.sections:
        tables = [_first(table, MOST_MARKDOWN_ROWS) for table in section.tables if table.is_key]
        lines += [f"## {section.title}", ""] if tables else []
        for table in tables:
            rows = [[plain(cell_text(cell)) for cell in row] for row in table.rows]
            lines += [f"### {plain(table.title)}", "", *markdown_table(table.columns, rows), ""]
            lines += [plain(table.note), ""] if table.note else []
    missing = ", ".join(section.title for section in document.sections if section.missing)
    if missing:
        lines += [f"Not measured: {missing}. The page says what each would take.", ""]
    lines += ["## Left out", ""] if document.omissions else []
    for first, names in grouped(document.omissions):
        mark = "**error** " if first.is_error else ""
        lines.append(f"- {mark}{plain(f'{first.kind} {listed(names, 3)}: {first.reason}')}")
    return "\n".join([*lines, "", f"Made by `scripts/report`, {document.generated}.", ""])


# as tiny_llama_bench --figures-of-merit names them
COUNTERS = {
    "samples_per_second": "samples/s",
    "tokens_per_second": "tokens/s",
    "TFLOPS": "TFLOP/s",
    **dict.fromkeys(("MFU_percent", "peak_percent", "roof_percent"), "%"),
    "peak_memory_MiB": "MiB",
}


def _figures(inputs: ReportInputs) -> Iterator[tuple[str, float | None, str]]:
    """Name, value and unit: of the first result peaks and headline steps; held-out cells by size,
    over all series; predicted steps; and steps over several ranks. None: not known."""
    measured = (inputs.main.context.get("peaks") or {}).get("measured") or {}
    for name in sorted(set(measured) - {MEMORY_BANDWIDTH, CURVE}):
        yield f"peak/gemm/{name}/TFLOPS", scaled(measured[name].get(FLOPS), 1e-12), "TFLOP/s"
    memory = measured.get(MEMORY_BANDWIDTH, {}).get(BYTES)
    yield f"peak/{MEMORY_BANDWIDTH}", scaled(memory, 1e-9), "GB/s"
    shares = {of.step: of.share_percent for of in inputs.steps}
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
        of = step.prediction
        for end, seconds in (("", of.seconds), ("_low", of.low), ("_high", of.high)):
            yield f"{step.name}/predicted_time{end}", seconds, "s"
        yield f"{step.name}/predicted_memory", of.cost.predicted_memory_bytes / MIB, "MiB"
    known = set()
    for run in inputs.scalings:
        by_ranks = {result.ranks: result for result in run.analysis.results}
        for point in run.analysis.points:
            result = by_ranks[point.ranks]
            # a step that several runs have is the first run's: a name stands for one figure
            if (name := result.steps[point.mode].name) not in known:
                known.add(name)
                yield f"{name}/time", point.seconds.median, "s"
                whole, lost = point.efficiency, point.communication
                yield f"{name}/{result.scaling}_efficiency_percent", whole and whole.median, "%"
                yield f"{name}/communication_percent", lost and lost.median, "%"


def figures_of_merit(inputs: ReportInputs, errors: int = 0) -> str:
    """The lines, and at the end SUCCESS: or FAILED:, which are looked for as those of
    tiny_llama_bench --figures-of-merit are."""
    lines = [
        f"FOM {name} = {value:.6g} {unit}"
        for name, value, unit in _figures(inputs)
        # what is no number is no figure
        if value is not None and math.isfinite(value)
    ]
    last = f"SUCCESS: {len(lines)} figures" if lines else "FAILED: no figure"
    if errors:
        last = f"FAILED: {count_of(errors, 'error')}, {len(lines)} figures"
    return "\n".join([*lines, last, ""])
