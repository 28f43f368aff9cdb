"""The report's page as text: complete without a script, small, and safe from what files say."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from typing import Any

import pytest
from sample_document import HOSTILE, sample_document, tables_of

from tinyllama_tools.report.inputs import COMPONENTS
from tinyllama_tools.report.output import TEMPLATES, figure_height, marked, numbers_bold, page_of

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
