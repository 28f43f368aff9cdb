"""scaling.json, scaling.md and the tables on the terminal; every projected figure is marked so."""

from __future__ import annotations

import datetime
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from tinyllama_tools.core.app import PROJECT, Json, head_commit
from tinyllama_tools.core.text import markdown_table, seconds_text
from tinyllama_tools.data.names import ALL_REDUCE, LOCAL, STRONG, WEAK
from tinyllama_tools.data.studies import SCALING_KIND, SCALING_SCHEMA_VERSION
from tinyllama_tools.models.scaling_projection import (
    PREDICTED,
    PROJECTION,
    Analysis,
    ProjectedStep,
    ProjectionCheck,
    Projections,
    collective_notes,
)

if TYPE_CHECKING:
    from tinyllama_tools.data.ranks import CollectiveRow, Failure, ScalingResult
    from tinyllama_tools.models.collectives import AlphaBeta, Estimate, LossPart, ScalingPoint
    from tinyllama_tools.models.local_steps import LocalStep

COMMIT_DIGITS = 8
NOTHING = "-"
# numbers of devices whose efficiency is shown first
SHOWN_RANKS = (8, 64, 512, 4096)
MICRO, GIGA = 1e6, 1e9
# what a table shows of each of its rows, by its heading
Columns = Mapping[str, Callable[[Any], str]]


def _table(columns: Columns, rows: Iterable[Any]) -> list[str]:
    """Empty without rows."""
    texts = [[text(row) for text in columns.values()] for row in rows]
    return markdown_table(tuple(columns), texts) if texts else []


def _estimate(name: str, digits: int = 1) -> Callable[[ScalingPoint], str]:
    def text(point: ScalingPoint) -> str:
        found: Estimate | None = getattr(point, name)
        return found.text(digits) if found is not None else NOTHING

    return text


# medians over rounds with their 95 % intervals
EFFICIENCY: Columns = {
    "ranks": lambda p: str(p.ranks),
    "mode": lambda p: p.mode,
    "batch": lambda p: str(p.batch),
    "step": lambda p: seconds_text(p.seconds.median),
    "samples/s": lambda p: f"{p.samples_per_second:.4g}",
    "efficiency %": _estimate("efficiency"),
    "speed-up": _estimate("speedup", 2),
    "communication %": _estimate("communication"),
    "of step without it %": _estimate("communication_free"),
    "overlap hides %": _estimate("overlap"),
    "hidden of all-reduce %": _estimate("hidden"),
    "processor of all-reduce %": _estimate("busy"),
}


def _range(middle: float, low: float, high: float, scale: float) -> str:
    return f"{scale * middle:.4g} ({scale * low:.4g} to {scale * high:.4g})"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


FITS: Columns = {
    "operation": lambda f: f.operation,
    "ranks": lambda f: str(f.ranks),
    "alpha us": lambda f: _range(f.alpha, f.alpha_range.low, f.alpha_range.high, MICRO),
    "bandwidth GB/s": lambda f: _range(
        f.bandwidth, f.bandwidth_range.low, f.bandwidth_range.high, 1 / GIGA
    ),
    "sizes": lambda f: str(f.sizes),
    "largest misfit %": lambda f: _percent(f.scatter),
    "held out, median %": lambda f: _percent(f.median_held_out),
    "held out, worst %": lambda f: _percent(f.worst_held_out),
}


def _rate(row: CollectiveRow, *, on_bus: bool) -> str:
    """As nccl-tests counts bandwidth."""
    name = row.name
    factor = (2 if name.operation == ALL_REDUCE else 1) * (name.ranks - 1) / name.ranks
    return f"{name.bytes / row.median_seconds / GIGA * (factor if on_bus else 1):.4g}"


BANDWIDTH: Columns = {
    "operation": lambda r: r.name.operation,
    "ranks": lambda r: str(r.name.ranks),
    "bytes": lambda r: str(r.name.bytes),
    "time": lambda r: seconds_text(r.median_seconds),
    "algorithm GB/s": lambda r: _rate(r, on_bus=False),
    "bus GB/s": lambda r: _rate(r, on_bus=True),
}


def _off(check: ProjectionCheck) -> str:
    is_between = check.low < check.high and not check.percent_off
    return "0 (between)" if is_between else f"{check.percent_off:+.1f}"


