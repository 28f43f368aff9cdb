"""What each profiler costs: of its steps against the plain ones, and of its run against another."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import markdown_table, milliseconds, number, percent
from tinyllama_tools.profile_set import BASELINE, MEMORY, OPERATORS, SECTIONS, TITLES, ProfileSet

OVERHEAD_KEYS = {
    OPERATORS: "operator_profiling_overhead_percent",
    MEMORY: "memory_profiling_overhead_percent",
}


@dataclass(frozen=True)
class Overhead:
    """Seconds are medians, percents above the plain steps of the same run (`percent`) and above the
    run without profilers (`run_percent`: the rest of the run can be slower too)."""

    profiler: str
    plain_seconds: float | None
    profiled_seconds: float | None
    percent: float | None
    run_percent: float | None
    process_seconds: float | None


def _median_of(steps: list[Json], profiled: bool) -> float | None:
    # the first step is left out of every average
    found = [s["time_seconds"] for s in steps[1:] if bool(s.get("profiled")) == profiled]
    return statistics.median(found) if found else None


def _above(value: float | None, plain: float | None) -> float | None:
    return 100 * (value / plain - 1) if value is not None and plain else None


def profiler_overheads(profiles: ProfileSet) -> list[Overhead]:
    """Of each profiler that was on; what its run cannot say is None."""
    baseline = profiles.of(BASELINE)
    unprofiled = _median_of(baseline.summary["steps"], False) if baseline else None
    seconds = {run["name"]: run["seconds"] for run in (profiles.runs or {}).get("runs", [])}
    found = []
    for name in SECTIONS:
        profile = profiles.of(name)
        if profile is None:
            continue
        steps, means = profile.summary["steps"], profile.summary["summary"]
        plain, touched = _median_of(steps, False), _median_of(steps, True)
        shared = sum(other is profile for other in profiles.profiles.values()) > 1
        if shared:
            # several profilers in one run: only the program itself can tell their steps apart
            key = f"{'operator' if name == OPERATORS else name}_profiled_average_step_seconds"
            touched = means.get(key)
        own = means.get(OVERHEAD_KEYS[name]) if name in OVERHEAD_KEYS else _above(touched, plain)
        found.append(
            Overhead(name, plain, touched, own, _above(plain, unprofiled), seconds.get(name))
        )
    return found


def overhead_lines(profiles: ProfileSet) -> list[str]:
    """The table, and what a whole run took."""
    overheads = profiler_overheads(profiles)
    if not overheads:
        return ["No profiler was on."]
    header = (
        "profiler",
        "plain step ms",
        "profiled step ms",
        "overhead of a profiled step",
        "plain steps against the plain run",
        "whole run seconds",
    )
    rows = [
        (
            TITLES[found.profiler],
            milliseconds(found.plain_seconds),
            milliseconds(found.profiled_seconds),
            percent(found.percent),
            percent(found.run_percent),
            number(found.process_seconds, 1),
        )
        for found in overheads
    ]
    seconds = {run["name"]: run["seconds"] for run in (profiles.runs or {}).get("runs", [])}
    plain = seconds.get(BASELINE)
    last = [] if plain is None else ["", f"The plain run took {number(plain, 1)} seconds in all."]
    return [*markdown_table(header, rows), *last]
