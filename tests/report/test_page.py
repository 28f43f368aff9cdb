"""The report's page in a browser: layout, texts, tables and plots."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import math
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from page_browser import DESK, PHONE, OpenPage, PageOpener
from pypdf import PdfReader
from sample_document import HOSTILE, figures_of, sample_document, tables_of

from tinyllama_tools.report.analysis import COMPONENTS
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.output import (
    TEMPLATES,
    figure_height,
    marked,
    numbers_bold,
    page_of,
    table_view,
)

A4_WITHIN_MARGINS = 680  # 180 mm, in pixels of 1/96 inch
# Of every two boxes of the page that are not inside each other, those that meet.
MEETING_BOXES = """() => {
  const wanted = "h1, h2, .lead p, .sets li, .notice, .prose, .figure, .table-card, "
    + ".choice label, footer";
  const nodes = [...document.querySelectorAll(wanted)].filter((node) => node.offsetParent !== null);
  const boxes = nodes.map((node) => node.getBoundingClientRect());
  const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.5;
  const found = [];
  nodes.forEach((one, i) => nodes.slice(i + 1).forEach((other, j) => {
    if (one.contains(other) || other.contains(one)) return;
    if (!meets(boxes[i], boxes[i + 1 + j])) return;
    found.push([one, other].map((node) => node.id || node.textContent.slice(0, 40)));
  }));
  return found;
}"""
# Of every two texts of a plot, those that meet, and those that stick out of it. A text may be
# turned: its corners are compared along the sides of both (separating axes).
MEETING_TEXTS = """() => {
  const cornersOf = (text) => {
    const box = text.getBBox(), toScreen = text.getScreenCTM();
    const [left, right, top, bottom] = [box.x, box.x + box.width, box.y, box.y + box.height];
    const corners = [[left, top], [right, top], [right, bottom], [left, bottom]];
    return corners.map(([x, y]) => new DOMPoint(x, y).matrixTransform(toScreen));
  };
  const axesOf = (corners) => [[0, 1], [1, 2]].map(([i, j]) => {
    const [x, y] = [corners[j].x - corners[i].x, corners[j].y - corners[i].y];
    return [x / Math.hypot(x, y), y / Math.hypot(x, y)];
  });
  const extent = (corners, [x, y]) => {
    const along = corners.map((corner) => corner.x * x + corner.y * y);
    return [Math.min(...along), Math.max(...along)];
  };
  const meets = (a, b) => [...axesOf(a), ...axesOf(b)].every((axis) => {
    const [one, other] = [extent(a, axis), extent(b, axis)];
    return Math.min(one[1], other[1]) - Math.max(one[0], other[0]) > 2;
  });
  return [...document.querySelectorAll(".plot")].flatMap((place) => {
    const frame = place.getBoundingClientRect();
    const texts = [...place.querySelectorAll("text")].filter((text) =>
      text.textContent.trim() && text.style.display !== "none" && !text.closest(".hoverlayer")
      && text.getBoundingClientRect().width > 0);
    const corners = texts.map(cornersOf);
    const found = [];
    texts.forEach((one, i) => {
      const [left, right] = extent(corners[i], [1, 0]), [top, bottom] = extent(corners[i], [0, 1]);
      const isOut = left < frame.left - 1 || right > frame.right + 1
        || top < frame.top - 1 || bottom > frame.bottom + 1;
      if (isOut) found.push([place.dataset.plot, "sticks out", one.textContent]);
      texts.slice(i + 1).forEach((other, j) => {
        if (!meets(corners[i], corners[i + 1 + j])) return;
        found.push([place.dataset.plot, one.textContent, other.textContent]);
      });
    });
    return found;
  });
}"""


@pytest.mark.parametrize("width", [PHONE, 768, DESK])
def test_nothing_is_too_wide_or_upon_something_else(open_page: PageOpener, width: int) -> None:
    opened = open_page(sample_document(), width)
    opened.draw_all()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    assert opened.page.evaluate(MEETING_BOXES) == []
    assert opened.page.evaluate(MEETING_TEXTS) == []


def test_plots_fit_again_after_the_window_was_turned(open_page: PageOpener) -> None:
    opened = open_page(sample_document(), 800)
    opened.draw_all()
    opened.page.set_viewport_size({"width": PHONE, "height": 640})
    opened.page.wait_for_function(
        """() => {
          const place = document.querySelector("[data-plot=roofline]");
          return place._fullLayout.width === Math.floor(place.clientWidth);
        }"""
    )
    assert opened.page.evaluate("document.documentElement.scrollWidth") == PHONE


def test_the_contents_say_where_the_reader_is(open_page: PageOpener) -> None:
    opened = open_page(sample_document())
    current = "document.querySelector('#contents a[aria-current]').hash"
    assert opened.page.evaluate(current) == "#summary"
    opened.page.click("#contents a[href='#memory']")
    opened.page.wait_for_function(f"{current} === '#memory'")
    # the contents stay in sight, and the heading is below nothing
    box = opened.page.locator("#contents").bounding_box()
    assert box
    assert box["y"] == 0
    opened.page.wait_for_function(
        """() => {
          const heading = document.querySelector("#memory h2").getBoundingClientRect();
          return heading.top >= 0 && heading.bottom < innerHeight;
        }"""
    )


def words(text: str) -> str:
    """Without spaces and ligatures, which paper sets as it likes."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def wider_than_paper(opened: OpenPage) -> list[str]:
    """Ids of the tables and figures that would be cut at the right of a printed A4 page."""
    opened.page.emulate_media(media="print")
    opened.page.set_viewport_size({"width": A4_WITHIN_MARGINS, "height": 1000})
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    return opened.page.evaluate(
        """() => [...document.querySelectorAll(".table-card table, .plot .main-svg")]
          .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
          .map((one) => one.closest("[id]").id)"""
    )


