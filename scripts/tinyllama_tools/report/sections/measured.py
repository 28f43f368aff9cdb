"""What was measured on which machine: every case, devices and peaks, the roofline, the parts of a
step, what was left out; and the main figures of the report.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tinyllama_tools.core.app import Json, problem_sizes, shown_path
from tinyllama_tools.core.text import MIB, count_of, listed, seconds_text, value_at
from tinyllama_tools.data.machine import (
    BYTES,
    CURVE,
    MEMORY_BANDWIDTH,
    PLUGINS,
    SHORT_DIGEST,
    Machine,
    unit_of,
)
from tinyllama_tools.data.names import operators_named
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.roofline import RooflinePoint, StepTimes, TimedPart, roofline_of
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
    Table,
    axis,
    bars,
    grouped,
    number_text,
    scaled,
    step_text,
    trace,
)
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.order import (
    COMPONENTS,
    HOLLOW,
    headline_steps,
    in_order,
    main_step,
    name_rank,
    rank,
    symbol_of,
    variant_colours,
)


def cases(page: Section, inputs: ReportInputs) -> None:
    page.table("all_cases", in_order(inputs.main_result()))


def _size_text(size: float) -> str:
    """`64 KiB`, `256 MiB`; `size`: a power of two from 1 KiB on."""
    unit = "KiB" if size < MIB else "MiB"
    return f"{size / (MIB if unit == 'MiB' else MIB / 1024):g} {unit}"


def peaks_of(context: Mapping[str, Any]) -> Iterator[Mapping[str, Cell]]:
    """Rates of GEMMs, memory's bandwidth, then the bandwidth that less traffic reaches."""
    peaks = context.get("peaks") or {}
    datasheet = peaks.get("datasheet") or {}
    of_types = datasheet.get("flops_per_second") or {}
    known = {**of_types, MEMORY_BANDWIDTH: datasheet.get("memory_bytes_per_second")}
    measured = dict(peaks.get("measured") or {})
    curve = measured.pop(CURVE, ())
    named = [(name, f"{name} GEMMs", unit_of(name), peak) for name, peak in measured.items()]
    sized = [(CURVE, f"bandwidth, {_size_text(point['bytes'])}", BYTES, point) for point in curve]
    for name, words, unit, peak in (*named, *sized):
        yield {
            "figure": "memory bandwidth" if name == MEMORY_BANDWIDTH else words,
            "measured": scaled(peak.get(unit) or None, 1 / GIGA),
            "datasheet": scaled(known.get(name) or None, 1 / GIGA),
            "unit": "GB/s" if unit == BYTES else "GFLOP/s",
            "measured with": str(peak.get("source") or "unknown"),
        }


def _remarks(inputs: ReportInputs) -> Iterator[str]:
    against = (inputs.main.context.get("peaks") or {}).get("mfu_is_against")
    yield from [f"MFU is against {against}."] if against else []
    yield from inputs.main.warnings
    if inputs.study and not inputs.study.description.get("finished"):
        yield "The grid study did not end: its command with `--resume` goes on with it."


# beside the settings
ABOUT = ("verify", "cold_cache", "seed", "memory_source")


def _plugins(results: ResultSet) -> Iterator[Mapping[str, Cell]]:
    """Each library that was loaded, with those of its operators that were measured."""
    variants = dict.fromkeys(case.name.variant for case in results.cases.values())
    used = {name for variant in variants for name in operators_named(variant)}
    for one in results.context.get(PLUGINS) or ():
        operators = ", ".join(name for name in one["operators"] if name in used)
        digest = one["sha256"][:SHORT_DIGEST]
        yield {"plug-in": one["file"], "SHA-256": digest, "operators measured": operators or None}


def environment(page: Section, inputs: ReportInputs) -> None:
    page.text += _remarks(inputs)
    taken = [{"kind": s.kind.words, "path": shown_path(s.path)} for s in inputs.sources]
    page.table("sources", taken)
    results = inputs.main_result()
    context = results.context
    # 0 is written for what is not known
    device = {name: value or None for name, value in (context.get("device") or {}).items()}
    failed = sum(bool(case.failed) for case in results.left_out.values())
    counts = {"rounds": len(results.paths), "cases": len(results.cases), "failed": failed}
    counts["skipped"] = len(results.left_out) - failed
    row = {**context, "device": device, "result": results.title, **counts}
    about = dict(sorted((context.get("settings") or {}).items()))
    about |= {name: context[name] for name in ABOUT if name in context}
    settings = [{"setting": name, "value": str(value)} for name, value in about.items()]
    sources = page.tables.pop()
    page.table("results", [row])
    page.table("plugins", _plugins(results))
    page.table("peaks", peaks_of(context))
    page.table("settings", settings)
    page.tables.append(sources)


