"""Exercise 1: the bottlenecks ranked, with what removing each is expected to bring."""

from __future__ import annotations

from pathlib import Path

from tinyllama_tools.ablation_evidence import find_evidence
from tinyllama_tools.bottlenecks import Bottleneck, rank_bottlenecks
from tinyllama_tools.exercise_1_page import BaselineRuns
from tinyllama_tools.suite_run import Json
from tinyllama_tools.worksheet import NOT_MEASURED, percent, question, table


def joined_summary(runs: BaselineRuns) -> Json:
    """One summary with every profiler's part; the profilers ran in two processes."""
    parts = {key: (runs.memory.summary or {})[key] for key in ("memory", "flops")}
    return {**(runs.profiled.summary or {}), **parts}


def speedup_text(speedup: float | None) -> str:
    """`1.23x`."""
    return NOT_MEASURED if speedup is None else f"{speedup:.2f}x"


def key_source(runs: BaselineRuns, key: str) -> str:
    """The run that a key of the joined summary is from."""
    run = runs.memory if key.startswith(("memory.", "flops.")) else runs.profiled
    return run.source(key)


def bottleneck_row(found: Bottleneck) -> tuple[str, ...]:
    """Of the table."""
    return (
        str(found.priority),
        found.category,
        percent(found.share_percent),
        found.difficulty,
        speedup_text(found.expected_speedup),
        speedup_text(found.upper_bound),
        found.measured.text() if found.measured else NOT_MEASURED,
    )


def bottleneck_section(runs: BaselineRuns, results: Path) -> list[str]:
    """Ranked by impact and effort; the speedups are Amdahl's, and the ablation's where one fits."""
    summary = joined_summary(runs)
    ranked = rank_bottlenecks(summary, find_evidence(summary, results))
    origin = [key_source(runs, key) for found in ranked for key in found.keys]
    first = ranked[0]
    header = ("rank", "bottleneck", "share", "difficulty", "expected", "at most", "measured")
    return [
        "### Bottlenecks ranked",
        "",
        "Expected speedup of the whole step by Amdahl's law; measured by scripts/ablation where it",
        "has run on this device and size. Categories overlap, so nothing here may be added up.",
        "",
        *table(header, map(bottleneck_row, ranked), *origin),
        *question(
            "What would the profiler recommend (overview page)?",
            f"{first.category} first: {percent(first.share_percent)} of the work "
            f"({first.share_definition}), difficulty {first.difficulty}.",
            *(key_source(runs, key) for key in first.keys),
        ),
    ]
