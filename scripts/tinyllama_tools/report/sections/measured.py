"""What was measured on which machine: every case, devices and peaks, the roofline, the parts of a
step, what was left out; and the report in a few figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyllama_tools.core.app import is_number, shown_path
from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.models.roofline import RooflinePoint, roofline_of
from tinyllama_tools.report.analysis import (
    COMPONENTS,
    headline_steps,
    main_step,
    name_rank,
    rank,
    sizes_by_name,
)
from tinyllama_tools.report.document import (
    BANDWIDTHS,
    COLOURS,
    GIB,
    GIGA,
    GREY,
    KILO,
    MIB,
    Cell,
    Fact,
    Figure,
    Kind,
    Missing,
    Omission,
    Section,
    Table,
    axis,
    bars,
    count_of,
    grouped,
    listed,
    number_text,
    scaled,
    step_text,
    trace,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.machine import Machine
    from tinyllama_tools.models.roofline import StepTimes, TimedPart
    from tinyllama_tools.report.inputs import ReportInputs

CASE_NOTE = (
    "Time: median over repetitions and rounds, of which the shortest and the longest stand beside "
    "it. Speed-up: over the baseline of the same run. MFU: model FLOPs utilisation, the FLOPs that "
    "the model asks for, over time, of the peak."
)


def cases(page: Section, inputs: ReportInputs) -> None:
    rows = []
    for case in sorted(inputs.main_result().cases.values(), key=lambda case: name_rank(case.name)):
        shortest, longest = case.extremes or (None, None)
        rows.append(
            {
                "case": str(case.name),
                "time [ms]": KILO * case.median_seconds,
                "shortest [ms]": scaled(shortest, KILO),
                "longest [ms]": scaled(longest, KILO),
                "speed-up": case.counters.get("speedup"),
                "MFU [%]": case.counters.get("MFU_percent"),
                "of the roofline [%]": case.counters.get("roof_percent"),
            }
        )
    page.tables.append(Table("all_cases", "Every case", rows, CASE_NOTE, is_key=True))


PEAK_NOTE = (
    "Measured in the same run: the best of large square GEMMs and the model's own shapes; a triad."
)


def _peak_rows(context: Mapping[str, Any]) -> Iterator[Mapping[str, Cell]]:
    peaks = context.get("peaks") or {}
    datasheet = peaks.get("datasheet") or {}
    of_types = datasheet.get("flops_per_second") or {}
    known = {**of_types, "memory_bandwidth": datasheet.get("memory_bytes_per_second")}
    for name, peak in (peaks.get("measured") or {}).items():
        is_bandwidth = name in BANDWIDTHS
        key = "bytes_per_second" if is_bandwidth else "flops_per_second"
        yield {
            "figure": BANDWIDTHS.get(name, f"peak of {name} GEMMs"),
            "measured": scaled(peak.get(key) or None, 1 / GIGA),
            "datasheet": scaled(known.get(name) or None, 1 / GIGA),
            "unit": "GB/s" if is_bandwidth else "GFLOP/s",
            "measured with": str(peak.get("source") or "unknown"),
        }


def _said(inputs: ReportInputs) -> Iterator[str]:
    if inputs.main is not None:
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


def _size(device: Json, key: str) -> float | None:
    """None where it is not known."""
    value = device.get(key)
    return value if is_number(value) and value else None


def environment(page: Section, inputs: ReportInputs) -> None:
    page.text += _said(inputs)
    taken = [{"kind": of.kind.words, "path": shown_path(of.path)} for of in inputs.sources]
    page.tables.append(Table("sources", "Results taken", taken))
    results = inputs.main_result()
    context, device = results.context, results.context.get("device") or {}
    failed = sum(case.is_failure for case in results.left_out)
    row = {
        "result": results.title,
        "architecture": device.get("architecture") or "unknown",
        "memory [GiB]": scaled(_size(device, "memory_bytes"), 1 / GIB),
        "last-level cache [MiB]": scaled(_size(device, "last_level_cache_bytes"), 1 / MIB),
        "threads": context.get("threads"),
        "libtorch": str(context.get("torch_version") or "unknown"),
        "rounds": len(results.paths),
        "cases": len(results.cases),
        "skipped": len(results.left_out) - failed,
        "failed": failed,
    }
    about = dict(sorted((context.get("settings") or {}).items()))
    more = ("verify", "cold_cache", "seed", "memory_source")
    about |= {name: context[name] for name in more if name in context}
    settings = [{"setting": name, "value": str(of)} for name, of in about.items()]
    page.tables[:0] = [
        Table("results", "Result", [row], is_key=True),
        Table("peaks", "Peaks", list(_peak_rows(context)), PEAK_NOTE, is_key=True),
        Table("settings", "Settings", settings),
    ]


ROOF_POINTS = 25
# plotly's numbers of circle, square and triangle-up: thousands of them stay small
BOUND_SYMBOLS = {"compute": 0, "bandwidth": 1, "latency": 5}
MEANINGS = (
    "Circles are bound by GEMMs, squares by bandwidth, triangles by latency: there the start of "
    "operators takes longer than GEMMs and traffic at their peaks."
)


def _roofs(machine: Machine, first: float, last: float) -> list[Json]:
    """A roof a type of GEMMs over memory, or over the cache where memory's bandwidth is not known,
    and else the cache's slope up to the highest peak."""
    memory = machine.memory_bandwidth
    bandwidth, level = (machine.cache_bandwidth, "cache") if memory is None else (memory, "memory")
    traces = []
    for name, peak in machine.peak_flops.items():
        ridge = float(np.clip(peak / bandwidth, first, last))
        xs = sorted({*np.geomspace(first, last, ROOF_POINTS).tolist(), ridge})
        ys = [min(peak, x * bandwidth) / GIGA for x in xs]
        traces.append(trace(f"{name} GEMMs, {level}", xs, ys, mode="lines", colour=GREY))
    ridge = max(machine.peak_flops.values(), default=0.0) / machine.cache_bandwidth
    if machine.cache_bandwidth > bandwidth and first < ridge:
        xs = np.geomspace(first, ridge, ROOF_POINTS).tolist()
        ys = [x * machine.cache_bandwidth / GIGA for x in xs]
        traces.append(trace("last-level cache", xs, ys, mode="lines", colour=GREY, dash="dot"))
    return traces


