"""Where the project is, and its programs."""

import os
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]


def built_program(path: str) -> Path:
    """A program below build/. In CI its absence is a failure, elsewhere a reason to skip."""
    program = PROJECT_ROOT / "build" / path
    if not program.is_file():
        reason = f"{program.relative_to(PROJECT_ROOT)} is not built: run scripts/bench --setup-only"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return program
