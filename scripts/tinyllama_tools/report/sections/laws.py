"""How time grows with batch and sequence: laws and held-out cells; and what the memory of a step
consists of."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tinyllama_tools.data.names import STEP, CaseName
from tinyllama_tools.report.analysis import (
    MIB,
    PEAK_MEMORY,
    WHOLE_PASSES,
    SeriesFit,
    best_of_each,
    held_out_by_size,
    is_own_shape,
    refused,
    size_rank,
    steps,
    variant_rank,
)
from tinyllama_tools.report.document import (
    COLOURS,
    DASHES,
    HELD_OUT,
    MEASURED,
    NO_RESULT,
    PREDICTED,
    SYMBOLS,
    Cell,
    Figure,
    Kind,
    Missing,
    Section,
    Table,
    axis,
    bars,
    bytes_text,
    error_bars,
    layout,
    line,
    markers,
    nth,
    shape_text,
    spaced,
    step_text,
)
from tinyllama_tools.stats.laws import RANGES

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.report.inputs import ReportInputs


MILLI = 1e3
# of each term its title, its unit, and how many a second is
TERMS = {
    "launch": ("launch", "us", 1e6),
    "linear": ("per token", "ns", 1e9),
    "quadratic": ("per token and token", "ps", 1e12),
}
# percent, of the median error of held-out cells
GOAL = 15.0
# of a curve between two measured lengths or more; straight pieces on logarithmic axes
CURVE_POINTS = 13
# of a percentage; what is less is rounding of the computation
DECIMALS = 6
ENDS = ("from", "to")


def _of_batch(fit: SeriesFit, number: int, batch: int) -> list[Json]:
    points = sorted((p for p in fit.points if p.batch == batch), key=lambda point: point.seq)
    lengths, values = [p.seq for p in points], [MILLI * p.value for p in points]
    name, colour = f"batch {batch}", nth(COLOURS, number)
    own = {"symbol": nth(SYMBOLS, number), "legendgroup": name}
    traces = [markers(name, lengths, values, colour=colour, **own)]
    if fit.law is not None and len(lengths) > 1:
        curve = [round(seq) for seq in spaced(lengths[0], lengths[-1], CURVE_POINTS)]
        fitted = [MILLI * fit.law.at(batch, seq) for seq in curve]
        own = {"dash": nth(DASHES, number), "legendgroup": name, "showlegend": False}
        traces.append(line(f"law, batch {batch}", curve, fitted, colour=colour, **own))
    return traces


def law_figure(fit: SeriesFit) -> Figure:
    """The series over the sequence, a curve a batch; without a law the points alone."""
    of = fit.name
    batches = sorted({point.batch for point in fit.points})
    traces = [t for number, batch in enumerate(batches) for t in _of_batch(fit, number, batch)]
    if fit.held_out:
        values, lows, highs = (
            [MILLI * getattr(one, key) for one in fit.held_out] for key in ("value", "low", "high")
        )
        where = [one.point.seq for one in fit.held_out]
        texts = [
            f"batch {one.point.batch}: {one.error_percent:+.1f} % of the measured"
            for one in fit.held_out
        ]
        more = {"text": texts, "error_y": error_bars(values, lows, highs), "symbol": "x"}
        traces.append(markers("predicted without them", where, values, colour=HELD_OUT, **more))
    note = f"No law: {fit.refusal}."
    if fit.law is not None:
        held = ". Bars: the law's range." if fit.held_out else ""
        note = f"{fit.law.formula}{held}"
    lengths = [point.seq for point in fit.points]
    sequence = axis("sequence", "tokens", log=True, ticks=lengths)
    identity = re.sub(r"\W", "_", f"time_{fit.series}".replace("+", "_plus_"))
    title = f"{of.component}, {of.pass_name}: {of.size}, {of.variant}, {of.dtype}"
    axes = layout(sequence, axis("time", "ms", log=True))
    return Figure(identity, title, traces, axes, note)


def shown_fits(fits: Sequence[SeriesFit]) -> list[SeriesFit]:
    """One a component and size: the passes that a step consists of, `optimized`, f32."""
    return best_of_each(
        (f for f in fits if f.name.pass_name in WHOLE_PASSES and len(f.points) > 1),
        lambda fit: (fit.name.component, fit.name.size),
        lambda fit: (fit.law is None, variant_rank(fit.name)),
    )


def law_table(fits: Sequence[SeriesFit]) -> Table:
    """Every law with how far off it was at the cells that were held out."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        row: list[Cell] = [fit.series, len(fit.law.points)]
        for term, *ends in fit.law.coefficients:
            row += [TERMS[term.name][2] * value for value in ends]
        row.append(round(max(map(abs, fit.law.residuals_percent), default=0.0), DECIMALS))
        errors = [round(held.error_percent, DECIMALS) for held in fit.held_out]
        middle = statistics.median(map(abs, errors)) if errors else None
        covered = sum(held.is_covered for held in fit.held_out)
        rows.append([*row, len(errors), covered, middle, max(errors, key=abs, default=None)])
    of_terms = (f"{what} [{unit}]" for name, unit, _ in TERMS.values() for what in (name, *ENDS))
    columns = (
        *("series", "sizes", *of_terms, "largest residual [%]", "held out", "covered"),
        *("median error [%]", "largest error [%]"),
    )
    note = f"{RANGES} A term whose range reaches 0 may not be there."
    return Table("time_laws", "Laws of time", columns, rows, note)


