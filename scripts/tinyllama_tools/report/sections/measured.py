"""What was measured on which machine: every case, devices and peaks, the roofline, the parts of a
step, what was left out; and the report in a few figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyllama_tools.core.app import Json, problem_sizes, shown_path
from tinyllama_tools.core.text import MIB, count_of, listed, seconds_text
from tinyllama_tools.data.machine import BYTES, CURVE, MEMORY_BANDWIDTH, Machine, unit_of
from tinyllama_tools.models.roofline import RooflinePoint, StepTimes, TimedPart, roofline_of
from tinyllama_tools.report.cases import figures_of
from tinyllama_tools.report.document import (
    COLOURS,
    FULL,
    GIGA,
    GREY,
    HALF,
    Cell,
    Fact,
    Kind,
    Missing,
    Omission,
    Section,
    axis,
    bars,
    grouped,
    number_text,
    scaled,
    step_text,
    trace,
)
from tinyllama_tools.report.order import (
    COMPONENTS,
    headline_steps,
    main_step,
    name_rank,
    rank,
    symbol_of,
    variant_colours,
)

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs


def cases(page: Section, inputs: ReportInputs) -> None:
    page.table("all_cases", figures_of(inputs.main_result()))


def _size_text(size: float) -> str:
    """Of a power of two from 1 KiB on: `64 KiB`, `256 MiB`."""
    unit = "KiB" if size < MIB else "MiB"
    return f"{size / (MIB if unit == 'MiB' else MIB / 1024):g} {unit}"


def _peaks(context: Mapping[str, Any]) -> Iterator[Mapping[str, Cell]]:
    """Rates of GEMMs, memory's bandwidth, then what other traffic can see."""
    peaks = context.get("peaks") or {}
    datasheet = peaks.get("datasheet") or {}
    of_types = datasheet.get("flops_per_second") or {}
    known = {**of_types, MEMORY_BANDWIDTH: datasheet.get("memory_bytes_per_second")}
    measured = dict(peaks.get("measured") or {})
    curve = measured.pop(CURVE, ())
    named = [(name, f"{name} GEMMs", unit_of(name), peak) for name, peak in measured.items()]
    of_sizes = [(CURVE, f"bandwidth, {_size_text(of['bytes'])}", BYTES, of) for of in curve]
    for name, words, unit, peak in (*named, *of_sizes):
        yield {
            "figure": "memory bandwidth" if name == MEMORY_BANDWIDTH else words,
            "measured": scaled(peak.get(unit) or None, 1 / GIGA),
            "datasheet": scaled(known.get(name) or None, 1 / GIGA),
            "unit": "GB/s" if unit == BYTES else "GFLOP/s",
            "measured with": str(peak.get("source") or "unknown"),
        }


def _said(inputs: ReportInputs) -> Iterator[str]:
    against = (inputs.main.context.get("peaks") or {}).get("mfu_is_against")
    yield from [f"MFU is against {against}."] if against else []
    yield from inputs.main.warnings
    about = inputs.study.description if inputs.study else {}
    done, planned = about.get("rounds_done"), about.get("rounds")
    if isinstance(done, int) and isinstance(planned, int) and done < planned:
        yield (
            f"The grid study has {done} of {count_of(planned, 'round')}: "
            "`scripts/study --resume` goes on with it."
        )


# beside the settings
ABOUT = ("verify", "cold_cache", "seed", "memory_source")


def environment(page: Section, inputs: ReportInputs) -> None:
    page.text += _said(inputs)
    taken = [{"kind": of.kind.words, "path": shown_path(of.path)} for of in inputs.sources]
    page.table("sources", taken)
    results = inputs.main_result()
    context = results.context
    # what is 0 is not known
    device = {name: value or None for name, value in (context.get("device") or {}).items()}
    failed = sum(bool(case.failed) for case in results.left_out.values())
    counts = {"rounds": len(results.paths), "cases": len(results.cases), "failed": failed}
    counts["skipped"] = len(results.left_out) - failed
    row = {**context, "device": device, "result": results.title, **counts}
    about = dict(sorted((context.get("settings") or {}).items()))
    about |= {name: context[name] for name in ABOUT if name in context}
    settings = [{"setting": name, "value": str(of)} for name, of in about.items()]
    sources = page.tables.pop()
    page.table("results", [row])
    page.table("peaks", _peaks(context))
    page.table("settings", settings)
    page.tables.append(sources)


