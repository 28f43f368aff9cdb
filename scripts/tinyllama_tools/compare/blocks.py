"""Two served programs that are timed interleaved, in short slices, so that drift hits both alike;
and the recording of every slice.

A block is one fresh pair of processes. Within it the cases come in random order, and each side
begins half of a case's pairs of slices. In all else that the sides do one after the other (start,
open a case, close it), one side is first in this block and the other in the next.

Whatever happens to a case (it is opened, timed in a block, fails or is skipped) is an item, a JSON
object. A recording is a file of JSON lines, a header and then the items, each written at once so
that nothing is lost:

  {"recording": "tiny_llama paired blocks", "schema_version": 1, "base", "new", "base_context",
   "new_context", "pairs", "slice_seconds", "started", "seed", "settings"}
  {"opened": NAME, "side": "base"|"new", "seconds": s, "counters": {...}, "at": s}
  {"block": i, "case": NAME, "base": [s...], "new": [s...], "first": [0|1...], "at": s}
  {"block": i, "case": NAME, "failed": {"side": "base"|"new", "reason": text}, "at": s}
  {"block": i, "skipped": NAME, "side": "base"|"new", "reason": text, "at": s}

`block`: from 1; 0 for what came before any timing. `seconds`, `base`, `new`: of an iteration.
`counters`: those that do not depend on time. `first`: which side began each pair, 0 base, 1 new.
`at`: when the item was known, in seconds since the start. `settings`: the arguments of both
programs, variables added to the environment of each side, budget, limit and proof.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import random
import statistics
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinyllama_tools.compare.comparison import SideCase
from tinyllama_tools.compare.options import (
    SUITE_OPTIONS,
    is_chosen,
    is_chosen_by_name,
    names_operators,
    program_arguments,
    regular_expression,
    settings_of,
)
from tinyllama_tools.compare.other_programs import OtherProcess, is_other_program
from tinyllama_tools.compare.sides import (
    Builder,
    CaseFailedError,
    CaseSkippedError,
    KeptProcess,
    ProcessLostError,
    ServedProcess,
    ServedProgram,
)
from tinyllama_tools.core.app import BadInputError, Json, naming, now_text, read_lines
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.names import case_without_operators
from tinyllama_tools.data.studies import SCHEMAS
from tinyllama_tools.stats.rank_tests import BASE_SECONDS, NEW_SECONDS, Array, summarise

# their indices are those of `first`
SIDES = BASE, NEW = "base", "new"
# so many failures of a case on one side, and it is given up; a single one may be the machine's
MOST_FAILURES = 2
GIVEN_UP = "given up"


def case_of(item: Json) -> str:
    return item.get("case") or item.get("opened") or item["skipped"]


@dataclass
class CaseRecord:
    """What became of both sides at a case so far. `summaries`: the rows of its blocks in one flat
    array, since Python objects that live on between the many short-lived numbers of the answers
    keep memory from being reused. `failures`: reasons by side, in order. `closed`: why no more
    blocks of it are measured; empty while it is open."""

    name: str
    summaries: array[float] = field(default_factory=lambda: array("d"))
    openings: dict[str, Json] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=lambda: {side: [] for side in SIDES})
    skips: dict[str, str] = field(default_factory=dict)
    closed: str = ""

    def add(self, item: Json) -> None:
        """Takes what an item says of it."""
        if "opened" in item:
            self.openings[item["side"]] = item
        elif "skipped" in item:
            self.skips[item["side"]] = item["reason"]
            self.closed = GIVEN_UP
        elif "failed" in item:
            reasons = self.failures[item["failed"]["side"]]
            reasons.append(item["failed"]["reason"])
            if len(reasons) >= MOST_FAILURES:
                self.closed = GIVEN_UP
        else:
            self.summaries.extend(summarise(item[BASE], item[NEW]))

    @property
    def blocks(self) -> Array:
        """A row a block."""
        return np.array(self.summaries).reshape(-1, 4)

    def on(self, side: str) -> SideCase:
        """What became of it on that side; a single failure does not count if it was opened."""
        failed, opened = self.failures[side], self.openings.get(side)
        times = self.blocks[:, BASE_SECONDS if side == BASE else NEW_SECONDS]
        known = {"seconds": float(np.median(times)) if len(times) else None}
        known["counters"] = opened["counters"] if opened else {}
        if side in self.skips:
            return SideCase(skipped=self.skips[side], **known)
        if failed and (not opened or len(failed) >= MOST_FAILURES):
            return SideCase(failed=failed[-1], **known)
        return SideCase(is_measured=bool(opened), is_pending=not opened, **known)

    @property
    def why(self) -> str:
        """The latest reason of each side that skipped it or failed."""
        skipped = [f"{side}: skipped: {reason}" for side, reason in self.skips.items()]
        failed = [f"{side}: {found[-1]}" for side, found in self.failures.items() if found]
        return "; ".join((*skipped, *failed))


class Costs(NamedTuple):
    """Wall-clock seconds: of a block whatever its cases (start and end of the two processes), of
    each case in a block (opening, warm-up, slices), and of all proofs before the first block."""

    block: float
    cases: Mapping[str, float]
    opening: float = 0.0

    def of(self, cases: Iterable[str]) -> float:
        """Seconds of one block with these cases."""
        return self.block + sum(self.cases[case] for case in cases)


def costs_of(items: Iterable[Json]) -> Costs:
    """Medians, from the times `at` of the items. Within a block, the time since the item before is
    the cost of the later item's case. That of a block's first item has the start of the processes
    in it: what exceeds the case's usual cost is the block's own."""
    timed = [item for item in items if "at" in item]
    between: dict[str, list[float]] = {case_of(item): [] for item in timed}
    first: list[tuple[str, float]] = []
    for before, item in pairwise(timed):
        name, seconds = case_of(item), item["at"] - before["at"]
        if before.get("block", 0) != item.get("block", 0):
            first.append((name, seconds))
        elif item.get("block", 0) > 0:
            between[name].append(seconds)
    known = {name: statistics.median(found) for name, found in between.items() if found}
    # for a case that was always the first, whose own cost is thus not known
    usual = statistics.median(known.values()) if known else 0.0
    cases = {name: known.get(name, usual) for name in between}
    own = [max(0.0, seconds - cases[name]) for name, seconds in first]
    return Costs(statistics.median(own) if own else 0.0, cases)


# before each slice, so that the idle threads of the other side sleep by then; see SHORT_SPIN
SETTLING_SECONDS = 0.002
# A slow case has only so many pairs of slices in a block as fit into this time, but no fewer than
# FEWEST_PAIRS: its slices are long and scatter little, and no number of pairs would reduce the
# scatter between processes.
MOST_SECONDS_A_CASE = 1.5
FEWEST_PAIRS = 4
# tries to start a process, and to open a case for the first time
CHANCES = 2


def pairs_for(seconds: float, pairs: int, slice_seconds: float) -> int:
    """How many of these pairs of slices a case has whose iteration takes so long."""
    affordable = int(MOST_SECONDS_A_CASE / (2 * max(seconds, slice_seconds)))
    return min(pairs, max(FEWEST_PAIRS, affordable))


class ProcessPair:
    """Both sides' processes. `sides`: in the order in which they are started, waited for and
    closed. After ready_pair() neither computes anything."""

    def __init__(
        self,
        programs: Mapping[str, ServedProgram],
        limit: float,
        order: random.Random,
        sides: Sequence[str] = SIDES,
    ) -> None:
        self._kept = {side: KeptProcess(programs[side], limit, order) for side in sides}
        # why a side did not start
        self._failures: dict[str, list[str]] = {side: [] for side in sides}

    def __enter__(self) -> ProcessPair:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends both; ready() starts new ones."""
        for kept in self._kept.values():
            kept.end()

    def _can_start(self, side: str) -> bool:
        # bounded, since each try may take as long as the limit
        return len(self._failures[side]) < CHANCES

    def ready(self, side: str) -> ServedProcess:
        """The side's process. CaseFailedError where none starts."""
        while self._can_start(side):
            # all before any is waited for: they load at once
            for started in filter(self._can_start, self._kept):
                self._kept[started].start()
            try:
                return self._kept[side].ready()
            except ProcessLostError as error:
                self._failures[side].append(str(error))
        raise CaseFailedError(side, self._failures[side][-1])

    def ready_pair(self) -> dict[str, ServedProcess]:
        """Both, in the order of `sides`. CaseFailedError where one does not start."""
        # a side that is known not to start is asked first, so that the other is not waited for
        return {side: self.ready(side) for side in sorted(self._kept, key=self._can_start)}


