"""Memory over the sequence, impact against effort, and torch.compile's rows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tinyllama_tools.ablation_growth import (
    LINEAR_BELOW,
    QUADRATIC_ABOVE,
    Series,
    exercise_points,
    series_of,
)
from tinyllama_tools.ablation_impact import (
    HIGH_IMPACT,
    MEDIUM_IMPACT,
    MEMORY_IMPACT,
    NO_EFFORT_NAMED,
    QUADRANTS,
    Impact,
    impacts,
    in_quadrant,
)
from tinyllama_tools.ablation_layout import NOTHING, mebibytes, milliseconds, number, times
from tinyllama_tools.ablation_peers import HOW_TO
from tinyllama_tools.ablation_reference import COMPILE, MEMORY_EXERCISE
from tinyllama_tools.ablation_rows import memory_ratio, ratio_text
from tinyllama_tools.ablation_study import BASELINE, FUSED, OPTIMIZED, Study
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.stats.rank_tests import Ratio

LONG_BATCH = 1


def series_table(series: Sequence[Series]) -> list[str]:
    """A line a row: MiB at each length, the fitted exponent, and below the reasons."""
    lengths = sorted({length for one in series for length in one.cells})
    header = ["variant", *(f"S {length}" for length in lengths), "MiB ~ S ^", "growth"]
    lines, reasons = [], []
    for one in series:
        growth = one.growth
        texts = [mebibytes(one.measured.get(length)) for length in lengths]
        fit = f"{growth.exponent:.2f} ({growth.first} to {growth.last})" if growth else NOTHING
        lines.append([one.row, *texts, fit, growth.verdict if growth else NOTHING])
        reasons += [
            f"- {one.row}, S {length}: {value}"
            for length, value in one.cells.items()
            if isinstance(value, str)
        ]
    return [*markdown_table(header, lines), "", *reasons, *([""] if reasons else [])]


def exercise_table(study: Study) -> list[str]:
    """The table of the workshop's memory exercise, filled in for three variants."""
    points = exercise_points(study.memory, MEMORY_EXERCISE)
    lines = []
    for name in (BASELINE, FUSED, OPTIMIZED):
        for point in points:
            cell, first = study.memory.get(name, point), study.memory.get(name, points[0])
            if cell is None or first is None:
                continue
            peak, start = cell.counter("peak_memory_MiB"), first.counter("peak_memory_MiB")
            more = mebibytes(peak - start) if peak is not None and start is not None else NOTHING
            texts = [name, str(point.seq), str(point.batch), mebibytes(peak), more]
            lines.append([*texts, times(memory_ratio(cell, first)), cell.note])
    header = ["variant", "Seq Length", "Batch Size", "Peak Memory (MiB)", "Memory Increase (MiB)"]
    return markdown_table([*header, "Scaling Factor", "note"], lines) if lines else []


def memory_lines(study: Study) -> list[str]:
    """The section on memory over the sequence."""
    if not study.memory.cells:
        return []
    text = (
        "Peak MiB alive in tensors, exact, from one iteration. The exponent is the slope of "
        "log(MiB) over log(S), from S = 1024 on where three such lengths were measured (below, "
        "weights and moments hide what grows), else over the last three; "
        f"linear: below {LINEAR_BELOW}, quadratic: above {QUADRATIC_ABOVE}."
    )
    point = study.memory.points()[0]
    lines = ["## Memory over the sequence", "", *textwrap.wrap(text, 100), ""]
    parts = (("full step", "full_step"), ("attention, forward and backward", "attention"))
    for title, component in parts:
        series = series_of(study.memory, component, LONG_BATCH)
        if series:
            heading = f"### {title.capitalize()}, {point.size} {point.dtype}, batch {LONG_BATCH}"
            lines += [heading, "", *series_table(series)]
    table = exercise_table(study)
    if table:
        lines += ["### The workshop's exercise (its step 3)", "", *table, ""]
    return lines


def impact_text(impact: Impact) -> str:
    """`qkv 1.20x`, with the memory where it saves some."""
    memory = f", memory {impact.memory_ratio:.2f}x" if impact.saves_memory else ""
    return f"{impact.entry.switch} {impact.speedup:.2f}x{memory}"


def quadrant_lines(found: Sequence[Impact]) -> list[str]:
    """The workshop's four lists, and those whose effort it does not name."""
    lines: list[str] = []
    for title, is_high, is_low_effort in QUADRANTS:
        inside = in_quadrant(found, is_high, is_low_effort)
        lines += [f"**{title}:**", "", *(f"- {impact_text(i)}" for i in inside or ())]
        lines += ["- none", ""] if not inside else [""]
    others = [*in_quadrant(found, True, None), *in_quadrant(found, False, None)]
    if others:
        listed = "; ".join(
            f"{impact_text(i)} ({'high' if i.is_high else 'low'} impact)" for i in others
        )
        lines += [f"Effort {NO_EFFORT_NAMED}: {listed}.", ""]
    return lines


def impact_lines(study: Study) -> list[str]:
    """Bottleneck assessment and matrix, one of each for a dtype."""
    if not study.main.cells:
        return []
    text = (
        f"Impact by the measured speedup, a geometric mean over the test points: high from "
        f"{HIGH_IMPACT}x on, medium from {MEDIUM_IMPACT}x, else low; none shown where every "
        f"interval includes 1. The upper half of the matrix is high, medium, and what saves a "
        f"fifth of memory or more (peak x {MEMORY_IMPACT} or less). Effort and expected speedup "
        "are the workshop's; Low-Medium counts as low."
    )
    lines = ["## Impact and effort", "", *textwrap.wrap(text, 100), ""]
    for dtype in dict.fromkeys(point.dtype for point in study.main.points()):
        found = impacts(study.main, study.rows, dtype)
        table = [
            (
                impact.entry.category or NOTHING,
                impact.entry.switch,
                impact.entry.effort or NO_EFFORT_NAMED,
                impact.entry.expected or NOTHING,
                times(impact.speedup),
                times(impact.memory_ratio),
                impact.impact or NOTHING,
                str(rank) if impact.speedup else NOTHING,
                impact.note,
            )
            for rank, impact in enumerate(found, start=1)
        ]
        header = ("Bottleneck Category", "switch", "Optimization Difficulty", "Expected Speedup")
        header += ("measured", "memory x", "impact", "Priority Rank", "note")
        lines += [f"### {dtype}", "", *markdown_table(header, table), "", *quadrant_lines(found)]
    return lines


def compile_lines(study: Study) -> list[str]:
    """torch.compile's rows; where no result was found, how to make one."""
    lines = ["## torch.compile", ""]
    lines += [f"The workshop: {COMPILE.effort.lower()} effort, {COMPILE.expected} impact.", ""]
    table = [
        (
            row["row"],
            row["point"],
            milliseconds(row["seconds"]),
            number(row["samples_per_second"]),
            ratio_text(Ratio.from_json(row["speedup"])),
            row["against"],
            ratio_text(Ratio.from_json(row["over_optimized"])),
            row["note"],
        )
        for row in study.peers
    ]
    if not table:
        missing = f"no result of torch.compile at these points: {HOW_TO}"
        table = [("torch.compile", "all", *[NOTHING] * 5, missing)]
    header = ("variant", "case", "ms", "samples/s", "speedup", "over", "its time / optimized's")
    lines += [*markdown_table((*header, "note"), table), ""]
    sources = sorted({row["source"] for row in study.peers})
    if sources:
        lines += [f"From {', '.join(sources)}, where both took turns.", ""]
    return lines
