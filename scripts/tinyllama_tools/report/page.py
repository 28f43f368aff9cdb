"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from tinyllama_tools.core.app import Json
from tinyllama_tools.report.page_tables import comparison_table, table_view

TEMPLATES = Path(__file__).with_name("templates")
# in this order they make one script
SCRIPTS = (
    "report_unpack.js",
    "report_text.js",
    "report_theme.js",
    "report_labels.js",
    "report_ticks.js",
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
