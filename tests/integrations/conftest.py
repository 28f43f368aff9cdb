"""What the tests of integrations/ share."""

from __future__ import annotations

import sys
from pathlib import Path

import fake_suite
import pytest


@pytest.fixture(scope="module")
def fake_bench_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program called tiny_llama_bench that prints made-up numbers; see fake_suite.py."""
    program = tmp_path_factory.mktemp("fake") / "tiny_llama_bench"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{fake_suite.__file__}" "$@"\n')
    program.chmod(0o755)
    return program
