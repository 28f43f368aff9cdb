"""The page that is committed beside a reference study, and what its files say of the machine."""

from __future__ import annotations

import base64
import gzip
import json
import re

import pytest
from page_browser import PageOpener

from reference_study import MACHINES, MOST_BYTES, MOST_PICTURE_BYTES, Published, data_files
from tinyllama_tools.core.app import read_json
from tinyllama_tools.report.sections import SECTIONS

# of a person's or a machine's own; a study writes none of them, so nothing else looks like one
OWN_PATH = re.compile(r"/(?:home|Users|root|work|tmp|mnt|media|scratch|var|opt|usr)/")
# a host is named by a digest, a program by its name
PRIVATE = re.compile(r'"host_name": "(?!host_[0-9a-f]{8}")|"executable": "[^"]*/|"pid"')
PACKED = re.compile(r'<script type="application/gzip" id="(packed-\w+)">([^<]*)</script>')
# measured by other commands than the study
OTHERS = {"data_parallel", "ablation", "training", "comparison"}
pytestmark = pytest.mark.parametrize("place", MACHINES)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1300, "light")])
def test_every_part_and_every_plot_with_its_points_is_there(
    open_page: PageOpener, place: Published, width: int, scheme: str
) -> None:
    text = place.page.read_text(encoding="utf-8")
    packed = gzip.decompress(base64.b64decode(dict(PACKED.findall(text))["packed-data"]))
    figures = json.loads(packed)["figures"]
    points = {name: sum(len(t["y"]) for t in of["traces"]) for name, of in figures.items()}
    assert len(points) > 20 and min(points.values()) > 0
    opened = open_page(place.page, width, scheme)
    shown = opened.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('main section')]"
        ".map((one) => [one.id, one.classList.contains('missing')]))"
    )
    assert list(shown) == [*(identity for identity, _, _ in SECTIONS), "left_out"]
    assert {identity for identity in shown if shown[identity]} <= OTHERS
    # title and figures at once, then the table of cases
    top = "(name) => document.querySelector(name).getBoundingClientRect().top"
    assert opened.page.evaluate(top, "h1") < 200
    assert opened.page.evaluate(top, "#cases h2") < (1000 if width > 1000 else 2400)
    assert opened.points() == points and opened.said == []
    assert opened.asked == [place.page.as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_the_page_is_of_the_study_beside_it_and_names_no_owner(place: Published) -> None:
    text = place.page.read_text(encoding="utf-8")
    context = read_json(place.study / "round_1.json")[0]["context"]
    for named in (context["device"]["name"], context["git_commit"][:8], context["date"][:10]):
        assert named in text
    assert f">results/reference/{place.study.name}<" in text
    packed = [gzip.decompress(base64.b64decode(dict(PACKED.findall(text))["packed-data"])).decode()]
    texts = {path.name: path.read_text(encoding="utf-8") for path in data_files(place)}
    for name, of in (texts | {"page": PACKED.sub("", text), "its data": packed[0]}).items():
        assert not OWN_PATH.findall(of), name
        assert not PRIVATE.findall(of), name


def test_the_readme_shows_files_small_enough_to_be_tracked(place: Published) -> None:
    files = [*data_files(place), place.page, place.picture]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    content = place.picture.read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) <= MOST_PICTURE_BYTES
    root = place.folder.parents[1]
    readme = (root / "README.md").read_text(encoding="utf-8")
    for path in (place.page, place.picture):
        assert f"({path.relative_to(root)})" in readme
