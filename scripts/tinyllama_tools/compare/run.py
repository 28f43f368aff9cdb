"""Two builds, resident and interleaved, until every case has its verdict or the budget is used.

Example: scripts/compare run --base HEAD                  what is not committed yet
         scripts/compare run --base origin/main --budget 10m

Every case is opened once on both sides first, untimed, with its counters and (unless --verify off)
the proof of its result. Then come blocks: a fresh pair of processes each, whose slices alternate in
random order. Cases with a verdict drop out. After the first block it says how long the rest takes,
and ends at once where the budget does not reach to a verdict. Ctrl-C: what was measured is judged
and written. A case that a side fails twice is closed as failed; the others go on.

Files: comparison.json, .md, .html and blocks.jsonl (every slice) in --output, by default
results/<UTC time>_compare; a recording that is there already is not written over. Exit status: 0 no
regression; 1 a regression; 2 bad input, a commit that does not build, nothing comparable, a budget
that reaches to no verdict, or files that cannot be written; 3 with --strict where something is
unclear; 130 interrupted (Ctrl-C, SIGTERM or SIGHUP).
"""

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from tinyllama_tools.compare.blocks import (
    GIVEN_UP,
    SIDES,
    CaseRecord,
    Interleaved,
    Measuring,
    Sides,
    prepare,
    recording,
    refuse_existing,
)
from tinyllama_tools.compare.comparison import (
    CHANGED,
    ComparedCase,
    Comparison,
    SideCase,
    compared_case,
    concluded,
    context_differences,
    value_differences,
)
from tinyllama_tools.compare.options import MOST_OVERRUN, run_parser
from tinyllama_tools.compare.output import deliver
from tinyllama_tools.compare.sides import WAITING
from tinyllama_tools.core.app import PROBLEM_SIZES, BadInputError, Json, read_json, run_folder
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import count_of, duration
from tinyllama_tools.stats.rank_tests import LOG_RATIO, hodges_lehmann
from tinyllama_tools.stats.verdicts import (
    CONFIDENCE,
    DECIDED,
    REGRESSION,
    SPENT,
    Attribution,
    Design,
    Judgement,
    Outcome,
    attributions,
    judge_family,
    plan_design,
)

SEEDS = 2**32
WITHOUT_ANSWER = frozenset({Outcome.NO_VERDICT, Outcome.SKIPPED, Outcome.ADDED})
# why it ended, or a case is measured no more
BUDGET_USED, ALL_LOOKS, ALL_DECIDED = "budget used", "all looks taken", "every case decided"
TOO_SHORT = "budget too short for any verdict"


