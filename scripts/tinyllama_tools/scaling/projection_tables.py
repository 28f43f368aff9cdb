"""Projections as tables; every figure of them is marked as a projection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinyllama_tools.compare.output import seconds_text
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.scaling.local_step import PREDICTED, LocalStep
from tinyllama_tools.scaling.projection import PROJECTION, ProjectedStep
from tinyllama_tools.scaling.projections import Projections
from tinyllama_tools.scaling.weak_strong import STRONG, WEAK

SHOWN_RANKS = (8, 64, 512, 4096)
MICRO, GIGA = 1e6, 1e9


def local_table(steps: Iterable[LocalStep]) -> list[str]:
    """What the projections start from."""
    rows = []
    for step in steps:
        name = step.name
        ends = ""
        if step.kind == PREDICTED:
            ends = f" ({seconds_text(step.low)} to {seconds_text(step.high)}, {step.range_words})"
        rows.append(
            [
                name.size,
                f"{name.batch} x {name.seq}",
                seconds_text(step.seconds) + ends,
                step.kind,
                "known" if step.knows_small_batches else "taken as proportional",
                step.source,
            ]
        )
    head = ("size", "batch x sequence", "local step", "kind", "smaller batches", "from")
    return markdown_table(head, rows) if rows else []


def _percents(step: ProjectedStep) -> str:
    low, high = f"{step.efficiency_low:.0f}", f"{step.efficiency_high:.0f}"
    return low if low == high else f"{low} to {high}"


def overview(projections: Projections) -> list[str]:
    """Efficiency at some numbers of devices: from nothing hidden to as much as can be."""
    rows: dict[tuple[str, str, str], dict[int, ProjectedStep]] = {}
    for step in projections.steps:
        key = (step.size, step.scaling, step.interconnect)
        rows.setdefault(key, {})[step.ranks] = step
    devices = (f"{n:,} devices, %" for n in SHOWN_RANKS)
    head = ("size", "local step", "scaling", "interconnect", *devices, "kind")
    lines = []
    for scaling in (WEAK, STRONG):
        for key, found in rows.items():
            if key[1] == scaling:
                cells = [_percents(found[n]) if n in found else "-" for n in SHOWN_RANKS]
                kind = next(iter(found.values())).local_kind
                lines.append([key[0], kind, *key[1:], *cells, PROJECTION])
    return markdown_table(head, lines) if lines else []


def whole_table(steps: Sequence[ProjectedStep]) -> list[str]:
    """Every row."""
    head = (
        "devices",
        "batch",
        "local",
        "communication",
        "by",
        "step",
        "with the measured overlap",
        "efficiency %",
        "kind",
    )
    rows = [
        [
            f"{step.ranks:,}",
            f"{step.batch:g}",
            seconds_text(step.local_seconds),
            seconds_text(step.communication_seconds),
            step.algorithm,
            f"{seconds_text(step.seconds_low)} to {seconds_text(step.seconds_high)}",
            seconds_text(step.seconds_between),
            _percents(step),
            step.kind,
        ]
        for step in steps
    ]
    return markdown_table(head, rows)


def interconnect_table(projections: Projections) -> list[str]:
    """The links with the sources of their figures."""
    head = ("interconnect", "link", "GB/s", "latency us", "bandwidth from", "latency from")
    rows = []
    for one in projections.interconnects:
        for of in one.links:
            rate, latency = of.link.bandwidth / GIGA, MICRO * of.link.latency
            figures = [f"{rate:.4g}", f"{latency:.4g}"]
            rows.append([one.name, of.name, *figures, of.bandwidth_source, of.latency_source])
    return markdown_table(head, rows) if rows else []


def missing_lines(projections: Projections) -> list[str]:
    """Sizes without a local step, by the reason that they share."""
    by_reason: dict[str, list[str]] = {}
    for size, reason in projections.missing.items():
        by_reason.setdefault(reason, []).append(size)
    return [f"No projection of {', '.join(names)}: {why}." for why, names in by_reason.items()]