def ending_item(index: int, case: str, side: str, error: CaseFailedError) -> Json:
    """What becomes of a case where a side failed or skipped it, but for `at`."""
    why = {"side": side, "reason": str(error)}
    if isinstance(error, CaseSkippedError):
        return {"block": index, "skipped": case, **why}
    return {"block": index, "case": case, "failed": why}


def balanced_order(pairs: int, order: random.Random) -> list[int]:
    """Who begins each pair: each side half of them, as nearly as that goes, in random order."""
    extra = [order.randrange(2)] if pairs % 2 else []
    first = [0, 1] * (pairs // 2) + extra
    order.shuffle(first)
    return first


def _rounded(seconds: float) -> float:
    """To six digits, more than a clock has."""
    return float(f"{seconds:.6g}")


class Interleaved:
    """Measures both sides interleaved. `pairs`: of slices, for each case in each block, fewer for
    slow cases; `slice_seconds`: a slice ends with the iteration in which these are over; `limit`:
    seconds that one answer may take. The items' `at` counts from when this object was made."""

    def __init__(
        self,
        programs: Mapping[str, ServedProgram],
        seed: int,
        *,
        pairs: int,
        slice_seconds: float,
        limit: float,
    ) -> None:
        self._programs = programs
        self._pairs, self._slice_seconds, self._limit = pairs, slice_seconds, limit
        self._order = random.Random(seed)
        # orders of the sides in the next blocks; of every two blocks, each side is first in one
        self._coming: list[tuple[str, ...]] = []
        self._started = time.monotonic()

    def _at(self) -> dict[str, float]:
        return {"at": round(time.monotonic() - self._started, 3)}

    def _ending(self, index: int, case: str, error: CaseFailedError) -> Json:
        return ending_item(index, case, error.side, error) | self._at()

    def _pair(self, sides: Sequence[str] = SIDES) -> ProcessPair:
        return ProcessPair(self._programs, self._limit, self._order, sides)

    def greet(self) -> dict[str, Json]:
        """What each side can open, and its context. Raises BadInputError where a side has no
        --serve, CaseFailedError where it does not start."""
        with self._pair() as pair:
            return {side: pair.ready(side).greet() for side in SIDES}

    def open_once(self, cases: Collection[str], *, verify: bool) -> Iterator[Json]:
        """Before any timing: every case once on each side, with its counters, and with the proof of
        its result where `verify`. In processes of their own, since proof and counting change the
        state of the allocator, which would then be another one in the first block than in the
        others. A case at which a process was lost is tried once more: memory may have been short
        for a moment."""
        with self._pair() as pair:
            for case in cases:
                for side in SIDES:
                    yield from self._open_on(pair, case, side, verify)

    def _open_on(self, pair: ProcessPair, case: str, side: str, verify: bool) -> Iterator[Json]:
        for _ in range(CHANCES):
            try:
                process = pair.ready(side)
                process.ask_to_open(case, verify=verify, meter=True)
                found = process.opened(case)
                process.close_case(case)
            except CaseFailedError as error:
                yield self._ending(0, case, error)
                if isinstance(error, ProcessLostError):
                    continue
            else:
                seconds = _rounded(found["seconds"])
                yield {"opened": case, "side": side, **found, "seconds": seconds, **self._at()}
            return

    def measure(self, index: int, cases: Collection[str]) -> Iterator[Json]:
        """One block: a fresh process on each side, then every case once, each yielded when done."""
        shuffled = list(cases)
        self._order.shuffle(shuffled)
        if not self._coming:
            self._coming = [SIDES, SIDES[::-1]]
            self._order.shuffle(self._coming)
        with self._pair(self._coming.pop()) as pair:
            for case in shuffled:
                yield self._measure_case(pair, index, case)

    def _measure_case(self, pair: ProcessPair, index: int, case: str) -> Json:
        try:
            processes = pair.ready_pair()
            for process in processes.values():
                process.ask_to_open(case)
            seconds = [process.opened(case)["seconds"] for process in processes.values()]
            # the smaller is that of the less disturbed side
            pairs = pairs_for(min(seconds), self._pairs, self._slice_seconds)
            firsts = balanced_order(pairs, self._order)
            slices = self._time_pairs(processes, case, firsts)
            for process in processes.values():
                process.close_case(case)
        except CaseFailedError as error:
            # the other process may have the case open, or not have answered yet
            pair.end()
            return self._ending(index, case, error)
        return {"block": index, "case": case, **slices, "first": firsts, **self._at()}

    def _time_pairs(
        self, processes: Mapping[str, ServedProcess], case: str, firsts: Sequence[int]
    ) -> dict[str, list[float]]:
        """The median iteration of each slice: an interrupt that hits one does not change it."""
        slices: dict[str, list[float]] = {side: [] for side in SIDES}
        for first in firsts:
            for side in (SIDES[first], SIDES[1 - first]):
                time.sleep(SETTLING_SECONDS)
                seconds = processes[side].time(case, self._slice_seconds)
                slices[side].append(_rounded(statistics.median(seconds)))
        return slices


# costs are those of the last few blocks: a shared machine may become slower within minutes
REMEMBERED = 5


class Measuring:
    """Opens all cases once, then measures block after block of what is still open. `measurer`: has
    open_once() and measure() of Interleaved, which commands/interleaved.py has too, for more sides.
    `keep`: is given every item as it comes."""

    def __init__(
        self,
        measurer: Interleaved,
        cases: Iterable[str],
        keep: Callable[[Json], None],
        progress: Progress,
    ) -> None:
        self.cases = {name: CaseRecord(name) for name in cases}
        self.blocks = 0
        self.costs = Costs(0.0, {})
        self.progress = progress
        self._measurer, self._keep = measurer, keep
        self._recent: list[Json] = []

    @property
    def open_cases(self) -> list[str]:
        """In the order in which they were given."""
        return [name for name, record in self.cases.items() if not record.closed]

    def _take(self, item: Json) -> CaseRecord:
        """Whose record it is."""
        record = self.cases[case_of(item)]
        # before it is kept, which may fail; what the base skips counts as not tried in the new
        if not record.closed:
            record.add(item)
        self._recent.append(item)
        self._keep(item)
        return record

    def open_all(self, *, verify: bool) -> None:
        """Opens each case once on all sides; one that could not be opened is not timed."""
        self.progress.begin(len(SIDES) * len(self.cases))
        for item in self._measurer.open_once(list(self.cases), verify=verify):
            self._take(item)
            self.progress.step(f"opened {case_of(item)}")
        for record in self.cases.values():
            if len(record.openings) < len(SIDES):
                record.closed = GIVEN_UP
                self.progress.line(f"{record.name}: left out: {record.why}")

    def measure_block(self) -> None:
        """Of what is open; what fails twice on a side, or is skipped, is open no more."""
        for item in self._measurer.measure(self.blocks + 1, self.open_cases):
            if (record := self._take(item)).closed:
                self.progress.line(f"{record.name}: given up: {record.why}")
        self.blocks += 1
        oldest = self.blocks - REMEMBERED
        self._recent = [item for item in self._recent if item.get("block", 0) >= oldest]
        found = costs_of(self._recent)
        # cases that are no longer measured keep the costs that they had
        self.costs = found._replace(cases={**self.costs.cases, **found.cases})


KIND = "tiny_llama paired blocks"
SCHEMA_VERSION = 1


def refuse_existing(path: Path) -> None:
    """BadInputError where the file is there: what an earlier run measured is not written over."""
    if path.exists():
        raise BadInputError(
            f"{path}: is there already, and a recording is never written over: name another "
            "--out, or move it away"
        )


@contextlib.contextmanager
def recording(path: Path, header: Json) -> Iterator[Callable[[Json], None]]:
    """Makes a new file, and yields the function that adds an item to it as a line. When it returns,
    the line is with the operating system: it survives this process, though not a power failure.
    OSError where the file exists, or cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("x", encoding="utf-8")

    def add(item: Json) -> None:
        with naming(path):
            file.write(json.dumps(item) + "\n")
            file.flush()

    try:
        add(header)
        yield add
    finally:
        # closing tries to write a failed line again, with the same error
        with contextlib.suppress(OSError):
            file.close()


def read_recording(path: Path) -> tuple[Json, list[Json]]:
    """The header and the items; BadInputError where it is no recording of `compare run`."""
    (header, *items), _ = read_lines(path, SCHEMAS["recording"])
    for number, item in enumerate(items, start=2):
        if "base" in item and len(item["base"]) != len(item["new"]):
            raise BadInputError(f"{path}: line {number}: not as many slices on both sides")
    return header, items


class Sides(NamedTuple):
    """Both sides, ready to be measured. `cases`: that each side lists; `shared`: those of both, in
    the base's order; `header`: of a recording."""

    measurer: Interleaved
    cases: Mapping[str, Sequence[str]]
    shared: list[str]
    header: Json


def refuse_equal(programs: Mapping[str, ServedProgram]) -> None:
    """BadInputError where both sides are the same program, as where the base is a build folder that
    was rebuilt meanwhile."""
    base, new = (programs[side].program for side in SIDES)
    if base == new or filecmp.cmp(base, new, shallow=False):
        raise BadInputError(
            f"--base {base} and --new {new} are the same program, to the last byte: nothing can be "
            "found; name a commit as the base (--base HEAD), or a copy of an older build, or ask "
            "for it with --same"
        )


def refuse_for_other_programs(options: argparse.Namespace, are_other: Mapping[str, bool]) -> None:
    """BadInputError where one side is tiny_llama_bench and the other another program, and for
    options that other programs do not have."""
    if not all(are_other.values()):
        ours = next(side for side, is_other in are_other.items() if not is_other)
        raise BadInputError(
            f"--{ours}: must be another Google Benchmark program, as the other side is: two "
            "programs that share no case cannot be compared"
        )
    given = [f"--{name}" for name in SUITE_OPTIONS if getattr(options, name.replace("-", "_"))]
    if given:
        what = "is for tiny_llama_bench; of other programs --filter chooses the cases"
        raise BadInputError(f"{given[0]}: {what}")
    try:
        regular_expression(options.filter or "")
    except argparse.ArgumentTypeError as error:
        raise BadInputError(f"--filter {error}") from error
    # there is nothing to prove their results by
    options.verify = "off"


def prepare(options: argparse.Namespace, seed: int, progress: Progress) -> Sides:
    """Builds what has to be built, and asks both sides what they can measure.

    Raises BadInputError where a side is none, does not start, cannot be served, or has no case in
    common with the other.
    """
    builder = Builder(options.build_folder, say=progress.line)
    named = (
        (BASE, options.base, options.environment_base),
        (NEW, options.new or str(options.build_folder), options.environment_new),
    )
    # the plug-ins are what the sides differ in
    adds_plugins = bool(options.plugin) and not names_operators(options)
    names, files = {}, {}
    for side, text, _ in named:
        names[side], files[side] = builder.resolve(text, f"--{side}")
    if adds_plugins:
        names[NEW] += " with " + ", ".join(file.name for file in options.plugin)
    are_other = {side: is_other_program(file) for side, file in files.items()}
    if any(are_other.values()):
        refuse_for_other_programs(options, are_other)
    programs = {
        side: ServedProgram(side, files[side], (), dict(environment), OtherProcess)
        if are_other[side]
        else ServedProgram(
            side,
            files[side],
            program_arguments(options, side),
            dict(environment),
            known_as=case_without_operators if adds_plugins and side == NEW else None,
        )
        for side, _, environment in named
    }
    is_one_program = options.same or adds_plugins
    if not (is_one_program or options.environment_base or options.environment_new):
        refuse_equal(programs)
    effort = {"pairs": options.pairs, "slice_seconds": options.slice}
    measurer = Interleaved(programs, seed, **effort, limit=options.limit)
    try:
        greetings = measurer.greet()
    except CaseFailedError as error:
        raise BadInputError(f"a side does not start: {error.side}: {error}") from error
    header = {
        "recording": KIND,
        "schema_version": SCHEMA_VERSION,
        **names,
        **effort,
        "seed": seed,
        "started": now_text(),
        **{f"{side}_context": greetings[side]["context"] for side in SIDES},
        "settings": settings_of(options),
    }
    chosen = is_chosen_by_name if are_other[BASE] else is_chosen
    cases = {s: [n for n in greetings[s]["cases"] if chosen(n, options)] for s in SIDES}
    if adds_plugins:
        # cases that no operator changes
        cases[BASE] = [name for name in cases[BASE] if name in cases[NEW]]
    shared = [name for name in cases[BASE] if name in cases[NEW]]
    if not shared:
        counts = ", ".join(f"{len(cases[side])} on the {side} side" for side in SIDES)
        raise BadInputError(
            f"no case to compare ({counts}, none on both): the sides must have one in common; give "
            "other --components, --passes or --filter"
        )
    return Sides(measurer, cases, shared, header)
