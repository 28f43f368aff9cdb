"""Block after block until every case has its verdict, the budget is used, or all looks are taken.

Cases that have their verdict drop out, so that time goes to those that are still open. That is
sound: judging happens at planned numbers of blocks only, and each look was paid for beforehand.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from tinyllama_tools.compare.blocks import (
    MOST_OVERRUN,
    SIDES,
    BlockCost,
    BothReady,
    CaseRecord,
    CaseSkip,
    Measured,
    Measurer,
    Opened,
)
from tinyllama_tools.core.text import duration
from tinyllama_tools.stats.looks import judge_family
from tinyllama_tools.stats.verdicts import DECIDED, Design, Judgement

# between two plain lines where the output is no terminal
QUIET_SECONDS = 30.0


def cases_text(count: int) -> str:
    """`1 case`, `9 cases`."""
    return f"{count} case" if count == 1 else f"{count} cases"


class RunProgress:
    """Lines that stay, and one that is written over."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._last: float | None = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def opening(self, done: int, total: int) -> None:
        """Cases are opened once, before any timing."""
        self._in_hand(f"opening each case once: {done} of {total} done")

    def block(self, index: int, next_look: int, left: float, open_cases: int) -> None:
        """A block begins. `left`: seconds of the budget."""
        text = f"block {index}, next verdicts after {next_look}"
        self._in_hand(f"{text}; {cases_text(open_cases)} open, at most {duration(left)} left")

    def clear(self) -> None:
        """No line is in hand any more."""
        if self._stream.isatty():
            print("\r\033[K", end="", file=self._stream, flush=True)

    def _in_hand(self, text: str) -> None:
        if self._stream.isatty():
            print(f"\r{text}\033[K", end="", file=self._stream, flush=True)
            return
        now = self._clock()
        if self._last is None or now - self._last >= QUIET_SECONDS:
            self._last = now
            print(text, file=self._stream, flush=True)


BUDGET_USED, ALL_LOOKS, ALL_DECIDED = "budget used", "all looks taken", "every case decided"
TOO_SHORT = "budget too short for any verdict"


@dataclass
class RunRecord:
    """What a run has found so far. `ended`: why it ended; empty while it goes on or was
    interrupted. `refusal`: why the budget reaches to no verdict, and what would. `seconds`: since
    its start."""

    cases: dict[str, CaseRecord]
    judgements: dict[str, Judgement | None] = field(default_factory=dict)
    cost: BlockCost = field(default_factory=BlockCost)
    blocks: int = 0
    ended: str = ""
    refusal: str = ""
    seconds: float = 0.0

    @property
    def open_cases(self) -> list[str]:
        """In the order in which they were given."""
        return [name for name, record in self.cases.items() if record.is_open]


