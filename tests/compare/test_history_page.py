"""The trend page: one file, opened in a browser: charts drawn, change points marked and linked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from history_samples import CASE, OTHER_CASE, entry

from chromium import Chromium, Page, chromium
from tinyllama_tools.history.change_points import find_change_points
from tinyllama_tools.history.command import ADVISORY, page_of
from tinyllama_tools.history.store import HistoryStore, Machine

__all__ = ["chromium"]

CHANGED_AT = 9
# Results are numbered from 1 in the order of adding.
BLOCK = ",".join(str(n) for n in range(CHANGED_AT + 1, 17))
HOSTILE = Machine("</script><b id='hostile'>CPU", "x86-64", 2)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 files of one machine, with one change in one of two cases, and 2 files of another."""
    folder = tmp_path_factory.mktemp("history")
    with HistoryStore(folder / "history.sqlite", create=True) as store:
        for index in range(16):
            wobble = 1 + 1e-3 * (index % 4)
            changed = 0.012 if index >= CHANGED_AT else 0.010
            store.add(entry(index, {CASE: changed * wobble, OTHER_CASE: 0.005 * wobble}))
        for index in range(2):
            store.add(entry(index, {CASE: 0.1}, machine=HOSTILE))
        series = store.series()
    path = folder / "page.html"
    path.write_text(page_of(series, find_change_points(series)), encoding="utf-8")
    return path


def test_one_file_of_less_than_six_megabytes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 6_000_000
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"']?(https?:)?//", text)
    assert text.count("plotly.js v") == 1


def test_it_says_that_it_is_advisory(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert ADVISORY in text
    assert "Change points (advisory)" in text


def test_a_change_point_names_its_commit_and_links_to_its_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count(f'href="#result-{CHANGED_AT + 1}" data-block="{BLOCK}"') == 2
    assert f"<b>{CHANGED_AT:04d}ababab</b>, between {CHANGED_AT - 1:04d}ababab and" in text
    for number in range(1, 19):
        assert f'<tr id="result-{number}">' in text


@pytest.fixture(scope="module")
def opened(page: Path, chromium: Chromium) -> Page:
    return chromium.open(page.as_uri(), milliseconds=5000)


def test_charts_are_drawn_without_an_error(opened: Page) -> None:
    assert opened.console == []
    # those in view: the other machine's, which comes first, and the next one
    assert opened.document.count('data-drawn="yes"') == 2
    # the markers of every file, and the change of the one case that changed
    assert opened.document.count('class="point"') == 2 + 16
    assert re.findall(r'class="annotation-text"[^>]*>([^<]*)<', opened.document) == ["+20.1 %"]
    assert "too few files for change points" in opened.document


def test_names_of_devices_are_text(opened: Page) -> None:
    assert 'id="hostile"' not in opened.document
    assert opened.document.count("&lt;b id='hostile'&gt;CPU, x86-64, 2 threads") == 1


# Clicks and types, and tells what came of it to the page that it is a frame of.
INNER = """<script>
document.querySelector("#changes a[data-block]").click();
const search = document.getElementById("search");
search.value = "LOSS";
search.dispatchEvent(new Event("input"));
addEventListener("load", () => setTimeout(() => {
  const texts = (selector, text) => [...document.querySelectorAll(selector)].map(text);
  parent.postMessage(JSON.stringify({
    marked: texts("tr.marked", (row) => row.id.replace("result-", "")).join(),
    open: document.querySelector("tr.marked").closest("details").open,
    hidden: texts(".case[hidden]", (one) => one.dataset.name),
    shown: texts(".case:not([hidden])", (one) => one.dataset.name),
    width: document.documentElement.scrollWidth, window: innerWidth,
  }), "*");
}, 2000));
</script></body>"""
OUTER = """<!doctype html><link rel="icon" href="data:,"><pre id="said"></pre>
<iframe src="inner.html" style="width:360px;height:700px;border:0"></iframe><script>
addEventListener("message", (event) => {
  document.getElementById("said").textContent = event.data;
});
</script>"""


def test_links_search_and_width_on_a_phone(page: Path, chromium: Chromium) -> None:
    inner = page.read_text(encoding="utf-8").replace("</body>", INNER)
    page.with_name("inner.html").write_text(inner, encoding="utf-8")
    page.with_name("outer.html").write_text(OUTER, encoding="utf-8")
    opened = chromium.open(page.with_name("outer.html").as_uri(), milliseconds=8000)
    assert opened.console == []
    said = re.search(r'<pre id="said">(.+?)</pre>', opened.document)
    assert said, opened
    found = json.loads(said[1])
    # the rows of the results after the change, and the folded list of files opened for them
    assert (found["marked"], found["open"]) == (BLOCK, True)
    assert found["hidden"] == [CASE, CASE]
    assert found["shown"] == [OTHER_CASE]
    # nothing is wider than the window of a phone
    assert found["width"] <= found["window"] == 360
