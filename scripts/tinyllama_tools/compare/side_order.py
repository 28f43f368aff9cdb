"""Which side comes first in a block, in all that both sides do there."""

from __future__ import annotations

import random

from tinyllama_tools.compare.measurements import SIDES, Side


class SideOrder:
    """Drawn, and balanced: of every two blocks each side comes first in one."""

    def __init__(self, order: random.Random) -> None:
        self._order = order
        self._coming: list[tuple[Side, Side]] = []

    def next(self) -> tuple[Side, Side]:
        """Of the next block."""
        if not self._coming:
            base, new = SIDES
            self._coming = [(base, new), (new, base)]
            self._order.shuffle(self._coming)
        return self._coming.pop()
