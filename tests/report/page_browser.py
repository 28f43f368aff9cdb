"""Opens a report's page in the installed Chromium and keeps what its console said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.report.output import installed_browser, page_of

TIMEOUT_MS = 60_000
DESK, PHONE = 1280, 360
# goes to every plot and waits there until it is drawn
DRAW_ALL = """async () => {
  await reportReady;
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  for (const place of document.querySelectorAll(".plot")) {
    const plot = reportPlots[place.dataset.plot];
    if (!plot || place.offsetParent === null) continue;
    place.scrollIntoView({block: "center", behavior: "instant"});
    for (let wait = 0; wait < 1000 && !plot.drawn; wait += 1) {
      await new Promise((ready) => setTimeout(ready, 10));
    }
  }
  scrollTo({top: 0, behavior: "instant"});
}"""


@dataclass
class OpenPage:
    """`page`: playwright's; `said`: errors and warnings; `asked`: addresses that were loaded;
    `session`: asks the browser itself, where the page is timed."""

    page: Any
    session: Any = None
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def draw_all(self) -> dict[str, Any]:
        """What window.reportPlots says once every plot has been near the window."""
        self.page.evaluate(DRAW_ALL)
        return self.page.evaluate("reportPlots")

    def thread_seconds(self) -> float:
        """Processor time of the page's main thread since it was opened."""
        metrics = self.session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "ThreadTime")


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
def open_file(browser: Any) -> Iterator[PageOpener]:  # noqa: ANN401
    """`open_file(path, width=..., scheme="light", is_timed=False)`: a fresh profile each."""
    contexts = []

    def opened(
        path: Path, width: int = DESK, scheme: str = "light", is_timed: bool = False
    ) -> OpenPage:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        result = OpenPage(page)
        if is_timed:
            result.session = context.new_cdp_session(page)
            result.session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.on("console", lambda message: result.said.append(message.text))
        page.on("pageerror", lambda error: result.said.append(str(error)))
        page.on("request", lambda request: result.asked.append(request.url))
        page.goto(path.as_uri())
        page.evaluate("reportReady")
        return result

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(open_file: PageOpener, tmp_path: Path) -> PageOpener:
    """`open_page(document, ...)`: the page of a report's document, opened as open_file does."""

    def opened(document: dict[str, Any], *arguments: Any, **more: Any) -> OpenPage:  # noqa: ANN401
        path = tmp_path / "report.html"
        path.write_text(page_of(document), encoding="utf-8")
        return open_file(path, *arguments, **more)

    return opened
