"""Tables of the judged bottlenecks; the judgement itself is in bottlenecks.py."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.ablation_evidence import Evidence
from tinyllama_tools.bottlenecks import HIGH_IMPACT, QUADRANTS, Bottleneck
from tinyllama_tools.core.text import NOT_MEASURED, markdown_table, number, percent, speedup
from tinyllama_tools.core.text import shown_path as shown

HEADER = (
    "priority",
    "category",
    "share",
    "difficulty",
    "assumed factor",
    "expected",
    "upper bound",
    "measured",
    "worksheet",
)


def bottleneck_table(bottlenecks: Sequence[Bottleneck]) -> list[str]:
    """A row a category, most urgent first."""
    rows = [
        (
            str(found.priority),
            found.category,
            percent(found.share_percent),
            found.difficulty,
            number(found.factor, 2),
            speedup(found.expected_speedup),
            speedup(found.upper_bound),
            found.measured.text() if found.measured else NOT_MEASURED,
            found.worksheet_speedup,
        )
        for found in bottlenecks
    ]
    return markdown_table(HEADER, rows)


def bottleneck_lines(bottlenecks: Sequence[Bottleneck], ablation: Evidence | None) -> list[str]:
    """The table and the ground of each number."""
    grounds = [
        f"- {found.category}: share of {found.share_definition}; factor: {found.factor_reason}"
        + (f" (`{'`, `'.join(found.keys)}`)." if found.keys else ".")
        for found in bottlenecks
    ]
    source = (
        f"Measured speedups are of the whole step, from `{shown(ablation.file)}` at "
        f"{ablation.point.title}; `~`: no difference was shown."
        if ablation
        else "Measured speedups: scripts/ablation has not run on this device at this shape."
    )
    return [
        *bottleneck_table(bottlenecks),
        "",
        "Expected: Amdahl's law, 1 / (1 - p + p / f) with the share p and the assumed factor f; "
        "upper bound: 1 / (1 - p). Categories overlap (softmax is a part of attention, launches of "
        "everything): neither add shares nor multiply speedups. A measured speedup above the upper "
        "bound comes from what else its switch changes.",
        "",
        source,
        "",
        *grounds,
    ]


def matrix_lines(bottlenecks: Sequence[Bottleneck]) -> list[str]:
    """The four quadrants, each with its categories."""
    lines = [
        f"High impact: {HIGH_IMPACT:.1f}x or more, measured where it was, else expected, and never "
        "above the upper bound. Low effort: difficulty Low or Low-Medium.",
        "",
    ]
    for quadrant, title in QUADRANTS.items():
        names = [
            f"{found.category} ({speedup(found.best_known_speedup)})"
            for found in bottlenecks
            if found.quadrant == quadrant
        ]
        lines.append(f"- {title}: {', '.join(names) or 'none'}")
    unknown = [found.category for found in bottlenecks if found.quadrant is None]
    if unknown:
        lines.append(f"- Not measured: {', '.join(unknown)}")
    return lines
