"""The page that is committed beside a reference study, and what its files say of the machine."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest
from page_browser import DESK, PHONE, PageOpener

from reference_study import MACHINES, MOST_BYTES, MOST_PICTURE_BYTES, Published, data_files
from tinyllama_tools.core.app import read_json
from tinyllama_tools.report.command import BUILDERS

# of a person's or a machine's own; a study writes none of them, so nothing else looks like one
OWN_PATH = re.compile(r"/(?:home|Users|root|work|tmp|mnt|media|scratch|var|opt|usr)/")
# a host is named by a digest, a program by its name
PRIVATE = re.compile(r'"host_name": "(?!host_[0-9a-f]{8}")|"executable": "[^"]*/|"pid"')
PACKED = re.compile(r'<script type="application/gzip" id="(packed-\w+)">([^<]*)</script>')
# parts that a grid study alone gives; ablation and training are measured by other commands
OF_A_STUDY = (
    *("cases", "environment", "roofline", "speed_of_light", "time", "scaling", "memory"),
    *("frontier", "predictions", "left_out"),
)


def page_and_data(place: Published) -> tuple[str, dict[str, Any]]:
    """The page without what is packed in it, and the data of its figures and tables."""
    text = place.page.read_text(encoding="utf-8")
    packed = dict(PACKED.findall(text))
    data = gzip.decompress(base64.b64decode(packed["packed-data"]))
    return PACKED.sub("", text), json.loads(data)


@pytest.mark.parametrize("place", MACHINES)
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_every_part_and_every_plot_with_its_points_is_there(
    open_file: PageOpener, place: Published, width: int, scheme: str
) -> None:
    _, data = page_and_data(place)
    points = {
        name: sum(len(trace.get("y") or ()) for trace in of["traces"])
        for name, of in data["figures"].items()
    }
    assert len(points) > 20 and min(points.values()) > 0
    opened = open_file(place.page, width, scheme)
    shown = opened.page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('main section')]"
        ".map((one) => [one.id, one.classList.contains('missing')]))"
    )
    assert list(shown) == [*(identity for identity, _, _ in BUILDERS), "left_out"]
    assert [identity for identity in OF_A_STUDY if shown[identity]] == []
    assert opened.page.evaluate("document.querySelectorAll('#summary .lead p').length") == 5
    drawn = opened.draw_all()
    assert {name: drawn[name]["points"] for name in points} == points
    assert opened.said == []
    # the file itself, and nothing else
    assert opened.asked == [place.page.as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("place", MACHINES)
def test_the_page_is_of_the_study_beside_it(place: Published) -> None:
    text, data = page_and_data(place)
    context = read_json(place.study / "round_1.json")[0]["context"]
    for named in (context["device"]["name"], context["git_commit"][:8], context["date"][:10]):
        assert named in text
    (taken,) = [row for row in data["tables"]["sources"]["rows"] if "grid study" in row[0]]
    assert taken[1] == f"results/reference/{place.study.name}"


@pytest.mark.parametrize("place", MACHINES)
def test_nothing_names_the_machines_owner_or_its_folders(place: Published) -> None:
    page, data = page_and_data(place)
    texts = {path.name: path.read_text(encoding="utf-8") for path in data_files(place)}
    texts |= {place.page.name: page, "data of the page": json.dumps(data)}
    for name, text in texts.items():
        assert not OWN_PATH.findall(text), name
        assert not PRIVATE.findall(text), name


@pytest.mark.parametrize("place", MACHINES)
def test_the_readme_shows_files_small_enough_to_be_tracked(place: Published) -> None:
    files = [*data_files(place), place.page, place.picture]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert not [path.name for path in files if "journal" in path.name]
    content = place.picture.read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) <= MOST_PICTURE_BYTES
    root = place.folder.parents[1]
    readme = (root / "README.md").read_text(encoding="utf-8")
    for path in (place.page, place.picture):
        assert f"({path.relative_to(root)})" in readme
    assert "{{" not in readme


@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (1300, "dark"), (390, "light")])
@pytest.mark.parametrize("place", MACHINES)
def test_the_first_screen_says_what_was_measured(
    place: Published, open_file: PageOpener, width: int, scheme: str
) -> None:
    """Title and sentences at once, then the table of cases; nothing is wider than the screen."""
    opened = open_file(place.page, width=width, scheme=scheme)
    opened.page.wait_for_function("window.reportReady")
    top = "(name) => document.querySelector(name).getBoundingClientRect().top"
    assert 0 <= opened.page.evaluate(top, "h1") < 200
    assert opened.page.evaluate(top, ".lead p") < 400
    assert opened.page.evaluate(top, "#cases h2") < (900 if width > 1000 else 1800)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    picture = opened.page.screenshot()
    # an empty screen of one colour takes some thousand bytes
    assert len(picture) > 30_000
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 3 * 200) == (scheme == "light")