CHECKS: Columns = {
    "ranks": lambda c: str(c.ranks),
    "link from": lambda c: f"{c.fitted_at} ranks",
    "what": lambda c: c.what,
    "model": lambda c: " to ".join(map(seconds_text, dict.fromkeys((c.low, c.high)))),
    "measured": lambda c: seconds_text(c.measured),
    "off %": _off,
}


def _local_seconds(step: LocalStep) -> str:
    if step.kind != PREDICTED:
        return seconds_text(step.seconds)
    ends = f"{seconds_text(step.low)} to {seconds_text(step.high)}, {step.range_words}"
    return f"{seconds_text(step.seconds)} ({ends})"


LOCAL_STEPS: Columns = {
    "size": lambda s: s.name.size,
    "batch x sequence": lambda s: f"{s.name.batch} x {s.name.seq}",
    "local step": _local_seconds,
    "kind": lambda s: s.kind,
    "smaller batches": lambda s: "known" if s.knows_small_batches else "taken as proportional",
    "from": lambda s: s.source,
}


def _percents(step: ProjectedStep) -> str:
    low, high = f"{step.efficiency_low:.0f}", f"{step.efficiency_high:.0f}"
    return low if low == high else f"{low} to {high}"


PROJECTED: Columns = {
    "devices": lambda s: f"{s.ranks:,}",
    "batch": lambda s: f"{s.batch:g}",
    "local": lambda s: seconds_text(s.local_seconds),
    "communication": lambda s: seconds_text(s.communication_seconds),
    "by": lambda s: s.algorithm,
    "step": lambda s: f"{seconds_text(s.seconds_low)} to {seconds_text(s.seconds_high)}",
    "with the measured overlap": lambda s: seconds_text(s.seconds_between),
    "efficiency %": _percents,
    "kind": lambda s: s.kind,
}
# of pairs of an interconnect and one of its links
LINKS: Columns = {
    "interconnect": lambda p: p[0].name,
    "link": lambda p: p[1].name,
    "GB/s": lambda p: f"{p[1].link.bandwidth / GIGA:.4g}",
    "latency us": lambda p: f"{MICRO * p[1].link.latency:.4g}",
    "bandwidth from": lambda p: p[1].bandwidth_source,
    "latency from": lambda p: p[1].latency_source,
}


def fit_table(analysis: Analysis) -> list[str]:
    """Latency and bandwidth of each operation."""
    return [*_table(FITS, analysis.fits), *(f"no fit: {why}" for why in analysis.refused)]


def local_table(steps: Iterable[LocalStep]) -> list[str]:
    """What the projections start from."""
    return _table(LOCAL_STEPS, steps)


def waterfall_table(analysis: Analysis) -> list[str]:
    """Means over rounds; the columns after the ranks add up to 100 %."""
    drawn = [one for one in analysis.waterfalls if not one.refusal]
    names = dict.fromkeys(part.name for one in drawn for part in one.parts)

    def part_text(part: LossPart | None) -> str:
        if part is None:
            return NOTHING
        has_ends = part.low is not None and part.high is not None
        return f"{part.percent:.1f}{f' ({part.low:.1f} to {part.high:.1f})' if has_ends else ''}"

    rows = []
    for one in drawn:
        by_name = {part.name: part for part in one.parts}
        whole = one.efficiency + sum(part.percent for part in one.parts)
        parts = (part_text(by_name.get(name)) for name in names)
        rows.append([str(one.ranks), f"{one.efficiency:.1f}", *parts, f"{whole:.1f}"])
    lines = markdown_table(("ranks", "efficiency %", *names, "together %"), rows) if rows else []
    refused = [f"{one.ranks} ranks: {one.refusal}" for one in analysis.waterfalls if one.refusal]
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
    rows = [
        [str(result.ranks), *(str(place.get(key, "")) for key in ("rank", "node", "cores")),
         seconds_text(seconds)]
        for result in analysis.results
        for place in result.distributed["ranks"]
        if (seconds := _rank_seconds(result, place["rank"])) is not None
    ]  # fmt: skip
    return markdown_table(("ranks", "rank", "node", "cores", "local step"), rows) if rows else []


def _key(step: ProjectedStep) -> tuple[str, str, str]:
    return (step.size, step.scaling, step.interconnect)


