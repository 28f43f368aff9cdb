"""The report's page: what is in the file, and what it does in a browser; pictures; and the page
that is published beside the reference study."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from chromium import PageOpener
from published import MACHINES, MOST_BYTES, MOST_PICTURE_BYTES, Published, data_files
from tinyllama_tools.core.app import BadInputError, read_json
from tinyllama_tools.report import output
from tinyllama_tools.report.command import SECTIONS
from tinyllama_tools.report.document import Document, Fact, Figure, Section, Table
from tinyllama_tools.report.output import markdown_of, page_of, write_pngs

HOSTILE = "</script><script>alert(1)</script>"
CASES = "#table-all_cases"
PACKED = re.compile(r'<script type="application/gzip" id="(packed-\w+)">([^<]*)</script>')
# of each plot the points that plotly has given a place
POINTS = """() => Object.fromEntries([...document.querySelectorAll("[data-figure]")]
  .map((card) => [card.dataset.figure, card.querySelector(".plot").calcdata
    .reduce((sum, points) => sum + points.filter((p) => p.x !== undefined).length, 0)]))"""


def hostile_document() -> Document:
    """Every text that may come from a file has markup."""
    axes = ({"title": {"text": HOSTILE}}, {"title": {"text": "y"}})
    traces = [{"name": HOSTILE, "x": [HOSTILE, "not finite"], "y": [1, float("nan")]}]
    figure = Figure("f", HOSTILE, traces, *axes, HOSTILE)
    table = Table("t", HOSTILE, [{f"{HOSTILE} [ms]": float("nan"), "b": HOSTILE}], HOSTILE)
    whole = Section("a", HOSTILE, [HOSTILE], figures=[figure], tables=[table])
    missing = Section("b", "B", missing=f"no {HOSTILE}; `scripts/a` makes one")
    facts = [Fact(HOSTILE, HOSTILE, HOSTILE)]
    return Document(HOSTILE, "2026-11-22", facts, [whole, missing], [])


def data_of(text: str) -> str:
    """What the plots of a page are drawn from."""
    return gzip.decompress(base64.b64decode(dict(PACKED.findall(text))["packed-data"])).decode()


@pytest.fixture(scope="module")
def page(built: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(built), encoding="utf-8")
    return path


def test_the_file_is_whole_and_needs_nothing_else(page: Path, built: Document) -> None:
    text = page.read_text(encoding="utf-8")
    assert page_of(built) == text
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=(?![\"']?data:,)", text)
    assert "@import" not in text and "url(" not in text
    for section in built.sections:
        assert text.count(f'<section id="{section.id}"') == 1
        assert text.count(f'<a href="#{section.id}">{section.title}</a>') == 1
        for table in section.tables:
            body = text.split(f'id="table-{table.id}"')[1].partition("</tbody>")[0]
            assert body.count("<tr>") == 1 + len(table.rows)


def test_a_table_has_its_first_500_rows() -> None:
    table = Table("t", "T", [{"a": row} for row in range(501)], "Rows.", is_key=True)
    whole = Document("D", "2026-11-22", [], [Section("a", "A", tables=[table])], [])
    page, text = page_of(whole), markdown_of(whole)
    assert "The first 500 of 501 rows. Rows." in page and page.count("<tr><td") == 500
    assert "The first 40 of 501 rows. Rows." in text
    assert len(re.findall(r"^\| +\d", text, re.MULTILINE)) == 40


def test_texts_of_files_are_no_markup(tmp_path: Path, open_page: PageOpener) -> None:
    path, text = tmp_path / "page.html", page_of(hostile_document())
    assert HOSTILE not in text
    # three elements of ours: the data, plotly, the page's script
    assert len(re.findall(r"<script\b", text)) == len(re.findall(r"</script>", text)) == 3
    assert "makes one</p>" in text and "<code>scripts/a</code>" in text
    path.write_text(text, encoding="utf-8")
    opened = open_page(path)
    assert opened.texts("#table-t td") == ["\u2013", HOSTILE]
    assert (opened.page.evaluate(POINTS), opened.said) == ({"f": 1}, [])


@pytest.mark.parametrize(
    ("place", "width"), [(None, 390), *((of.values[0], 1300) for of in MACHINES)]
)
def test_every_plot_has_every_point(
    open_page: PageOpener, page: Path, place: Published | None, width: int
) -> None:
    path = page if place is None else place.page
    figures = json.loads(data_of(path.read_text(encoding="utf-8")))
    points = {name: sum(len(t["y"]) for t in of["traces"]) for name, of in figures.items()}
    assert len(points) > 20 and min(points.values()) > 0
    opened = open_page(path, width)
    assert opened.page.evaluate(POINTS) == points
    assert (opened.said, opened.asked) == ([], [path.as_uri()])
    sections = "[...document.querySelectorAll('main section')].map((one) => one.id)"
    assert opened.page.evaluate(sections) == [*(name for name, *_ in SECTIONS), "left_out"]
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


# of a person's or a machine's own; a study writes none of them, so nothing else looks like one
OWN_PATH = re.compile(r"/(?:home|Users|root|work|tmp|mnt|media|scratch|var|opt|usr)/")
# a host is named by a digest, a program by its name
PRIVATE = re.compile(r'"host_name": "(?!host_[0-9a-f]{8}")|"executable": "[^"]*/|"pid"')


@pytest.mark.parametrize("place", MACHINES)
def test_the_published_page_is_of_its_study_names_no_owner_and_is_small(place: Published) -> None:
    text = place.page.read_text(encoding="utf-8")
    context = read_json(place.study / "round_1.json")[0]["context"]
    for named in (context["device"]["name"], context["git_commit"][:8], context["date"][:10]):
        assert named in text
    assert f">results/reference/{place.study.name}<" in text
    texts = {path.name: path.read_text(encoding="utf-8") for path in data_files(place)}
    for name, of in (texts | {"page": PACKED.sub("", text), "its data": data_of(text)}).items():
        assert not OWN_PATH.findall(of), name
        assert not PRIVATE.findall(of), name
    files = [*data_files(place), place.page, place.picture]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert picture_size(place.picture) == (1600, 900)
    assert place.picture.stat().st_size <= MOST_PICTURE_BYTES
    root = place.folder.parents[1]
    readme = (root / "README.md").read_text(encoding="utf-8")
    for path in (place.page, place.picture):
        assert f"({path.relative_to(root)})" in readme


def picture_size(path: Path) -> tuple[int, ...]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return tuple(int.from_bytes(content[i : i + 4], "big") for i in (16, 20))


def test_headings_sort_words_filter_and_buttons_save(
    open_page: PageOpener, page: Path, built: Document
) -> None:
    opened, rows = open_page(page), built.sections[0].tables[0].rows
    names, mfu = [row[0] for row in rows], {row[0]: row[5] for row in rows}
    cells, missing = f"{CASES} td:first-child", sum(row[5] is None for row in rows)
    assert opened.texts(cells) == names and missing > 0
    for order in ("ascending", "descending"):
        opened.page.locator(f"{CASES} th button").nth(5).click()
        assert opened.page.locator(f"{CASES} th").nth(5).get_attribute("aria-sort") == order
        shown = [mfu[name] for name in opened.texts(cells)]
        known = shown[: len(shown) - missing]
        # cells without a value come last, whatever the direction
        assert None not in known
        assert known == sorted(known, reverse=order == "descending")
    opened.page.fill(f"{CASES} input", "FULL_step seq:128")
    wanted = {row[0]: row[1] for row in rows if "full_step" in row[0] and "seq:128" in row[0]}
    with opened.page.expect_download() as download:
        opened.page.click(f"{CASES} button[data-action=csv]")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    heading, *saved = csv.reader(io.StringIO(text))
    assert heading[:2] == ["case", "time ms"]
    assert {row[0]: float(row[1]) for row in saved} == pytest.approx(wanted, rel=1e-5) and wanted
    opened.page.hover("[data-figure=roofline_plot] .plot")
    with opened.page.expect_download() as download:
        opened.page.click("[data-figure=roofline_plot] .modebar-btn")
    assert picture_size(Path(download.value.path())) == (1600, 900)
    assert opened.said == []


def write_beside(document: Document, folder: Path) -> list[Path]:
    """In a thread of its own: the driver of the other tests' browser holds this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(write_pngs, document, folder).result()


@pytest.mark.usefixtures("browser")
def test_every_figure_is_a_picture_of_1600_by_900(tmp_path: Path, built: Document) -> None:
    few = replace(built, sections=built.sections[3:4])
    written = write_beside(few, tmp_path / "pictures")
    names = [figure.id for part in few.sections for figure in part.figures]
    assert [path.name for path in written] == [f"{name}.png" for name in names]
    assert {picture_size(path) for path in written} == {(1600, 900)}


def test_what_pictures_lack_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, project_root: Path
) -> None:
    driver = (project_root / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{output.DRIVER}",' in driver
    monkeypatch.setattr(output, "BROWSERS", ("false",))
    with pytest.raises(BadInputError, match="false does not start"):
        write_beside(hostile_document(), tmp_path)
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(BadInputError, match="package playwright is not installed"):
        write_pngs(hostile_document(), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match="package chromium"):
        write_pngs(hostile_document(), tmp_path)
    assert write_pngs(replace(hostile_document(), sections=[]), tmp_path / "none") == []