def _roofline_figure(every: Sequence[RooflinePoint], machine: Machine) -> Figure:
    """Each component in a colour of its own."""
    found: dict[str, list[RooflinePoint]] = {}
    for point in every:
        found.setdefault(point.case.component if point.case else "GEMMs", []).append(point)
    intensities = [point.intensity for point in every]
    traces = _roofs(machine, min(intensities) / 2, max(intensities) * 2)
    for name in sorted(found, key=lambda name: rank(name, *COMPONENTS, "GEMMs")):
        points, colour = found[name], COLOURS[rank(name, *COMPONENTS)[0] % len(COLOURS)]
        xs, ys = zip(*((p.intensity, p.flops_per_second / GIGA) for p in points), strict=True)
        symbols, names = [BOUND_SYMBOLS[p.bound] for p in points], [p.name for p in points]
        traces.append(trace(name, xs, ys, colour=colour, symbol=symbols, text=names))
    x, y = axis("intensity [FLOP/byte]", log=True), axis("rate [GFLOP/s]", log=True)
    return Figure("roofline_plot", "Roofline", traces, x, y, MEANINGS)


def _points(column: str, points: Sequence[RooflinePoint]) -> list[Mapping[str, Cell]]:
    return [
        {
            column: point.name,
            "intensity [FLOP/byte]": point.intensity,
            "rate [GFLOP/s]": point.flops_per_second / GIGA,
            "attainable [GFLOP/s]": point.attainable / GIGA,
            "of the attainable [%]": point.percent,
            "bound": point.bound,
            "GEMMs at the peak [ms]": KILO * point.light.products,
            "traffic [ms]": KILO * point.light.traffic,
            "starts of operators at most [ms]": scaled(point.starts_seconds, KILO),
        }
        for point in points
    ]


