"""What scripts/ablation and scripts/peers share: they interleave several implementations of a
training step, the sides, and compare pairs of them as `compare run` compares two builds.

At each case every side gets ready. In a block every side that is still wanted is timed once, for a
slice, in an order that is drawn anew: our variants by one fresh process that has one of them open
at a time, since all of them would not fit into memory. Pairs are judged at planned looks
(stats/verdicts.py); all pairs of all cases are one family. What has its verdicts is measured no
more. The file is a result of the suite with a row for every block; its context has, under the
command's name, the ratios and how they were measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from tinyllama_tools.commands.step_sides import (
    OurSide,
    Side,
    keep_best_peaks,
    reason_entry,
    seconds_of,
)
from tinyllama_tools.compare.blocks import MOST_FAILURES, SIDES, ending_item
from tinyllama_tools.compare.options import duration_of
from tinyllama_tools.compare.run import SequentialRun
from tinyllama_tools.compare.sides import (
    CaseFailedError,
    CaseSkippedError,
    KeptProcess,
    ServedProgram,
)
from tinyllama_tools.core.app import INTERRUPTED, Json, made_by, run_folder, write_whole
from tinyllama_tools.core.installation import RESULTS, typed
from tinyllama_tools.core.options import (
    add_build_folder,
    add_out,
    add_plugin,
    fraction,
    plugin_options,
    positive,
    seconds,
)
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import compact_json, duration
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.programs import SERVED_LIMIT_S, SuiteProgram, axis_options, suite_program
from tinyllama_tools.models.step_ratios import point_title, read_step_ratios
from tinyllama_tools.stats.rank_tests import (
    LOG_RATIO,
    WANTED_CONFIDENCE,
    Array,
    Interval,
    interval_ends,
    middle,
    signed_rank_tail,
    walsh_averages,
)
from tinyllama_tools.stats.verdicts import (
    BAD_INPUT,
    MARGIN,
    Judgement,
    Outcome,
    judge_family,
    plan_design,
)

# A table of what to use is not a gate that runs every night: fewer blocks than `compare run` asks
# for, and intervals of 95 % at each look.
ALPHA, LOOKS = 0.05, 2
SECONDS_A_CASE = 1800.0


def add_run_options(parser: argparse.ArgumentParser, limit: float) -> None:
    """Adds the options that both commands have; those of `compare run` mean the same here.
    `limit`: the default of --max-seconds-per-case."""
    add = parser.add_argument
    budget = (
        "time to measure, such as 30m or 4h, shared evenly by the cases that are left (default: "
        f"{duration(SECONDS_A_CASE)} for each)"
    )
    add("--budget", type=duration_of, metavar="TIME", help=budget)
    slices = "least time of a side's steps in a block (default: 300ms)"
    add("--slice", type=duration_of, default=0.3, metavar="TIME", help=slices)
    alpha = "accepted chance of any false slower or faster in all tables (default: %(default)s)"
    add("--alpha", type=fraction, default=ALPHA, help=alpha)
    margin = "largest change that does not matter, as a fraction (default: %(default)s)"
    add("--margin", type=fraction, default=MARGIN, help=margin)
    looks = "how often pairs are judged; alpha is divided among the looks (default: %(default)s)"
    add("--looks", type=positive, default=LOOKS, help=looks)
    limit_help = f"a side whose step takes longer is skipped (default: {limit:g})"
    add("--max-seconds-per-case", type=seconds, default=limit, metavar="S", help=limit_help)
    threads_help = "CPU threads of every side (default: libtorch's own choice)"
    add("--threads", type=positive, help=threads_help)
    add_plugin(parser)
    add_build_folder(parser)
    name = parser.prog.removeprefix(typed(""))
    add_out(parser, f"default: results/<UTC time>_{name}")
    source_help = f"write the tables of an earlier {name}.json anew"
    add("--from", type=Path, dest="source", metavar="FILE", help=source_help)


# By side, in the order of their rows: the entry of each block, or where the side failed or skipped
# the case, one with the reason. Filled as they come: an interruption keeps them.
CaseRun = dict[str, list[Json]]


class Pair(NamedTuple):
    """Two sides of a case, the time of the one to be divided by that of the other."""

    case: CaseName
    below: str
    above: str

    @property
    def sides(self) -> dict[str, str]:
        """Of the base and of the new."""
        return dict(zip(SIDES, (self.below, self.above), strict=True))


def ratio_row(pair: Pair, blocks: Array, judgement: Judgement | None) -> Json:
    """What the file says of a pair. Without a verdict, by all blocks so far."""
    ratios = blocks[:, LOG_RATIO]
    if judgement:
        ends, confidence = (judgement.low, judgement.high), judgement.confidence
        estimate = judgement.estimate
    else:
        averages, confidence = walsh_averages(ratios[None]), WANTED_CONFIDENCE
        estimate = float(middle(averages)[0])
        found = interval_ends(averages, signed_rank_tail(len(ratios)), confidence)
        ends = tuple(float(end[0]) for end in found) if found else ()
    return {
        "case": str(replace(pair.case, variant=pair.below)),
        "peer": pair.above,
        "ratio": math.exp(estimate),
        "interval": asdict(Interval(*map(math.exp, ends), confidence)) if ends else None,
        "verdict": (judgement.outcome if judgement else Outcome.NO_VERDICT).value,
        "p_value": judgement.adjusted_p_value if judgement else None,
        "blocks": judgement.blocks if judgement else len(ratios),
        "of_each_block": [math.exp(ratio) for ratio in ratios],
    }


def rows_of_sides(results: Mapping[CaseName, CaseRun]) -> Iterator[Json]:
    """The file's rows, with Google Benchmark's keys: one for each block, ordered by case, side and
    block, or one with the reason where a side did not measure a case."""
    family = itertools.count()
    for case, run in results.items():
        # of one row that has it, for all: every side computes the same model
        every = itertools.chain(*run.values())
        flops = next((entry["model_flops"] for entry in every if "model_flops" in entry), None)
        for variant, found in run.items():
            number = next(family)
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
    """One run of the command `name`, which writes `name`.json and NAME.md; and what measures blocks
    of many sides for SequentialRun, as Interleaved does of two: a case of that is a pair of sides,
    below the base and above the new.

    `page`: makes the Markdown page of the document. `options`: those of add_run_options(),
    `device`, `cases` in the order in which they run, and our `variants`. `context`: of one of our
    processes; `peaks`: the best of all of them. `pairs_a_case`: the most that are compared at one;
    `fewer`: options that make a block shorter.
    """

    name: str
    fewer: str
    page: Callable[[Json], str]
    program: SuiteProgram
    served: KeptProcess

    def __init__(self, options: argparse.Namespace, command: str, pairs_a_case: int) -> None:
        self.options = options
        self.command = command
        self.results: dict[CaseName, CaseRun] = {}
        self.runs: dict[CaseName, SequentialRun] = {}
        self.compared: dict[str, Pair] = {}
        self.sides: list[Side] = []
        self.context: Json = {}
        self.peaks: Json = {}
        self.progress = Progress()
        rule = {"alpha": options.alpha, "margin": options.margin, "looks": options.looks}
        # the family is fixed before anything is measured
        self.design = plan_design(max(1, pairs_a_case * len(options.cases)), **rule)
        self._begin = time.monotonic()

    def ours(self, variants: Iterable[str]) -> list[Side]:
        """A side for each of these variants."""
        limit = self.options.max_seconds_per_case
        more = (self.program, self.served, limit, self.peaks)
        return [OurSide(name, *more) for name in variants]

    def begin(self) -> list[Side]:
        """The sides of every case, in the order of their rows."""
        return self.ours(self.options.variants)

    def further(self) -> list[Side]:
        """More sides for the current case, which are known once the others got ready."""
        return []

    def pairs(self, names: Collection[str]) -> Iterable[tuple[str, str]]:
        """Pairs of these sides, the time of the first to be divided by that of the second."""
        raise NotImplementedError

    def about(self) -> Json:
        """More entries for the context about how it was measured."""
        return {}

    def _at(self) -> dict[str, float]:
        return {"at": time.monotonic() - self._begin}

    def _get_ready(self, sides: Sequence[Side]) -> None:
        if ours := [side for side in sides if isinstance(side, OurSide)]:
            OurSide.prove(self._point, ours)
        for side in sides:
            title = f"{point_title(self._point)}: {side.variant}"
            self.progress.passing(f"{title} gets ready")
            self._run[side.variant] = []
            try:
                side.get_ready(self._point)
            except CaseFailedError as error:
                self._run[side.variant] = [reason_entry(error)]
                self.progress.line(f"{title}: left out: {error}")
            else:
                self._ready[side.variant] = side

    def _time(self, index: int, wanted: Collection[str]) -> dict[str, float | CaseFailedError]:
        """One block: by side the seconds of a step, or why it has none."""
        self.served.end()
        found: dict[str, float | CaseFailedError] = {}
        for name in self._order.sample(sorted(wanted), len(wanted)):
            side = self._ready[name]
            self.progress.passing(f"{point_title(self._point)}: block {index}: {name}")
            try:
                if name in self._lost:
                    side.get_ready(self._point)
                    self._lost.remove(name)
                entry = side.time(self._point, self.options.slice)
            except CaseFailedError as error:
                found[name] = error
                self._failures[name] += 1
                if isinstance(error, CaseSkippedError) or self._failures[name] >= MOST_FAILURES:
                    # it has no times, only the reason
                    self._run[name] = [reason_entry(error)]
                else:
                    # it may have failed by the machine's fault
                    self._lost.add(name)
                continue
            self._run[name].append(entry)
            found[name] = seconds_of(entry)
        return found

    def open_once(self, names: Collection[str], *, verify: bool) -> Iterator[Json]:
        """All are, with the proof, whatever is asked."""
        del verify
        for name, side in itertools.product(names, SIDES):
            yield {"opened": name, "side": side, "counters": {}, **self._at()}

    def measure(self, index: int, names: Collection[str]) -> Iterator[Json]:
        """One block of these pairs, all of the current case."""
        pairs = {name: self.compared[name].sides for name in names}
        found = self._time(index, {own for pair in pairs.values() for own in pair.values()})
        for name, pair in pairs.items():
            times = {side: found[own] for side, own in pair.items()}
            failed = {s: e for s, e in times.items() if isinstance(e, CaseFailedError)}
            for side, error in failed.items():
                yield ending_item(index, name, side, error) | self._at()
            if not failed:
                slices = {side: [seconds] for side, seconds in times.items()}
                yield {"block": index, "case": name, **slices, **self._at()}

    def measure_case(self, case: CaseName) -> None:
        """Prepares all sides, then measures blocks until each pair has its verdict or the case's
        share of the budget is used."""
        options, self._point = self.options, case
        self._run = self.results[case]
        self._ready = dict[str, Side]()
        self._failures, self._lost = Counter[str](), set[str]()
        self._order = random.Random(str(case))
        self._get_ready(self.sides)
        self._get_ready(self.further())
        ours = [side.variant for side in self._ready.values() if isinstance(side, OurSide)]
        if ours:
            axes = axis_options([replace(case, variant=name) for name in ours])
            arguments = (*axes, *self.program.arguments)
            self.served.program = replace(self.served.program, arguments=arguments)
        pairs = {
            f"{replace(case, variant=below)} beside {above}": Pair(case, below, above)
            for above, below in self.pairs(self._run)
            if above != below and {above, below} <= self._ready.keys()
        }
        self.compared |= pairs
        left = len(options.cases) - len(self.results) + 1
        budget = options.budget or SECONDS_A_CASE * len(options.cases)
        share = max(0.0, budget - (time.monotonic() - self._begin)) / left
        run = SequentialRun(
            self,
            pairs,
            self.design,
            share,
            fewer=self.fewer,
            shares=left,
            keep=lambda _: None,
            progress=self.progress,
        )
        self.runs[case] = run
        run.run(verify=True)
        if run.refusal:
            self.progress.line(run.refusal)
        # with nothing beside them they have times all the same
        if alone := [name for name in self._ready if not self._run[name]]:
            for name, found in self._time(1, alone).items():
                if isinstance(found, CaseFailedError):
                    self._run[name] = [reason_entry(found)]

    def ratios(self) -> list[Json]:
        """Of all pairs so far that have times, judged as one family."""
        records = (record for run in self.runs.values() for record in run.cases.values())
        blocks = {record.name: record.blocks for record in records if len(record.blocks)}
        for name in list(blocks):
            pair = self.compared[name]
            if not all(
                self.results[pair.case][own][0]["iterations"] for own in pair.sides.values()
            ):
                del blocks[name]
        judged = judge_family(blocks, self.design)
        return [ratio_row(self.compared[n], found, judged[n]) for n, found in blocks.items()]

    def document(self) -> Json:
        """The whole file."""
        options, rows, design = self.options, list(rows_of_sides(self.results)), self.design
        about = {
            **self.about(),
            "command": self.command,
            "took": duration(time.monotonic() - self._begin),
            "effort": (
                f"slices of {options.slice:g} s, one step at least; looks after "
                f"{', '.join(map(str, design.looks))} blocks"
            ),
            "max_seconds_per_case": options.max_seconds_per_case,
            "design": {
                "family": design.cases,
                "alpha": design.alpha,
                "margin": design.margin,
                "looks": list(design.looks),
            },
            "refusals": [
                f"{point_title(case)}: {run.refusal}"
                for case, run in self.runs.items()
                if run.refusal
            ],
            # because of an interruption
            "not_measured": [
                point_title(case)
                for case in options.cases
                if not any(self.results.get(case, {}).values())
            ],
            "ratios": self.ratios(),
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

    def measure_all(self, folder: Path) -> tuple[Json, str, bool]:
        """Measures all cases and writes after each; the document, its page, and whether it was
        interrupted."""
        self.context = self.program.measure([QUICKEST], 1)["context"]
        keep_best_peaks(self.peaks, self.context)
        program = self.program.program
        served = ServedProgram(program.name, program)
        self.served = KeptProcess(served, SERVED_LIMIT_S, random.Random(0))
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
            self.served.end()
            for side in self.sides:
                side.close()
        return document, page, is_interrupted

    def main(self) -> int:
        """Measures, or with --from makes the tables of an earlier result anew. The exit status is 1
        where a case failed, else 2 where the budget was too short for any verdict."""
        options, source, is_interrupted = self.options, self.options.source, False
        # a result under another name, as in results/reference, has its page elsewhere
        is_run = source and source.name == f"{self.name}.json"
        folder = options.out or (source.parent if is_run else run_folder(self.name, RESULTS))
        if source:
            document = read_step_ratios(source, self.name)
            with made_by(typed(self.name), source):
                page = self.write(document, folder)
        else:
            # options that the program refuses leave no folder
            self.program = suite_program(
                options.device,
                options.threads,
                options.variants,
                plugin_options(options),
                options.build_folder,
            )
            folder.mkdir(parents=True, exist_ok=True)
            document, page, is_interrupted = self.measure_all(folder)
        print(page, end="")
        print(folder)
        if is_interrupted:
            return INTERRUPTED
        if any("error_message" in row for row in document["benchmarks"]):
            return 1
        about = document["context"][self.name]
        is_judged = any(row["verdict"] != Outcome.NO_VERDICT.value for row in about["ratios"])
        return BAD_INPUT if about.get("refusals") and not is_judged else 0