ROOF_POINTS = 25
# points, which are drawn smaller
MANY = 1000
BOUNDS = ("compute", "bandwidth", "latency")
MEANINGS = (
    "A case's own roof has the bandwidth of its traffic, of which the slopes show some. Bound by "
    "latency: the start of operators takes longer than GEMMs and traffic at their peaks."
)
OF_THE_CURVE = (
    "The same traffic over and over: the better of a triad over arrays as large and an update in "
    "place of one half as large. A size counts as the best of itself and all larger ones."
)


# of the curve's sizes, from the largest down; a level that is little faster is not drawn
EVERY_LEVEL, FASTER = 2, 1.5
DASHES = ("dash", "dashdot", "dot")


def _levels(machine: Machine) -> Iterator[tuple[str, float]]:
    """What traffic can see at some sizes, the slowest first: memory where it was measured."""
    slowest = machine.memory_bandwidth
    if slowest is not None:
        yield "memory", slowest
    for size, rate in machine.envelope[::-EVERY_LEVEL]:
        if slowest is None or rate >= FASTER * slowest:
            yield f"traffic of {_size_text(size)}", rate
            slowest = rate


def _roofs(machine: Machine, first: float, last: float) -> list[Json]:
    """A roof a type of GEMMs over the slowest bandwidth, and the slopes of the other levels up to
    the highest peak."""
    (level, bandwidth), *others = _levels(machine)
    traces = []
    for name, peak in machine.peak_flops.items():
        ridge = float(np.clip(peak / bandwidth, first, last))
        xs = sorted({*np.geomspace(first, last, ROOF_POINTS).tolist(), ridge})
        ys = [min(peak, x * bandwidth) / GIGA for x in xs]
        traces.append(trace(f"{name} GEMMs, {level}", xs, ys, mode="lines", colour=GREY))
    highest = max(machine.peak_flops.values(), default=0.0)
    for number, (level, bandwidth) in enumerate(others):
        ridge, dash = highest / bandwidth, DASHES[number % len(DASHES)]
        if first < ridge:
            xs = np.geomspace(first, ridge, ROOF_POINTS).tolist()
            ys = [x * bandwidth / GIGA for x in xs]
            traces.append(trace(level, xs, ys, mode="lines", colour=GREY, dash=dash))
    return traces


def _bandwidth_traces(machine: Machine) -> list[Json]:
    """The curve as it was measured, and as it is read."""
    sizes, rates = zip(*machine.curve, strict=True)
    read = [machine.attainable_bandwidth(size) / GIGA for size in sizes]
    xs = [size / MIB for size in sizes]
    return [
        trace("measured", xs, [rate / GIGA for rate in rates], colour=COLOURS[0]),
        trace("attainable", xs, read, mode="lines", colour=GREY),
    ]


def _roofline_traces(
    every: Sequence[RooflinePoint], machine: Machine, colours: Mapping[str, str]
) -> list[Json]:
    """Each component with a marker of its own; variants in `colours`, of which one alone leaves
    them to components."""
    found: dict[str, list[RooflinePoint]] = {}
    for point in every:
        found.setdefault(point.case.component if point.case else "GEMMs", []).append(point)
    intensities = [point.intensity for point in every]
    traces = _roofs(machine, min(intensities) / 2, max(intensities) * 2)
    for name in sorted(found, key=lambda name: rank(name, *COMPONENTS, "GEMMs")):
        points, own = found[name], COLOURS[rank(name, *COMPONENTS)[0] % len(COLOURS)]
        xs, ys = zip(*((p.intensity, p.flops_per_second / GIGA) for p in points), strict=True)
        colour = own
        if len(colours) > 1:
            colour = [colours[p.case.variant] if p.case else GREY for p in points]
        names = [f"{p.name}: bound by {p.bound}" for p in points]
        more = {"symbol": symbol_of(name), "size": 8 if len(every) < MANY else 5}
        traces.append(trace(name, xs, ys, colour=colour, text=names, **more))
    return traces


