"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.compare.output import seconds_text
from tinyllama_tools.data.names import CaseName

__all__ = [
    "bytes_text",
    "case_text",
    "count_of",
    "listed",
    "percent_text",
    "rate_text",
    "seconds_text",
    "shape_text",
    "step_text",
]
MIB = 2**20
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
RATE_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MOST_LISTED = 6


def rate_text(value: float, unit: str) -> str:
    """`374.8 GFLOP/s` of 3.748e11 and FLOP/s."""
    size, prefix = next(((s, p) for s, p in RATE_UNITS if value >= s), (1.0, ""))
    return f"{value / size:.4g} {prefix}{unit}"


def bytes_text(value: float) -> str:
    """`131.8 MiB`."""
    power = 0
    while value >= 1024 and power + 1 < len(BYTE_UNITS):
        value, power = value / 1024, power + 1
    return f"{value:.4g} {BYTE_UNITS[power]}"


def percent_text(value: float) -> str:
    """`50.8 %`; a digit after the point where it says something."""
    return f"{value:.0f} %" if abs(value) >= 99.95 else f"{value:.1f} %"


def shape_text(name: CaseName) -> str:
    """`8 x 128`: batch x sequence."""
    return f"{name.batch} x {name.seq}"


def case_text(name: CaseName) -> str:
    """`tiny, optimized, f32, batch 8 x sequence 128`."""
    return f"{name.size}, {name.variant}, {name.dtype}, batch {name.batch} x sequence {name.seq}"


def step_text(name: CaseName) -> str:
    """`tiny, optimized, f32, 8 x 128`: where there is little room."""
    return f"{name.size}, {name.variant}, {name.dtype}, {shape_text(name)}"


def count_of(number: int, thing: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """`a, b, c and 12 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
