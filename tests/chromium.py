"""Pages in the installed Chromium: one for all tests, whose driver cannot be started twice at a
time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report.output import installed_browser


@dataclass
class OpenPage:
    """`page`: playwright's; `said`: what the console showed, errors too; `asked`: addresses that
    were loaded."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def document(self) -> str:
        """The page as HTML."""
        return self.page.content()

    def texts(self, selector: str) -> list[str]:
        script = "(s) => [...document.querySelectorAll(s)].map((one) => one.textContent)"
        return self.page.evaluate(script, selector)


PageOpener = Callable[..., OpenPage]


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
    """`open_page(address, width=1280)`: a fresh profile each, loaded, and ready where the page says
    when it is."""
    contexts = []

    def opened(address: str | Path, width: int = 1280) -> OpenPage:
        context = browser.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        found = OpenPage(page := context.new_page())
        page.set_default_timeout(60_000)
        page.on("console", lambda message: found.said.append(message.text))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        page.on("request", lambda request: found.asked.append(request.url))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        page.evaluate("window.reportReady")
        return found

    yield opened
    for context in contexts:
        context.close()