def roofline(page: Section, inputs: ReportInputs) -> None:
    """Of the first result. BadInputError for a file without measured peaks."""
    results = inputs.main_result()
    found = roofline_of(results)
    machine, launch, products = found.machine, found.launch, found.products
    points = sorted(found.points, key=lambda p: name_rank(results.cases[p.name].name))
    page.omissions += [Omission("roofline", *pair) for pair in found.left_out.items()]
    page.omissions += [Omission("roofline", p.name, p.error, True) for p in points if p.error]
    if not points and not products:
        raise Missing(
            f"no case of {results.title} has FLOPs, bytes and a measured peak; "
            f"make one: {Kind.SUITE.command}"
        )
    counts = {bound: sum(p.bound == bound for p in points) for bound in BOUND_SYMBOLS}
    bounds = ", ".join(f"{number:,} by {bound}" for bound, number in counts.items())
    page.text.append(f"Of {len(points):,} cases bound: {bounds}.")
    if launch is not None:
        page.text.append(
            f"Starting an operator takes at most {seconds_text(launch.seconds)}: inferred from this"
            f" data, not measured. It is what the fastest operators, those of {launch.source}, "
            "take beyond their roofline time."
        )
    page.figures.append(_roofline_figure([*points, *products], machine))
    note = "Each at its own shape: m x n x k, or so many at once x m x n x k."
    page.tables += [
        Table("roofline_points", "Cases under the roofline", _points("case", points)),
        Table("product_points", "GEMMs", _points("GEMM", products), note),
    ]


PARTS_NOTE = (
    "Each part was measured alone. A rest below 0: parts alone do work that the step shares, such "
    "as gradients of inputs. The speed of light of a part is the longer of its GEMMs, each at the "
    "best rate measured at its own shape in any form (one by one, fused, in chunks), and its bytes "
    "at the bandwidth that they can see. Attention's scores and values count at the peak, without "
    "what the mask hides. Lost is what was measured above it. What is over 5 % faster shows that "
    "it is no bound: then there is no share, and Left out names it."
)
STEPS_NOTE = (
    "Shares of the measured step: GEMMs at the best rate measured at their own shapes, and the time"
    " above the speed of light. The backward is the model's forward and backward less its forward "
    "with the loss."
)
PHASES = ("forward", "backward", "optimizer", "other")
FIXTURE = "fixtures/problem_sizes.json"


def _part_row(part: TimedPart, whole: float, share: float | None) -> Mapping[str, Cell]:
    light = part.light
    return {
        "part": part.name,
        "count": part.count,
        "measured [ms]": scaled(part.seconds, KILO),
        "of the step [%]": scaled(part.seconds, 100 / whole),
        "speed of light [ms]": KILO * light.seconds if light else None,
        "lost [ms]": scaled(part.lost_seconds, KILO),
        "GEMMs [ms]": KILO * light.products if light else None,
        "traffic [ms]": KILO * light.traffic if light else None,
        "share [%]": share,
        "measured as": part.case,
    }


def _step_row(of: StepTimes) -> Mapping[str, Cell]:
    whole, light, share = of.total.seconds or 0.0, of.total.light, of.share_percent
    return {
        "step": step_text(of.step),
        "measured [ms]": KILO * whole,
        "speed of light [ms]": KILO * light.seconds if light else None,
        "share [%]": share,
        "GEMMs at best [%]": 100 * light.products / whole if light and share else None,
        "lost [%]": 100 - share if share else None,
        **{f"{phase} [ms]": scaled(of.phases.get(phase), KILO) for phase in PHASES},
        "missing": of.refusal or listed(of.missing, 2),
    }


