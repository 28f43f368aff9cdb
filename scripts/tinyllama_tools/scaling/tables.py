"""What a scaling run says, as tables for a terminal and for Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tinyllama_tools.compare.output import seconds_text
from tinyllama_tools.core.text import markdown_table
from tinyllama_tools.data.names import ALL_REDUCE, REDUCE_SCATTER
from tinyllama_tools.scaling.analysis import Analysis
from tinyllama_tools.scaling.efficiency import ScalingPoint
from tinyllama_tools.scaling.estimate import Estimate
from tinyllama_tools.scaling.scaling_result import GLOO, LOCAL, ScalingResult
from tinyllama_tools.scaling.waterfall import LossWaterfall

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