def overview(projections: Projections) -> list[str]:
    """Efficiency at some numbers of devices: from nothing hidden to as much as can be."""
    lines = []
    for scaling in (WEAK, STRONG):
        for key, group in itertools.groupby(projections.steps, _key):
            found = {step.ranks: step for step in group}
            if key[1] == scaling:
                cells = [_percents(found[n]) if n in found else NOTHING for n in SHOWN_RANKS]
                kind = next(iter(found.values())).local_kind
                lines.append([key[0], kind, *key[1:], *cells, PROJECTION])
    devices = (f"{n:,} devices, %" for n in SHOWN_RANKS)
    head = ("size", "local step", "scaling", "interconnect", *devices, "kind")
    return markdown_table(head, lines) if lines else []


def missing_lines(projections: Projections) -> list[str]:
    """Sizes without a local step, by the reason that they share."""
    by_reason: dict[str, list[str]] = {}
    for size, reason in projections.missing.items():
        by_reason.setdefault(reason, []).append(size)
    return [f"No projection of {', '.join(names)}: {why}." for why, names in by_reason.items()]


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
    parts = {
        "Efficiency": _table(EFFICIENCY, analysis.points),
        "Where the rest went, % of the step": waterfall_table(analysis),
        "Latency and bandwidth": fit_table(analysis),
        "The model against what was run": _table(CHECKS, analysis.checks),
        "Projections of efficiency": overview(projections),
    }
    tables = [line for title, rows in parts.items() if rows for line in ("", f"{title}:", *rows)]
    left_out = [*missing_lines(projections), *_failed(failures, analysis.failed)]
    return [*facts(analysis), *tables, *left_out]


def page(
    analysis: Analysis, projections: Projections, command: str, failures: Sequence[Failure] = ()
) -> str:
    """The whole of it in Markdown."""
    links = [(one, of) for one in projections.interconnects for of in one.links]
    groups = itertools.groupby(projections.steps, _key)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        autoescape=False,
    )
    return environment.get_template("scaling_page.md.j2").render(
        command=command,
        facts=facts(analysis),
        projections=projections,
        notes=collective_notes(analysis),
        missing=missing_lines(projections),
        failed=_failed(failures, analysis.failed),
        tables={
            "efficiency": _table(EFFICIENCY, analysis.points),
            "waterfall": waterfall_table(analysis),
            "ranks": rank_table(analysis),
            "fits": fit_table(analysis),
            "bandwidth": _table(BANDWIDTH, analysis.collectives),
            "checks": _table(CHECKS, analysis.checks),
            "local": local_table(projections.local.values()),
            "links": _table(LINKS, links),
            "projections": [(key, _table(PROJECTED, steps)) for key, steps in groups],
        },
    )


def _finite(value: Any) -> Any:  # noqa: ANN401
    """JSON knows no infinity: an interval without an end has null there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _fit(fit: AlphaBeta) -> Json:
    held_out = [{"bytes": size, "percent_off": off} for size, off in fit.held_out]
    return asdict(fit) | {"held_out": held_out}


def _local(step: LocalStep) -> Json:
    found = asdict(step) | {"name": str(step.name), "knows_small_batches": step.knows_small_batches}
    return found | {"seconds_by_batch": {str(b): s for b, s in step.seconds_by_batch.items()}}


def scaling_document(
    analysis: Analysis,
    projections: Projections,
    command: str,
    failures: Sequence[Failure] = (),
) -> Json:
    """scaling.json. Times in s, bandwidths in bytes/s, shares in percent."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return _finite(
        {
            "kind": SCALING_KIND,
            "schema_version": SCALING_SCHEMA_VERSION,
            "command": command,
            "date": now.isoformat(timespec="seconds"),
            "git_commit": head_commit(PROJECT),
            "device": (analysis.context.get("device") or {}).get("name", ""),
            "processes": [one.ranks for one in analysis.results],
            "files": [one.path.name for one in analysis.results],
            "scaling": analysis.results[0].scaling,
            "warnings": list(analysis.warnings),
            "failures": [asdict(failure) for failure in failures],
            "not_measured": dict(analysis.failed),
            "points": [asdict(point) for point in analysis.points],
            "waterfalls": [asdict(one) for one in analysis.waterfalls],
            "fits": [_fit(fit) for fit in analysis.fits],
            "fits_refused": list(analysis.refused),
            "projection_checks": [
                asdict(check) | {"percent_off": check.percent_off} for check in analysis.checks
            ],
            "projection": {
                "global_batch": projections.global_batch,
                "overlap_share": projections.overlap,
                "local_steps": [_local(step) for step in projections.local.values()],
                "interconnects": [asdict(one) for one in projections.interconnects],
                "missing": dict(projections.missing),
                "steps": [asdict(step) for step in projections.steps],
            },
        }
    )
