"""What to know of stored results before any number, the most important first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinyllama_tools.compare.comparison import ComparedCase
from tinyllama_tools.compare.context_differences import (
    axis_differences,
    context_differences,
    one_after_the_other,
    work_differences,
)
from tinyllama_tools.compare.missing_cases import unknown_patterns
from tinyllama_tools.compare.stored_judging import FEWEST_FILES
from tinyllama_tools.data.results import StoredRun
from tinyllama_tools.stats.verdicts import Outcome

MOST_NAMES = 5
SAID_FIRST = {
    Outcome.MISSING: "measured in the base, not in the new",
    Outcome.FAILED: "failed in the new",
    Outcome.SKIPPED: "not measured on either side",
    Outcome.ADDED: "measured in the new only",
}
# counters that say what was asked for, and not how it was done
WORK_COUNTERS = {"model_flops", "parameters"}


def names_text(names: Sequence[str]) -> str:
    """`a, b, c and 3 more`."""
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _one_sided(cases: Sequence[ComparedCase]) -> Iterator[str]:
    for outcome, words in SAID_FIRST.items():
        found = [case for case in cases if case.outcome is outcome]
        names = [f"{case.name} (allowed)" if case.allowed else case.name for case in found]
        if names:
            yield f"{len(names)} {words}: {names_text(names)}"


def _other_work(cases: Sequence[ComparedCase]) -> Iterator[str]:
    names = [
        case.name
        for case in cases
        if any(
            c.name in WORK_COUNTERS and c.exact and c.base != c.new and not c.is_one_sided
            for c in case.counters
        )
    ]
    if names:
        yield (
            f"{len(names)} did not do the same work, model_flops or parameters differ: "
            f"{names_text(names)}"
        )


def _one_repetition(runs: Iterable[StoredRun]) -> Iterator[str]:
    for run in runs:
        names = [name for name, case in run.cases.items() if case.repetitions == 1]
        if names:
            yield (
                f"{run.path}: one repetition, so no scatter within the run is known, of "
                f"{names_text(names)}"
            )


def _same_file(base: Sequence[StoredRun], new: Sequence[StoredRun]) -> Iterator[str]:
    digests = {run.digest: run.path for run in base}
    for run in new:
        if run.digest in digests:
            yield f"{run.path} is the same file as {digests[run.digest]} of the base"


def stored_warnings(
    base: Sequence[StoredRun],
    new: Sequence[StoredRun],
    cases: Sequence[ComparedCase],
    allowed: Sequence[str] = (),
) -> list[str]:
    """Of the contexts, of cases that are not on both sides, and of the files."""
    sides = (base, new)
    contexts = [[run.context for run in runs] for runs in sides]
    found = context_differences(*contexts)
    in_order = one_after_the_other(*contexts)
    # one file of a side has no alpha that could fail to hold
    if in_order and min(len(base), len(new)) >= FEWEST_FILES:
        found.insert(0, in_order)
    found += work_differences(*([run.configuration for run in runs] for runs in sides))
    found += axis_differences(*([name for run in runs for name in run.cases] for runs in sides))
    found += [*_other_work(cases), *_one_sided(cases), *_same_file(base, new)]
    for pattern in unknown_patterns(cases, allowed):
        found.append(f"--allow-missing '{pattern}': no case is called so")
    found += [text for runs in sides for run in runs for text in run.warnings]
    return [*found, *_one_repetition([*base, *new])]
