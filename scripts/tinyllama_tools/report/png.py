"""A report's figures as pictures for slides, drawn by the page itself in an installed browser."""

from __future__ import annotations

import base64
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import BadInputError, Json
from tinyllama_tools.report.page import page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# as in requirements-pictures.txt: only pictures and tests of pages need it, and it is large
DRIVER = "playwright==1.65.2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1600, 900
DATA_ADDRESS = "data:image/png;base64,"
PAGE_TIMEOUT_MS = 60_000


def write_pngs(document: Json, folder: Path) -> list[Path]:
    """`<folder>/<figure's id>.png` of every figure that has points, in the document's order:
    WIDTH x HEIGHT pixels, light. BadInputError where the driver or a browser is not installed, or
    the browser does not start."""
    wanted = [
        figure["id"]
        for section in document["sections"]
        for figure in section.get("figures") or ()
        if figure["points"] > 0
    ]
    if not wanted:
        return []
    written = []
    for identifier, content in _drawn(document, wanted):
        # only now: where no browser starts, no empty folder is left
        folder.mkdir(parents=True, exist_ok=True)
        written.append(folder / file_name(identifier))
        written[-1].write_bytes(content)
    return written


def picture_of(document: Json, identifier: str) -> bytes:
    """Of one figure, as write_pngs draws them. BadInputError as write_pngs, and where the report
    has no such figure."""
    figures = (one for section in document["sections"] for one in section.get("figures") or ())
    if not any(one["id"] == identifier and one["points"] > 0 for one in figures):
        raise BadInputError(f"the report has no figure {identifier} to draw; --format md says why")
    ((_, content),) = _drawn(document, [identifier])
    return content


def _drawn(document: Json, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Each figure's id with its picture."""
    with tempfile.TemporaryDirectory() as place, installed_browser() as browser:
        path = Path(place) / "report.html"
        path.write_text(page_of(document), encoding="utf-8")
        page = browser.new_page()
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        page.goto(path.as_uri())
        page.evaluate("reportReady")
        for identifier in wanted:
            address = page.evaluate("(id) => reportPng(id)", identifier)
            yield identifier, base64.b64decode(address.removeprefix(DATA_ADDRESS))


def file_name(identifier: str) -> str:
    """Of a figure's picture; what may not stand in a file's name becomes `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", identifier).lstrip(".") + ".png"


def browser_program() -> str:
    """The installed Chromium; BadInputError where there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        names = ", ".join(BROWSERS)
        raise BadInputError(
            f"no browser to draw the pictures with: none of {names} is installed; install the "
            "distribution's package chromium (apt-get install chromium), or write --format html"
        )
    return found


@contextmanager
def installed_browser() -> Iterator[Browser]:
    """The installed Chromium without a window; BadInputError where it or its driver is missing."""
    program = browser_program()
    try:
        # Not on top: everything else of a report works without the driver.
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise BadInputError(
            "no driver of the browser: the Python package playwright is not installed; run "
            f"`{sys.executable} -m pip install {DRIVER}`, or write --format html"
        ) from None
    with sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=program)
        except Error as error:
            first = error.message.splitlines()[0]
            raise BadInputError(
                f"{program} does not start: {first}; try it on a shell, or write --format html"
            ) from None
        try:
            yield browser
        finally:
            browser.close()
