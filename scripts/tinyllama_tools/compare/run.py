"""scripts/compare run: two builds, resident and interleaved, and the comparison that follows."""

from __future__ import annotations

import argparse
import datetime
import math
import os
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.compare.blocks import IN_TURN, CaseRecord, Side
from tinyllama_tools.compare.comparison import (
    Attribution,
    ComparedCase,
    Comparison,
    Gate,
    RunSides,
    SideState,
    allow_missing,
    attributions,
    compare_counters,
    interval_of,
    layers_by_size,
    outcome_without_times,
    unsettled_text,
)
from tinyllama_tools.compare.context_differences import context_differences
from tinyllama_tools.compare.options import add_options, gate_of, settings_of
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
from tinyllama_tools.compare.sides import PreparedRun, prepare
from tinyllama_tools.core.app import INTERRUPTED, PROBLEM_SIZES, BadInputError, Json, run_folder
from tinyllama_tools.core.text import duration
from tinyllama_tools.data.names import parse_case_name
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import (
    REGRESSION,
    SPENT,
    Design,
    DesignError,
    Judgement,
    Outcome,
    plan_design,
)

TERA = 1e-12


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


Environment = Mapping[str, str]


def environment_warnings(base: Environment, new: Environment, around: Environment) -> list[str]:
    """`base`, `new`: added to each side. `around`: what both inherit."""
    sides = {"base": {**around, **base}, "new": {**around, **new}}
    found = []
    for name in dict.fromkeys([*base, *new]):
        values = {side: seen.get(name) for side, seen in sides.items()}
        if values["base"] != values["new"]:
            texts = (f"{'not set' if v is None else v} in the {s}" for s, v in values.items())
            found.append(f"environment {name}: {', '.join(texts)}")
    for name in WAITING:
        values = [seen[name] for seen in sides.values() if name in seen]
        if values:
            found.append(
                f"{name}={values[0]} decides how OpenMP's workers wait: those of the side that is "
                "not timed may keep processors busy; unset it to let them sleep after a millisecond"
            )
    return found


def _failures(run: RunRecord) -> Iterator[str]:
    failed = [
        name
        for name, record in run.cases.items()
        if record.state(Side.BASE).failed and record.state(Side.NEW).is_measured
    ]
    if failed:
        yield (
            f"{cases_text(len(failed))} failed in the base, so nothing shows that the new is no "
            f"slower there: {', '.join(failed)}"
        )


def _ending(run: RunRecord) -> Iterator[str]:
    if run.refusal:
        yield run.refusal
    elif not run.ended:
        yield f"interrupted after {run.blocks} blocks: judged at the looks that were reached"


def run_warnings(run: RunRecord, sides: RunSides) -> list[str]:
    """Of how it ended, of failures, of the method, and of what differs beside the code."""
    warnings = [*_ending(run), *_failures(run)]
    warnings += sides.warnings
    warnings += context_differences([sides.base_context], [sides.new_context])
    late = sum(record.out_of_time for record in run.cases.values())
    if run.ended == BUDGET_USED and late:
        warnings.append(
            f"{cases_text(late)} left open: the budget does not reach to their next look"
        )
    failed = [name for name, record in run.cases.items() if record.failed_sides]
    if failed:
        warnings.append(f"processes failed at {', '.join(failed)}; see there")
    return warnings


ATTRIBUTED = frozenset({Outcome.SLOWER, Outcome.FASTER})


def _seconds_needed(record: CaseRecord, judgement: Judgement, run: RunRecord) -> float | None:
    """Of further blocks of this case alone; None: more of them may not settle it."""
    if judgement.evidence.blocks_needed is None:
        return None
    blocks = max(1, judgement.evidence.blocks_needed - len(record.blocks))
    return blocks * (run.cost.around + run.cost.of_case(record.name))


def _failures_note(record: CaseRecord) -> str:
    """Failures that it went on after."""
    return "; ".join(
        f"failed once on the {side.value} side: {reasons[-1]}"
        for side, reasons in record.failed_sides.items()
    )


def _without_verdict(record: CaseRecord, first_look: int) -> tuple[Outcome, str]:
    blocks = len(record.blocks)
    text = f"{blocks} blocks were measured, and the first look comes after {first_look}"
    return Outcome.NO_VERDICT, text


