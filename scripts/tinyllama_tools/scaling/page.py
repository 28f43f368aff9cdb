"""scaling.md, and the tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinyllama_tools.core.text import section
from tinyllama_tools.scaling.analysis import Analysis
from tinyllama_tools.scaling.failure import Failure
from tinyllama_tools.scaling.projection_tables import (
    interconnect_table,
    local_table,
    missing_lines,
    overview,
    whole_table,
)
from tinyllama_tools.scaling.projections import Projections
from tinyllama_tools.scaling.tables import (
    bandwidth_table,
    check_table,
    collective_notes,
    efficiency_table,
    fit_table,
    rank_table,
    waterfall_table,
)
from tinyllama_tools.scaling.weak_strong import WEAK

COMMIT_DIGITS = 8
NOTHING = ["Nothing was measured for it."]
CHECK_NOTE = (
    "The model with the latency and bandwidth of the same ranks, and with those of fewer ranks, "
    "carried on by the formulas of a projection. What it leaves out (slower local work, imbalance) "
    "is part of what it is off by."
)


def facts(analysis: Analysis) -> list[str]:
    """What the figures belong to."""
    context, of = analysis.context, analysis.results[-1].distributed
    device = (context.get("device") or {}).get("name", "unknown device")
    commit = str(context.get("git_commit", "unknown"))[:COMMIT_DIGITS]
    changed = " with changes" if context.get("git_dirty") else ""
    name = next((one.name for one in analysis.results if one.name is not None), None)
    what = f"{name.size}, {name.variant}, {name.dtype}, sequence {name.seq}" if name else "no step"
    scaling = "weak: a batch a rank" if of["scaling"] == WEAK else "strong: one batch for all ranks"
    threads = context.get("threads")
    lines = [
        f"{device}, commit {commit}{changed}, libtorch {context.get('torch_version')}, "
        f"{of['backend']}, {threads} thread{'' if threads == 1 else 's'} a rank",
        f"{what}; {scaling}; buckets of {of['bucket_MiB']:g} MiB "
        f"({len(of['bucket_bytes'])} of them, {of['gradient_bytes']:,} bytes)",
    ]
    return [*lines, *(f"warning: {text}" for text in analysis.warnings)]


def _failed(failures: Sequence[Failure], rows: Mapping[str, str]) -> list[str]:
    texts = [f"{f.ranks} ranks ended with {f.status}: {f.words}" for f in failures]
    texts += [f"{name}: {reason}" for name, reason in rows.items()]
    # a program's last words may be several lines
    return [" ".join(text.split()) for text in texts]


def overview_lines(
    analysis: Analysis, projections: Projections, failures: Sequence[Failure] = ()
) -> list[str]:
    """For a terminal: the tables that the run was made for."""
    parts = (
        ("Efficiency", efficiency_table(analysis.points)),
        ("Where the rest went, % of the step", waterfall_table(analysis.waterfalls)),
        ("Latency and bandwidth", fit_table(analysis)),
        ("The model against what was run", check_table(analysis)),
        ("Projections of efficiency", overview(projections)),
    )
    lines = facts(analysis)
    for title, table in parts:
        if table:
            lines += ["", f"{title}:", *table]
    return [*lines, *missing_lines(projections), *_failed(failures, analysis.failed)]


def page(
    analysis: Analysis,
    projections: Projections,
    command: str,
    failures: Sequence[Failure] = (),
) -> str:
    """The whole of it in Markdown."""
    lines = ["# Data-parallel scaling", "", *(f"- {fact}" for fact in facts(analysis)), ""]
    lines += section("Efficiency", efficiency_table(analysis.points) or NOTHING)
    note = "Means over rounds with 95 % intervals; the parts and the efficiency add up to 100 %."
    table = waterfall_table(analysis.waterfalls)
    lines += section("Where the rest of the step went", [note, "", *table] if table else NOTHING)
    ranks = rank_table(analysis)
    lines += section("Ranks without communication", ranks) if ranks else []
    fits = fit_table(analysis)
    notes = [line for note in collective_notes(analysis) for line in (note, "")]
    lines += section("Latency and bandwidth", [*notes, *fits] if fits else NOTHING)
    lines += section("Collectives", bandwidth_table(analysis) or NOTHING)
    checks = check_table(analysis)
    lines += section(
        "The model against what was run", [CHECK_NOTE, "", *checks] if checks else NOTHING
    )
    lines += section("Projections", _projections(projections))
    bad = _failed(failures, analysis.failed)
    if bad:
        lines += section("Not measured", [f"- {text}" for text in bad])
    return "\n".join([*lines, f"Made by `{command}`. docs/distributed.md says how.", ""])


def _projections(projections: Projections) -> list[str]:
    lines = [
        "Projections, not measurements: from a local step, latencies, bandwidths and formulas. "
        "Each range is from nothing hidden behind the backward to as much as can be. Strong "
        f"scaling is of {projections.global_batch:,} samples a step.",
        "",
    ]
    lines += [*missing_lines(projections), ""] if projections.missing else []
    for table in (local_table(projections.local.values()), interconnect_table(projections)):
        lines += [*table, ""] if table else []
    groups: dict[tuple[str, str, str], list] = {}
    for step in projections.steps:
        groups.setdefault((step.size, step.scaling, step.interconnect), []).append(step)
    for (size, scaling, link), steps in groups.items():
        lines += [f"{size}, {scaling}, {link} (projection):", "", *whole_table(steps), ""]
    return lines
