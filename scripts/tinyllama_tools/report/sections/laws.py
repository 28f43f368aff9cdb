"""How time and memory grow with batch and sequence: laws, held-out cells, and what the memory of a
step consists of.

Weights and AdamW's two moments are alive throughout. A step's peak is in its backward pass or in
its update. In the update all gradients are alive and no activation is, so that every part is known.
In the backward pass gradients are made while activations go, and how many there are at the peak
does not follow from any count: then they are one part with the activations. A training run's memory
profile counts them, allocation by allocation.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.data.names import BASELINE, STEP, CaseName
from tinyllama_tools.report.analysis import (
    F32,
    MIB,
    PEAK_MEMORY,
    WHOLE_PASSES,
    SeriesFit,
    best_of_each,
    held_out_by_size,
    is_own_shape,
    main_step,
    range_kind,
    refused,
    size_rank,
    sizes_by_name,
    steps,
    variant_rank,
)
from tinyllama_tools.report.document import (
    DASHES,
    FIT,
    HELD_OUT,
    MEASURED,
    NO_RESULT,
    PREDICTED,
    SYMBOLS,
    Cell,
    Figure,
    Kind,
    Missing,
    Omission,
    Section,
    Table,
    axis,
    bars,
    bytes_text,
    error_bars,
    layout,
    line,
    markers,
    shape_text,
    spaced,
    step_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.report.inputs import ReportInputs


class Quantity(NamedTuple):
    """What is drawn upwards: `scale` units a second or byte. `terms`: of each term of the law its
    title, its unit, and how many a second or byte is. `goal`: percent, of the median error of
    held-out cells."""

    id: str
    title: str
    unit: str
    scale: float
    terms: Sequence[tuple[str, str, float]]
    goal: float
    most_figures: int


TIME = Quantity(
    *("time", "time", "ms", 1e3),
    (("launch", "us", 1e6), ("per token", "ns", 1e9), ("per token and token", "ps", 1e12)),
    *(15.0, 24),
)
MEMORY = Quantity(
    *("memory", "peak memory", "MiB", 1 / MIB),
    (
        *(("base", "MiB", 1 / MIB), ("per sample", "KiB", 1 / 1024), ("per token", "bytes", 1.0)),
        *(("per token and token", "bytes", 1.0), ("per position", "bytes", 1.0)),
        ("per position and position", "bytes", 1.0),
    ),
    *(5.0, 4),
)
# of a curve between two measured lengths or more; straight pieces on logarithmic axes
CURVE_POINTS = 13
# of a percentage; what is less is rounding of the computation
DECIMALS = 6


def _of_batch(fit: SeriesFit, number: int, batch: int, by: Quantity) -> list[Json]:
    points = sorted((p for p in fit.points if p.batch == batch), key=lambda point: point.seq)
    lengths, values = [p.seq for p in points], [by.scale * p.value for p in points]
    symbol, dash = SYMBOLS[number % len(SYMBOLS)], DASHES[number % len(DASHES)]
    name = f"batch {batch}"
    traces = [markers(name, lengths, values, role=MEASURED, symbol=symbol, legendgroup=name)]
    if fit.law is not None and len(lengths) > 1:
        curve = [round(seq) for seq in spaced(lengths[0], lengths[-1], CURVE_POINTS)]
        fitted = [by.scale * fit.law.at(batch, seq) for seq in curve]
        own = {"legendgroup": name, "showlegend": False}
        traces.append(line(f"law, batch {batch}", curve, fitted, role=FIT, dash=dash, **own))
    return traces


def law_figure(fit: SeriesFit, by: Quantity) -> Figure:
    """The series over the sequence, a curve a batch; without a law the points alone."""
    of = fit.name
    batches = sorted({point.batch for point in fit.points})
    traces = [t for number, batch in enumerate(batches) for t in _of_batch(fit, number, batch, by)]
    if fit.held_out:
        values, lows, highs = (
            [by.scale * getattr(one, key) for one in fit.held_out]
            for key in ("value", "low", "high")
        )
        where = [one.point.seq for one in fit.held_out]
        texts = [
            f"batch {one.point.batch}: {one.error_percent:+.1f} % of the measured"
            for one in fit.held_out
        ]
        more = {"text": texts, "error_y": error_bars(values, lows, highs), "symbol": "x"}
        traces.append(markers("predicted without them", where, values, role=HELD_OUT, **more))
    note = f"No law: {fit.refusal}."
    if fit.law is not None:
        held = f". Bars: {fit.law.range_kind.short}." if fit.held_out else ""
        note = f"{fit.law.formula}{held}"
    lengths = [point.seq for point in fit.points]
    sequence = axis("sequence", "tokens", log=True, ticks=lengths)
    identity = re.sub(r"\W", "_", f"{by.id}_{fit.series}".replace("+", "_plus_"))
    title = f"{of.component}, {of.pass_name}: {of.size}, {of.variant}, {of.dtype}"
    return Figure(
        identity, title, traces, layout(sequence, axis(by.title, by.unit, log=True)), note
    )


def shown_fits(fits: Sequence[SeriesFit]) -> list[SeriesFit]:
    """One a component and size: the passes that a step consists of, `optimized`, f32."""
    return best_of_each(
        (f for f in fits if f.name.pass_name in WHOLE_PASSES and len(f.points) > 1),
        lambda fit: (fit.name.component, fit.name.size),
        lambda fit: (fit.law is None, variant_rank(fit.name)),
    )


def _draw(page: Section, fits: Sequence[SeriesFit], by: Quantity) -> None:
    """The first of them; and the others by name."""
    page.figures += [law_figure(fit, by) for fit in fits[: by.most_figures]]
    reason = f"the page draws {by.most_figures} laws at most; the tables have them all"
    kind = f"figure of {by.title}"
    page.omissions += [Omission(kind, fit.series, reason) for fit in fits[by.most_figures :]]


UNSUPPORTED = (
    "A term without a figure is one that the data does not support; the last column says why."
)


def coefficient_table(title: str, fits: Sequence[SeriesFit], by: Quantity) -> Table:
    """The remarks are what the law leaves out: terms with their reasons, and sizes."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        row: list[Cell] = [fit.series, len(fit.law.points)]
        for term, (_, _, scale) in zip(fit.law.coefficients, by.terms, strict=True):
            values = (term.value, term.low, term.high)
            row += [scale * value for value in values] if term.supported else [None] * 3
        worst = round(max(map(abs, fit.law.residuals_percent), default=0.0), DECIMALS)
        remarks = [f"{c.name}: {c.reason}" for c in fit.law.coefficients if not c.supported]
        if fit.law.below:
            remarks.append(f"{len(fit.law.below)} smaller sizes have their peak at another moment")
        rows.append([*row, worst, "; ".join(remarks)])
    of_terms = (f"{what} [{unit}]" for name, unit, _ in by.terms for what in (name, "from", "to"))
    columns = ("series", "sizes", *of_terms, "largest residual [%]", "remarks")
    note = f"{range_kind(fits).meaning} {UNSUPPORTED}"
    return Table(f"{by.id}_laws", title, columns, rows, note)


