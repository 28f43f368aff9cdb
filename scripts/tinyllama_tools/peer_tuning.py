"""Settings of the tuned peer beside each other at one case: how its best ones were found.

All alternatives stay in processes of their own and take turns, so that a drifting machine does not
choose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tinyllama_tools.data.programs import SuiteCase
from tinyllama_tools.peer_forms import FORMS, HIGHEST, PeerForm
from tinyllama_tools.peer_malloc import CachingMalloc, caching_malloc, glibc_that_keeps
from tinyllama_tools.peer_process import PeerProcess, start_peer
from tinyllama_tools.peers_sides import PeerSide
from tinyllama_tools.peers_turns import CaseRun, Effort, measure_case

Alternative = tuple[PeerForm, CachingMalloc]


def alternatives() -> list[Alternative]:
    """The tuned form, and it with one thing changed each."""
    tuned, malloc = FORMS["compile_tuned"], caching_malloc()
    forms = [
        tuned,
        tuned.but(name="sdpa", attention="sdpa"),
        tuned.but(name="highest", precision=HIGHEST),
        tuned.but(name="glibc", malloc=False),
        tuned.but(name="max_autotune", inductor={"max_autotune": True}),
        tuned.but(name="cpp_wrapper", inductor={"cpp_wrapper": True}),
    ]
    return [(form, malloc) for form in forms] + [
        (tuned.but(name="glibc_thresholds"), glibc_that_keeps())
    ]


def tune(case: SuiteCase, effort: Effort, threads: int, say: Callable[[str], None]) -> list[str]:
    """Measures all alternatives at one case; lines of a table, the fastest first."""
    sides = [peer_side(alternative, threads, effort) for alternative in alternatives()]
    results: list[CaseRun] = []
    try:
        measure_case(case, sides, effort, say, results.append)
    finally:
        for side in sides:
            side.close()
    return tuning_lines(results[0], sides[0].variant)


def peer_side(alternative: Alternative, threads: int, effort: Effort) -> PeerSide:
    """One alternative as a side."""
    form, malloc = alternative

    def start(form: PeerForm) -> PeerProcess:
        return start_peer(form, malloc)

    return PeerSide(form, start, threads, effort.max_seconds)


def tuning_lines(result: CaseRun, reference: str) -> list[str]:
    """A line an alternative: median step, and its time over the reference's."""
    measured = [run for run in result.sides.values() if run.turns]
    lines = []
    for run in sorted(measured, key=lambda run: statistics.median(run.medians)):
        ratio = result.ratio(run.variant, reference) if result.sides[reference].turns else None
        text = f"  {ratio.text()} of {reference}" if ratio else ""
        lines.append(f"{run.variant:<24} {1e3 * statistics.median(run.medians):9.1f} ms{text}")
    for run in result.sides.values():
        if run.failed or run.skipped:
            lines.append(f"{run.variant:<24} {run.failed or run.skipped}")
    return lines
