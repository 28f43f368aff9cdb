"""What the tests of data-parallel scaling share; with it, scripts/test runs this folder too."""

from __future__ import annotations

from pathlib import Path

import pytest

from built_programs import built_program
from made_up_scaling import analysis_of, write_run
from tinyllama_tools.models.data_parallel import Analysis


@pytest.fixture(scope="session")
def scaling_program() -> Path:
    """The built tiny_llama_scaling."""
    return built_program("benchmarks/tiny_llama_scaling")


@pytest.fixture(scope="session")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """What follows from made-up results of 1, 2 and 4 ranks."""
    return analysis_of(write_run(tmp_path_factory.mktemp("weak")))


@pytest.fixture(scope="session")
def strong(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """The same with one batch for all ranks."""
    return analysis_of(write_run(tmp_path_factory.mktemp("strong"), global_batch=16))