POWER_LAW = (
    "By regression of logarithms: value ~ batch^b sequence^s, on average over the grid. The 95 % "
    "intervals hold only as far as the series is a power law: where launches, caches or attention "
    "change how it grows, the largest sizes have other exponents, and the law above says more."
)


def exponent_table(fits: Sequence[SeriesFit]) -> Table:
    """Of every series whose sizes decide both."""
    rows = [
        [fit.series, len(fit.points), *of.batch, *of.seq, of.r_squared]
        for fit in fits
        if (of := fit.exponents) is not None
    ]
    columns = ("series", "sizes", "batch ^", "from", "to", "sequence ^", "from", "to", "R²")
    return Table("time_exponents", "Exponents of time", columns, rows, POWER_LAW)


def _held_note(fits: Sequence[SeriesFit]) -> str:
    kind = range_kind(fits)
    return (
        "Cells of half the largest batch x sequence and more were left out of the fit and "
        "predicted from the others: they are of the same rounds. Covered: how many lie in the "
        f"law's range ({kind.short}), whose median width is given in percent. {kind.meaning}"
    )


def held_out_tables(fits: Sequence[SeriesFit], by: Quantity) -> list[Table]:
    """By problem size over all its series, and by series."""
    note = _held_note(fits)
    of_sizes: list[list[Cell]] = []
    for size, cells in held_out_by_size(fits).items():
        errors = [round(abs(held.error_percent), DECIMALS) for held in cells]
        covered = 100.0 * sum(held.is_covered for held in cells) / len(cells)
        middle = statistics.median(errors)
        width = statistics.median(held.width_percent for held in cells)
        verdict = f"{'within' if middle <= by.goal else 'above'} {by.goal:g} %"
        of_sizes.append([size, len(cells), middle, verdict, max(errors), covered, width])
    of_series: list[list[Cell]] = []
    for fit in fits:
        if fit.held_out:
            errors = [round(held.error_percent, DECIMALS) for held in fit.held_out]
            figures = statistics.median(map(abs, errors)), max(errors, key=abs)
            width = statistics.median(held.width_percent for held in fit.held_out)
            covered = sum(held.is_covered for held in fit.held_out)
            of_series.append([fit.series, len(errors), covered, *figures, width])
    common = ("largest error [%]", "median width [%]")
    size_columns = ("size", "held-out cells", "median error [%]", "which is", common[0])
    columns = ("series", "held out", "covered", "median error [%]", *common)
    identity, title = f"held_out_{by.id}", "Held-out cells by size"
    return [
        Table(
            *(identity, title, (*size_columns, "covered [%]", common[1]), of_sizes, note),
            is_key=True,
        ),
        Table(f"{identity}_series", "Held-out cells by series", columns, of_series, note),
    ]


