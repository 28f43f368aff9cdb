"""What the tests of reports share: one report on results of every kind, and one browser, whose
driver cannot be started twice at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_browser import browser, open_page
from stored import document, read, write, write_everything

from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs

__all__ = ["browser", "open_page"]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    """One result of every kind; the published grid study with its check first."""
    folder: Path = tmp_path_factory.mktemp("results")
    paths = write_everything(folder)
    write(paths[0] / "check.json", document("check.json"))
    return read(*paths)


@pytest.fixture(scope="session")
def built(inputs: ReportInputs) -> Document:
    """The report on all of it."""
    return build_document(inputs)
