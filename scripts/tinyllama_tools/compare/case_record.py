"""What is known of one case while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllama_tools.compare.measurements import (
    SIDES,
    CaseBlock,
    CaseFailure,
    CaseOpening,
    CaseSkip,
    Measured,
    Opened,
    Side,
)
from tinyllama_tools.compare.missing_cases import SideState
from tinyllama_tools.stats.looks import BlockSummary, summarise

# of one side, until the case is given up: one may be the machine's
MOST_FAILURES = 2


@dataclass
class CaseRecord:
    """`failures`: reasons by side, in order. `given_up`: no more blocks, since a side fails or
    skips it. `decided`: it has its verdict. `out_of_time`: its next look does not fit. `exhausted`:
    it is past the last look."""

    name: str
    blocks: list[BlockSummary] = field(default_factory=list)
    openings: dict[Side, CaseOpening] = field(default_factory=dict)
    failures: dict[Side, list[str]] = field(default_factory=lambda: {side: [] for side in SIDES})
    skips: dict[Side, str] = field(default_factory=dict)
    given_up: bool = False
    decided: bool = False
    out_of_time: bool = False
    exhausted: bool = False

    @property
    def is_open(self) -> bool:
        """Whether another block of it may be measured."""
        return not (self.given_up or self.decided or self.out_of_time or self.exhausted)

    def counters(self, side: Side) -> Mapping[str, float]:
        """Of the first opening."""
        return self.openings[side].counters if side in self.openings else {}

    def add(self, item: Measured | Opened) -> None:
        """Whatever became of it."""
        if isinstance(item, CaseBlock):
            self.blocks.append(summarise(item.block))
        elif isinstance(item, CaseOpening):
            self.openings[item.side] = item
        elif isinstance(item, CaseSkip):
            self.skips[item.side] = item.reason
            self.given_up = True
        elif isinstance(item, CaseFailure):
            self.failures[item.side].append(item.reason)
            if len(self.failures[item.side]) >= MOST_FAILURES:
                self.given_up = True

    def end_of_openings(self) -> None:
        """Who could not be opened before any timing is not timed."""
        if any(side not in self.openings for side in SIDES):
            self.given_up = True

    def state(self, side: Side) -> SideState:
        """For the outcome. What failed once and went well since counts as measured."""
        failed = self.failures[side]
        if side in self.skips:
            return SideState(skipped=self.skips[side])
        if failed and (side not in self.openings or len(failed) >= MOST_FAILURES):
            return SideState(failed=failed[-1])
        is_open = side in self.openings
        return SideState(is_measured=is_open, is_pending=not is_open)

    @property
    def failed_sides(self) -> dict[Side, list[str]]:
        """Reasons by side, of sides that failed at all, whether it went on after that or not."""
        return {side: reasons for side, reasons in self.failures.items() if reasons}