# of a curve; and how many cases are drawn with smaller markers
ROOF_POINTS, MANY = 25, 1000
MEANINGS = (
    "The roof of a case has the bandwidth that its traffic can reach, of which the slopes show "
    f"some. {HOLLOW}"
)
CURVE_NOTE = (
    "The same traffic over and over: the better of a triad over arrays as large and an update in "
    "place of one half as large. A size counts as the best of itself and all larger ones."
)


# which sizes of the curve have a slope, from the largest down: every second, if it is 1.5 times as
# fast as the slope before
EVERY_LEVEL, FASTER = 2, 1.5
DASHES = ("dash", "dashdot", "dot")


def _levels(machine: Machine) -> Iterator[tuple[str, float]]:
    """Name and bytes/s of each bandwidth that has a slope, the slowest first; that is memory's
    where it was measured."""
    slowest = machine.memory_bandwidth
    if slowest is not None:
        yield "memory", slowest
    for size, rate in machine.envelope[::-EVERY_LEVEL]:
        if slowest is None or rate >= FASTER * slowest:
            yield f"traffic of {_size_text(size)}", rate
            slowest = rate


def _roofs(machine: Machine, intensities: Sequence[float]) -> list[Json]:
    """For each type of GEMMs the roof over the slowest bandwidth; and for the other bandwidths the
    slopes up to the highest roof. They reach beyond all cases and all ridges, so that every roof is
    in view, however few cases there are."""
    levels, peaks = list(_levels(machine)), machine.peak_flops
    ridges = [peak / bandwidth for peak in peaks.values() for _, bandwidth in levels]
    first, last = min([*intensities, *ridges]) / 2, max([*intensities, *ridges]) * 2

    def line(name: str, bandwidth: float, peak: float, *corners: float, **more: str) -> Json:
        ends = (first, *corners)
        xs = sorted({*np.geomspace(min(ends), max(ends), ROOF_POINTS).tolist(), *corners})
        ys = [min(peak, x * bandwidth) / GIGA for x in xs]
        return trace(name, xs, ys, mode="lines", colour=GREY, **more)

    # without a peak of GEMMs there are slopes alone
    highest = max(peaks.values(), default=last * max(rate for _, rate in levels))
    roofs = []
    if peaks:
        (level, slowest), *levels = levels
        for name, peak in peaks.items():
            roofs.append(line(f"{name} GEMMs, {level}", slowest, peak, peak / slowest, last))
    for number, (level, bandwidth) in enumerate(levels):
        end, dash = min(highest / bandwidth, last), DASHES[number % len(DASHES)]
        roofs.append(line(level, bandwidth, highest, end, dash=dash))
    return roofs


def _bandwidth_traces(machine: Machine) -> list[Json]:
    """The curve as it was measured, and the bandwidth that is read from it."""
    sizes, rates = zip(*machine.curve, strict=True)
    read = [machine.attainable_bandwidth(size) / GIGA for size in sizes]
    xs = [size / MIB for size in sizes]
    return [
        trace("measured", xs, [rate / GIGA for rate in rates], colour=COLOURS[0]),
        trace("attainable", xs, read, mode="lines", colour=GREY),
    ]


def _point_text(point: RooflinePoint) -> str:
    launches = ", mostly launches" if point.is_mostly_launches else ""
    return f"{point.name}: bound by {point.bound}{launches}"


