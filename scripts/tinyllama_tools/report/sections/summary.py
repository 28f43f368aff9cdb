"""The report in a few figures, each with what it is of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.studies import BY_SEQ
from tinyllama_tools.models.speed_of_light import REST
from tinyllama_tools.report.analysis import NOT_RUN, chosen, main_step
from tinyllama_tools.report.document import BANDWIDTHS, Fact, bytes_text, rate_text, step_text

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.data.names import CaseName
    from tinyllama_tools.report.inputs import ReportInputs


def _step_name(inputs: ReportInputs) -> CaseName | None:
    step = main_step(inputs.main) if inputs.main is not None else None
    return step.name if step is not None else None


def machine(inputs: ReportInputs) -> Iterator[Fact]:
    """What the device can do at best."""
    context = inputs.main.context if inputs.main is not None else {}
    device = (context.get("device") or {}).get("name") or "unknown device"
    for name, peak in ((context.get("peaks") or {}).get("measured") or {}).items():
        key, unit = ("bytes_per_second", "B/s") if name in BANDWIDTHS else ("", "FLOP/s")
        value = peak.get(key or "flops_per_second")
        if value:
            yield Fact(BANDWIDTHS.get(name, f"{name} GEMMs"), rate_text(value, unit), device)


def speed(inputs: ReportInputs) -> Iterator[Fact]:
    step = main_step(inputs.main) if inputs.main is not None else None
    if step is None:
        return
    per_second = f"{step.name.batch / step.median_seconds:,.4g} samples/s"
    remarks = ", ".join(filter(None, [step_text(step.name), per_second, step.above_peak]))
    yield Fact("training step", seconds_text(step.median_seconds), remarks)
    light, _ = inputs.light
    shares = {
        "MFU": step.counters.get("MFU_percent"),
        "of the measured peak": step.counters.get("peak_percent"),
        "of its speed of light": light.share_percent if light is not None else None,
    }
    for what, share in shares.items():
        if share:
            yield Fact(what, f"{share:.1f} %", "of this step")


def limit(inputs: ReportInputs) -> Iterator[Fact]:
    """The parts that lose most, or else the largest part."""
    light, _ = inputs.light
    parts, _ = inputs.sum_of_parts
    if light is not None and any(part.case and part.measured_seconds for part in light.parts):
        step = light.total.measured_seconds or 0.0
        for part in light.most_lost[:3]:
            name = "the rest of the step" if part.name == REST else part.name
            lost = part.lost_seconds or 0.0
            share = f" ({100 * lost / step:.1f} %)" if step else ""
            note = f"beyond its speed of light, of the step's {seconds_text(step)}{share}"
            yield Fact(f"lost in {name}", seconds_text(lost), note)
    elif parts is not None and (bars := [bar for bar in parts.bars if bar.case]):
        largest = max(bars, key=lambda bar: bar.seconds)
        note = f"of the step's {seconds_text(parts.step_seconds)}"
        yield Fact(f"the largest part: {largest.name}", seconds_text(largest.seconds), note)


def growth(inputs: ReportInputs) -> Iterator[Fact]:
    """Of the main step's series, else of any step with a law."""
    name = _step_name(inputs)
    of = (name.size, name.variant, name.dtype) if name is not None else None
    fits = (fit for fit in inputs.time_fits if fit.law is not None and fit.name.component == STEP)
    fit = min(fits, key=lambda f: (f.name.size, f.name.variant, f.name.dtype) != of, default=None)
    if fit is None or fit.law is None:
        return
    series = f"{fit.name.size}, {fit.name.variant}, {fit.name.dtype}"
    power = ""
    if fit.exponents is not None:
        batch, seq = fit.exponents.batch.value, fit.exponents.seq.value
        power = f"; about as B^{batch:.2f} S^{seq:.2f} over the grid"
    yield Fact("a step of batch B, sequence S", fit.law.formula, f"{series}{power}")
    if fit.held_out:
        error = statistics.median(abs(held.error_percent) for held in fit.held_out)
        covered = sum(held.is_covered for held in fit.held_out)
        note = (
            f"off the largest cells, predicted without them; {covered} of {len(fit.held_out)} "
            f"inside the {fit.law.range_kind.short}"
        )
        yield Fact("held-out cells, median", f"{error:.1f} %", note)


def fitting(inputs: ReportInputs) -> Iterator[Fact]:
    """The largest batch of the biggest size that fits at all, at its longest sequence, or where no
    batch was looked for the longest sequence at its largest batch; within the largest limit, in the
    main step's variant and dtype where those were asked about."""
    name = _step_name(inputs)

    def order(shown: Json) -> tuple[object, ...]:
        return (shown.axis is not BY_SEQ, -shown.file["limit_bytes"])

    for shown in sorted(chosen(inputs), key=order):
        points = [point for point in shown.points if point[shown.axis.largest_key]]
        like = (name.variant, name.dtype) if name is not None else None
        points = [p for p in points if (p["variant"], p["dtype"]) == like] or points
        if points:
            best, given = points[-1], "sequence" if shown.axis is BY_SEQ else "batch"
            place = ", ".join(best[key] for key in ("size", "variant", "dtype"))
            note = f"{place}, at {given} {best[shown.axis.given]:,}"
            limit = bytes_text(shown.file["limit_bytes"])
            value = f"{best[shown.axis.largest_key]:,}"
            yield Fact(f"{shown.axis.title} in {limit}", value, note)
            return


def cost(inputs: ReportInputs) -> Iterator[Fact]:
    for step in inputs.predictions.steps:
        if step.kind == NOT_RUN:
            of = step.prediction
            fits = "" if step.cost.fits else "; does not fit here"
            ends = f"{seconds_text(of.low)} to {seconds_text(of.high)}"
            note = f"predicted: {ends}{fits}"
            yield Fact(f"a step of {step.cost.name.size}", seconds_text(of.seconds), note)


SUMMARY: Sequence[tuple[str, Callable[[ReportInputs], Iterator[Fact]]]] = (
    *(("the machine", machine), ("the step's speed", speed), ("what limits the step", limit)),
    *(("how the step scales", growth), ("what fits", fitting), ("bigger sizes", cost)),
)
