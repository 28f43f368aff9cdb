"""What scripts/ablation and scripts/peers share: they interleave several implementations of a
training step, the sides, and judge the ratios of their times.

At each case every side gets ready; then each runs once a turn, in an order that is drawn anew for
every turn, so that two times that are divided by each other are at most minutes apart. The file is
a result of the suite with every step of every turn; its context has, under the command's name, the
ratios and how they were measured.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    RESULTS,
    Json,
    made_by,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.options import positive, seconds
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import compact_json, duration
from tinyllama_tools.data.machine import merged_peaks
from tinyllama_tools.data.names import UNITS, CaseName
from tinyllama_tools.data.programs import SuiteError, SuiteProgram, rows_of, suite_program
from tinyllama_tools.models.step_ratios import point_title, read_step_ratios
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns


def add_turn_options(parser: argparse.ArgumentParser, turns: int, steps: int, limit: float) -> None:
    """Adds the options that both commands have, with these defaults."""
    add = parser.add_argument
    turns_help = f"how often each side runs (default: {turns}; 6 are enough for 95 %%)"
    add("--turns", type=positive, default=turns, help=turns_help)
    add("--steps", type=positive, default=steps, help=f"timed steps of a turn (default: {steps})")
    limit_help = (
        f"for the timed steps of a side (default: {limit:g}), which gets fewer steps where they "
        "would take longer, but one a turn; a side whose step takes longer is skipped"
    )
    add("--max-seconds-per-case", type=seconds, default=limit, metavar="S", help=limit_help)
    threads_help = "CPU threads of every side (default: libtorch's own choice)"
    add("--threads", type=positive, help=threads_help)
    name = parser.prog.removeprefix("scripts/")
    add("--output", type=Path, help=f"folder (default: results/<UTC time>_{name})")
    source_help = f"write the tables of an earlier {name}.json anew"
    add("--from", type=Path, dest="source", metavar="FILE", help=source_help)


class SideError(Exception):
    """A side failed at a case, or skipped it. `entry`: its row in the file."""

    def __init__(self, reason: str, *, is_skip: bool = False) -> None:
        super().__init__(reason)
        failed = {"error_occurred": True, "error_message": reason}
        self.entry: Json = {
            **{"iterations": 0, "real_time": 0.0, "cpu_time": 0.0, "time_unit": "ms"},
            **({"skipped": True, "skip_message": reason} if is_skip else failed),
        }


class Side:
    """An implementation of the training step. `variant`: its name in that of the case."""

    variant: str

    def get_ready(self, case: CaseName) -> float:
        """Prepares the case to be timed; seconds of a step."""
        raise NotImplementedError

    def time(self, case: CaseName, steps: int) -> list[Json]:
        """Times so many steps; an entry in the suite's format for each."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees what it holds, once it is not needed any more."""


def median_seconds(entries: Sequence[Json]) -> float:
    """The median time of a step."""
    return statistics.median(entry["real_time"] * UNITS[entry["time_unit"]] for entry in entries)


def keep_best_peaks(peaks: Json, context: Json) -> None:
    """Raises `peaks` to those of the context where these are higher: the best of all processes
    counts for all rows (data/machine.py)."""
    best, _ = merged_peaks([{"peaks": {"measured": peaks}}, context])
    peaks.update(best["peaks"]["measured"])


# Our program refuses a case that it cannot warm up, meter and time within its limit.
FEWEST_ITERATIONS = 3