def test_nothing_is_cut_on_paper(open_page: PageOpener) -> None:
    opened = open_page(sample_document())
    assert wider_than_paper(opened) == []


def test_paper_has_every_plot_and_every_column(open_page: PageOpener) -> None:
    document = sample_document()
    opened = open_page(document, scheme="dark")
    reader = PdfReader(io.BytesIO(opened.page.pdf(format="A4", print_background=True)))
    text = words("".join(page.extract_text() for page in reader.pages))
    for section in document["sections"]:
        assert words(section["title"]) in text
    for figure in figures_of(document):
        assert words(figure["title"]) in text
        axis: dict[str, Any] = figure["layout"]["xaxis"]["title"]
        assert words(axis["text"]) in text, figure["id"]
    heads = sum("boundby" in words(page.extract_text()) for page in reader.pages)
    assert heads > 1, "the head of a table is not on each of its pages"
    for table in tables_of(document):
        for column in table["columns"]:
            assert words(column["title"]) in text
        assert words("".join(table_view(table).rows[0][-1].parts)) in text
    assert opened.said == []


def test_plots_are_printed_light_and_whole_and_come_back(open_page: PageOpener) -> None:
    opened = open_page(sample_document(), scheme="dark")
    opened.page.wait_for_function("reportPlots.roofline.drawn")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    plots = opened.page.evaluate("reportPlots")
    assert {(plot["drawn"], plot.get("theme")) for plot in plots.values()} == {(True, "light")}
    widths = "[...document.querySelectorAll('.plot')].map((place) => place._fullLayout.width)"
    assert set(opened.page.evaluate(widths)) == {660, 318}
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.page.wait_for_function("reportPlots.roofline.theme === 'dark'")


MOST_BYTES = 6_000_000


def packed(page: str, name: str) -> str:
    found = re.search(rf'id="packed-{name}">([^<]*)</script>', page)
    assert found
    return gzip.decompress(base64.b64decode(found[1])).decode()


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(sample_document())


