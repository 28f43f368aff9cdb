"""The frontier predicted from the cost formulas, for many lines at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tinyllama_tools.case_costs import CaseCost, DryRun
from tinyllama_tools.frontier.asking import (
    Asker,
    ask_countable,
    free_memory,
    refusal,
    step_options,
)
from tinyllama_tools.frontier.axis import Axis, Line, line_of
from tinyllama_tools.frontier.bracket import LARGEST, Bracket
from tinyllama_tools.frontier.proposals import proposals
from tinyllama_tools.prediction.memory_overhead import MemoryOverhead

GIB = 2**30
# Of what is free, a step gets at most this share: the program, its libraries' scratch memory and
# the rounding of the allocator's blocks need room as well.
SAFE_SHARE = 0.9


@dataclass(frozen=True)
class Grid:
    """The lines of a frontier: every combination. `given`: batches or sequence lengths."""

    sizes: Sequence[str]
    variants: Sequence[str]
    dtypes: Sequence[str]
    given: Sequence[int]


@dataclass(frozen=True)
class Room:
    """What a step may need. `overhead`: what it takes beyond the formulas."""

    limit_bytes: int
    source: str
    overhead: MemoryOverhead = field(default_factory=MemoryOverhead)

    def needed(self, cost: CaseCost) -> float:
        """Bytes that the step may take, by the largest misfit that was measured."""
        return self.overhead.most_bytes(cost.predicted_memory_bytes)


@dataclass(frozen=True)
class Found:
    """`largest`: of the searched axis, 0 where nothing fits; `predicted_bytes`: what that needs, or
    the smallest step where nothing fits; `remark`: why a line ends where memory does not end it."""

    line: Line
    largest: int
    predicted_bytes: int
    remark: str = ""


@dataclass
class _Search:
    line: Line
    bracket: Bracket
    needed: dict[int, float] = field(default_factory=dict)
    uncounted: int | None = None
    refused: str = ""

    def learn(
        self, axis: Axis, room: Room, costs: Iterable[CaseCost], uncounted: int | None = None
    ) -> None:
        """`uncounted`: a value that is beyond counting."""
        answers = {axis.value_of(cost.name): cost for cost in costs}
        self.refused = next(filter(None, map(refusal, answers.values())), self.refused)
        self.needed |= {value: room.needed(cost) for value, cost in answers.items()}
        fits = {value: self.needed[value] <= room.limit_bytes for value in answers}
        if uncounted is not None and self.bracket.contains(uncounted):
            self.uncounted = uncounted
            fits[uncounted] = False
        self.bracket = Bracket(0, 1) if self.refused else self.bracket.narrowed(fits)

    def found(self, axis: Axis) -> Found:
        """When the bracket is closed."""
        largest = self.bracket.accepted if self.bracket.accepted >= axis.smallest else 0
        remark = self.refused
        if self.bracket.refused == self.uncounted:
            remark = f"the cost formulas count no more than {axis.counted(largest)} here"
        elif largest == LARGEST:
            remark = f"tiny_llama_bench takes no more than {axis.counted(LARGEST)}"
        needed = self.needed[largest or min(self.needed)]
        return Found(self.line, largest, math.ceil(needed), remark)


def safe_share(free: DryRun) -> Room:
    """The share of what is free that a step may have."""
    bytes_free = f"{free.memory_budget_bytes / GIB:.2f} GiB"
    source = f"{100 * SAFE_SHARE:.0f} % of the {bytes_free} {free.memory_budget_source}"
    return Room(int(SAFE_SHARE * free.memory_budget_bytes), source)


def room_for(asker: Asker, limit_bytes: int | None, *, is_tried: bool = False) -> Room:
    """The limit, or without one the safe share of what is free now; one question about the
    smallest step. `is_tried`: the limit is lowered to that share too, since tries run here."""
    if limit_bytes is not None and not is_tried:
        return Room(limit_bytes, "--memory-limit")
    safe = safe_share(free_memory(asker))
    if limit_bytes is None:
        why = ": the program and its libraries need the rest"
        return Room(safe.limit_bytes, safe.source + why)
    if limit_bytes <= safe.limit_bytes:
        return Room(limit_bytes, "--memory-limit")
    why = (
        f", below the {limit_bytes / GIB:.2f} GiB asked for, so that no try uses up the machine's "
        "memory"
    )
    return Room(safe.limit_bytes, safe.source + why)


def _options_of(
    axis: Axis, searches: Sequence[_Search]
) -> Callable[[Sequence[int]], Sequence[str]]:
    """For searches of one size and one given value."""
    lines = [search.line for search in searches]
    variants = list(dict.fromkeys(line.variant for line in lines))
    dtypes = list(dict.fromkeys(line.dtype for line in lines))
    size, given = lines[0].size, lines[0].given
    return lambda values: step_options(axis, [size], variants, dtypes, values, [given])


def _finish(asker: Asker, axis: Axis, room: Room, searches: Sequence[_Search]) -> None:
    """Asks about the lines of one size and one given value until each has its answer."""
    while searches := [search for search in searches if not search.bracket.is_closed]:
        wanted = [proposals(s.bracket, s.needed, room.limit_bytes) for s in searches]
        # with one value that is known to be countable
        asked = {min(searches[0].needed), *(value for values in wanted for value in values)}
        costs, uncounted = ask_countable(asker, _options_of(axis, searches), list(asked))
        for search in searches:
            own = [cost for cost in costs if line_of(axis, cost.name) == search.line]
            search.learn(axis, room, own, uncounted)


def _first_answers(asker: Asker, axis: Axis, grid: Grid, room: Room) -> list[_Search]:
    """A search for each line; variants are spelt as the program spells them."""
    axes = (grid.sizes, grid.variants, grid.dtypes)
    costs, _ = ask_countable(
        asker, lambda values: step_options(axis, *axes, values, grid.given), axis.probes
    )
    by_line: dict[Line, list[CaseCost]] = {}
    for cost in costs:
        by_line.setdefault(line_of(axis, cost.name), []).append(cost)
    searches = [_Search(line, Bracket(axis.smallest - 1)) for line in by_line]
    for search in searches:
        search.learn(axis, room, by_line[search.line])
    return searches


def predict_lines(asker: Asker, axis: Axis, grid: Grid, room: Room) -> list[Found]:
    """Of every line, by size, variant, dtype and then the given value.

    Raises SuiteError where the program refuses the options or cannot be asked.
    """
    searches = _first_answers(asker, axis, grid, room)
    groups: dict[tuple[str, int], list[_Search]] = {}
    for search in searches:
        groups.setdefault((search.line.size, search.line.given), []).append(search)
    for group in groups.values():
        _finish(asker, axis, room, group)
    variants = list(dict.fromkeys(search.line.variant for search in searches))
    found = [search.found(axis) for search in searches]
    return sorted(
        found,
        key=lambda one: (
            grid.sizes.index(one.line.size),
            variants.index(one.line.variant),
            grid.dtypes.index(one.line.dtype),
            grid.given.index(one.line.given),
        ),
    )
