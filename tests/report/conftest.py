"""What the tests of reports share; with it, scripts/test runs this folder beside the others.

One browser for all tests of the report's page: its driver cannot be started twice at a time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from page_browser import browser, open_file, open_page
from played_study import write_everything

from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.sources import source_of

__all__ = ["browser", "open_file", "open_page"]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one result of every kind, of made-up machines."""
    folder = tmp_path_factory.mktemp("results")
    write_everything(folder)
    return folder


@pytest.fixture(scope="session")
def inputs(played: Path) -> ReportInputs:
    """All of it, read; the grid study first."""
    return read_inputs([source_of(path) for path in sorted(played.iterdir())])


@pytest.fixture(scope="session")
def built(inputs: ReportInputs) -> Document:
    """The report on all of it."""
    return build_document(inputs)
