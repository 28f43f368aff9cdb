"""ABLATION.md as a whole, and what the terminal shows of it."""

from __future__ import annotations

from collections.abc import Iterable

from tinyllama_tools.ablation_figures import compile_lines, impact_lines, memory_lines
from tinyllama_tools.ablation_metrics import batch_lines, success_lines, type_lines
from tinyllama_tools.ablation_study import Study
from tinyllama_tools.ablation_tables import grid_lines, main_lines, rule_section
from tinyllama_tools.core.text import cell, markdown_table

INTRODUCTION = """\
Every optimisation alone, all together, and removed again from the best set: the workshop's tables
with measured numbers. A row was timed only after its loss and all gradients agreed with the float64
baseline (`rel error` is the largest difference). `scripts/ablation` measures it again."""

NOTES = """\
## How it was measured

Each time is the median over turns; in each turn every variant runs once at every point, a process
each, in an order drawn anew, and only times of the same turn are divided by each other. Memory,
allocations and operators are exact counts of one iteration. A case that was skipped or failed stays
in the table with its reason. Cells whose step is slow get fewer turns; their intervals are wide."""


def environment(study: Study) -> dict[str, str]:
    """What the numbers belong to."""
    context, meta = study.context, study.meta
    device = context.get("device", {})
    dirty = " with uncommitted changes" if context.get("git_dirty") else ""
    peaks = context.get("peaks", {})
    rates = [
        f"{name} {peak['flops_per_second'] / 1e9:,.0f} GFLOP/s"
        for name, peak in peaks.get("measured", {}).items()
        if "flops_per_second" in peak
    ]
    return {
        "date": str(meta.get("date", "")),
        "commit": f"{str(context.get('git_commit', 'unknown'))[:12]}{dirty}",
        "device": f"{device.get('name', 'unknown')} ({device.get('architecture', '')})",
        "threads": str(context.get("threads", "unknown")),
        "libtorch": str(context.get("torch_version", "unknown")),
        "measured peaks": ", ".join(rates) or "none",
        "MFU is against": str(peaks.get("mfu_is_against", "unknown")),
        "turns": f"{meta.get('turns_done', 0)} of {meta.get('turns')}",
        "steps": f"{meta.get('steps')} a turn",
        "took": str(meta.get("took", "")),
        "command": f"`{meta.get('command', '')}`",
    }


def note_lines(study: Study) -> list[str]:
    """What a reader must know before anything else. Failures of one kind share a line."""
    places: dict[tuple[str, str], list[str]] = {}
    for found in study.failures:
        places.setdefault((found.row, found.failure), []).append(found.point.title)
    notes = list(study.notes)
    for (row, failure), at in places.items():
        others = f" and {len(at) - 1} more" if len(at) > 1 else ""
        notes.append(f"{row} at {at[0]}{others}: {failure}")
    return [*(f"- **{cell(note)}**" for note in notes), *([""] if notes else [])]


def ablation_page(study: Study) -> str:
    """The page."""
    lines = ["# Ablation", "", INTRODUCTION, "", *note_lines(study)]
    lines += [*markdown_table(("", ""), environment(study).items()), ""]
    lines += [*rule_section(study), *main_lines(study), *impact_lines(study)]
    lines += [*success_lines(study), *type_lines(study), *batch_lines(study)]
    lines += [*memory_lines(study), *compile_lines(study), *grid_lines(study)]
    return "\n".join([*lines, NOTES]) + "\n"


def without_marks(lines: Iterable[str]) -> str:
    """For a terminal: Markdown's emphasis and code marks left out."""
    return "\n".join(lines).replace("**", "").replace("`", "")


def terminal_text(study: Study) -> str:
    """The main tables and the rule."""
    lines = [*note_lines(study), *main_lines(study, is_brief=True), *rule_section(study)]
    return without_marks(lines)
