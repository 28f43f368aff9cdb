"""Two builds, resident and interleaved, until every case has its verdict or the budget is used.

Example: scripts/compare run --base origin/main --new build --budget 10m

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

from __future__ import annotations

import argparse
import datetime
import math
import os
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.compare.blocks import SIDES, CaseRecord, Side
from tinyllama_tools.compare.comparison import (
    ComparedCase,
    Comparison,
    allow_missing,
    compare_counters,
    gate_of,
    interval_of,
    layers_by_size,
    outcome_without_times,
    unsettled_text,
)
from tinyllama_tools.compare.context_differences import context_differences
from tinyllama_tools.compare.options import add_options, settings_of
from tinyllama_tools.compare.output import print_comparison, write_comparison
from tinyllama_tools.compare.recording import RecordingHeader, RecordingWriter, refuse_existing
from tinyllama_tools.compare.sequential_run import (
    BUDGET_USED,
    RunProgress,
    RunRecord,
    SequentialRun,
    cases_text,
)
from tinyllama_tools.compare.served_process import WAITING
from tinyllama_tools.compare.sides import Sides, prepare
from tinyllama_tools.core.app import INTERRUPTED, PROBLEM_SIZES, BadInputError, run_folder
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import SideState, parse_case_name
from tinyllama_tools.stats.looks import Attribution, attributions
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import (
    REGRESSION,
    SPENT,
    Design,
    DesignError,
    Outcome,
    plan_design,
)

TERA = 1e-12
SEEDS = 2**32
RECORDING = "blocks.jsonl"
ATTRIBUTED = frozenset({Outcome.SLOWER, Outcome.FASTER})
WITHOUT_ANSWER = frozenset({Outcome.NO_VERDICT, Outcome.SKIPPED, Outcome.ADDED})


def rates(case: str, seconds: float, counters: Mapping[str, float]) -> dict[str, float]:
    """samples_per_second, tokens_per_second, and TFLOPS where there are products.

    `seconds`: of an iteration, above 0. `counters`: of the case's opening.
    """
    axes = parse_case_name(case)
    # of a data-parallel step, the mode decides how many samples there are
    if axes is None or axes.is_data_parallel:
        return {}
    found = {
        "samples_per_second": axes.batch / seconds,
        "tokens_per_second": axes.batch * axes.seq / seconds,
    }
    flops = counters.get("model_flops", 0.0)
    if flops > 0:
        found["TFLOPS"] = TERA * flops / seconds
    return found


def option_warnings(options: argparse.Namespace) -> Iterator[str]:
    """Known before anything ran: of the environment of each side, and of proofs left out."""
    added = {"base": dict(options.environment_base), "new": dict(options.environment_new)}
    sides = {side: {**os.environ, **variables} for side, variables in added.items()}
    for name in dict.fromkeys([*added["base"], *added["new"]]):
        values = {side: seen.get(name) for side, seen in sides.items()}
        if values["base"] != values["new"]:
            texts = (f"{'not set' if v is None else v} in the {s}" for s, v in values.items())
            yield f"environment {name}: {', '.join(texts)}"
    for name in WAITING:
        values = [seen[name] for seen in sides.values() if name in seen]
        if values:
            yield (
                f"{name}={values[0]} decides how OpenMP's workers wait: those of the side that is "
                "not timed may keep processors busy; unset it to let them sleep after a millisecond"
            )
    if options.verify == "off":
        yield "--verify off: results were not compared with the float64 baseline"


def run_warnings(run: RunRecord, sides: Sides, options: argparse.Namespace) -> Iterator[str]:
    """Of how it ended, of failures, and of what differs beside the code; the gravest first."""
    if run.refusal:
        yield run.refusal
    elif not run.ended:
        yield f"interrupted after {run.blocks} blocks: judged at the looks that were reached"
    unproven = [
        name
        for name, record in run.cases.items()
        if record.state(Side.BASE).failed and record.state(Side.NEW).is_measured
    ]
    if unproven:
        yield (
            f"{cases_text(len(unproven))} failed in the base, so nothing shows that the new is no "
            f"slower there: {', '.join(unproven)}"
        )
    yield from option_warnings(options)
    yield from context_differences(*([sides.contexts[side]] for side in SIDES))
    late = sum(record.out_of_time for record in run.cases.values())
    if run.ended == BUDGET_USED and late:
        yield f"{cases_text(late)} left open: the budget does not reach to their next look"
    failed = [name for name, record in run.cases.items() if record.failed_sides]
    if failed:
        yield f"processes failed at {', '.join(failed)}; see there"


def _compared_case(
    record: CaseRecord, run: RunRecord, design: Design, attribution: Attribution | None
) -> ComparedCase:
    counters = {side: record.counters(side) for side in SIDES}
    found = ComparedCase(
        record.name, Outcome.NO_VERDICT, counters=compare_counters(*counters.values())
    )
    untimed = outcome_without_times(record.state(Side.BASE), record.state(Side.NEW))
    if untimed is not None:
        return replace(found, outcome=untimed[0], note=untimed[1])
    blocks = record.blocks
    if blocks:
        seconds = {
            Side.BASE: statistics.median(block.base_seconds for block in blocks),
            Side.NEW: statistics.median(block.new_seconds for block in blocks),
        }
        both = [{**counters[s], **rates(record.name, seconds[s], counters[s])} for s in SIDES]
        found = replace(
            found,
            base_seconds=seconds[Side.BASE],
            new_seconds=seconds[Side.NEW],
            ratio=math.exp(hodges_lehmann([block.log_ratio for block in blocks])),
            blocks=len(blocks),
            counters=compare_counters(*both),
        )
    judgement = run.judgements.get(record.name)
    if not blocks or judgement is None:
        first = design.looks[0]
        note = f"{len(blocks)} blocks were measured, and the first look comes after {first}"
        return replace(found, note=note)
    evidence, is_unclear = judgement.evidence, judgement.outcome is Outcome.UNCLEAR
    seconds_needed = None
    if is_unclear and evidence.blocks_needed is not None:
        # of further blocks of this case alone
        each = run.cost.around + run.cost.of_case(record.name)
        seconds_needed = max(1, evidence.blocks_needed - len(blocks)) * each
    went_on = [
        f"failed once on the {side.value} side: {reasons[-1]}"
        for side, reasons in record.failed_sides.items()
    ]
    return replace(
        found,
        outcome=judgement.outcome,
        ratio=math.exp(evidence.estimate),
        interval=interval_of(judgement),
        p_value=judgement.adjusted_p_value,
        blocks=evidence.blocks,
        smallest_difference=evidence.smallest_difference if is_unclear else None,
        seconds_needed=seconds_needed,
        note="; ".join(filter(None, (*went_on, unsettled_text(judgement)))),
        attribution=attribution if judgement.outcome in ATTRIBUTED else None,
    )


def comparison_of(
    run: RunRecord,
    design: Design,
    sides: Sides,
    options: argparse.Namespace,
    *,
    seed: int,
    layers: Mapping[str, int],
) -> Comparison:
    """What a run recorded, as all outputs read it. `layers`: of each problem size."""
    parts: Mapping[str, Attribution] = {}
    if any(found and found.outcome in ATTRIBUTED for found in run.judgements.values()):
        parts = attributions({n: r.blocks for n, r in run.cases.items() if r.blocks}, layers)
    cases = [
        _compared_case(record, run, design, parts.get(name)) for name, record in run.cases.items()
    ]
    measured, absent = SideState(is_measured=True), SideState()
    for side, states in ((Side.BASE, (measured, absent)), (Side.NEW, (absent, measured))):
        outcome, note = outcome_without_times(*states) or (Outcome.NO_VERDICT, "")
        cases += [ComparedCase(name, outcome, note=note) for name in sides.only(side)]
    return Comparison(
        method=sides.measurer.method,
        base=sides.names[Side.BASE],
        new=sides.names[Side.NEW],
        cases=allow_missing(cases, options.allow_missing),
        alpha=design.alpha,
        margin=design.margin,
        warnings=tuple(run_warnings(run, sides, options)),
        design={
            "cases": design.cases,
            "looks": list(design.looks),
            "correction": f"Holm over cases; {SPENT:g} of alpha, divided by the looks",
            "confidence": design.confidence,
            "pairs": options.pairs,
            "seed": seed,
            "blocks": run.blocks,
            "ended": run.ended or "interrupted",
            "settings": settings_of(options),
        },
        base_context=sides.contexts[Side.BASE],
        new_context=sides.contexts[Side.NEW],
        seconds=run.seconds,
    )


def _header(options: argparse.Namespace, sides: Sides, seed: int) -> RecordingHeader:
    return RecordingHeader(
        base=sides.names[Side.BASE],
        new=sides.names[Side.NEW],
        method=sides.measurer.method,
        pairs=options.pairs,
        slice_seconds=options.slice,
        seed=seed,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        base_context=sides.contexts[Side.BASE],
        new_context=sides.contexts[Side.NEW],
        settings=settings_of(options),
    )


def _layers(options: argparse.Namespace) -> dict[str, int]:
    path = options.problem_sizes or PROBLEM_SIZES
    try:
        return layers_by_size(path)
    except (OSError, ValueError, KeyError) as error:
        raise BadInputError(f"--problem-sizes {path}: cannot be read: {error!r}") from error


def _refuse_without_answer(comparison: Comparison, run: RunRecord) -> None:
    """BadInputError where nothing is known of any case."""
    if any(case.outcome not in WITHOUT_ANSWER for case in comparison.cases):
        return
    late = [record for record in run.cases.values() if not record.given_up]
    if run.ended == BUDGET_USED and late:
        raise BadInputError(
            f"no verdict: blocks became slower, so that --budget held "
            f"{max(len(record.blocks) for record in late)} of the "
            f"{comparison.design['looks'][0]} that the first verdicts need; give a larger "
            "--budget, fewer cases or a quieter machine"
        )
    reasons = "; ".join(f"{case.name}: {case.note}" for case in comparison.cases)
    raise BadInputError(f"nothing comparable: no case was measured on both sides: {reasons}")


def _report(
    comparison: Comparison, options: argparse.Namespace, folder: Path, progress: RunProgress
) -> list[str]:
    """What could not be printed or written. Prints first: what was found is then known even where
    the folder takes no more; and a reader that stops does not keep the files from being written."""
    troubles = []
    try:
        print_comparison(comparison, options.format, gate_of(options))
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        troubles.append(f"standard output cannot be written: {error}")
    try:
        for path in write_comparison(comparison, folder, gate_of(options)):
            progress.say(str(path))
    except BadInputError as error:
        troubles.append(str(error))
    return troubles


def _run(options: argparse.Namespace) -> int:
    progress = RunProgress()
    folder = options.output or run_folder("compare")
    recording = options.record or folder / RECORDING
    # before anything is built
    refuse_existing(recording)
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    sides, layers = prepare(options, seed, progress), _layers(options)
    try:
        design = plan_design(
            len(sides.shared), alpha=options.alpha, margin=options.margin, looks=options.looks
        )
    except DesignError as error:
        raise BadInputError(str(error)) from error
    is_interrupted, troubles = False, []
    with RecordingWriter(recording, _header(options, sides, seed)) as writer:
        run = SequentialRun(
            sides.measurer,
            sides.shared,
            design,
            options.budget,
            keep=writer.add,
            progress=progress,
        )
        # whatever ends it too early, what was measured is judged
        try:
            run.run(verify=options.verify == "before")
        except KeyboardInterrupt:
            is_interrupted = True
            run.judge()
        except (BadInputError, OSError) as error:
            troubles.append(f"ended after {run.record.blocks} blocks: {error}")
            run.judge()
    record = run.record
    where = "" if troubles else f"; every slice is in {recording}"
    progress.say(f"{record.blocks} blocks in {duration(record.seconds)}{where}")
    comparison = comparison_of(record, design, sides, options, seed=seed, layers=layers)
    troubles += _report(comparison, options, folder, progress)
    if is_interrupted:
        for trouble in troubles:
            progress.say(trouble)
        return INTERRUPTED
    if troubles:
        raise BadInputError("; ".join(troubles))
    status = gate_of(options).status(comparison)
    # a regression that is known already is one, whatever else could not be found out
    if status != REGRESSION:
        if record.refusal:
            raise BadInputError(record.refusal)
        _refuse_without_answer(comparison, record)
    return status


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the program after the help, and with status 2 for options that will not do."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes; the exit status. BadInputError for bad input, and where the run
    could not answer."""
    return _run(parse_options(arguments))
