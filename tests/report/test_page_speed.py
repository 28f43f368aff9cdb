"""A report of 5,000 cases: the first plot is there within three seconds of opening the page."""

from __future__ import annotations

from page_browser import PageOpener
from sample_document import figures_of, sample_document

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
