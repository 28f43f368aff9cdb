"""Opens a report's page in the installed Chromium and keeps what its console said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report.output import installed_browser

# goes to every plot and waits there until it is drawn
DRAW_ALL = """async () => {
  await reportReady;
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  for (const place of document.querySelectorAll(".plot")) {
    if (place.offsetParent === null) continue;
    place.scrollIntoView({block: "center"});
    for (let wait = 0; wait < 1000 && !place.dataset.drawn; wait += 1) {
      await new Promise((ready) => setTimeout(ready, 10));
    }
  }
}"""
# of each plot the points that plotly has given a place
POINTS = """() => Object.fromEntries([...document.querySelectorAll("[data-figure]")]
  .filter((card) => card.querySelector(".plot").calcdata)
  .map((card) => [card.dataset.figure, card.querySelector(".plot").calcdata
    .reduce((sum, points) => sum + points.filter((p) => p.x !== undefined).length, 0)]))"""


@dataclass
class OpenPage:
    """`page`: playwright's; `said`: errors and warnings; `asked`: addresses that were loaded."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def points(self) -> dict[str, int]:
        """Of every plot, once each has been near the window."""
        self.page.evaluate(DRAW_ALL)
        return self.page.evaluate(POINTS)

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
