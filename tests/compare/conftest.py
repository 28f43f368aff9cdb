"""What the tests of comparisons share; with it, scripts/test runs this folder beside the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from built_programs import built_program
from tinyllama_tools.calibrate.slowdown_build import SLOWED_PROGRAM


@pytest.fixture(scope="session")
def slowed_program() -> Path:
    """The built tiny_llama_bench_slowed."""
    return built_program(str(SLOWED_PROGRAM))
