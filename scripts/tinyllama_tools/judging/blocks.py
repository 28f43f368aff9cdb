"""What was measured in turns: pairs of slices, grouped by the pair of processes they came from.

A block is one fresh pair of processes. What differs between two processes of one program (address
layout, where memory came from) does not average out within a process, so blocks are the sample and
pairs only make each block precise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Seconds of an iteration, slice by slice: base[i] and new[i] were neighbours in time."""

    base: tuple[float, ...]
    new: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.base) != len(self.new) or not self.base:
            raise ValueError(
                f"{len(self.base)} slices against {len(self.new)}: as many on both sides, "
                "at least 1"
            )