class SequentialRun:
    """`record` fills while it runs: whoever interrupts still has it. `keep`: gets every item as
    it comes. `budget`: seconds from the start of run()."""

    def __init__(
        self,
        measurer: Measurer,
        cases: Sequence[str],
        design: Design,
        budget: float,
        *,
        keep: Callable[[Measured | Opened], None],
        progress: RunProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record = RunRecord({name: CaseRecord(name) for name in cases})
        self._measurer = measurer
        self._design = design
        self._budget = budget
        self._keep = keep
        self._progress = progress
        self._clock = clock
        self._start = clock()

    def run(self, *, verify: bool) -> None:
        """Until `record.ended`; where the budget does not reach to the first verdict it ends after
        the first block at the latest, with a refusal."""
        self._start = self._clock()
        try:
            self._open_all(verify)
            while not self.record.ended:
                self._one_block()
        finally:
            self.record.seconds = self._elapsed
            self._progress.clear()

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._start

    def _take(self, item: Measured | Opened) -> None:
        # first: where it cannot be kept, it is known all the same
        self.record.cases[item.case].add(item)
        self._keep(item)

    def _open_all(self, verify: bool) -> None:
        names = list(self.record.cases)
        self._progress.opening(0, len(names))
        for item in self._measurer.open_once(names, verify=verify):
            self._take(item)
            done = sum(len(record.openings) == len(SIDES) for record in self.record.cases.values())
            self._progress.opening(done, len(names))
        for record in self.record.cases.values():
            record.end_of_openings()
            if record.given_up:
                self._progress.say(f"{record.name}: left out: {_why(record)}")
        if not self.record.open_cases:
            self.record.ended = ALL_DECIDED

    def _one_block(self) -> None:
        open_cases = self.record.open_cases
        index = self.record.blocks + 1
        if index == 1 and self._elapsed > self._budget:
            self._refuse(
                f"opening the cases once took {duration(self._elapsed)}, before the first block"
            )
            return
        if index > 1 and self._would_overrun(open_cases):
            self.record.ended = BUDGET_USED
            return
        left = max(0.0, self._budget - self._elapsed)
        self._progress.block(index, self._next_look(open_cases[0]), left, len(open_cases))
        self._measure(index, open_cases)
        self.record.blocks = index
        if index == 1:
            self._announce()
            if self.record.ended:
                return
        has_looked = self._judge()
        self._end_where_nothing_is_open()
        if not self.record.ended:
            # a look that was begun for is reached, unless blocks became much slower since
            self._leave_out_what_does_not_fit(1.0 if has_looked else MOST_OVERRUN)
            self._end_where_nothing_is_open()

    def _refuse(self, why: str) -> None:
        self.record.refusal = f"--budget {duration(self._budget)} is too short: {why}"
        self.record.ended = TOO_SHORT

    def _would_overrun(self, cases: Sequence[str]) -> bool:
        after = self._elapsed + self.record.cost.of_block(cases)
        return after > MOST_OVERRUN * self._budget

    def _measure(self, index: int, cases: Sequence[str]) -> None:
        began = last = self._clock()
        seconds: dict[str, float] = {}
        for item in self._measurer.measure(index, cases):
            now = self._clock()
            if isinstance(item, BothReady):
                last = now
                continue
            seconds[item.case], last = now - last, now
            self._take(item)
            if not isinstance(item, CaseSkip) and self.record.cases[item.case].given_up:
                record = self.record.cases[item.case]
                self._progress.say(f"{item.case}: given up: {_why(record)}")
        whole = self._clock() - began
        self.record.cost.learn(whole, seconds)

    def _next_look(self, case: str) -> int:
        done = len(self.record.cases[case].blocks)
        return next((look for look in self._design.looks if look > done), done)

    def _blocks_to_next_look(self, case: str) -> int:
        return self._next_look(case) - len(self.record.cases[case].blocks)

    def _announce(self) -> None:
        """How long it takes, while the user still watches; refuses what cannot end well."""
        cases = self.record.open_cases
        if not cases:
            return
        block = self.record.cost.of_block(cases)
        fit = 1 + int(max(0.0, self._budget - self._elapsed) / block)
        first, last = self._design.looks[0], self._design.looks[-1]
        needed = self._elapsed + max(map(self._blocks_to_next_look, cases)) * block
        self._progress.say(
            f"a block of {cases_text(len(cases))} takes {block:.1f} s; {duration(self._budget)} "
            f"hold {fit}, the first verdicts come after {first} ({duration(needed)}), the last "
            f"after {last}"
        )
        if needed > self._budget:
            self._refuse(
                f"the first verdicts on {cases_text(len(cases))} at --alpha "
                f"{self._design.alpha:g} need {first} blocks of {block:.1f} s, {needed / 60:.1f} "
                f"minutes in all; give --budget {int(needed / 60) + 1}m or more, fewer cases "
                "(--filter, --components), fewer --pairs, fewer --looks or a larger --alpha"
            )

    def judge(self) -> None:
        """Judges what there is, at the looks reached."""
        blocks = {name: record.blocks for name, record in self.record.cases.items()}
        self.record.judgements = judge_family(blocks, self._design)

    def _judge(self) -> bool:
        """Whether some open case has reached a look, and then all verdicts anew."""
        looks = set(self._design.looks)
        at_look = [n for n in self.record.open_cases if len(self.record.cases[n].blocks) in looks]
        if not at_look:
            return False
        self.judge()
        decided = []
        for name, judgement in self.record.judgements.items():
            record = self.record.cases[name]
            if judgement is not None and judgement.outcome in DECIDED and record.is_open:
                record.decided = True
                decided.append(judgement.outcome.value)
        found = ", ".join(f"{decided.count(word)} {word}" for word in dict.fromkeys(decided))
        still = len(self.record.open_cases)
        self._progress.say(f"after {self.record.blocks} blocks: {found or 'none'}; {still} open")
        return True

    def _leave_out_what_does_not_fit(self, share: float) -> None:
        """Where not all open cases can reach their next look within this share of the budget, those
        farthest from a verdict go, or before the first look the costliest: blocks between looks
        decide nothing."""
        left = share * self._budget - self._elapsed
        cases = sorted(self.record.open_cases, key=self._distance)
        while cases and self._seconds_to_next_looks(cases) > left:
            self.record.cases[cases.pop()].out_of_time = True

    def _distance(self, case: str) -> tuple[float, float]:
        judgement = self.record.judgements.get(case)
        needed = judgement.evidence.distance if judgement else 0.0
        return needed, self.record.cost.of_case(case)

    def _seconds_to_next_looks(self, cases: Sequence[str]) -> float:
        blocks = [self._blocks_to_next_look(case) for case in cases]
        each = zip(blocks, map(self.record.cost.of_case, cases), strict=True)
        return max(blocks) * self.record.cost.around + sum(n * seconds for n, seconds in each)

    def _end_where_nothing_is_open(self) -> None:
        records = self.record.cases.values()
        for record in records:
            if record.is_open and len(record.blocks) >= self._design.looks[-1]:
                record.exhausted = True
        if self.record.open_cases:
            return
        if any(record.out_of_time for record in records):
            self.record.ended = BUDGET_USED
        else:
            is_exhausted = any(record.exhausted for record in records)
            self.record.ended = ALL_LOOKS if is_exhausted else ALL_DECIDED


def _why(record: CaseRecord) -> str:
    """The last word on a case that was given up."""
    reasons = [
        *(f"{side.value}: skipped: {reason}" for side, reason in record.skips.items()),
        *(f"{side.value}: {found[-1]}" for side, found in record.failures.items() if found),
    ]
    return "; ".join(reasons)