def test_it_needs_nothing_else(page: str) -> None:
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=(?![\"']?data:,)", page)
    assert "@import" not in page
    assert "url(" not in page
    assert packed(page, "plotly").count("plotly.js v") == 1


def test_five_thousand_cases_fit_into_six_megabytes() -> None:
    assert len(page_of(sample_document(5000)).encode()) < MOST_BYTES


def test_the_same_document_makes_the_same_page(page: str) -> None:
    assert page_of(sample_document()) == page


def test_a_name_from_a_file_is_text(page: str) -> None:
    assert HOSTILE not in page
    assert "&lt;/" in page
    # four elements of ours: before painting, the data, plotly, the page's script
    assert len(re.findall(r"<script\b", page)) == len(re.findall(r"</script>", page)) == 4


def test_no_element_has_a_script_of_its_own(page: str) -> None:
    assert not re.search(r"<[^>]+\son\w+=", page[: page.index("packed-data")])


def test_every_section_is_there_and_in_the_contents(page: str) -> None:
    for section in sample_document()["sections"]:
        assert page.count(f'<section id="{section["id"]}"') == 1
        assert page.count(f'<a href="#{section["id"]}">{section["title"]}</a>') == 1


def test_a_missing_section_is_one_line_that_says_why(page: str) -> None:
    body = re.search(r'<section id="ablation".*?</section>', page, re.DOTALL)
    assert body
    assert "Not in this report: no ablation; scripts/ablation makes one" in body[0]
    assert "<figure" not in body[0]
    assert "<table" not in body[0]


def test_a_figure_without_points_is_named_and_not_drawn() -> None:
    document = sample_document()
    figure = next(one for one in document["sections"] if one["id"] == "memory")["figures"][0]
    figure["points"] = 0
    page = page_of(document)
    assert "Memory of a step by part: not drawn, it has no points." in page
    assert 'data-plot="memory-parts"' not in page


def test_the_summary_is_the_lead_with_its_quantities_in_bold(page: str) -> None:
    lead = re.search(r'<div class="lead">(.*?)</div>', page, re.DOTALL)
    assert lead
    assert lead[1].count("<p>") == 5
    assert "takes <b>92.84 ms</b> in float32" in lead[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-12.5 % of 374.8 GFLOP/s", "<b>-12.5 %</b> of <b>374.8 GFLOP/s</b>"),
        ("1,024 MiB", "<b>1,024 MiB</b>"),
        ("torch 2.13.0 of dc5a43c8s, 8 x 128", "torch 2.13.0 of dc5a43c8s, 8 x 128"),
        ("<b> 3 s", "&lt;b&gt; <b>3 s</b>"),
    ],
)
def test_bold_is_what_has_a_unit(text: str, expected: str) -> None:
    assert str(numbers_bold(text)) == expected


def test_between_backticks_is_code() -> None:
    assert str(marked("run `a<b` now")) == "run <code>a&lt;b</code> now"
    assert str(marked("one ` alone <")) == "one ` alone &lt;"
    assert str(marked("`all`")) == "<code>all</code>"


def test_more_than_six_figures_are_folded(page: str) -> None:
    scaling = re.search(r'<section id="scaling".*?</section>', page, re.DOTALL)
    assert scaling
    open_ones, folded = scaling[0].split("<details>")
    assert (open_ones.count("<figure"), folded.count("<figure")) == (6, 2)
    assert "<summary>2 more plots</summary>" in folded


