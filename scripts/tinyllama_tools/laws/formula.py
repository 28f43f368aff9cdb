"""Laws in words: `time = 1.2 ms + 0.9 us x B S + 0.4 ns x B S²`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from tinyllama_tools.laws.terms import Term

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"))


class Quantity(Enum):
    """What a law is about; seconds and bytes are its units."""

    TIME = "time"
    MEMORY = "memory"

    def text(self, value: float) -> str:
        """Three digits in the unit that suits the value."""
        units = _SECONDS if self is Quantity.TIME else _BYTES
        scale, unit = next((pair for pair in units if value >= pair[0]), units[-1])
        scaled = value / scale
        return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


def formula_text(quantity: Quantity, parts: Sequence[tuple[Term, float]]) -> str:
    """`parts`: the terms that count, each with its coefficient."""
    texts = [
        f"{quantity.text(value)} x {term.symbol}" if term.symbol else quantity.text(value)
        for term, value in parts
    ]
    return f"{quantity.value} = {' + '.join(texts)}"
