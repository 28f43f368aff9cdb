"""Exercise 1: the bottlenecks ranked, with what removing each is expected to bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.ablation_evidence import find_evidence
from tinyllama_tools.bottlenecks import (
    WORTHWHILE_SPEEDUP,
    Bottleneck,
    rank_bottlenecks,
    recommended,
)
from tinyllama_tools.core.app import Json
from tinyllama_tools.exercise_1_page import BaselineRuns
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


def recommendation(ranked: Sequence[Bottleneck]) -> str:
    """The category with the best known speedup, and what is known of it."""
    best = recommended(ranked)
    if best is None:
        return (
            f"None is worth it: of none is {WORTHWHILE_SPEEDUP}x or more of the step measured as a "
            "difference, or else expected."
        )
    known = (
        f"{best.measured.text()}, measured"
        if best.measured
        else f"{speedup_text(best.expected_speedup)} expected"
    )
    return (
        f"{best.category} first, the largest speedup known: {known}; {percent(best.share_percent)} "
        f"of the work ({best.share_definition}), difficulty {best.difficulty}."
    )


def bottleneck_section(runs: BaselineRuns, results: Path) -> list[str]:
    """Ranked by impact and effort; the speedups are Amdahl's, and the ablation's where one fits."""
    summary = joined_summary(runs)
    ranked = rank_bottlenecks(summary, find_evidence(summary, results))
    origin = [key_source(runs, key) for found in ranked for key in found.keys]
    best = recommended(ranked)
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
            recommendation(ranked),
            *(key_source(runs, key) for key in (best.keys if best else ())),
        ),
    ]