def test_the_first_fifty_rows_are_in_the_page_and_all_in_its_data(page: str) -> None:
    cases = next(one for one in tables_of(sample_document()) if one["id"] == "cases")
    body = re.search(r'id="table-cases".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body
    assert body[1].count("<tr>") == 50 < len(cases["rows"])
    assert "first 50 of 64 rows" in page
    assert "Show all 64 rows" in page
    data = json.loads(packed(page, "data"))
    assert data["tables"]["cases"]["rows"] == cases["rows"]


def test_what_is_no_number_is_missing() -> None:
    document = sample_document()
    cases = next(one for one in tables_of(document) if one["id"] == "cases")
    cases["rows"][0][1] = math.nan
    cases["rows"][1][1] = math.inf
    data = json.loads(packed(page_of(document), "data"))
    assert [row[1] for row in data["tables"]["cases"]["rows"][:2]] == [None, None]


def test_two_figures_of_one_id_are_refused() -> None:
    document = sample_document()
    figures = next(one for one in document["sections"] if one["id"] == "memory")["figures"]
    figures.append(figures[0])
    with pytest.raises(ValueError, match="figures have the id 'memory-parts'"):
        page_of(document)


def test_one_result_makes_no_comparison() -> None:
    document = sample_document()
    document["comparison"]["sets"] = document["comparison"]["sets"][:1]
    page = page_of(document)
    assert 'id="compare"' not in page
    assert 'id="compare"' in page_of(sample_document())


def test_a_figure_of_bars_has_room_for_each() -> None:
    def height(count: int) -> int:
        trace = {
            "type": "bar",
            "orientation": "h",
            "x": [1] * count,
            "y": [*map(str, range(count))],
        }
        return figure_height({"traces": [trace], "layout": {}})

    assert 240 == height(1) < height(12) < height(30) < height(1000) == 1000
    assert figure_height({"traces": [], "layout": {"height": 333}}) == 333


def test_a_note_that_the_section_has_said_is_not_said_again() -> None:
    document = sample_document()
    section = next(one for one in document["sections"] if one.get("figures"))
    figure = section["figures"][0]
    figure["note"] = "Said once, here."
    assert page_of(document).count("Said once, here.") == 1
    section["text"] = [*(section.get("text") or ()), figure["note"]]
    assert page_of(document).count("Said once, here.") == 1


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_can_be_told_from_their_ground(name: str) -> None:
    styles = json.loads((TEMPLATES / "report_theme.json").read_text(encoding="utf-8"))
    theme: dict[str, Any] = styles[name]
    for ground in (theme["ground"], theme["panel"]):
        for text in ("text", "quiet", "accent"):
            assert contrast(theme[text], ground) >= 4.5, (text, ground)
        for colour in [*theme["roles"].values(), *theme["sequence"]]:
            assert contrast(colour, ground) >= 3, (colour, ground)
    assert contrast(theme["quiet"], theme["soft"]) >= 4.5
    # enough for every component of a step, and lists of different lengths: those that share a
    # colour differ in mark, line and pattern, and the other way round
    assert len(set(theme["sequence"])) >= len(COMPONENTS)
    for marks in (styles["symbols"], styles["dashes"], styles["patterns"]):
        assert len(set(marks)) == len(marks)
        looks = {(n % len(theme["sequence"]), n % len(marks)) for n in range(24)}
        assert len(looks) == 24


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


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_a_study_is_drawn_whole(
    open_page: PageOpener, built: Document, width: int, scheme: str
) -> None:
    document = built.as_json()
    opened = open_page(document, width, scheme)
    drawn = opened.draw_all()
    points = {figure["id"]: figure["points"] for figure in figures_of(document)}
    assert len(points) > 20
    assert {name: drawn[name]["points"] for name in points} == points
    assert opened.said == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    assert opened.page.evaluate(MEETING_BOXES) == []
    assert opened.page.evaluate(MEETING_TEXTS) == []


def test_nothing_of_a_study_is_cut_on_paper(open_page: PageOpener, built: Document) -> None:
    assert wider_than_paper(open_page(built.as_json())) == []


def test_a_component_has_one_look_in_every_figure(open_page: PageOpener, built: Document) -> None:
    opened = open_page(built.as_json())
    opened.draw_all()
    drawn = opened.page.evaluate(
        """() => ["roofline_plot", "launch_bound"].map((id) => Object.fromEntries(
          document.querySelector(`.plot[data-plot="${id}"]`)._fullData
            .filter((trace) => trace.mode === "markers" && trace.name !== "GEMMs")
            .map(({name, marker}) => [name, `${marker.color} ${marker.symbol[0] >= 100}`])))"""
    )
    roofline, launches = drawn
    assert len(set(roofline.values())) == len(roofline) == len(COMPONENTS)
    assert launches and launches.items() <= roofline.items()


CASES = 5000
LIMIT_S = 3.0


def test_five_thousand_cases_are_usable_within_three_seconds(open_page: PageOpener) -> None:
    """Seconds of the page's own thread, so that other programs on the machine do not count."""
    document = sample_document(CASES)
    opened = open_page(document, is_timed=True)
    opened.page.wait_for_function("performance.getEntriesByName('plot-drawn').length > 0")
    assert opened.thread_seconds() < LIMIT_S
    points = next(one["points"] for one in figures_of(document) if one["id"] == "roofline")
    assert points > CASES
    assert opened.page.evaluate("reportPlots.roofline.points") == points


def test_all_rows_of_five_thousand_are_shown_when_asked_for(open_page: PageOpener) -> None:
    opened = open_page(sample_document(CASES))
    opened.page.click("#table-cases .more")
    rows = "document.querySelectorAll('#table-cases tbody tr').length"
    assert opened.page.evaluate(rows) == CASES
    assert opened.said == []
