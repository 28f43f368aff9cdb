"""What the tests of integrations/ share; with it, scripts/test runs this folder too."""

from __future__ import annotations

import sys
from pathlib import Path

import bench_stand_in
import pytest


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program called tiny_llama_bench that prints made-up numbers; see bench_stand_in.py."""
    program = tmp_path_factory.mktemp("stand_in") / "tiny_llama_bench"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{bench_stand_in.__file__}" "$@"\n')
    program.chmod(0o755)
    return program
