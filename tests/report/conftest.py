"""What the tests of reports share: one report on results of every kind, and one browser, whose
driver cannot be started twice at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored import OpenPage, PageOpener, document, read, write, write_everything

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.output import installed_browser


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    """One result of every kind; the published grid study with its check first."""
    paths = write_everything(tmp_path_factory.mktemp("results"))
    write(paths[0] / "check.json", document("check.json"))
    return read(*paths)


@pytest.fixture(scope="session")
def built(inputs: ReportInputs) -> Document:
    """The report on all of it."""
    return build_document(inputs)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Skips where the browser or its driver is not installed."""
    try:
        with installed_browser() as found:
            yield found
    except BadInputError as error:
        pytest.skip(str(error))


@pytest.fixture
def open_page(browser: Any) -> Iterator[PageOpener]:  # noqa: ANN401
    """`open_page(path, width=1280, scheme="light")`: a fresh profile each."""
    contexts = []

    def opened(path: Path, width: int = 1280, scheme: str = "light") -> OpenPage:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        found = OpenPage(page := context.new_page())
        page.set_default_timeout(60_000)
        page.on("console", lambda message: found.said.append(message.text))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        page.on("request", lambda request: found.asked.append(request.url))
        page.goto(path.as_uri())
        page.evaluate("reportReady")
        return found

    yield opened
    for context in contexts:
        context.close()