class SequentialRun(Measuring):
    """Block after block until every case has its verdict, the budget is used, or all looks are
    taken.

    Cases that have their verdict drop out, so that time goes to those that are still open. That is
    sound: judging happens at planned numbers of blocks only, and each look was paid for beforehand.

    `budget`, `seconds`: from the start of run(). `ended`: why it ended; empty while it goes on or
    was interrupted. `refusal`: why the budget reaches to no verdict, and what would.
    """

    def __init__(
        self,
        measurer: Interleaved,
        cases: Sequence[str],
        design: Design,
        budget: float,
        *,
        keep: Callable[[Json], None],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(measurer, cases, keep, progress)
        self.judgements: dict[str, Judgement | None] = {}
        self.seconds = 0.0
        self.ended, self.refusal = "", ""
        self._design, self._budget, self._clock = design, budget, clock
        self._start = clock()

    def run(self, *, verify: bool) -> None:
        """Until `ended`; where the budget does not reach to the first verdict it ends after the
        first block, with a refusal."""
        self._start = self._clock()
        try:
            self.open_all(verify=verify)
            self.ended = "" if self.open_cases else GIVEN_UP
            self.progress.begin(self._design.looks[-1], title="block")
            while not self.ended:
                self._one_block()
        finally:
            self.seconds = self._elapsed
            self.progress.end()

    def judge(self) -> None:
        """Judges what there is, at the looks reached."""
        blocks = {name: record.blocks for name, record in self.cases.items()}
        self.judgements = judge_family(blocks, self._design)

    @property
    def _elapsed(self) -> float:
        return self._clock() - self._start

    def _one_block(self) -> None:
        cases, left = self.open_cases, max(0.0, self._budget - self._elapsed)
        count = count_of(len(cases), "case")
        self.progress.step(f"{count} without a verdict; --budget ends in {duration(left)}")
        self.measure_block()
        if self.blocks == 1:
            self._announce()
        if self.ended:
            return
        # a look that was begun for is reached, unless blocks became much slower since
        self._leave_out_what_does_not_fit(1.0 if self._look() else MOST_OVERRUN)
        if self.open_cases:
            return
        reasons = {record.closed for record in self.cases.values()}
        endings = (BUDGET_USED, ALL_LOOKS, ALL_DECIDED)
        self.ended = next((ending for ending in endings if ending in reasons), GIVEN_UP)
        if self.ended == BUDGET_USED and not self.judgements:
            self.refusal = (
                f"no verdict: blocks became slower, so that --budget held {self.blocks} of the "
                f"{self._design.looks[0]} that the first verdicts need; give a larger --budget, "
                "fewer cases or a quieter machine"
            )

    def _blocks_to_next_look(self, case: str) -> int:
        done = len(self.cases[case].blocks)
        return next((look for look in self._design.looks if look > done), done) - done

    def _announce(self) -> None:
        """How long it takes, while the user still watches; refuses what cannot end well."""
        cases, design = self.open_cases, self._design
        if not cases:
            return
        block, count = self.costs.of(cases), count_of(len(cases), "case")
        fit = 1 + int(max(0.0, self._budget - self._elapsed) / block)
        needed = self._elapsed + max(map(self._blocks_to_next_look, cases)) * block
        self.progress.line(
            f"a block of {count} takes {block:.1f} s; {duration(self._budget)} hold {fit}, "
            f"the first verdicts come after {design.looks[0]} ({duration(needed)}), the last after "
            f"{design.looks[-1]}"
        )
        if needed > self._budget:
            self.ended = TOO_SHORT
            self.refusal = (
                f"--budget {duration(self._budget)} is too short: the first verdicts on "
                f"{count} at --alpha {design.alpha:g} need {design.looks[0]} blocks of "
                f"{block:.1f} s, {needed / 60:.1f} minutes in all; give --budget "
                f"{int(needed / 60) + 1}m or more, fewer cases (--filter, --components), fewer "
                "--pairs, fewer --looks or a larger --alpha"
            )

    def _look(self) -> bool:
        """Whether some open case has reached a look, and then all verdicts anew."""
        if not any(len(self.cases[n].blocks) in self._design.looks for n in self.open_cases):
            return False
        self.judge()
        decided = []
        for record in self.cases.values():
            judgement = self.judgements[record.name]
            if judgement is None or record.closed:
                continue
            if judgement.outcome in DECIDED:
                record.closed = ALL_DECIDED
                decided.append(judgement.outcome.value)
            elif len(record.blocks) >= self._design.looks[-1]:
                record.closed = ALL_LOOKS
        found = ", ".join(f"{decided.count(word)} {word}" for word in dict.fromkeys(decided))
        still = len(self.open_cases)
        self.progress.line(f"after {self.blocks} blocks: {found or 'none'}; {still} open")
        return True

    def _leave_out_what_does_not_fit(self, share: float) -> None:
        """Where not all open cases can reach their next look within this share of the budget, those
        farthest from a verdict go, or before the first look the costliest: blocks between looks
        decide nothing."""

        def distance(case: str) -> tuple[float, float]:
            judgement = self.judgements.get(case)
            return judgement.distance if judgement else 0.0, self.costs.cases[case]

        left = share * self._budget - self._elapsed
        cases = sorted(self.open_cases, key=distance)
        while cases:
            blocks = {case: self._blocks_to_next_look(case) for case in cases}
            own = sum(count * self.costs.cases[case] for case, count in blocks.items())
            if max(blocks.values()) * self.costs.block + own <= left:
                break
            self.cases[cases.pop()].closed = BUDGET_USED


def warnings_of(run: SequentialRun, sides: Sides, options: argparse.Namespace) -> Iterator[str]:
    """Of how it ended, and of what differs beside the code; the gravest first."""
    if run.refusal:
        yield run.refusal
    elif not run.ended:
        yield f"interrupted after {run.blocks} blocks: judged at the looks that were reached"
    added = [dict(options.environment_base), dict(options.environment_new)]
    seen = [{**os.environ, **variables} for variables in added]
    yield from value_differences(dict.fromkeys(chain(*added)), seen[:1], seen[1:], "environment ")
    for name in WAITING:
        if values := [own[name] for own in seen if name in own]:
            yield (
                f"{name}={values[0]} decides how OpenMP's workers wait: those of the side that is "
                "not timed may keep processors busy; unset it to let them sleep after a millisecond"
            )
    if options.verify == "off":
        yield "--verify off: results were not compared with the float64 baseline"
    yield from context_differences(*([sides.header[f"{side}_context"]] for side in SIDES))


def _compared(
    record: CaseRecord, run: SequentialRun, design: Design, parts: Mapping[str, Attribution]
) -> ComparedCase:
    blocks, name, sides = record.blocks, record.name, map(record.on, SIDES)
    judgement = run.judgements.get(name)
    if judgement is None:
        first = design.looks[0]
        note = f"{len(blocks)} blocks were measured, and the first look comes after {first}"
        ratio = math.exp(hodges_lehmann(blocks[:, LOG_RATIO])) if len(blocks) else None
        return compared_case(name, *sides, ratio=ratio, blocks=len(blocks), note=note)
    notes = [
        f"failed once on the {side} side: {reasons[-1]}"
        for side, reasons in record.failures.items()
        if reasons
    ]
    seconds_needed = None
    if judgement.outcome is Outcome.UNCLEAR:
        later = (look for look in design.looks if look > judgement.blocks)
        needed = next((look for look in later if look >= judgement.distance), None)
        if judgement.is_dependent:
            notes.append(
                f"blocks depend on each other (autocorrelation {judgement.autocorrelation:.1f}): "
                f"{judgement.blocks} say as much as {judgement.effective_blocks:.1f} would"
            )
        elif needed is None:
            notes.append("near the margin for such scatter: more blocks may not settle it")
        else:
            # of further blocks of this case alone
            seconds_needed = max(1, needed - len(blocks)) * run.costs.of([name])
    return compared_case(
        name,
        *sides,
        judgement,
        seconds_needed=seconds_needed,
        note="; ".join(notes),
        attribution=parts.get(name),
    )


def comparison_of(
    run: SequentialRun, design: Design, sides: Sides, options: argparse.Namespace
) -> Comparison:
    """What a run found, as all outputs read it."""
    changed = {n for n, found in run.judgements.items() if found and found.outcome in CHANGED}
    parts = {}
    if changed:
        # both sides have read this file
        sizes, _ = read_json(options.problem_sizes or PROBLEM_SIZES)
        layers = {name: size["n_layers"] for name, size in sizes.items()}
        parts = attributions({n: r.blocks for n, r in run.cases.items()}, changed, layers)
    cases = [_compared(record, run, design, parts) for record in run.cases.values()]
    # what one side alone lists
    for name in chain(*sides.cases.values()):
        if name not in run.cases:
            lists = (name in sides.cases[side] for side in SIDES)
            cases.append(compared_case(name, *map(SideCase, lists)))
    header = sides.header
    return concluded(
        cases,
        options,
        method="interleaved",
        **{key: header[key] for key in (*SIDES, "base_context", "new_context")},
        warnings=tuple(warnings_of(run, sides, options)),
        design={
            "cases": design.cases,
            "looks": list(design.looks),
            "correction": f"Holm over cases; {SPENT:g} of alpha, divided by directions and looks",
            "confidence": CONFIDENCE,
            "pairs": header["pairs"],
            "seed": header["seed"],
            "blocks": run.blocks,
            "ended": run.ended or "interrupted",
            "settings": header["settings"],
        },
        seconds=run.seconds,
    )


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    return run_parser(__doc__).parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes; the exit status. BadInputError for bad input, and where the run
    could not answer; KeyboardInterrupt where it was interrupted, after all was written."""
    options, progress = parse_options(arguments), Progress()
    folder = options.output or run_folder("compare")
    blocks = folder / "blocks.jsonl"
    # before anything is built
    refuse_existing(blocks)
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    sides = prepare(options, seed, progress)
    if options.variants is None and any("/baseline/" in name for name in sides.shared):
        progress.line("variants: baseline alone; the kernels are in --variants baseline,optimized")
    rule = {"alpha": options.alpha, "margin": options.margin, "looks": options.looks}
    design = plan_design(len(sides.shared), **rule)
    stopped: BaseException | None = None
    with recording(blocks, sides.header) as keep:
        run = SequentialRun(
            sides.measurer, sides.shared, design, options.budget, keep=keep, progress=progress
        )
        # whatever ends it too early, what was measured is judged
        try:
            run.run(verify=options.verify == "before")
        except (KeyboardInterrupt, BadInputError, OSError) as error:
            stopped = error
            run.judge()
    progress.line(f"{run.blocks} blocks in {duration(run.seconds)}; slices: {blocks}")
    comparison = comparison_of(run, design, sides, options)
    deliver(comparison, options.format, folder, progress.line)
    if isinstance(stopped, KeyboardInterrupt):
        raise stopped
    early = f"ended after {run.blocks} blocks: {stopped}"
    # a regression that is known already is one, whatever else could not be found out
    if comparison.exit_status == REGRESSION:
        if stopped:
            progress.line(early)
        return REGRESSION
    if stopped:
        raise BadInputError(early) from stopped
    if run.refusal:
        raise BadInputError(run.refusal)
    if all(case.outcome in WITHOUT_ANSWER for case in comparison.cases):
        reasons = "; ".join(f"{case.name}: {case.note}" for case in comparison.cases)
        raise BadInputError(f"nothing comparable: no case was measured on both sides: {reasons}")
    return comparison.exit_status
