"""Whether the transformers package at hand is the one whose answers the golden files are."""

from __future__ import annotations

from pathlib import Path

import transformers

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements-oracle.txt"


def pinned_version(package: str, requirements: Path = REQUIREMENTS) -> str:
    """The version that the line `package==version` asks for."""
    for line in requirements.read_text().splitlines():
        name, separator, version = line.partition("#")[0].strip().partition("==")
        if separator and name == package:
            return version
    raise RuntimeError(f"{requirements}: has no line {package}==VERSION")


def other_transformers() -> str | None:
    """What to tell of a version that is not the pinned one; nothing of that itself."""
    pinned = pinned_version("transformers")
    if transformers.__version__ == pinned:
        return None
    return (
        f"transformers {transformers.__version__} is not the pinned {pinned}: "
        f"python3 -m pip install -r {REQUIREMENTS.name}"
    )
