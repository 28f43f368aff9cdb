"""scaling.md and the tables on the terminal; every projected figure is marked as such."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from tinyllama_tools.compare.output import seconds_text
from tinyllama_tools.core.text import markdown_table, section
from tinyllama_tools.data.names import ALL_REDUCE, REDUCE_SCATTER
from tinyllama_tools.models.collectives import (
    GLOO,
    LOCAL,
    STRONG,
    WEAK,
    Estimate,
    LossWaterfall,
    ScalingPoint,
    ScalingResult,
)
from tinyllama_tools.models.projection import (
    PREDICTED,
    PROJECTION,
    Analysis,
    LocalStep,
    ProjectedStep,
)
from tinyllama_tools.scaling.results import Failure, Projections

NOTHING = "-"
GLOO_NOTE = (
    "Gloo makes a reduce-scatter as an all-reduce of which each rank keeps its share: its time is "
    "that of an all-reduce, and its bandwidth says nothing of the link."
)
MICRO, GIGA = 1e6, 1e9


def _text(found: Estimate | None, digits: int = 1) -> str:
    return found.text(digits) if found is not None else NOTHING


def _point(point: ScalingPoint) -> list[str]:
    return [
        str(point.ranks),
        point.mode,
        str(point.batch),
        seconds_text(point.seconds.median),
        f"{point.samples_per_second:.4g}",
        _text(point.efficiency),
        _text(point.speedup, 2),
        _text(point.communication),
        _text(point.communication_free),
        _text(point.overlap),
        _text(point.hidden),
        _text(point.busy),
    ]


def efficiency_table(points: Sequence[ScalingPoint]) -> list[str]:
    """Medians over rounds with their 95 % intervals."""
    head = (
        "ranks",
        "mode",
        "batch",
        "step",
        "samples/s",
        "efficiency %",
        "speed-up",
        "communication %",
        "of step without it %",
        "overlap hides %",
        "hidden of all-reduce %",
        "processor of all-reduce %",
    )
    return markdown_table(head, [_point(point) for point in points])


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"


def waterfall_table(waterfalls: Sequence[LossWaterfall]) -> list[str]:
    """Means over rounds; the columns after the ranks add up to 100 %."""
    drawn = [one for one in waterfalls if not one.refusal]
    names = list(dict.fromkeys(part.name for one in drawn for part in one.parts))
    rows = []
    for one in drawn:
        by_name = {part.name: part for part in one.parts}
        parts = [
            f"{p.percent:.1f}{_interval(p.low, p.high)}" if (p := by_name.get(n)) else NOTHING
            for n in names
        ]
        whole = one.efficiency + sum(part.percent for part in one.parts)
        rows.append([str(one.ranks), f"{one.efficiency:.1f}", *parts, f"{whole:.1f}"])
    lines = markdown_table(("ranks", "efficiency %", *names, "together %"), rows) if rows else []
    refused = [f"{one.ranks} ranks: {one.refusal}" for one in waterfalls if one.refusal]
    return [*lines, *refused]


def _rank_seconds(result: ScalingResult, rank: int) -> float | None:
    """Of a step without communication, the median over all steps of all rounds; None where the
    file does not say it."""
    row = result.steps.get(LOCAL)
    rounds = result.rank_samples.get(str(row.name), ()) if row is not None else ()
    try:
        steps = [float(seconds) for one in rounds for seconds in one[rank]]
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return statistics.median(steps) if steps else None


def rank_table(analysis: Analysis) -> list[str]:
    """Which ranks are slow where they do not wait for each other."""
    rows = []
    for result in analysis.results:
        for place in result.distributed["ranks"]:
            seconds = _rank_seconds(result, place["rank"])
            if seconds is not None:
                where = [str(place.get(key, "")) for key in ("rank", "node", "cores")]
                rows.append([str(result.ranks), *where, seconds_text(seconds)])
    return markdown_table(("ranks", "rank", "node", "cores", "local step"), rows) if rows else []


def collective_notes(analysis: Analysis) -> list[str]:
    """What to know before reading times of collectives."""
    is_gloo = any(one.distributed["backend"] == GLOO for one in analysis.results)
    has_it = any(row.name.operation == REDUCE_SCATTER for row in analysis.collectives)
    return [GLOO_NOTE] if is_gloo and has_it else []


def fit_table(analysis: Analysis) -> list[str]:
    """Latency and bandwidth of each operation."""
    head = (
        "operation",
        "ranks",
        "alpha us",
        "bandwidth GB/s",
        "sizes",
        "largest misfit %",
        "held out, median %",
        "held out, worst %",
    )
    rows = []
    for fit in analysis.fits:
        alpha, rate = fit.alpha_range, fit.bandwidth_range
        alphas = f"{MICRO * fit.alpha:.4g} ({MICRO * alpha.low:.4g} to {MICRO * alpha.high:.4g})"
        rates = f"{fit.bandwidth / GIGA:.4g} ({rate.low / GIGA:.4g} to {rate.high / GIGA:.4g})"
        held_out = [
            NOTHING if value is None else f"{value:.1f}"
            for value in (fit.median_held_out, fit.worst_held_out)
        ]
        rows.append(
            [
                fit.operation,
                str(fit.ranks),
                alphas,
                rates,
                str(fit.sizes),
                f"{fit.scatter:.1f}",
                *held_out,
            ]
        )
    lines = markdown_table(head, rows) if rows else []
    return [*lines, *(f"no fit: {reason}" for reason in analysis.refused)]


def bandwidth_table(analysis: Analysis) -> list[str]:
    """Every size of every collective, as nccl-tests counts bandwidth."""
    head = ("operation", "ranks", "bytes", "time", "algorithm GB/s", "bus GB/s")
    rows = []
    for row in analysis.collectives:
        name, seconds = row.name, row.median_seconds
        rate = name.bytes / seconds / GIGA
        factor = (2 if name.operation == ALL_REDUCE else 1) * (name.ranks - 1) / name.ranks
        figures = [seconds_text(seconds), f"{rate:.4g}", f"{rate * factor:.4g}"]
        rows.append([name.operation, str(name.ranks), str(name.bytes), *figures])
    return markdown_table(head, rows) if rows else []


def check_table(analysis: Analysis) -> list[str]:
    """The model against what was run."""
    head = ("ranks", "link from", "what", "model", "measured", "off %")
    rows = []
    for check in analysis.checks:
        ends = [seconds_text(value) for value in dict.fromkeys((check.low, check.high))]
        measured = seconds_text(check.measured)
        off = "0 (between)" if check.low < check.high and not check.percent_off else ""
        rows.append(
            [
                str(check.ranks),
                f"{check.fitted_at} ranks",
                check.what,
                " to ".join(ends),
                measured,
                off or f"{check.percent_off:+.1f}",
            ]
        )
    return markdown_table(head, rows) if rows else []


SHOWN_RANKS = (8, 64, 512, 4096)


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


COMMIT_DIGITS = 8
NOTHING_MEASURED = ["Nothing was measured for it."]
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
    lines += section("Efficiency", efficiency_table(analysis.points) or NOTHING_MEASURED)
    note = "Means over rounds with 95 % intervals; the parts and the efficiency add up to 100 %."
    table = waterfall_table(analysis.waterfalls)
    lines += section(
        "Where the rest of the step went", [note, "", *table] if table else NOTHING_MEASURED
    )
    ranks = rank_table(analysis)
    lines += section("Ranks without communication", ranks) if ranks else []
    fits = fit_table(analysis)
    notes = [line for note in collective_notes(analysis) for line in (note, "")]
    lines += section("Latency and bandwidth", [*notes, *fits] if fits else NOTHING_MEASURED)
    lines += section("Collectives", bandwidth_table(analysis) or NOTHING_MEASURED)
    checks = check_table(analysis)
    lines += section(
        "The model against what was run", [CHECK_NOTE, "", *checks] if checks else NOTHING_MEASURED
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