class OurSide(Side):
    """One variant of tiny_llama_bench, in a new process each turn. Getting ready proves a case, so
    its turns are timed without the proof. `proof`: the proved row of the current case. `peaks`: the
    best of all processes, which it updates."""

    def __init__(
        self, variant: str, program: SuiteProgram, max_seconds: float, peaks: Json
    ) -> None:
        self.variant = variant
        self.proof: Json = {}
        self._peaks = peaks
        self._verified: Json | None = None
        self._program = program
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"

    @staticmethod
    def prove(case: CaseName, sides: Sequence[OurSide]) -> None:
        """Proves a step of each in one process, which computes the float64 reference once. Where
        that process fails, each side proves its own when it gets ready."""
        try:
            verified = sides[0]._process(case, sides, 1, verify=True)
        except SideError:
            verified = None
        for side in sides:
            side._verified = verified

    def get_ready(self, case: CaseName) -> float:
        self.proof = {}
        verified = self._verified or self._process(case, [self], 1, verify=True)
        (self.proof,) = self._rows(case, verified)
        return median_seconds([self.proof])

    def time(self, case: CaseName, steps: int) -> list[Json]:
        found = self._rows(case, self._process(case, [self], steps, verify=False))
        error = {key: self.proof[key] for key in ("max_rel_error",) if key in self.proof}
        return [row | error for row in found]

    def _process(
        self, case: CaseName, sides: Sequence[OurSide], steps: int, *, verify: bool
    ) -> Json:
        cases = [replace(case, variant=side.variant) for side in sides]
        try:
            return self._program.measure(cases, steps, verify=verify, more=[self._limit])
        except SuiteError as error:
            raise SideError(str(error)) from error

    def _rows(self, case: CaseName, document: Json) -> list[Json]:
        keep_best_peaks(self._peaks, document["context"])
        rows = rows_of(document, replace(case, variant=self.variant))
        for key in ("skip_message", "error_message"):
            if key in rows[-1]:
                raise SideError(rows[-1][key], is_skip=key == "skip_message")
        return rows


# By side, in the order of their rows: the entries of each turn, or where the side failed or skipped
# the case, the one entry with the reason. Filled turn by turn, so that an interruption keeps turns.
CaseRun = dict[str, list[list[Json]]]


def ratio_of(run: CaseRun, above: str, below: str) -> Ratio | None:
    """The time of one side over that of another, from the turns that both have."""
    pairs = zip(run.get(above, []), run.get(below, []), strict=False)
    timed = [pair for pair in pairs if all(turn[0]["iterations"] for turn in pair)]
    medians = [tuple(map(median_seconds, pair)) for pair in timed]
    return ratio_of_turns(*zip(*medians, strict=True)) if medians else None


def rows_of_sides(results: Mapping[CaseName, CaseRun]) -> Iterator[Json]:
    """The file's rows, with Google Benchmark's keys: one for each step, ordered by case, side and
    turn, or one with the reason where a side did not measure a case."""
    family = itertools.count()
    for case, run in results.items():
        # of one row that has it, for all: every side computes the same model
        every = (entry for turns in run.values() for turn in turns for entry in turn)
        flops = next((entry["model_flops"] for entry in every if "model_flops" in entry), None)
        for variant, turns in run.items():
            number, found = next(family), list(itertools.chain(*turns))
            for index, entry in enumerate(found):
                of_variant = replace(case, variant=variant)
                name = entry.get("name", str(of_variant))
                if flops and "samples_per_second" in entry and "model_flops" not in entry:
                    rate = entry["samples_per_second"] / case.batch
                    entry |= {"model_flops": flops, "TFLOPS": flops * rate * 1e-12}
                yield {
                    **entry,
                    **of_variant.axes,
                    "name": name,
                    "family_index": number,
                    "per_family_instance_index": 0,
                    "run_name": name,
                    "run_type": "iteration",
                    "repetitions": len(found),
                    "repetition_index": index,
                    "threads": 1,
                }


# The quickest case, which shows that our program runs, and on what.
QUICKEST = CaseName("rms_norm", "forward", "baseline", "tiny", "f32", 1, 16)


