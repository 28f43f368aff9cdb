"""What the tests of reports share: one report on made-up results of every kind, and one browser,
whose driver cannot be started twice at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_browser import browser, open_page
from played_study import read, write_everything

from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs

__all__ = ["browser", "open_page"]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    """One result of every kind, of made-up machines; the grid study first."""
    folder: Path = tmp_path_factory.mktemp("results")
    write_everything(folder)
    return read(*sorted(folder.iterdir()))


@pytest.fixture(scope="session")
def built(inputs: ReportInputs) -> Document:
    """The report on all of it."""
    return build_document(inputs)
