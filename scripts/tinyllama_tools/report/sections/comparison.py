"""Several results beside each other: machines, commits, peers. Differences, never a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.report.analysis import COMPONENTS, name_rank, rank
from tinyllama_tools.report.document import Column, Section, Table, text_column

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.results import ResultSet
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "comparison", "Comparison"
NO_VERDICT = (
    "Differences, without a verdict: results measured one after the other differ by the machine's "
    "day too. `scripts/compare run` measures two builds by turns and states its error rates."
)
ONE_RESULT = "one result was given, and a comparison takes two: scripts/report RESULT RESULT"
NONE = "no result of the suite was given; make one: scripts/bench"


def comparison_json(sets: Sequence[ResultSet]) -> Json:
    """Times of all cases of all sets, in one order; null where a set has no such case."""
    named = {name: case.name for results in sets for name, case in results.cases.items()}
    cases = sorted(named, key=lambda name: name_rank(named[name]))
    return {
        "cases": cases,
        "sets": [
            {
                "title": results.title,
                "seconds": [
                    results.cases[name].median_seconds if name in results.cases else None
                    for name in cases
                ],
            }
            for results in sets
        ],
    }


def ratios_by_component(base: ResultSet, other: ResultSet) -> Mapping[str, tuple[float, int]]:
    """Of each component: the geometric mean of base's time over other's, and how many cases."""
    logs: dict[str, list[float]] = {}
    for name, case in base.cases.items():
        if name in other.cases:
            ratio = case.median_seconds / other.cases[name].median_seconds
            logs.setdefault(case.name.component, []).append(math.log(ratio))
    return {name: (math.exp(sum(v) / len(v)), len(v)) for name, v in logs.items()}


def _table(sets: Sequence[ResultSet]) -> Table:
    base = sets[0]
    rows = []
    for results in sets[1:]:
        found = ratios_by_component(base, results)
        for component in sorted(found, key=lambda name: rank(name, COMPONENTS)):
            ratio, count = found[component]
            rows.append([results.title, component, ratio, count])
        if not found:
            rows.append([results.title, "no case in common", None, 0])
    columns = (
        text_column("result"),
        text_column("component"),
        Column("speed-up", "x", digits=3),
        Column("cases", digits=6),
    )
    note = (
        f"Geometric mean of {base.title}'s time over the other's; above 1 is faster. {NO_VERDICT}"
    )
    return Table("speed_ups", "By component", columns, rows, note, is_key=True)


def build(inputs: ReportInputs) -> Section:
    """One row a result and component; the page shows the cases themselves."""
    if not inputs.sets:
        return Section(ID, TITLE, missing=NONE)
    if len(inputs.sets) == 1:
        return Section(ID, TITLE, missing=ONE_RESULT)
    return Section(ID, TITLE, tables=[_table(inputs.sets)])