def held_out_table(fits: Sequence[SeriesFit]) -> Table:
    """By problem size over all its series."""
    rows: list[list[Cell]] = []
    for size, cells in held_out_by_size(fits).items():
        errors = [round(abs(held.error_percent), DECIMALS) for held in cells]
        covered = 100.0 * sum(held.is_covered for held in cells) / len(cells)
        middle = statistics.median(errors)
        width = statistics.median(held.width_percent for held in cells)
        verdict = f"{'within' if middle <= GOAL else 'above'} {GOAL:g} %"
        rows.append([size, len(cells), middle, verdict, max(errors), covered, width])
    columns = (
        *("size", "held-out cells", "median error [%]", "which is", "largest error [%]"),
        *("covered [%]", "median width [%]"),
    )
    note = (
        "Cells of half the largest batch x sequence and more were left out of the fit and "
        "predicted from the others: they are of the same rounds. Covered: how many lie in the "
        f"law's range, whose median width is given in percent. {RANGES}"
    )
    title = "Held-out cells by size"
    return Table("held_out_time", title, columns, rows, note, is_key=True)


def scaling(page: Section, inputs: ReportInputs) -> None:
    inputs.main_result()
    fits = inputs.time_fits
    page.omissions += refused(fits)
    with_law = sum(fit.law is not None for fit in fits)
    if not with_law:
        reason = f"no series of cases supports a law: {fits[0].refusal}" if fits else "no case"
        raise Missing(f"{reason}; make a grid: {Kind.STUDY.command}")
    page.text += [
        "At one model size, time = launch + a B S + b B S²: B is the batch, S the sequence. The "
        "laws describe the grid that they were fitted to; other model sizes are under Predictions.",
        f"{with_law} of {len(fits)} series of cases support a law.",
    ]
    page.figures += [law_figure(fit) for fit in shown_fits(fits)]
    page.tables += [held_out_table(fits), law_table(fits)]


# amp_* keeps parameters and moments in float32
NARROW = ("bf16", "f16")
PARTS_NOTE = (
    "Weights and AdamW's two moments are alive throughout. How many gradients there are at the peak"
    " does not follow from any count: a training run's memory profile has them."
)
WEIGHTS, MOMENTS = "weights", "AdamW moments"
REST = "gradients, activations, scratch"
MEBIBYTES = ("memory", "MiB")
Parts = Mapping[str, float]


def memory_parts(name: CaseName, parameters: float, peak: float) -> Parts:
    """Bytes of each part; together they are the peak. Empty where the peak is not known, or less
    than what is alive throughout: then something is wrong."""
    weights = parameters * (2 if name.dtype in NARROW else 4)
    rest = peak - 3 * weights
    return {WEIGHTS: weights, MOMENTS: 2 * weights, REST: rest} if weights and rest >= 0 else {}


def _stack(
    identity: str, title: str, every: Mapping[str, Parts], y: Json, scale: float, note: str
) -> list[Figure]:
    """Bars by label, of those that have parts."""
    every = {label: parts for label, parts in every.items() if parts}
    names = dict.fromkeys(name for parts in every.values() for name in parts)
    traces = [
        bars(name, list(every), [scale * parts.get(name, 0.0) for parts in every.values()])
        for name in names
    ]
    axes = layout(axis("", type="category"), y, barmode="stack")
    return [Figure(identity, title, traces, axes, note)] if traces else []