def time(page: Section, inputs: ReportInputs) -> None:
    """The main step's parts beside their speed of light; every step's whole and phases."""
    title = inputs.main_result().title
    known = sizes_by_name()
    page.omissions += [
        Omission("step", str(step.name), f"size '{step.name.size}' is not in {FIXTURE}")
        for step in headline_steps(inputs.main_result())
        if step.name.size not in known
    ]
    if not inputs.steps:
        what = f"{title} has no training step (full_step/train) of a size in {FIXTURE}"
        raise Missing(f"{what}; measure one with its parts: {Kind.STUDY.command}")
    for of in inputs.steps:
        name = str(of.step)
        page.omissions += [Omission("speed of light", name, e, is_error=True) for e in of.errors]
        page.omissions += [Omission("speed of light", name, of.refusal)] if of.refusal else []
    main = inputs.steps[0]
    page.text += [f"Missing: {missing}." for missing in main.missing]
    whole = main.total.seconds or 1.0
    rows = [_part_row(part, whole, part.share_percent) for part in main.parts]
    rows.append(_part_row(main.total, whole, main.share_percent))
    steps = [_step_row(of) for of in inputs.steps]
    shown = [row for row in rows[:-1] if row["measured [ms]"] is not None]
    title, names = f"Parts of {step_text(main.step)}", [row["part"] for row in shown]
    traces = [
        bars(what, names, [row[f"{what} [ms]"] for row in shown])
        for what in ("measured", "speed of light")
    ]
    y = axis("time in a step [ms]")
    page.figures.append(Figure("parts_plot", title, traces, axis("part"), y, PARTS_NOTE))
    known = [of for of in inputs.steps if of.phases]
    names = [step_text(of.step) for of in known]
    traces = [
        bars(phase, names, [100 * of.phases[phase] / (of.total.seconds or 1.0) for of in known])
        for phase in PHASES
    ]
    phases = "Forward, backward, optimizer and other"
    x, y = axis("step"), axis("share of the step [%]")
    page.figures.append(Figure("phases_plot", phases, traces, x, y, barmode="relative"))
    page.tables += [
        Table("steps", "Steps", steps, STEPS_NOTE, is_key=True),
        Table("parts", title, rows, PARTS_NOTE, is_key=True),
    ]


def case_omissions(inputs: ReportInputs) -> Iterator[Omission]:
    """Cases that were skipped or failed."""
    for case in inputs.main.left_out if inputs.main is not None else ():
        yield Omission("case", case.name, case.reason, case.is_failure)


def left_out(page: Section, omissions: Sequence[Omission]) -> None:
    """What went wrong first; names that share a reason stand together."""
    errors = sum(omission.is_error for omission in omissions)
    page.text.append(f"{len(omissions):,} left out; {count_of(errors, 'error')}.")
    rows = [
        {"kind": of.kind, "name": "; ".join(names), "reason": of.reason}
        | {"error": "yes" if of.is_error else ""}
        for of, names in grouped(sorted(omissions, key=lambda omission: not omission.is_error))
    ]
    page.tables.append(Table("omissions", page.title, rows))


def facts(inputs: ReportInputs) -> Iterator[Fact]:
    """What the device can do at best, what the main step reaches of it, and which of its parts lose
    most."""
    if inputs.main is None:
        return
    context = inputs.main.context
    device = (context.get("device") or {}).get("name") or "unknown device"
    for name, peak in ((context.get("peaks") or {}).get("measured") or {}).items():
        if rate := peak.get("bytes_per_second"):
            yield Fact(BANDWIDTHS.get(name, name), f"{number_text(rate / GIGA)} GB/s", device)
        elif rate := peak.get("flops_per_second"):
            yield Fact(f"{name} GEMMs", f"{number_text(rate / GIGA)} GFLOP/s", device)
    step = main_step(inputs.main)
    if step is None:
        return
    per_second = f"{step.name.batch / step.median_seconds:,.4g} samples/s"
    remarks = ", ".join(filter(None, [step_text(step.name), per_second, step.above_peak]))
    yield Fact("training step", seconds_text(step.median_seconds), remarks)
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
