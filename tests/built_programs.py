"""Where the project is, and its programs; what is absent is skipped with its reason."""

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]


def give_up(reason: str, *, whole_module: bool = False) -> NoReturn:
    """Skips; in CI, which must not pass untested, fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=whole_module)


def built_program(path: str) -> Path:
    """A program below build/."""
    program = PROJECT_ROOT / "build" / path
    if not program.is_file():
        where = program.relative_to(PROJECT_ROOT)
        give_up(f"{where} is not built: run scripts/bench --setup-only")
    return program


def undo_nohup() -> None:
    """Programs leave a SIGHUP ignored that nohup ignores; one that is handled here has its default
    effect in those that are started."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
