"""What the tests of reports share: one report on results of every kind."""

from __future__ import annotations

import pytest
from stored import document, read, write, write_everything

from tinyllama_tools.report.command import build_document
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.inputs import ReportInputs


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
