"""What the worksheets of all exercises have in common: the head, progress, and what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.exercise_runs import MeasuredRun
from tinyllama_tools.machine_quiet import disagreement


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