class InterleavedSteps:
    """One run of the command `name`, which writes `name`.json and NAME.md.

    `page`: makes the Markdown page of the document. `options`: those of add_turn_options(),
    `device`, `cases` in the order in which they run, and our `variants`. `context`: of one of our
    processes; `peaks`: the best of all of them.
    """

    name: str
    page: Callable[[Json], str]
    program: SuiteProgram

    def __init__(self, options: argparse.Namespace, command: str) -> None:
        self.options = options
        self.command = command
        self.results: dict[CaseName, CaseRun] = {}
        self.sides: list[Side] = []
        self.context: Json = {}
        self.peaks: Json = {}
        self.progress = Progress()
        self._begin = time.monotonic()

    def ours(self, variants: Iterable[str]) -> list[Side]:
        """A side for each of these variants."""
        limit = self.options.max_seconds_per_case
        return [OurSide(name, self.program, limit, self.peaks) for name in variants]

    def begin(self) -> list[Side]:
        """The sides of every case, in the order of their rows."""
        return self.ours(self.options.variants)

    def further(self) -> list[Side]:
        """More sides for the current case, which are known once the others got ready."""
        return []

    def pairs(self, run: CaseRun) -> Iterable[tuple[str, str]]:
        """Pairs of sides, the time of the first to be divided by that of the second."""
        raise NotImplementedError

    def about(self) -> Json:
        """More entries for the context about how it was measured."""
        return {}

    def measure_case(self, case: CaseName) -> None:
        """Prepares all sides, then times --steps of each side in each turn; fewer where all turns
        together would exceed the limit."""
        run, options, steps_of = self.results[case], self.options, dict[Side, int]()

        def trying(side: Side, turn: int) -> None:
            name = side.variant
            self.progress.passing(f"{point_title(case)}: turn {turn} of {options.turns}: {name}")
            try:
                if turn:
                    run[name].append(side.time(case, steps_of[side]))
                else:
                    run[name] = []
                    affordable = options.max_seconds_per_case / options.turns / side.get_ready(case)
                    steps_of[side] = max(1, min(options.steps, int(affordable)))
            except SideError as reason:
                # a failed side has no times, only the reason
                run[name] = [[reason.entry]]
                steps_of.pop(side, None)

        def get_ready(sides: Sequence[Side]) -> None:
            if ours := [side for side in sides if isinstance(side, OurSide)]:
                OurSide.prove(case, ours)
            for side in sides:
                trying(side, 0)

        get_ready(self.sides)
        get_ready(self.further())
        order = random.Random(str(case))
        for turn in range(1, options.turns + 1):
            for side in order.sample(list(steps_of), len(steps_of)):
                trying(side, turn)

    def document(self) -> Json:
        """The whole file."""
        options, rows = self.options, list(rows_of_sides(self.results))
        about = {
            **self.about(),
            "command": self.command,
            "took": duration(time.monotonic() - self._begin),
            "turns": options.turns,
            "steps": options.steps,
            "max_seconds_per_case": options.max_seconds_per_case,
            # because of an interruption
            "not_measured": [
                point_title(case)
                for case in options.cases
                if not any(self.results.get(case, {}).values())
            ],
            "ratios": [
                {"case": str(replace(case, variant=below)), "peer": above} | asdict(ratio)
                for case, run in self.results.items()
                for above, below in self.pairs(run)
                if above != below and (ratio := ratio_of(run, above, below))
            ],
        }
        peaks = {"peaks": self.context["peaks"] | {"measured": self.peaks}}
        # the timed processes did not prove anything, a process before them did
        context = self.context | peaks | {"verify": "off", self.name: about}
        return {"context": context, "benchmarks": rows}

    def write(self, document: Json, folder: Path) -> str:
        """Writes the file and its page; the page's text."""
        page = self.page(document)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{self.name}.json", compact_json(document, ("benchmarks",)))
        write_whole(folder / f"{self.name.upper()}.md", page)
        return page

    def measure(self, folder: Path) -> tuple[Json, str, bool]:
        """Measures all cases and writes after each; the document, its page, and whether it was
        interrupted."""
        self.context = self.program.measure([QUICKEST], 1)["context"]
        keep_best_peaks(self.peaks, self.context)
        self.sides, cases = self.begin(), self.options.cases
        try:
            for number, case in enumerate(cases, start=1):
                spent = duration(time.monotonic() - self._begin)
                self.progress.line(f"[{number}/{len(cases)}] {point_title(case)}  ({spent} so far)")
                self.results[case], is_interrupted = {}, False
                try:
                    self.measure_case(case)
                except KeyboardInterrupt:
                    self.progress.line("interrupted")
                    is_interrupted = True
                document = self.document()
                page = self.write(document, folder)
                if is_interrupted:
                    break
        finally:
            self.progress.end()
            for side in self.sides:
                side.close()
        return document, page, is_interrupted

    def main(self) -> int:
        """Measures, or with --from makes the tables of an earlier result anew. The exit status is 1
        where a case failed."""
        options, source, is_interrupted = self.options, self.options.source, False
        # a result under another name, as in results/reference, has its page elsewhere
        is_run = source and source.name == f"{self.name}.json"
        folder = options.output or (source.parent if is_run else run_folder(self.name, RESULTS))
        if source:
            document = read_step_ratios(source, self.name)
            with made_by(f"scripts/{self.name}", source):
                page = self.write(document, folder)
        else:
            # options that the program refuses leave no folder
            self.program = suite_program(options.device, options.threads, options.variants)
            folder.mkdir(parents=True, exist_ok=True)
            document, page, is_interrupted = self.measure(folder)
        print(page, end="")
        print(folder)
        if is_interrupted:
            return INTERRUPTED
        return int(any("error_message" in row for row in document["benchmarks"]))
