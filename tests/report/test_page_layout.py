"""Room on the report's page: nothing wider than the window, nothing upon something else, paper."""

from __future__ import annotations

import io
import unicodedata
from typing import Any

import pytest
from page_browser import DESK, PHONE, OpenPage, PageOpener
from pypdf import PdfReader
from sample_document import figures_of, sample_document, tables_of

from tinyllama_tools.report.output import table_view

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
