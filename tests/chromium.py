"""Opens pages in a headless Chromium, and tells what its console said."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# `[pid:thread:time:INFO:CONSOLE:12] "text", source: http://... (12)`
CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)$", re.MULTILINE)
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Page:
    """`document`: the page as HTML once its scripts were done; `console`: errors and messages."""

    document: str
    console: list[str]


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are no test's business."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of an HTTP server of this folder, on this machine only."""
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Chromium:
    """The browser, with a profile of its own that is thrown away."""

    def __init__(self, program: str, profile: Path) -> None:
        self.program = program
        self.profile = profile

    def open(self, address: str, milliseconds: int = 20000) -> Page:
        """Loads a page and lets its scripts run for so many milliseconds of the page's own time."""
        options = (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--enable-logging=stderr", f"--user-data-dir={self.profile}"),
            *(f"--virtual-time-budget={milliseconds}", "--dump-dom"),
        )
        done = subprocess.run(
            [self.program, *options, address],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return Page(done.stdout, CONSOLE.findall(done.stderr))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Chromium:
    """Skips where no browser is installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: install the package chromium, or any of {', '.join(NAMES)}")
    return Chromium(program, tmp_path_factory.mktemp("chromium"))
