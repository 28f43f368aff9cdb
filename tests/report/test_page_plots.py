"""Plots of the report's page: drawn with all their points, in the theme's colours, to be saved."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from page_browser import DESK, PHONE, OpenPage, PageOpener
from sample_document import figures_of, sample_document

from tinyllama_tools.report.output import TEMPLATES

MOST_DRAWN = 40


def points_of(document: dict[str, Any]) -> dict[str, int]:
    """Of every figure, and of the comparison's."""
    points = {figure["id"]: figure["points"] for figure in figures_of(document)}
    one, other = (result["seconds"] for result in document["comparison"]["sets"][:2])
    both = sum(a is not None and b is not None for a, b in zip(one, other, strict=True))
    return points | {"comparison": min(MOST_DRAWN, both)}


def theme(name: str) -> dict[str, Any]:
    return json.loads((TEMPLATES / "report_theme.json").read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_has_every_point(open_page: PageOpener, width: int, scheme: str) -> None:
    document = sample_document()
    opened = open_page(document, width, scheme)
    drawn = opened.draw_all()
    assert opened.said == []
    assert {name: plot["points"] for name, plot in drawn.items()} == points_of(document)
    assert {plot["theme"] for plot in drawn.values()} == {scheme}
    # the file itself, and nothing else
    assert len(opened.asked) == 1


def test_marks_and_bars_are_really_in_the_picture(open_page: PageOpener) -> None:
    document = sample_document()
    opened = open_page(document)
    opened.draw_all()
    count = "(selector) => document.querySelectorAll(selector).length"
    figures = {figure["id"]: figure for figure in figures_of(document)}
    marks = sum(
        len(trace["y"])
        for trace in figures["scaling-attention"]["traces"]
        if trace["mode"] == "markers"
    )
    assert opened.page.evaluate(count, "#figure-scaling-attention .point") == marks
    bars = figures["memory-parts"]["points"]
    assert opened.page.evaluate(count, "#figure-memory-parts .bars .point") == bars


def test_plots_far_from_the_window_wait(open_page: PageOpener) -> None:
    opened = open_page(sample_document())
    opened.page.wait_for_function("reportPlots.roofline.drawn")
    assert not opened.page.evaluate("reportPlots.predictions.drawn")


def ground_of(opened: OpenPage, figure: str) -> str:
    return opened.page.evaluate(
        "(id) => document.querySelector(`#figure-${id} .plot`)._fullLayout.paper_bgcolor", figure
    )


def test_the_theme_switch_redraws_and_is_remembered(open_page: PageOpener) -> None:
    opened = open_page(sample_document(), scheme="dark")
    opened.page.wait_for_function("reportPlots.roofline.drawn")
    assert ground_of(opened, "roofline") == theme("dark")["panel"]
    opened.page.click("#theme")
    opened.page.wait_for_function("reportPlots.roofline.theme === 'light'")
    assert ground_of(opened, "roofline") == theme("light")["panel"]
    opened.page.reload()
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert opened.said == []


def test_roles_have_colours_and_series_have_marks(open_page: PageOpener) -> None:
    opened = open_page(sample_document())
    opened.draw_all()
    traces = opened.page.evaluate(
        """() => [...document.querySelectorAll(".plot")].flatMap((place) =>
          place._fullData.map((trace) => ({plot: place.dataset.plot, name: trace.name,
            colour: trace.marker?.color, symbol: trace.marker?.symbol, dash: trace.line?.dash,
            line: trace.line?.color, pattern: trace.marker?.pattern?.shape})))"""
    )
    own = {(one["plot"], one["name"]): one for one in traces}
    roles, sequence = theme("light")["roles"], theme("light")["sequence"]
    assert own["roofline", "measured"]["colour"] == roles["measured"]
    roofs = [own["roofline", f"roof, {level}"] for level in ("memory", "cache")]
    assert [one["line"] for one in roofs] == [roles["roof"]] * 2
    assert roofs[0]["dash"] != roofs[1]["dash"]
    # one series: one colour; measured filled, held out open
    for index, seq in enumerate((64, 128, 256)):
        series = [own["scaling-ffn", f"S = {seq}{end}"] for end in ("", ", fit", ", held out")]
        assert [one["colour"] for one in (series[0], series[2])] == [sequence[index]] * 2
        assert series[1]["line"] == sequence[index]
        assert [one["symbol"].endswith("-open-dot") for one in (series[0], series[2])] == [
            False,
            True,
        ]
    assert len({own["scaling-ffn", f"S = {seq}"]["symbol"] for seq in (64, 128, 256)}) == 3
    assert len({own["scaling-ffn", f"S = {seq}, fit"]["dash"] for seq in (64, 128, 256)}) == 3
    parts = [one for one in traces if one["plot"] == "memory-parts"]
    assert len({one["pattern"] for one in parts}) == len({one["colour"] for one in parts}) == 4


def saved(opened: OpenPage, figure: str, action: str) -> Path:
    opened.page.wait_for_function("(id) => reportPlots[id].drawn", arg=figure)
    with opened.page.expect_download() as download:
        opened.page.click(f"#figure-{figure} button[data-action={action}]")
    assert download.value.suggested_filename == f"{figure}.{action}"
    return Path(download.value.path())


def test_the_points_are_saved(open_page: PageOpener) -> None:
    document = sample_document()
    opened = open_page(document)
    figure = figures_of(document)[0]
    assert json.loads(saved(opened, "roofline", "json").read_text(encoding="utf-8")) == figure
    text = saved(opened, "roofline", "csv").read_bytes().decode("utf-8")
    heading, *rows = csv.reader(io.StringIO(text))
    assert heading[:4] == [
        "series",
        "role",
        "arithmetic intensity (FLOP/byte)",
        "attained (GFLOP/s)",
    ]
    assert len(rows) == figure["points"]
    measured = figure["traces"][2]
    found = [row[2:] for row in rows if row[0] == "measured"]
    assert [row[2] for row in found] == measured["text"]
    assert [[float(row[0]), float(row[1])] for row in found] == [
        list(point) for point in zip(measured["x"], measured["y"], strict=True)
    ]


def test_a_picture_for_a_slide_is_saved(open_page: PageOpener) -> None:
    opened = open_page(sample_document(), scheme="dark")
    content = saved(opened, "roofline", "png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert [int.from_bytes(content[i : i + 4], "big") for i in (16, 20)] == [1600, 900]


def test_names_from_files_are_text_in_plots(open_page: PageOpener) -> None:
    document = sample_document()
    measured = figures_of(document)[0]["traces"][2]
    measured["mode"] = "markers+text"
    measured["text"][0] = "<a href='javascript:alert(1)'>x</a><script>alert(2)</script>"
    opened = open_page(document)
    opened.page.wait_for_function("reportPlots.roofline.drawn")
    texts = "[...document.querySelectorAll('#figure-roofline .textpoint text')]"
    first = opened.page.evaluate(f"{texts}.map((text) => text.textContent)[0]")
    assert first == measured["text"][0]
    assert opened.page.evaluate("document.querySelectorAll('#figure-roofline a').length") == 0
    assert opened.said == []