def _compared_case(
    record: CaseRecord,
    judgement: Judgement | None,
    run: RunRecord,
    design: Design,
    attribution: Attribution | None,
) -> ComparedCase:
    base, new = record.counters(Side.BASE), record.counters(Side.NEW)
    counters = compare_counters(base, new)
    untimed = outcome_without_times(record.state(Side.BASE), record.state(Side.NEW))
    if untimed is not None:
        outcome, note = untimed
        return ComparedCase(record.name, outcome, note=note, counters=counters)
    if not record.blocks:
        outcome, note = _without_verdict(record, design.looks[0])
        return ComparedCase(record.name, outcome, note=note, counters=counters)
    base_seconds = statistics.median(block.base_seconds for block in record.blocks)
    new_seconds = statistics.median(block.new_seconds for block in record.blocks)
    counters = compare_counters(
        {**base, **rates(record.name, base_seconds, base)},
        {**new, **rates(record.name, new_seconds, new)},
    )
    if judgement is None:
        outcome, note = _without_verdict(record, design.looks[0])
        return ComparedCase(
            record.name,
            outcome,
            ratio=math.exp(hodges_lehmann([block.log_ratio for block in record.blocks])),
            blocks=len(record.blocks),
            base_seconds=base_seconds,
            new_seconds=new_seconds,
            note=note,
            counters=counters,
        )
    is_unclear = judgement.outcome is Outcome.UNCLEAR
    return ComparedCase(
        record.name,
        judgement.outcome,
        ratio=math.exp(judgement.evidence.estimate),
        interval=interval_of(judgement),
        p_value=judgement.adjusted_p_value,
        blocks=judgement.evidence.blocks,
        base_seconds=base_seconds,
        new_seconds=new_seconds,
        smallest_difference=judgement.evidence.smallest_difference if is_unclear else None,
        seconds_needed=_seconds_needed(record, judgement, run) if is_unclear else None,
        note="; ".join(filter(None, (_failures_note(record), unsettled_text(judgement)))),
        counters=counters,
        attribution=attribution,
    )


def _one_sided(names: Sequence[str], side: Side) -> list[ComparedCase]:
    there, absent = SideState(is_measured=True), SideState()
    found = []
    for name in names:
        states = (there, absent) if side is Side.BASE else (absent, there)
        outcome, note = outcome_without_times(*states) or (Outcome.NO_VERDICT, "")
        found.append(ComparedCase(name, outcome, note=note))
    return found


def _attributions(
    run: RunRecord, judged: Mapping[str, Judgement | None], layers: Mapping[str, int]
) -> dict[str, Attribution]:
    changed = {name for name, found in judged.items() if found and found.outcome in ATTRIBUTED}
    if not changed:
        return {}
    blocks = {name: record.blocks for name, record in run.cases.items() if record.blocks}
    return {name: a for name, a in attributions(blocks, layers).items() if name in changed}


def _design_values(design: Design, run: RunRecord, pairs: int, seed: int, settings: Json) -> Json:
    return {
        "cases": design.cases,
        "looks": list(design.looks),
        "correction": f"Holm over cases; {SPENT:g} of alpha, divided by the looks",
        "confidence": design.confidence,
        "pairs": pairs,
        "seed": seed,
        "blocks": run.blocks,
        "ended": run.ended or "interrupted",
        "settings": settings,
    }


def comparison_of(
    run: RunRecord,
    design: Design,
    sides: RunSides,
    *,
    pairs: int,
    seed: int,
    allowed: Sequence[str] = (),
) -> Comparison:
    """`pairs` and `seed`: for the record. `allowed`: cases that may be missing or failed."""
    judged = run.judgements
    found = _attributions(run, judged, sides.layers)
    cases = [
        _compared_case(record, judged.get(name), run, design, found.get(name))
        for name, record in run.cases.items()
    ]
    cases += _one_sided(sides.only_base, Side.BASE) + _one_sided(sides.only_new, Side.NEW)
    return Comparison(
        method=sides.method,
        base=sides.base,
        new=sides.new,
        cases=allow_missing(cases, allowed),
        alpha=design.alpha,
        margin=design.margin,
        warnings=tuple(run_warnings(run, sides)),
        design=_design_values(design, run, pairs, seed, sides.settings),
        base_context=sides.base_context,
        new_context=sides.new_context,
        seconds=run.seconds,
    )


def took_text(run: RunRecord) -> str:
    """`17 blocks in 4 min`."""
    return f"{run.blocks} blocks in {duration(run.seconds)}"


__all__ = ["add_options", "main", "read_options"]
SEEDS = 2**32
RECORDING = "blocks.jsonl"
WITHOUT_ANSWER = frozenset({Outcome.NO_VERDICT, Outcome.SKIPPED, Outcome.ADDED})


def _header(options: argparse.Namespace, prepared: PreparedRun, seed: int) -> RecordingHeader:
    is_in_turn = prepared.measurer.method == IN_TURN
    now = datetime.datetime.now(datetime.timezone.utc)
    return RecordingHeader(
        base=prepared.names[Side.BASE],
        new=prepared.names[Side.NEW],
        method=prepared.measurer.method,
        pairs=options.pairs,
        slice_seconds=options.slice if is_in_turn else 0.0,
        seed=seed,
        started=now.isoformat(timespec="seconds"),
        base_context=prepared.contexts[Side.BASE],
        new_context=prepared.contexts[Side.NEW],
        settings=settings_of(options),
    )


