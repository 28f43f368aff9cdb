"""Whether runs that did the same work took the same time: else the machine was busy elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_runs import MeasuredRun, plain_steps
from tinyllama_tools.worksheet import milliseconds

MOST_DIFFERENCE_PERCENT = 20.0
# A median of fewer says little.
FEWEST_STEPS = 3
# What changes no work of a step.
OF_THE_RUN = frozenset({"num_steps", "seed", "learning_rate"})


def same_work(configuration: Json) -> str:
    """Equal for runs whose steps do the same."""
    return repr(sorted((k, repr(v)) for k, v in configuration.items() if k not in OF_THE_RUN))


def plain_medians(runs: Sequence[MeasuredRun]) -> list[list[tuple[float, str]]]:
    """Median seconds of a plain step and the run's name, fastest first, a list a configuration."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for run in runs:
        times = [step["time_seconds"] for step in plain_steps(run)]
        configuration = run.value("configuration")
        if configuration and len(times) >= FEWEST_STEPS:
            found = (statistics.median(times), run.name)
            groups.setdefault(same_work(configuration), []).append(found)
    return [sorted(group) for group in groups.values()]


def disagreement(runs: Sequence[MeasuredRun]) -> str:
    """A line where runs of the same work differ too much, about the worst; empty where none do."""
    spreads = [
        (100 * (group[-1][0] / group[0][0] - 1), group[0], group[-1])
        for group in plain_medians(runs)
        if group[0][0] > 0
    ]
    percent, fast, slow = max(spreads, default=(0.0, (0.0, ""), (0.0, "")))
    if percent <= MOST_DIFFERENCE_PERCENT:
        return ""
    return (
        f"the machine was not quiet: the same plain step took {milliseconds(fast[0])} in {fast[1]} "
        f"and {milliseconds(slow[0])} in {slow[1]} (medians), {percent:.0f} % more (rule: above "
        f"{MOST_DIFFERENCE_PERCENT:.0f} %); times that differ by less than that decide nothing"
    )