def _measured_figures(inputs: ReportInputs) -> Iterator[Figure]:
    """Of each size the series of its first variant, at every batch and sequence."""
    every = steps(inputs.main) if inputs.main is not None else []
    for of in best_of_each(every, lambda c: c.name.size, lambda c: variant_rank(c.name)):
        parts, series = {}, replace(of.name, batch=0, seq=0)
        for case in every:
            if replace(case.name, batch=0, seq=0) == series:
                peak = MIB * case.counters.get(PEAK_MEMORY, 0.0)
                parameters = case.counters.get("parameters", 0.0)
                parts[shape_text(case.name)] = memory_parts(case.name, parameters, peak)
        what = f"{series.size}, {series.variant}, {series.dtype}"
        title = f"Peak of a step by part, batch x sequence: {what}"
        identity = f"memory_parts_{series.size}"
        yield from _stack(identity, title, parts, axis(*MEBIBYTES), 1 / MIB, PARTS_NOTE)


def _parts_figures(inputs: ReportInputs) -> list[Figure]:
    """Measured; of training steps, allocation by allocation, where the memory profiler ran; and
    predicted, of every size at its own shape, in shares since sizes differ by decades."""
    of_runs = {}
    for run in inputs.trainings:
        found = (run.summary.get("memory") or {}).get("breakdown_at_peak") or {}
        of_runs[run.name] = {n.replace("_", " "): float(size) for n, size in found.items() if size}
    costs = [c for c in inputs.costs if c.name.component == STEP and is_own_shape(c.name)]
    costs = best_of_each(costs, lambda c: c.name.size, lambda c: variant_rank(c.name))
    of_sizes = {}
    for cost in sorted(costs, key=lambda cost: size_rank(cost.name)):
        parts = memory_parts(cost.name, cost.parameters, cost.predicted_memory_bytes)
        label = f"{cost.name.size}: {bytes_text(cost.predicted_memory_bytes)}"
        total = sum(parts.values())
        of_sizes[label] = {name: 100 * size / total for name, size in parts.items()}
    share = axis("share of the peak", "%")
    predicted = "Predicted peak of a step by part, at each size's own batch and sequence"
    counted = "Counted allocation by allocation by the training program's memory profiler."
    return [
        *_measured_figures(inputs),
        *_stack(
            *("memory_at_peak", "What the peak of a training step consists of"),
            *(of_runs, axis(*MEBIBYTES), 1 / MIB, counted),
        ),
        *_stack("memory_of_sizes", predicted, of_sizes, share, 1.0, PARTS_NOTE),
    ]


def _agreement(page: Section, inputs: ReportInputs) -> None:
    """Measured peaks against predicted ones."""
    keys = (PEAK_MEMORY, "predicted_memory_MiB")
    every = [
        (case.name, *map(case.counters.get, keys)) for case in inputs.main_result().cases.values()
    ]
    pairs = [pair for pair in every if pair[1] and pair[2]]
    if not pairs:
        return
    names, measured, predicted = zip(*pairs, strict=True)
    texts = [f"{name.component}, {step_text(name)}" for name in names]
    ends = [min(predicted), max(predicted)]
    traces = [
        markers("cases", predicted, measured, colour=MEASURED, text=texts),
        line("as predicted", ends, ends, colour=PREDICTED),
    ]
    x, y = (axis(f"{what} peak", "MiB", log=True) for what in ("predicted", "measured"))
    title = "Measured against predicted peak"
    page.figures.append(Figure("memory_agreement_plot", title, traces, layout(x, y)))
    found: dict[str, list[float]] = {}
    for name, here, there in pairs:
        found.setdefault(name.component, []).append(100 * (here / there - 1))
    rows = [[n, len(p), statistics.median(p), max(p, key=abs)] for n, p in found.items()]
    note = "Measured over predicted peak, less 100 %; the prediction knows no measurement."
    columns = ("component", "cases", "median [%]", "largest [%]")
    page.tables.append(Table("memory_agreement", title, columns, rows, note, is_key=True))


def memory(page: Section, inputs: ReportInputs) -> None:
    page.figures += _parts_figures(inputs)
    if inputs.main is not None:
        page.text.append("Peak bytes alive in tensors, from the allocator that served them.")
        _agreement(page, inputs)
    if not page.figures and not page.tables:
        raise Missing(f"no peak memory was measured; {NO_RESULT}")
