"""The report in five sentences, made from the data; where data is missing, the sentence says so."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.text import seconds_text
from tinyllama_tools.data.names import STEP
from tinyllama_tools.data.studies import BY_SEQ
from tinyllama_tools.models.speed_of_light import REST
from tinyllama_tools.report.analysis import NOT_RUN, SeriesFit, main_step
from tinyllama_tools.report.document import bytes_text, case_text, listed, percent_text, rate_text
from tinyllama_tools.report.sources import Kind
from tinyllama_tools.stats.laws import RangeKind

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase
    from tinyllama_tools.report.inputs import ReportInputs
    from tinyllama_tools.report.sections.frontier import Shown

STUDY = f"`{Kind.STUDY.command}`"
SUITE = f"`{Kind.SUITE.command}`"


def _step(inputs: ReportInputs) -> MeasuredCase | None:
    return main_step(inputs.main) if inputs.main is not None else None


def machine_sentence(inputs: ReportInputs) -> str:
    """The device and what it can do at best."""
    if inputs.main is None:
        return (
            f"No result of the suite was given, so nothing is said of the machine: {SUITE} makes "
            f"one."
        )
    context = inputs.main.context
    device = (context.get("device") or {}).get("name") or "An unknown device"
    measured = (context.get("peaks") or {}).get("measured") or {}
    products = [
        f"{rate_text(peak['flops_per_second'], 'FLOP/s')} in {name}"
        for name, peak in measured.items()
        if "flops_per_second" in peak
    ]
    levels = (("memory_bandwidth", "memory"), ("cache_bandwidth", "the last-level cache"))
    moved = [
        f"{rate_text(measured[key]['bytes_per_second'], 'B/s')} from {place}"
        for key, place in levels
        if "bytes_per_second" in measured.get(key, {})
    ]
    if not products and not moved:
        return f"{device} was measured without its peaks: measure again with {SUITE}."
    multiplies = [f"multiplies matrices at {listed(products)}"] if products else []
    moves = [f"moves {' and '.join(moved)}"] if moved else []
    return f"{device} {' and '.join([*multiplies, *moves])} at best."


def speed_sentence(inputs: ReportInputs) -> str:
    """How fast the step is, and which shares of what it reaches."""
    step = _step(inputs)
    if step is None:
        return f"No training step (full_step/train) was measured: {STUDY} does."
    of_peak, mfu = (step.counters.get(key) for key in ("peak_percent", "MFU_percent"))
    shares = [f"{percent_text(of_peak)} of the measured peak"] if of_peak else []
    if mfu and (not of_peak or abs(mfu - of_peak) > 0.05):
        shares.append(f"{percent_text(mfu)} MFU")
    light, _ = inputs.light
    if light is not None and light.share_percent is not None:
        shares.append(f"{percent_text(light.share_percent)} of its speed of light")
    reached = f": {', '.join(shares)}" if shares else "; its share of the peak was not counted"
    above = f"; {step.above_peak}" if step.above_peak else ""
    return (
        f"A training step ({case_text(step.name)}) takes {seconds_text(step.median_seconds)}, "
        f"{step.name.batch / step.median_seconds:,.4g} samples/s{reached}{above}."
    )


def limit_sentence(inputs: ReportInputs) -> str:
    """What limits the step most."""
    light, _ = inputs.light
    if (
        light is not None
        and light.most_lost
        and any(part.case and part.measured_seconds is not None for part in light.parts)
    ):
        first, *others = light.most_lost
        step, lost = light.total.measured_seconds or 0.0, first.lost_seconds or 0.0
        names = [
            "the rest of the step" if part.name == REST else part.name
            for part in (first, *others[:2])
        ]
        then = f", then in {' and '.join(names[1:])}" if others else ""
        share = f" ({percent_text(100 * lost / step)})" if step else ""
        return (
            f"Most time against the speed of light is lost in {names[0]}: {seconds_text(lost)} of "
            f"the step's {seconds_text(step)}{share}{then}."
        )
    sum_of_parts, reason = inputs.sum_of_parts
    parts = [bar for bar in sum_of_parts.bars if bar.case] if sum_of_parts is not None else []
    if not parts:
        why = reason or "no part of the step was measured"
        return f"What limits the step is not known ({why}): {STUDY} measures it with its parts."
    largest = max(parts, key=lambda bar: bar.seconds)
    return (
        f"The largest part of the step is {largest.name} with {seconds_text(largest.seconds)}; "
        "what is lost against the speed of light is not known."
    )


def _step_fit(inputs: ReportInputs) -> SeriesFit | None:
    """Of the main step's series, else of any step with a law."""
    step = _step(inputs)
    of = (step.name.size, step.name.variant, step.name.dtype) if step is not None else None
    fits = (f for f in inputs.time_fits if f.law is not None and f.series.name.component == STEP)

    def is_another(fit: SeriesFit) -> bool:
        name = fit.series.name
        return (name.size, name.variant, name.dtype) != of

    return min(fits, key=is_another, default=None)