def scaling(page: Section, inputs: ReportInputs) -> None:
    inputs.main_result()
    fits = inputs.time_fits
    page.omissions += refused(fits, "time")
    with_law = sum(fit.law is not None for fit in fits)
    if not with_law:
        reason = f"no series of cases supports a law: {fits[0].refusal}" if fits else "no case"
        raise Missing(f"{reason}; make a grid: {Kind.STUDY.command}")
    page.text += [
        "At one model size, time = launch + a B S + b B S²: B is the batch, S the sequence. The "
        "laws describe the grid that they were fitted to; other model sizes are under Predictions. "
        "A term that a series' FLOPs and bytes do not have is not fitted.",
        f"{with_law} of {len(fits)} series of cases support a law.",
    ]
    _draw(page, shown_fits(fits), TIME)
    of_sizes, of_series = held_out_tables(fits, TIME)
    laws = coefficient_table("Laws of time", fits, TIME)
    page.tables += [of_sizes, laws, exponent_table(fits), of_series]


# amp_* keeps parameters and moments in float32
NARROW = ("bf16", "f16")
TOKEN_BYTES = 8
# of the allocator's rounding, and less than anything that has a part of its own
SLACK = 0.001
PARTS_NOTE = (
    "Weights and AdamW's two moments are alive throughout. Where the update is the peak, all "
    "gradients are; where the backward pass is, the gradients made by then are one part with the "
    "activations."
)
WEIGHTS, MOMENTS, GRADIENTS = "weights", "AdamW moments", "gradients"
SCRATCH = "inputs and scratch of the update"
REST = "activations, gradients made by then, scratch"
Parts = Mapping[str, float]


