"""Compares stored runs, any number of files a side: from what was read to a Comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyllama_tools.compare.attribution_tree import attributions, layers_by_size
from tinyllama_tools.compare.comparison import Attribution, ComparedCase, Comparison
from tinyllama_tools.compare.judged import interval_of, unsettled_text
from tinyllama_tools.compare.missing_cases import (
    SideState,
    allow_missing,
    outcome_without_times,
)
from tinyllama_tools.compare.profile_of_noise import NoiseProfile
from tinyllama_tools.compare.side_cases import SideCase, counter_changes, side_cases
from tinyllama_tools.compare.stored_judging import (
    CORRECTIONS,
    SEVERAL,
    Sides,
    Verdicts,
    judge_stored,
)
from tinyllama_tools.compare.stored_warnings import stored_warnings
from tinyllama_tools.core.app import BadInputError
from tinyllama_tools.data.results import StoredRun
from tinyllama_tools.stats.looks import BlockSummary
from tinyllama_tools.stats.verdicts import Judgement, Outcome

METHOD = "stored"
# nobody has more, so the exact number would only look like a plan
MOST_FILES = 1000
Cases = Mapping[str, SideCase]


@dataclass(frozen=True)
class Rules:
    """`allowed`: names and patterns of cases that may be missing. `wanted`: of names to compare."""

    alpha: float
    margin: float
    allowed: tuple[str, ...] = ()
    wanted: re.Pattern[str] | None = None
    profile: NoiseProfile | None = None


def _wanted(cases: Cases, rules: Rules) -> Cases:
    pattern = rules.wanted
    return {n: case for n, case in cases.items() if pattern is None or pattern.search(n)}


def _refuse_nothing_in_common(base: Cases, new: Cases, rules: Rules) -> None:
    if base.keys() & new.keys():
        return
    first = [next(iter(cases), "none") for cases in (base, new)]
    which = f" that matches '{rules.wanted.pattern}'" if rules.wanted else ""
    raise BadInputError(
        f"nothing to compare: no case{which} is in both sides (base: {first[0]}, ...; new: "
        f"{first[1]}, ...); name results of the same cases"
    )


def _files_needed(judgement: Judgement) -> str:
    files = judgement.evidence.blocks_needed
    if files is None:
        return unsettled_text(judgement, "files")
    if files > MOST_FILES:
        return f"no number of files that anybody has gives an answer (over {MOST_FILES} a side)"
    return f"an answer needs about {files} files a side"


def _judged(case: ComparedCase, judgement: Judgement, *, is_over_files: bool) -> ComparedCase:
    found = judgement.evidence
    notes = [case.note]
    if judgement.outcome is Outcome.UNCLEAR and is_over_files:
        notes.append(_files_needed(judgement))
    smallest = found.smallest_difference
    return replace(
        case,
        outcome=judgement.outcome,
        ratio=math.exp(found.estimate),
        interval=interval_of(judgement),
        p_value=judgement.adjusted_p_value,
        blocks=found.blocks,
        smallest_difference=smallest if math.isfinite(smallest) else None,
        note="; ".join(filter(None, notes)),
    )


def _unjudged(name: str, base: SideCase, new: SideCase, note: str) -> ComparedCase:
    before, after = base.median, new.median
    notes = [f"base {base.note}" if base.note else "", f"new {new.note}" if new.note else "", note]
    return ComparedCase(
        name,
        Outcome.NO_VERDICT,
        ratio=after / before if before and after else None,
        blocks=min(len(base.seconds), len(new.seconds)),
        base_seconds=before,
        new_seconds=after,
        note="; ".join(filter(None, notes)),
        counters=counter_changes(base, new),
    )


def _one_sided(name: str, base: SideCase | None, new: SideCase | None) -> ComparedCase | None:
    """A case that is not measured on both sides; None for one that is."""
    states = [side.state if side else SideState() for side in (base, new)]
    found = outcome_without_times(*states)
    if found is None:
        return None
    return ComparedCase(
        name,
        found[0],
        base_seconds=base.median if base else None,
        new_seconds=new.median if new else None,
        note=found[1],
    )


def _attributed(
    cases: Sequence[ComparedCase], shared: Mapping[str, Sides]
) -> Mapping[str, Attribution]:
    """Files of the two sides are not pairs; put side by side they give the scatter of a change."""
    if not any(case.outcome in {Outcome.SLOWER, Outcome.FASTER} for case in cases):
        return {}
    blocks = {
        name: [
            BlockSummary(math.log(n / b), 0.0, b, n)
            for b, n in zip(base.seconds, new.seconds, strict=False)
        ]
        for name, (base, new) in shared.items()
    }
    return attributions(blocks, layers_by_size())


def _compared(base: Cases, new: Cases, rules: Rules) -> tuple[list[ComparedCase], Verdicts]:
    one_sided, shared = {}, {}
    for name in dict.fromkeys([*base, *new]):
        found = _one_sided(name, base.get(name), new.get(name))
        if found is None:
            shared[name] = (base[name], new[name])
        else:
            one_sided[name] = found
    verdicts = judge_stored(shared, rules.profile, alpha=rules.alpha, margin=rules.margin)
    judged = {}
    for name, (before, after) in shared.items():
        case = _unjudged(name, before, after, verdicts.notes.get(name, ""))
        judgement = verdicts.judgements.get(name)
        is_over_files = verdicts.test == SEVERAL
        judged[name] = _judged(case, judgement, is_over_files=is_over_files) if judgement else case
    parts = _attributed(list(judged.values()), shared)
    changed = {Outcome.SLOWER, Outcome.FASTER}
    cases = [
        replace(case, attribution=parts.get(case.name)) if case.outcome in changed else case
        for case in ({**one_sided, **judged}[n] for n in dict.fromkeys([*base, *new]))
    ]
    return cases, verdicts


def _side_name(runs: Sequence[StoredRun]) -> str:
    commits = dict.fromkeys(str(run.context.get("git_commit") or "unknown") for run in runs)
    of = ", ".join(commit[:12] for commit in commits)
    files = ", ".join(str(run.path) for run in runs)
    return f"{files} (commit {of})"


def _design(verdicts: Verdicts, base: Sequence[StoredRun], new: Sequence[StoredRun]) -> Any:  # noqa: ANN401
    return {
        "test": verdicts.test,
        "correction": CORRECTIONS[verdicts.test],
        "family": len(verdicts.judgements),
        "files": {"base": len(base), "new": len(new)},
    }


def compare_stored(base: Sequence[StoredRun], new: Sequence[StoredRun], rules: Rules) -> Comparison:
    """BadInputError where no case is in both sides."""
    before, after = (_wanted(side_cases(runs), rules) for runs in (base, new))
    _refuse_nothing_in_common(before, after, rules)
    found, verdicts = _compared(before, after, rules)
    cases = allow_missing(found, rules.allowed)
    return Comparison(
        METHOD,
        _side_name(base),
        _side_name(new),
        cases,
        rules.alpha,
        rules.margin,
        warnings=(
            *stored_warnings(base, new, cases, rules.allowed),
            *verdicts.warnings,
        ),
        design=_design(verdicts, base, new),
        base_context=base[0].context,
        new_context=new[0].context,
    )