def _roofline_traces(
    every: Sequence[RooflinePoint], results: ResultSet, machine: Machine, colours: Mapping[str, str]
) -> list[Json]:
    """Each component has a marker of its own. `colours`: by variant; where there is one variant,
    colours tell components apart."""
    found: dict[str, list[RooflinePoint]] = {}
    for point in every:
        found.setdefault(point.case.component if point.case else "GEMMs", []).append(point)
    traces = _roofs(machine, [point.intensity for point in every])
    for name in sorted(found, key=lambda name: rank(name, *COMPONENTS, "GEMMs")):
        # the first one's marker is in the legend
        points = sorted(found[name], key=lambda p: symbol_of(name, results.cases.get(p.name)))
        colour: str | list[str] = COLOURS[rank(name, *COMPONENTS)[0] % len(COLOURS)]
        xs, ys = zip(*((p.intensity, p.flops_per_second / GIGA) for p in points), strict=True)
        if len(colours) > 1:
            colour = [colours[p.case.variant] if p.case else GREY for p in points]
        more = {"symbol": [symbol_of(name, results.cases.get(p.name)) for p in points]}
        more |= {"size": 8 if len(every) < MANY else 5, "text": list(map(_point_text, points))}
        traces.append(trace(name, xs, ys, colour=colour, **more))
    return traces


def roofline(page: Section, inputs: ReportInputs) -> None:
    """BadInputError for a result without measured peaks."""
    results = inputs.main_result()
    found = roofline_of(results)
    launch, gemms = found.launch, found.gemms
    cases = sorted(found.cases, key=lambda p: name_rank(results.cases[p.name].name))
    for name, why in found.left_out.items():
        page.leave_out("roofline", name, why)
    for point in (point for point in cases if point.error):
        page.leave_out("roofline", point.name, point.error, is_error=True)
    if not cases and not gemms:
        raise Missing(
            f"no case of {results.title} has FLOPs, bytes and a measured peak; "
            f"make one: {Kind.SUITE.command}"
        )
    counts = Counter(point.bound for point in cases)
    bounds = [f"{count_of(number, 'case')} by {bound}" for bound, number in counts.most_common()]
    page.text.append(
        f"Bound: {', '.join(bounds) or 'no case'}. That is whichever takes longer at best: GEMMs "
        "at their peak (compute), or traffic at the bandwidth that it can reach."
    )
    if launch is not None:
        mostly = sum(point.is_mostly_launches for point in cases)
        page.text.append(
            f"Launching an operator takes {seconds_text(launch.seconds)} or less: inferred from "
            f"{launch.source}, whose operators take no longer than that beyond their roofline "
            f"time. Launches can explain most of the time of {count_of(mostly, 'case')}."
        )
    if len(colours := variant_colours(results)) > 1:
        page.legend |= colours
    traces = _roofline_traces([*cases, *gemms], results, found.machine, colours)
    x, y = axis("intensity [FLOP/byte]", log=True), axis("rate [GFLOP/s]", log=True)
    page.figure("roofline_plot", "Roofline", traces, x, y, MEANINGS, columns=FULL)
    if found.machine.curve:
        x, y = axis("traffic of a pass [MiB]", log=True), axis("bandwidth [GB/s]", log=True)
        traces = _bandwidth_traces(found.machine)
        page.figure("bandwidth_plot", "Bandwidth by traffic", traces, x, y, CURVE_NOTE)
    page.table("roofline_points", cases)
    page.table("gemm_points", gemms)


PHASES = ("forward", "backward", "optimizer", "other")
FIXTURE = "fixtures/problem_sizes.json"


def _part_row(part: TimedPart, times: StepTimes) -> Mapping[str, Any]:
    whole = times.total.seconds or 1.0
    # where any part has an error, the step has no share either
    share = times.share_percent if part is times.total else part.share_percent
    return {"part": part, "of the step": scaled(part.seconds, 100 / whole), "share": share}


def _step_row(times: StepTimes) -> Mapping[str, Any]:
    whole, least, share = times.total.seconds or 1.0, times.total.least, times.share_percent
    return {
        "times": times,
        "step": step_text(times.step),
        "GEMMs at best": 100 * least.gemms / whole if least and share else None,
        "lost": 100 - share if share else None,
        "missing": times.refusal or listed(times.missing, 2),
    }


