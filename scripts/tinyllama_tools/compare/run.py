"""Measures two builds interleaved, until every case has its verdict or the budget is used.

Example: scripts/compare run --base HEAD                  the uncommitted changes
         scripts/compare run --base origin/main --budget 10m

First both sides run every case once, untimed, for its counters and (unless --verify off) the proof
of its result. Then come blocks: in each, a fresh process of either side times the cases in short
slices, which alternate in random order. Verdicts are given after planned numbers of blocks (looks);
a case that has its verdict is measured no more. After the first block the time until the first look
is told; where the budget is shorter, the run ends there. Ctrl-C during a build stops it; later,
what was measured is judged and written. A case that fails twice on one side is given up; the others
go on.

Files: comparison.json, .md, .html and .csv and blocks.jsonl (every slice) in --out, by default
results/<UTC time>_compare; an existing blocks.jsonl is never overwritten. A commit is built in a
worktree, .deps/compare/<commit>; the newest three are kept. Exit status: 0 no regression; 1 a
regression; 2 bad input, a commit that does not build, nothing comparable, a budget too short for
any verdict, or files that cannot be written; 3 with --strict where a case has no answer; 130
interrupted (Ctrl-C, SIGTERM or SIGHUP).
"""

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    with_failure,
)
from tinyllama_tools.compare.options import MOST_OVERRUN, run_parser
from tinyllama_tools.compare.output import deliver
from tinyllama_tools.compare.sides import WAITING
from tinyllama_tools.core.app import PROBLEM_SIZES, BadInputError, Json, read_json, run_folder
from tinyllama_tools.core.process import Progress
from tinyllama_tools.core.text import change_text, count_of, duration
from tinyllama_tools.stats.rank_tests import LOG_RATIO, hodges_lehmann
from tinyllama_tools.stats.verdicts import (
    CONFIDENCE,
    DECIDED,
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
# of cases that were not measured on both sides, and are no regression
NOT_COMPARED = frozenset({Outcome.NO_VERDICT, Outcome.SKIPPED, Outcome.ADDED})
# why the run ended, or a case is measured no more
BUDGET_USED, ALL_LOOKS, ALL_DECIDED = "budget used", "all looks taken", "every case decided"
TOO_SHORT = "budget too short for any verdict"


class SequentialRun(Measuring):
    """Block after block until every case has its verdict, the budget is used, or all looks are
    taken.

    Cases that have their verdict drop out, so that time goes to those that are still open. The
    error rate allows for it: cases are judged at planned numbers of blocks only, and alpha is
    divided among these looks.

    `budget`, `seconds`: from the start of run(). `ended`: why it ended; empty while it goes on or
    was interrupted. `refusal`: why the budget is too short for any verdict, and what would help;
    `fewer`: what makes a block shorter. `shares`: of --budget, of which `budget` is one.
    """

    def __init__(
        self,
        measurer: Interleaved,
        cases: Iterable[str],
        design: Design,
        budget: float,
        *,
        fewer: str = "fewer cases (--filter, --components), fewer --pairs",
        shares: int = 1,
        keep: Callable[[Json], None],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(measurer, cases, keep, progress)
        self.judgements: dict[str, Judgement | None] = {}
        self.seconds = 0.0
        self.ended, self.refusal = "", ""
        self._design, self._budget, self._clock = design, budget, clock
        self._fewer, self._shares = fewer, shares
        self._start = clock()

    def run(self, *, verify: bool) -> None:
        """Until `ended`; with a refusal after the first block where the budget is too short for the
        first look."""
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
        """Judges each case by the blocks of the last look that it has reached."""
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
        # between looks the budget may be overrun a little, since blocks that reach no look are lost
        self._leave_out_what_does_not_fit(1.0 if self._look() else MOST_OVERRUN)
        if self.open_cases:
            return
        reasons = {record.closed for record in self.cases.values()}
        endings = (BUDGET_USED, ALL_LOOKS, ALL_DECIDED)
        self.ended = next((ending for ending in endings if ending in reasons), GIVEN_UP)
        if self.ended == BUDGET_USED and not self.judgements:
            self.refusal = (
                f"no verdict: blocks became slower, so that only {self.blocks} of the "
                f"{self._design.looks[0]} that the first verdicts need fitted into --budget; give "
                "a larger --budget, fewer cases or a quieter machine"
            )

    def _blocks_to_next_look(self, case: str) -> int:
        done = len(self.cases[case].blocks)
        return next((look for look in self._design.looks if look > done), done) - done

    def _announce(self) -> None:
        """Says how long it takes while the user is still there, and refuses a budget that is too
        short for any verdict."""
        cases, design = self.open_cases, self._design
        if not cases:
            return
        block, count = self.costs.of(cases), count_of(len(cases), "case")
        fit = 1 + int(max(0.0, self._budget - self._elapsed) / block)
        needed = self._elapsed + max(map(self._blocks_to_next_look, cases)) * block
        self.progress.line(
            f"a block of {count} takes {block:.1f} s; {fit} fit into {duration(self._budget)}, "
            f"the first verdicts come after {design.looks[0]} ({duration(needed)}), the last after "
            f"{design.looks[-1]}"
        )
        if needed > self._budget:
            self.ended = TOO_SHORT
            of_many = f" for each of {self._shares} shares" * (self._shares > 1)
            self.refusal = (
                f"--budget {duration(self._budget * self._shares)} is too short: the first "
                f"verdicts on {count} at --alpha {design.alpha:g} need {design.looks[0]} blocks of "
                f"{block:.1f} s, {needed / 60:.1f} minutes in all{of_many}; give --budget "
                f"{self._shares * (int(needed / 60) + 1)}m or more, {self._fewer}, fewer --looks "
                "or a larger --alpha"
            )

    def _look(self) -> bool:
        """Judges all cases anew where some open one has reached a look; whether one has."""
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
        """Gives up cases until all that are left can reach their next look within this share of the
        budget: first those that need most blocks to a verdict, or, before the first look, those
        that take longest. Blocks that reach no look would decide nothing."""

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


def warnings_of(
    run: SequentialRun, sides: Sides, options: argparse.Namespace, *, is_interrupted: bool
) -> Iterator[str]:
    """What to know before any number, the gravest first."""
    if is_interrupted:
        yield f"interrupted after {run.blocks} blocks: judged at the looks that were reached"
    added = [dict(options.environment_base), dict(options.environment_new)]
    seen = [{**os.environ, **variables} for variables in added]
    yield from value_differences(dict.fromkeys(chain(*added)), seen[:1], seen[1:], "environment ")
    for name in WAITING:
        if values := [own[name] for own in seen if name in own]:
            yield (
                f"{name}={values[0]} decides how idle OpenMP threads wait: those of the side that "
                "is not timed may keep processors busy; unset it to let them sleep after a "
                "millisecond"
            )
    if options.verify == "off":
        yield "--verify off: results were not compared with the float64 baseline"
    yield from context_differences(*([sides.header[f"{side}_context"]] for side in SIDES))


def _why_unsettled(judgement: Judgement, design: Design) -> str:
    """Of an unclear case that no later look is likely to give an answer."""
    is_last = judgement.blocks >= design.looks[-1]
    why = "all planned looks are taken" if is_last else "no later look is likely to settle it"
    away = change_text(math.exp(abs(abs(judgement.estimate) - design.edge))).lstrip("+")
    reach = change_text(math.exp((judgement.high - judgement.low) / 2)).lstrip("+")
    return (
        f"{why}: the change is {away} from the margin, its interval reaches {reach} to either side"
    )


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
            notes.append(_why_unsettled(judgement, design))
        else:
            # in blocks of this case alone
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
    run: SequentialRun,
    design: Design,
    sides: Sides,
    options: argparse.Namespace,
    stopped: BaseException | None,
) -> Comparison:
    """What a run found, and its exit status."""
    changed = {n for n, found in run.judgements.items() if found and found.outcome in CHANGED}
    parts = {}
    if changed:
        # it can be read, since both programs were given it
        sizes, _ = read_json(options.problem_sizes or PROBLEM_SIZES)
        layers = {name: size["n_layers"] for name, size in sizes.items()}
        parts = attributions({n: r.blocks for n, r in run.cases.items()}, changed, layers)
    cases = [_compared(record, run, design, parts) for record in run.cases.values()]
    # cases that one side alone lists
    for name in chain(*sides.cases.values()):
        if name not in run.cases:
            lists = (name in sides.cases[side] for side in SIDES)
            cases.append(compared_case(name, *map(SideCase, lists)))
    header, is_interrupted = sides.header, isinstance(stopped, KeyboardInterrupt)
    comparison = concluded(
        cases,
        options,
        method="interleaved",
        **{key: header[key] for key in (*SIDES, "base_context", "new_context")},
        warnings=tuple(warnings_of(run, sides, options, is_interrupted=is_interrupted)),
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
        is_interrupted=is_interrupted,
    )
    failure = run.refusal
    if stopped:
        failure = f"ended after {run.blocks} blocks: {stopped}"
    elif not failure and all(case.outcome in NOT_COMPARED for case in comparison.cases):
        reasons = "; ".join(f"{case.name}: {case.note}" for case in comparison.cases)
        failure = f"nothing comparable: no case was measured on both sides: {reasons}"
    return with_failure(comparison, failure) if failure and not is_interrupted else comparison


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    return run_parser(__doc__).parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes; the exit status. BadInputError for bad input and where something
    failed; KeyboardInterrupt where it was interrupted, after all was written."""
    options, progress = parse_options(arguments), Progress()
    folder = options.out or run_folder("compare")
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
    comparison = comparison_of(run, design, sides, options, stopped)
    status = deliver(comparison, options.format, folder, progress.line)
    if isinstance(stopped, KeyboardInterrupt):
        raise stopped
    return status
