"""The commands of tinyllama_tools as their scripts start them, with their exit statuses."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.__main__ import main as run_tool


def compare(arguments: Sequence[str]) -> int:
    """scripts/compare; its exit status."""
    return run_tool(["compare", *arguments])