def roofline(page: Section, inputs: ReportInputs) -> None:
    """Of the first result. BadInputError for a file without measured peaks."""
    results = inputs.main_result()
    found = roofline_of(results)
    launch, products = found.launch, found.products
    points = sorted(found.points, key=lambda p: name_rank(results.cases[p.name].name))
    for name, why in found.left_out.items():
        page.leave_out("roofline", name, why)
    for point in (point for point in points if point.error):
        page.leave_out("roofline", point.name, point.error, is_error=True)
    if not points and not products:
        raise Missing(
            f"no case of {results.title} has FLOPs, bytes and a measured peak; "
            f"make one: {Kind.SUITE.command}"
        )
    counts = {bound: sum(p.bound == bound for p in points) for bound in BOUNDS}
    bounds = ", ".join(f"{number:,} by {bound}" for bound, number in counts.items())
    page.text.append(f"Of {len(points):,} cases bound: {bounds}.")
    if launch is not None:
        page.text.append(
            f"Starting an operator takes at most {seconds_text(launch.seconds)}: inferred from this"
            f" data, not measured. It is what the fastest operators, those of {launch.source}, "
            "take beyond their roofline time."
        )
    if len(colours := variant_colours(results)) > 1:
        page.legend |= colours
    traces = _roofline_traces([*points, *products], found.machine, colours)
    x, y = axis("intensity [FLOP/byte]", log=True), axis("rate [GFLOP/s]", log=True)
    page.figure("roofline_plot", "Roofline", traces, x, y, MEANINGS, columns=FULL)
    if found.machine.curve:
        x, y = axis("traffic of a pass [MiB]", log=True), axis("bandwidth [GB/s]", log=True)
        traces = _bandwidth_traces(found.machine)
        page.figure("bandwidth_plot", "Bandwidth by traffic", traces, x, y, OF_THE_CURVE)
    page.table("roofline_points", points)
    page.table("product_points", products)


PHASES = ("forward", "backward", "optimizer", "other")
FIXTURE = "fixtures/problem_sizes.json"


def _part_row(part: TimedPart, of: StepTimes) -> Mapping[str, Any]:
    whole = of.total.seconds or 1.0
    # the step has none either where any part was faster than its light
    share = of.share_percent if part is of.total else part.share_percent
    return {"part": part, "of the step": scaled(part.seconds, 100 / whole), "share": share}


def _step_row(of: StepTimes) -> Mapping[str, Any]:
    whole, light, share = of.total.seconds or 1.0, of.total.light, of.share_percent
    return {
        "of": of,
        "step": step_text(of.step),
        "GEMMs at best": 100 * light.products / whole if light and share else None,
        "lost": 100 - share if share else None,
        "missing": of.refusal or listed(of.missing, 2),
    }


def _beyond_the_whole(of: StepTimes) -> str:
    """What to say instead of shares where the phases, which were timed apart, are not parts of the
    step: one is longer than it, or its rest below 0. Empty where they are."""
    whole = of.total.seconds or 0.0
    odd = [
        f"{name} {seconds_text(seconds) if seconds > 0 else 'below 0'}"
        for name, seconds in of.phases.items()
        if not 0 <= seconds <= whole
    ]
    what = f"{step_text(of.step)}: forward, backward, optimizer and other do not add up"
    why = f"the step takes {seconds_text(whole)}, {', '.join(odd)}"
    return f"{what}, so no shares of it are drawn ({why})." if odd else ""


