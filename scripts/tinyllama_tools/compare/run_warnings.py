"""What to know of a run before any number, the most important first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinyllama_tools.compare.context_differences import context_differences
from tinyllama_tools.compare.measurements import Side
from tinyllama_tools.compare.run_progress import cases_text
from tinyllama_tools.compare.run_sides import RunSides
from tinyllama_tools.compare.sequential_run import BUDGET_USED, RunRecord
from tinyllama_tools.compare.turn_program import WAITING
from tinyllama_tools.compare.whole_processes import WHOLE_PROCESSES

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
    if sides.method == WHOLE_PROCESSES:
        warnings.append(
            "a side cannot stay resident (it does not know --serve), so whole processes took turns:"
            " drift between them is in the differences, and only large ones can be shown"
        )
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