def _why_no_phases(times: StepTimes) -> str:
    """Why the step is not split into phases: they were timed apart, and one is longer than the step
    or the rest is below 0. Empty where they add up to it."""
    whole = times.total.seconds or 0.0
    odd = [
        f"{name} {seconds_text(seconds) if seconds > 0 else 'below 0'}"
        for name, seconds in times.phases.items()
        if not 0 <= seconds <= whole
    ]
    what = f"{step_text(times.step)}: forward, backward, optimizer and other do not add up"
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
    for times in inputs.steps:
        for error in times.errors:
            page.leave_out("speed of light", times.step, error, is_error=True)
        if times.refusal:
            page.leave_out("speed of light", times.step, times.refusal)
    main = inputs.steps[0]
    page.text += [f"Missing: {missing}." for missing in main.missing]
    rows = [_part_row(part, main) for part in (*main.parts, main.total)]
    page.table("steps", map(_step_row, inputs.steps))
    parts = page.table("parts", rows, step=step_text(main.step))
    shown = [row for row in parts.records[:-1] if row["measured [ms]"] is not None]
    series = {
        what: {row["part"]: row[f"{what} [ms]"] for row in shown}
        for what in ("measured", "speed of light")
    }
    x, y = axis("part"), axis("time in a step [ms]")
    page.figure("parts_plot", parts.title, bars(series), x, y)
    reasons = {times.step: _why_no_phases(times) for times in inputs.steps if times.phases}
    page.text += filter(None, reasons.values())
    split = [times for times in inputs.steps if reasons.get(times.step) == ""]
    shares = {
        phase: {
            step_text(times.step): 100 * times.phases[phase] / (times.total.seconds or 1.0)
            for times in split
        }
        for phase in PHASES
    }
    more = {"barmode": "stack", "columns": HALF if len(split) <= 4 else FULL}
    phases = "Forward, backward, optimizer and other"
    x, y = axis("share of the step [%]"), axis("", autorange="reversed")
    page.figure("phases_plot", phases, bars(shares, horizontal=True), x, y, **more)


def left_out(page: Section, omissions: Sequence[Omission]) -> None:
    """Errors first; names that share a reason stand together."""
    errors = sum(omission.is_error for omission in omissions)
    page.text.append(f"{len(omissions):,} left out; {count_of(errors, 'error')}.")
    has_devices = any(omission.device for omission in omissions)
    rows = [
        ({"device": first.device} if has_devices else {})
        | {"kind": first.kind, "name": "; ".join(names), "reason": first.reason}
        | {"error": "yes" if first.is_error else ""}
        for first, names in grouped(sorted(omissions, key=lambda one: not one.is_error))
    ]
    page.tables += [Table("omissions", "Left out", rows)] if rows else []


def facts(inputs: ReportInputs) -> Iterator[Fact]:
    """What the device can do at best, what the main step reaches of it, and the parts that lose
    most."""
    context = inputs.main.context
    device = value_at(context, "device.name") or "unknown device"
    for peak in peaks_of(context):
        if peak["measured"] and not str(peak["figure"]).startswith("bandwidth"):
            value = f"{number_text(peak['measured'])} {peak['unit']}"
            yield Fact(str(peak["figure"]), value, device)
    step = main_step(inputs.main)
    if step is None:
        return
    per_second = f"{step.name.batch / step.median_seconds:,.4g} samples/s"
    disturbed = f"! disturbed: {step.disturbance}" if step.disturbance else ""
    remarks = filter(None, [step_text(step.name), per_second, step.above_peak, disturbed])
    yield Fact("training step", seconds_text(step.median_seconds), ", ".join(remarks))
    tokens = step.name.batch * step.name.seq / step.median_seconds
    yield Fact("throughput", f"{number_text(tokens)} tokens/s", "of this step")
    times = next((one for one in inputs.steps if one.step == step.name), None)
    shares = {
        "MFU": step.counters.get("MFU_percent"),
        "of the measured peak": step.counters.get("peak_percent"),
        "of its speed of light": times.share_percent if times else None,
    }
    for what, share in shares.items():
        if share:
            yield Fact(what, f"{share:.1f} %", "of this step")
    parts = times.parts if times else ()
    losses = [(part.lost_seconds, part.name) for part in parts if (part.lost_seconds or 0) > 0]
    for lost, name in sorted(losses, reverse=True)[:3]:
        note = f"beyond its speed of light: {100 * lost / step.median_seconds:.1f} % of the step"
        yield Fact(f"lost in {name}", seconds_text(lost), note)
