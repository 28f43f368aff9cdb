"""The report in a few figures, each with what it is of."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.studies import BY_SEQ
from tinyllama_tools.report.analysis import NOT_RUN, main_step
from tinyllama_tools.report.document import BANDWIDTHS, Fact, bytes_text, rate_text, step_text
from tinyllama_tools.report.sections.costs import frontiers_of

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs


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
    """Of the main step; and the parts of it that lose most."""
    step = main_step(inputs.main) if inputs.main is not None else None
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
    for part in times.most_lost[:3] if times else ():
        lost = part.lost_seconds or 0.0
        note = f"beyond its speed of light: {100 * lost / step.median_seconds:.1f} % of the step"
        yield Fact(f"lost in {part.name}", seconds_text(lost), note)


def growth(inputs: ReportInputs) -> Iterator[Fact]:
    """Of the main step's series, else of any step with a law."""
    step = main_step(inputs.main) if inputs.main is not None else None
    of = (step.name.size, step.name.variant, step.name.dtype) if step is not None else None
    fits = (fit for fit in inputs.time_fits if fit.law is not None and fit.name.component == STEP)
    fit = min(fits, key=lambda f: (f.name.size, f.name.variant, f.name.dtype) != of, default=None)
    if fit is None or fit.law is None:
        return
    series = f"{fit.name.size}, {fit.name.variant}, {fit.name.dtype}"
    yield Fact("a step of batch B, sequence S", fit.law.formula, series)
    if fit.held_out:
        error = statistics.median(abs(held.error_percent) for held in fit.held_out)
        covered = sum(held.is_covered for held in fit.held_out)
        note = (
            f"off the largest cells, predicted without them; {covered} of {len(fit.held_out)} "
            "inside the law's range"
        )
        yield Fact("held-out cells, median", f"{error:.1f} %", note)


def fitting(inputs: ReportInputs) -> Iterator[Fact]:
    """Within the largest limit, of the biggest size that fits at all, the largest batch at its
    longest sequence (where no batch was looked for, the longest sequence at its largest batch), in
    the main step's variant and dtype where those were asked about."""
    step = main_step(inputs.main) if inputs.main is not None else None
    wanted = (step.name.variant, step.name.dtype) if step is not None else None
    every = sorted(
        frontiers_of(inputs), key=lambda of: (of.axis is not BY_SEQ, -of.file["limit_bytes"])
    )
    for shown in every:
        points = [point for point in shown.points if point[shown.axis.largest_key]]
        points = [p for p in points if (p["variant"], p["dtype"]) == wanted] or points
        if points:
            best, given = points[-1], "sequence" if shown.axis is BY_SEQ else "batch"
            place = ", ".join(best[key] for key in ("size", "variant", "dtype"))
            note = f"{place}, at {given} {best[shown.axis.given]:,}"
            limit = bytes_text(shown.file["limit_bytes"])
            yield Fact(f"{shown.axis.title} in {limit}", f"{best[shown.axis.largest_key]:,}", note)
            return


def cost(inputs: ReportInputs) -> Iterator[Fact]:
    for step in inputs.predictions.steps:
        if step.kind == NOT_RUN:
            of = step.prediction
            fits = "" if step.cost.fits else "; does not fit here"
            note = f"predicted: {seconds_text(of.low)} to {seconds_text(of.high)}{fits}"
            yield Fact(f"a step of {step.cost.name.size}", seconds_text(of.seconds), note)


SUMMARY: Sequence[tuple[str, Callable[[ReportInputs], Iterator[Fact]]]] = (
    *(("the machine", machine), ("the step's speed", speed)),
    *(("how the step scales", growth), ("what fits", fitting), ("bigger sizes", cost)),
)