def _update_scratch(name: CaseName, element: int) -> float | None:
    """Bytes beside weights, moments and gradients in the baseline's update: the denominators of
    its largest weight, and the step's inputs: tokens and targets, rotary tables and the mask. None
    where the update may be another one, or the size has no name."""
    of = sizes_by_name().get(name.size)
    if of is None or name.variant != BASELINE or name.dtype != F32:
        return None
    hidden, heads = of["hidden_dim"], of["n_heads"]
    largest = hidden * max(of["vocab_size"], of["intermediate_dim"], hidden)
    tables = 2 * name.seq * (hidden // heads)
    mask = heads // of["n_kv_heads"] * name.seq**2
    return element * (largest + tables + mask) + 2 * TOKEN_BYTES * name.batch * name.seq


def memory_parts(name: CaseName, parameters: float, peak: float) -> Parts:
    """Bytes of each part; together they are the peak. Empty where the peak is not known, or less
    than what is alive throughout: then something is wrong."""
    element = 2 if name.dtype in NARROW else 4
    weights = parameters * element
    rest = peak - 3 * weights
    if parameters <= 0 or rest < 0:
        return {}
    found = {WEIGHTS: weights, MOMENTS: 2 * weights}
    scratch = _update_scratch(name, element)
    if scratch is not None and 0 <= rest - weights <= scratch + SLACK * peak:
        return found | {GRADIENTS: weights, SCRATCH: rest - weights}
    return found | {REST: rest}


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


def _parts_figures(inputs: ReportInputs) -> list[Figure]:
    """Of the main step's series at every batch and sequence; of training steps, allocation by
    allocation, where the memory profiler ran; and predicted, of every size at its own shape, in
    shares since sizes differ by decades."""
    of_series: dict[str, Parts] = {}
    main = main_step(inputs.main) if inputs.main is not None else None
    title = "Peak of a step by part, batch x sequence"
    if inputs.main is not None and main is not None:
        of = main.name
        title = f"{title}: {of.size}, {of.variant}, {of.dtype}"
        for case in steps(inputs.main):
            if (case.name.variant, case.name.size, case.name.dtype) == (
                *(of.variant, of.size, of.dtype),
            ):
                peak = MIB * case.counters.get(PEAK_MEMORY, 0.0)
                parameters = case.counters.get("parameters", 0.0)
                of_series[shape_text(case.name)] = memory_parts(case.name, parameters, peak)
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
    mebibytes, share = axis("memory", "MiB"), axis("share of the peak", "%")
    predicted = "Predicted peak of a step by part, at each size's own batch and sequence"
    counted = "Counted allocation by allocation by the training program's memory profiler."
    return [
        *_stack("memory_parts", title, of_series, mebibytes, 1 / MIB, PARTS_NOTE),
        *_stack(
            *("memory_at_peak", "What the peak of a training step consists of"),
            *(of_runs, mebibytes, 1 / MIB, counted),
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
    texts = [f"{name.component}, {step_text(name)}" for name in names] if len(pairs) <= 500 else []
    ends = [min(predicted), max(predicted)]
    traces = [
        markers("cases", predicted, measured, role=MEASURED, text=texts),
        line("as predicted", ends, ends, role=PREDICTED),
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
    page.tables.append(Table("memory_agreement", title, columns, rows, note))


def memory(page: Section, inputs: ReportInputs) -> None:
    page.figures += _parts_figures(inputs)
    fits = inputs.memory_fits
    page.omissions += refused(fits, "memory")
    if inputs.main is not None:
        page.text.append(
            "Peak bytes alive in tensors, from the allocator that served them. At one model size, "
            "memory = base + c B + d B S + e B S² + f S + g S²: B is the batch, S the sequence; f "
            "and g are what all samples share, tables and the causal mask. The law is of the "
            "moment that is the peak at the large sizes."
        )
        _draw(page, [fit for fit in shown_fits(fits) if fit.name.component == STEP], MEMORY)
        laws = coefficient_table("Laws of peak memory", fits, MEMORY)
        page.tables += [table for table in (held_out_tables(fits, MEMORY)[0], laws) if table.rows]
        _agreement(page, inputs)
    if not page.figures and not page.tables:
        raise Missing(f"no peak memory was measured; {NO_RESULT}")
