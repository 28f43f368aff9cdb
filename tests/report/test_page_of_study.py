"""The page of a study's real document: everything drawn, nothing upon something else."""

from __future__ import annotations

import pytest
from page_browser import DESK, PHONE, PageOpener
from sample_document import figures_of
from test_page_layout import MEETING_BOXES, MEETING_TEXTS, wider_than_paper

from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import COMPONENTS


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
            .filter((trace) => trace.mode === "markers" && trace.name !== "matrix products")
            .map(({name, marker}) => [name, `${marker.color} ${marker.symbol[0] >= 100}`])))"""
    )
    roofline, launches = drawn
    assert len(set(roofline.values())) == len(roofline) == len(COMPONENTS)
    assert launches and launches.items() <= roofline.items()