def scaling_sentence(inputs: ReportInputs) -> str:
    """The step's law, its exponents, and how well it met what was held out."""
    fit = _step_fit(inputs)
    if fit is None or fit.law is None:
        refused = [f.refusal for f in inputs.time_fits if f.series.name.component == STEP]
        reason = f" ({refused[0]})" if refused else ""
        return f"How the step scales is not known{reason}: {STUDY} measures a grid."
    of = fit.series.name
    text = (
        f"At {of.size} ({of.variant}, {of.dtype}) a step of batch B and sequence S follows "
        f"{fit.law.formula}"
    )
    if fit.exponents is not None:
        batch, seq = fit.exponents.batch.value, fit.exponents.seq.value
        text += f", about as B^{batch:.2f} and S^{seq:.2f} over the grid"
    if not fit.held_out:
        return f"{text}; too few cells to hold some out."
    error = statistics.median(abs(held.error_percent) for held in fit.held_out)
    covered = sum(held.is_covered for held in fit.held_out)
    kind = fit.law.range_kind
    new = " for new rounds, which theirs were not" if kind == RangeKind.NEW_ROUNDS else ""
    return (
        f"{text}; the largest cells, held out of the fit, were predicted to within "
        f"{percent_text(error)} (median), {covered} of {len(fit.held_out)} inside the "
        f"{kind.short}{new}."
    )


def _fitting_of(shown: Shown, step: MeasuredCase | None) -> str:
    """Of one axis; empty where nothing fits."""
    lines = [line for line in shown.part.lines if line.largest]
    if step is not None:
        like = (step.name.variant, step.name.dtype)
        lines = [line for line in lines if (line.variant, line.dtype) == like] or lines
    if not lines:
        return ""
    best = lines[-1]
    given, searched = ("sequence", "batch") if shown.part.axis is BY_SEQ else ("batch", "sequence")
    return (
        f"At {given} {best.given:,}, {best.size} ({best.variant}, {best.dtype}) fits into "
        f"{bytes_text(shown.file.limit_bytes)} up to {searched} {best.largest:,}"
    )


def cost_sentence(inputs: ReportInputs, shown: Sequence[Shown]) -> str:
    """What fits, of the frontiers that are `shown`, and what sizes that were not run would cost.

    The largest batch of the biggest size that fits at all, at its longest sequence, or where no
    batch was looked for the longest sequence at its largest batch; within the largest limit, in the
    main step's variant and dtype where those were asked about."""
    by_limit = sorted(shown, key=lambda of: (of.part.axis is not BY_SEQ, -of.file.limit_bytes))
    texts = (_fitting_of(one, _step(inputs)) for one in by_limit)
    fitting = next(filter(None, texts), "")
    predicted = [
        f"{seconds_text(one.prediction.seconds)} ({seconds_text(one.prediction.low)} to "
        f"{seconds_text(one.prediction.high)}) at {one.cost.name.size}"
        f"{'' if one.cost.fits else ', which does not fit here'}"
        for one in inputs.predictions.steps
        if one.kind == NOT_RUN
    ]
    if predicted:
        start = f"{fitting}, and a" if fitting else "A"
        return f"{start} step is predicted to take {'; '.join(predicted)}."
    if fitting:
        return f"{fitting}; what sizes that were not run would cost is not known."
    reason = inputs.predictions.refusal or "every size was run"
    return (
        f"What fits and what bigger sizes would cost is not known ({reason}): {STUDY} predicts "
        f"both."
    )


# what each is on, and what makes it; that on costs, which takes the frontiers, comes behind them
SENTENCES: Sequence[tuple[str, Callable[[ReportInputs], str]]] = (
    ("the machine", machine_sentence),
    ("the step's speed", speed_sentence),
    ("what limits the step", limit_sentence),
    ("how the step scales", scaling_sentence),
)