def time(page: Section, inputs: ReportInputs) -> None:
    """The main step's parts beside their speed of light; every step's whole and phases."""
    title = inputs.main_result().title
    for step in headline_steps(inputs.main):
        if step.name.size not in problem_sizes():
            page.leave_out("step", step.name, f"size '{step.name.size}' is not in {FIXTURE}")
    if not inputs.steps:
        what = f"{title} has no training step (full_step/train) of a size in {FIXTURE}"
        raise Missing(f"{what}; measure one with its parts: {Kind.STUDY.command}")
    for of in inputs.steps:
        for error in of.errors:
            page.leave_out("speed of light", of.step, error, is_error=True)
        if of.refusal:
            page.leave_out("speed of light", of.step, of.refusal)
    main = inputs.steps[0]
    page.text += [f"Missing: {missing}." for missing in main.missing]
    rows = [_part_row(part, main) for part in (*main.parts, main.total)]
    page.table("steps", map(_step_row, inputs.steps))
    parts = page.table("parts", rows, step=step_text(main.step))
    shown = [row for row in parts.records[:-1] if row["measured [ms]"] is not None]
    of_parts = {
        what: {row["part"]: row[f"{what} [ms]"] for row in shown}
        for what in ("measured", "speed of light")
    }
    x, y = axis("part"), axis("time in a step [ms]")
    page.figure("parts_plot", parts.title, bars(of_parts), x, y)
    said = {of.step: _beyond_the_whole(of) for of in inputs.steps if of.phases}
    page.text += filter(None, said.values())
    known = [of for of in inputs.steps if said.get(of.step) == ""]
    shares = {
        phase: {
            step_text(of.step): 100 * of.phases[phase] / (of.total.seconds or 1.0) for of in known
        }
        for phase in PHASES
    }
    wide = HALF if len(known) <= 4 else FULL
    phases = "Forward, backward, optimizer and other"
    x, y = axis("share of the step [%]"), axis("", autorange="reversed")
    page.figure(
        "phases_plot", phases, bars(shares, lying=True), x, y, barmode="stack", columns=wide
    )


def left_out(page: Section, omissions: Sequence[Omission]) -> None:
    """What went wrong first; names that share a reason stand together."""
    errors = sum(omission.is_error for omission in omissions)
    page.text.append(f"{len(omissions):,} left out; {count_of(errors, 'error')}.")
    rows = [
        {"kind": of.kind, "name": "; ".join(names), "reason": of.reason}
        | {"error": "yes" if of.is_error else ""}
        for of, names in grouped(sorted(omissions, key=lambda omission: not omission.is_error))
    ]
    page.table("omissions", rows)


def facts(inputs: ReportInputs) -> Iterator[Fact]:
    """What the device can do at best, what the main step reaches of it, and which of its parts lose
    most."""
    context = inputs.main.context
    device = (context.get("device") or {}).get("name") or "unknown device"
    for peak in _peaks(context):
        if peak["measured"] and not str(peak["figure"]).startswith("bandwidth"):
            value = f"{number_text(peak['measured'])} {peak['unit']}"
            yield Fact(str(peak["figure"]), value, device)
    step = main_step(inputs.main)
    if step is None:
        return
    per_second = f"{step.name.batch / step.median_seconds:,.4g} samples/s"
    remarks = ", ".join(filter(None, [step_text(step.name), per_second, step.above_peak]))
    yield Fact("training step", seconds_text(step.median_seconds), remarks)
    tokens = step.name.batch * step.name.seq / step.median_seconds
    yield Fact("throughput", f"{number_text(tokens)} tokens/s", "of this step")
    times = next((of for of in inputs.steps if of.step == step.name), None)
    shares = {
        "MFU": step.counters.get("MFU_percent"),
        "of the measured peak": step.counters.get("peak_percent"),
        "of its speed of light": times.share_percent if times else None,
    }
    for what, share in shares.items():
        if share:
            yield Fact(what, f"{share:.1f} %", "of this step")
    parts = times.parts if times else ()
    losses = [(of.lost_seconds, of.name) for of in parts if (of.lost_seconds or 0) > 0]
    for lost, name in sorted(losses, reverse=True)[:3]:
        note = f"beyond its speed of light: {100 * lost / step.median_seconds:.1f} % of the step"
        yield Fact(f"lost in {name}", seconds_text(lost), note)
