"""How far two sets of named tensors are apart, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file


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