def _layers(options: argparse.Namespace) -> dict[str, int]:
    path = options.problem_sizes or PROBLEM_SIZES
    try:
        return layers_by_size(path)
    except (OSError, ValueError, KeyError) as error:
        raise BadInputError(f"--problem-sizes {path}: cannot be read: {error!r}") from error


def _design(options: argparse.Namespace, cases: int) -> Design:
    try:
        return plan_design(cases, alpha=options.alpha, margin=options.margin, looks=options.looks)
    except DesignError as error:
        raise BadInputError(str(error)) from error


@dataclass(frozen=True)
class FinishedRun:
    """`is_interrupted`: somebody ended it. `trouble`: what ended it too early, such as a recording
    that cannot be written any more. Either way what was measured is judged."""

    comparison: Comparison
    record: RunRecord
    is_interrupted: bool = False
    trouble: str = ""


def _measured(
    options: argparse.Namespace,
    prepared: PreparedRun,
    recording: Path,
    progress: RunProgress,
    seed: int,
) -> FinishedRun:
    layers = _layers(options)
    design = _design(options, len(prepared.shared))
    is_interrupted, trouble = False, ""
    with RecordingWriter(recording, _header(options, prepared, seed)) as writer:
        run = SequentialRun(
            prepared.measurer,
            prepared.shared,
            design,
            options.budget,
            keep=writer.add,
            progress=progress,
        )
        try:
            run.run(verify=options.verify == "before")
        except KeyboardInterrupt:
            is_interrupted = True
            run.judge()
        except (BadInputError, OSError) as error:
            trouble = f"ended after {run.record.blocks} blocks: {error}"
            run.judge()
    where = "" if trouble else f"; every slice is in {recording}"
    progress.say(f"{took_text(run.record)}{where}")
    comparison = comparison_of(
        run.record,
        design,
        _sides(options, prepared, layers),
        pairs=options.pairs,
        seed=seed,
        allowed=options.allow_missing,
    )
    return FinishedRun(comparison, run.record, is_interrupted, trouble)


def _sides(
    options: argparse.Namespace, prepared: PreparedRun, layers: Mapping[str, int]
) -> RunSides:
    return RunSides(
        base=prepared.names[Side.BASE],
        new=prepared.names[Side.NEW],
        base_context=prepared.contexts[Side.BASE],
        new_context=prepared.contexts[Side.NEW],
        method=prepared.measurer.method,
        layers=layers,
        only_base=prepared.only(Side.BASE),
        only_new=prepared.only(Side.NEW),
        warnings=_warnings(options),
        settings=settings_of(options),
    )


def _warnings(options: argparse.Namespace) -> list[str]:
    added = dict(options.environment_base), dict(options.environment_new)
    found = environment_warnings(*added, os.environ)
    if options.verify == "off":
        found.append("--verify off: results were not compared with the float64 baseline")
    return found


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


def _status(finished: FinishedRun, gate: Gate) -> int:
    """A regression that is known already is one, whatever else could not be found out."""
    status = gate.status(finished.comparison)
    if status == REGRESSION:
        return status
    if finished.record.refusal:
        raise BadInputError(finished.record.refusal)
    _refuse_without_answer(finished.comparison, finished.record)
    return status


def _reported(
    options: argparse.Namespace, finished: FinishedRun, folder: Path, progress: RunProgress
) -> int:
    """Prints first: what was found is then known even where the folder takes no more."""
    gate = gate_of(options)
    troubles = [finished.trouble] if finished.trouble else []
    # whoever reads no further does not keep the files from being written
    try:
        print_comparison(finished.comparison, options.format, gate)
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        troubles.append(f"standard output cannot be written: {error}")
    try:
        for path in write_comparison(finished.comparison, folder, gate):
            progress.say(str(path))
    except BadInputError as error:
        troubles.append(str(error))
    if finished.is_interrupted:
        for trouble in troubles:
            progress.say(trouble)
        return INTERRUPTED
    if troubles:
        raise BadInputError("; ".join(troubles))
    return _status(finished, gate)


def _run(options: argparse.Namespace) -> int:
    progress = RunProgress()
    folder = options.output or run_folder("compare")
    recording = options.record or folder / RECORDING
    # before anything is built
    refuse_existing(recording)
    seed = random.SystemRandom().randrange(SEEDS) if options.seed is None else options.seed
    prepared = prepare(options, seed, progress)
    finished = _measured(options, prepared, recording, progress, seed)
    return _reported(options, finished, folder, progress)


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
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
    return _run(read_options(arguments))
