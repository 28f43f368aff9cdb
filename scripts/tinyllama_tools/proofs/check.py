"""The outcome of one proof: what was compared with what, and how far they are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from tinyllama_tools.core.app import PROJECT


@dataclass(frozen=True)
class Difference:
    """The largest difference of two tensors, relative to the expected one's largest magnitude."""

    tensor: str
    relative: float
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.tensor}: relative difference {self.relative:.3g} at index {self.index}"


def largest_difference(name: str, expected: torch.Tensor, found: torch.Tensor) -> Difference:
    """Compares in float64. Another shape or type, or a NaN, is infinitely far.

    Where all that is expected is zero (the query gradients of a sequence of one), the difference is
    absolute.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return Difference(name, float("inf"), ())
    if expected.numel() == 0:
        return Difference(name, 0.0, ())
    wide = expected.to(torch.float64)
    scale = wide.abs().max().item() or 1.0
    apart = (wide - found.to(torch.float64)).abs() / scale
    apart = torch.nan_to_num(apart, nan=float("inf"))
    where = int(apart.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), apart.shape))
    return Difference(name, apart.flatten()[where].item(), index)


def worst_difference(
    expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> Difference:
    """The largest over all tensors; one that only one side has is infinitely far."""
    lonely = sorted(set(expected) ^ set(found))
    if lonely:
        return Difference(f"{lonely[0]} (only on one side)", float("inf"), ())
    differences = [largest_difference(name, expected[name], found[name]) for name in expected]
    return max(differences, key=lambda difference: difference.relative)


def worst_difference_of_files(expected: Path, found: Path) -> Difference:
    """The same for two safetensors files."""
    return worst_difference(load_file(expected), load_file(found))


REQUIREMENTS = PROJECT / "requirements-oracle.in"


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
        "python3 -m pip install -r requirements-oracle.txt"
    )
