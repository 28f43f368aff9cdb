"""From what a run recorded to the comparison that all outputs read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tinyllama_tools.compare.attribution_tree import attributions
from tinyllama_tools.compare.case_record import CaseRecord
from tinyllama_tools.compare.comparison import Attribution, ComparedCase, Comparison, Json
from tinyllama_tools.compare.counters import compare_counters
from tinyllama_tools.compare.judged import interval_of, unsettled_text
from tinyllama_tools.compare.measurements import Side
from tinyllama_tools.compare.missing_cases import SideState, allow_missing, outcome_without_times
from tinyllama_tools.compare.rates import rates
from tinyllama_tools.compare.run_sides import RunSides
from tinyllama_tools.compare.run_warnings import run_warnings
from tinyllama_tools.compare.sequential_run import RunRecord
from tinyllama_tools.core.text import duration
from tinyllama_tools.stats.rank_tests import hodges_lehmann
from tinyllama_tools.stats.verdicts import SPENT, Design, Judgement, Outcome

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
