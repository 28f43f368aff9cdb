"""Rules of the worksheets that are used more than once, and what all worksheets have in common."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyllama_tools.core.app import Json
from tinyllama_tools.workshop.runs import MeasuredRun, plain_steps
from tinyllama_tools.workshop.worksheet import (
    NOT_MEASURED,
    Verdict,
    megabytes,
    milliseconds,
    number,
    table,
)

NO_TRANSFERS = "no GPU, so no transfers"


def _with(value: float, unit: str) -> str:
    return number(value, unit)


def above(value: float | None, limit: float, unit: str = "%") -> Verdict:
    """Holds above the limit, not at it."""
    rule = f"rule: above {_with(limit, unit)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(value > limit, f"{_with(value, unit)}; {rule}")


def below(value: float | None, limit: float, unit: str = "%") -> Verdict:
    """Holds below the limit, not at it."""
    rule = f"rule: below {_with(limit, unit)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(value < limit, f"{_with(value, unit)}; {rule}")


def within(value: float | None, low: float, high: float, unit: str = "%") -> Verdict:
    """Holds from `low` to below `high`, so that neighbouring ranges share no value.

    Either end may be infinite.
    """
    start = f"from {_with(low, '' if math.isfinite(high) else unit)}" if math.isfinite(low) else ""
    end = f"below {_with(high, unit)}" if math.isfinite(high) else ""
    rule = f"rule: {' to '.join(text for text in (start, end) if text)}"
    if value is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    return Verdict(low <= value < high, f"{_with(value, unit)}; {rule}")


def expected(value: float | None, low: float, high: float, unit: str) -> str:
    """`in the range`, or on which side of it."""
    if value is None:
        return NOT_MEASURED
    if low <= value <= high:
        return "in the range"
    side, times = "below", low / value if value > 0 else 0
    if value > high:
        side, times = "above", value / high if high > 0 else 0
    factor = f", by a factor of {times:.3g}" if times else ""
    return f"{side} the range{factor} ({_with(value, unit)})"


def largest(shares: Mapping[str, float | None]) -> str | None:
    """The name with the largest value, the first of equals; None where none was measured."""
    measured = {name: value for name, value in shares.items() if value is not None}
    return max(measured, key=lambda name: measured[name]) if measured else None


def is_largest(
    shares: Mapping[str, float | None], name: str, text: str, unit: str = "%"
) -> Verdict:
    """Holds for the one name of `shares` that is largest(); `text` says what the values are."""
    value, best = shares[name], largest(shares)
    rule = f"rule: the largest {text} wins"
    if value is None or best is None:
        return Verdict(False, f"{NOT_MEASURED}; {rule}")
    if best == name:
        return Verdict(True, f"{_with(value, unit)}; {rule}")
    return Verdict(
        False, f"{_with(value, unit)} against {_with(shares[best] or 0, unit)} of {best}; {rule}"
    )


def transfers_verdict(run: MeasuredRun, limit: float) -> Verdict:
    """Whether a step copies more often than this between host and device; a CPU has no device."""
    copies = run.value("operators.transfers_per_step")
    found = above(copies, limit, "copies a step")
    if copies is None and run.value("context.device.backend") == "cpu":
        return Verdict(False, found.reason.replace(NOT_MEASURED, NO_TRANSFERS, 1))
    return found


def share_of(part: float | None, whole: float | None) -> float | None:
    """In percent; None where either is missing or there is no whole."""
    if part is None or not whole:
        return None
    return 100 * part / whole


def ratio(above_line: float | None, below_line: float | None) -> float | None:
    """None where either is missing or the divisor is 0."""
    if above_line is None or not below_line:
        return None
    return above_line / below_line


def all_hold(verdicts: Sequence[Verdict], what: str) -> Verdict:
    """Holds where all do; `what` names them in plural."""
    held = sum(verdict.holds for verdict in verdicts)
    return Verdict(held == len(verdicts), f"{held} of {len(verdicts)} {what}; rule: all of them")


# Figures of the text, quoted to be corrected.
TEXT_PARAMETERS = "2,345,984 (4.2), 2,873,600 (2.1)"
TEXT_WEIGHTS = "9.2 MB (2.7, 4.2), 11.0 MB (2.1)"
TEXT_OPTIMIZER = "36.8 MB (2.7), 22 MB (2.1)"
TEXT_MEMORY = "2-4 GB (4.3), 63.5 MB (2.7), 160 MB and 200-500 MB (2.1)"


def exact_figures(run: MeasuredRun, memory: MeasuredRun) -> list[str]:
    """The table of notes. `memory`: a run with the memory profiler."""
    weights = run.value("model.model_size_bytes")
    states = memory.figure("memory.breakdown_at_peak.optimizer_states")
    moments = "AdamW keeps two values a parameter: twice the weights"
    rows = [
        (
            "parameters",
            TEXT_PARAMETERS,
            number(run.value("model.total_parameters")),
            "counted; for the default size the derivation in 2.1 is right",
        ),
        ("weights", TEXT_WEIGHTS, megabytes(weights), "parameters times bytes of the dtype"),
        ("optimizer states", TEXT_OPTIMIZER, megabytes(states.value), moments),
        (
            "peak memory",
            TEXT_MEMORY,
            megabytes(run.value("summary.peak_memory_bytes")),
            "live tensors of this model; the text's parts add up to tens of MB, not to GB",
        ),
    ]
    return [
        "Where the text contradicts itself, this is what the model really has (MB: 2^20 bytes):",
        "",
        *table(
            ("what", "in the workshop's text", "exact", "why"),
            rows,
            run.source("model.total_parameters"),
            run.source("model.model_size_bytes"),
            states,
            run.source("summary.peak_memory_bytes"),
        ),
    ]


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


@dataclass(frozen=True)
class Sheet:
    """A worksheet in Markdown and the exit status of the command that made it.

    `has_measurements`: whether any run left figures; without, it replaces no earlier worksheet.
    """

    page: str
    exit_status: int = 0
    has_measurements: bool = True


def say(text: str) -> None:
    """Progress, a line a step."""
    print(text, file=sys.stderr, flush=True)


def head(title: str, runs: Sequence[MeasuredRun]) -> list[str]:
    """Title, what the figures belong to, and whether the machine was quiet while they were taken.

    The first of `runs` with a summary stands for all.
    """
    lines = [
        f"# {title}",
        "",
        "Filled in from measurements: behind each answer stand the number and the rule that",
        "decided it, and the file and key that it is from, below the folder of the profiles.",
        "MB are 2^20 bytes; times are medians of steps without the first unless said otherwise.",
        "",
    ]
    run = next((found for found in runs if found.summary), None)
    if run is None:
        return lines
    changed = ", with changes" if run.value("context.git_dirty") else ""
    warning = disagreement(runs)
    return [
        *lines,
        *([f"Warning: {warning}.", ""] if warning else []),
        f"- device: {run.value('context.device.name')} ({run.value('context.device.backend')}), "
        f"{run.value('context.threads')} threads, libtorch {run.value('context.torch_version')}",
        f"- commit: {run.value('context.git_commit')}{changed}; started {run.value('started')}",
        f"- memory is counted by: {run.value('context.memory_source')}",
        f"- model: {run.value('configuration.size')}, {run.value('configuration.dtype')}, "
        f"variant {run.value('configuration.variant')}",
        "",
    ]


def failure_lines(reasons: Sequence[str]) -> list[str]:
    """Why a worksheet has no answers."""
    return [
        "**Not complete.** The questions need runs that are missing:",
        "",
        *(f"- {reason}" for reason in reasons),
        "",
    ]
