"""Compares a stored golden folder with one that was made anew: bytes first, then values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.golden_values import F32_FILE, F64_FILE
from tinyllama_tools.tensor_difference import worst_difference_of_files

# Relative to the largest magnitude of a tensor. Another processor adds up in another order: some
# hundred roundings of 1.1e-16, and of 6e-8 in float32. Weights and inputs are drawn, not computed.
TOLERANCES = {F64_FILE: 1e-12, F32_FILE: 1e-5}


@dataclass(frozen=True)
class Verdict:
    """What the comparison of one file came to; `file` is <case>/<name>."""

    file: str
    held: bool
    text: str
    relative: float = 0.0

    def __str__(self) -> str:
        return f"{'ok' if self.held else 'FAILED':7}{self.file}: {self.text}"


def compare_config(stored: Path, made: Path, label: str) -> Verdict:
    """Equal but for the version that wrote it."""
    old, new = json.loads(stored.read_text()), json.loads(made.read_text())
    versions = (old.pop("transformers_version"), new.pop("transformers_version"))
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if keys:
        text = ", ".join(f"{key} is {old.get(key)!r}, not {new.get(key)!r}" for key in keys)
        return Verdict(label, False, text, float("inf"))
    return Verdict(label, True, f"the same but for its version, {versions[0]} and {versions[1]}")


def compare_tensors(stored: Path, made: Path, label: str) -> Verdict:
    """Within the file's tolerance."""
    tolerance = TOLERANCES.get(stored.name, 0.0)
    worst = worst_difference_of_files(made, stored)
    text = f"{worst}, allowed {tolerance:g}"
    return Verdict(label, worst.relative <= tolerance, text, worst.relative)


def compare_file(stored: Path, made: Path) -> Verdict:
    """One file; either may be absent, which fails."""
    label = f"{stored.parent.name}/{stored.name}"
    if not stored.is_file():
        return Verdict(label, False, "is absent", float("inf"))
    if not made.is_file():
        return Verdict(label, False, "is not one of the golden files", float("inf"))
    if stored.read_bytes() == made.read_bytes():
        return Verdict(label, True, "identical")
    compare = compare_config if stored.suffix == ".json" else compare_tensors
    return compare(stored, made, label)


def compare_folder(stored: Path, made: Path) -> list[Verdict]:
    """Every file that either folder has."""
    names = {p.name for folder in (stored, made) if folder.is_dir() for p in folder.iterdir()}
    return [compare_file(stored / name, made / name) for name in sorted(names)]
