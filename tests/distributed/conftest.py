"""What the tests of data-parallel scaling share; with it, scripts/test runs this folder too."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_up_scaling import analysis_of, write_run
from tinyllama_tools.models.scaling_projection import Analysis


@pytest.fixture(scope="session")
def weak_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with made-up results of 1, 2 and 4 ranks."""
    return write_run(tmp_path_factory.mktemp("weak"))


@pytest.fixture(scope="session")
def weak(weak_run: Path) -> Analysis:
    """What follows from it."""
    return analysis_of(weak_run)


@pytest.fixture(scope="session")
def strong(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """The same with one batch for all ranks."""
    return analysis_of(write_run(tmp_path_factory.mktemp("strong"), global_batch=16))
