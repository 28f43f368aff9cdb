"""How time and memory grow with batch and sequence: laws, held-out cells, and what the memory of a
step consists of."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tinyllama_tools.data.names import STEP, CaseName
from tinyllama_tools.report.analysis import (
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
    nth,
    shape_text,
    spaced,
    step_text,
)

if TYPE_CHECKING:
    from tinyllama_tools.core.app import Json
    from tinyllama_tools.report.inputs import ReportInputs


class Quantity(NamedTuple):
    """What is drawn upwards: `scale` units a second or byte. `terms`: of each term that such a law
    may have its title, its unit, and how many a second or byte is. `goal`: percent, of the median
    error of held-out cells."""

    id: str
    title: str
    unit: str
    scale: float
    terms: Mapping[str, tuple[str, str, float]]
    goal: float
    most_figures: int


TIME = Quantity(
    *("time", "time", "ms", 1e3),
    {
        "launch": ("launch", "us", 1e6),
        "linear": ("per token", "ns", 1e9),
        "quadratic": ("per token and token", "ps", 1e12),
    },
    *(15.0, 24),
)
MEMORY = Quantity(
    *("memory", "peak memory", "MiB", 1 / MIB),
    {
        "base": ("base", "MiB", 1 / MIB),
        "batch": ("per sample", "KiB", 1 / 1024),
        "linear": ("per token", "bytes", 1.0),
        "quadratic": ("per token and token", "bytes", 1.0),
        "table": ("per position", "bytes", 1.0),
        "mask": ("per position and position", "bytes", 1.0),
    },
    *(5.0, 4),
)
# of a curve between two measured lengths or more; straight pieces on logarithmic axes
CURVE_POINTS = 13
# of a percentage; what is less is rounding of the computation
DECIMALS = 6


def _of_batch(fit: SeriesFit, number: int, batch: int, by: Quantity) -> list[Json]:
    points = sorted((p for p in fit.points if p.batch == batch), key=lambda point: point.seq)
    lengths, values = [p.seq for p in points], [by.scale * p.value for p in points]
    name, colour = f"batch {batch}", nth(COLOURS, number)
    own = {"symbol": nth(SYMBOLS, number), "legendgroup": name}
    traces = [markers(name, lengths, values, colour=colour, **own)]
    if fit.law is not None and len(lengths) > 1:
        curve = [round(seq) for seq in spaced(lengths[0], lengths[-1], CURVE_POINTS)]
        fitted = [by.scale * fit.law.at(batch, seq) for seq in curve]
        own = {"dash": nth(DASHES, number), "legendgroup": name, "showlegend": False}
        traces.append(line(f"law, batch {batch}", curve, fitted, colour=colour, **own))
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
        traces.append(markers("predicted without them", where, values, colour=HELD_OUT, **more))
    note = f"No law: {fit.refusal}."
    if fit.law is not None:
        held = f". Bars: {fit.law.range_kind.short}." if fit.held_out else ""
        note = f"{fit.law.formula}{held}"
    lengths = [point.seq for point in fit.points]
    sequence = axis("sequence", "tokens", log=True, ticks=lengths)
    identity = re.sub(r"\W", "_", f"{by.id}_{fit.series}".replace("+", "_plus_"))
    title = f"{of.component}, {of.pass_name}: {of.size}, {of.variant}, {of.dtype}"
    axes = layout(sequence, axis(by.title, by.unit, log=True))
    return Figure(identity, title, traces, axes, note)


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


def law_table(title: str, fits: Sequence[SeriesFit], by: Quantity) -> Table:
    """Every law with how far off it was at the cells that were held out."""
    rows: list[list[Cell]] = []
    for fit in fits:
        if fit.law is None:
            continue
        known = {of.term.name: of for of in fit.law.coefficients}
        row: list[Cell] = [fit.series, len(fit.law.points), len(fit.law.below)]
        for name, (_, _, scale) in by.terms.items():
            ends = known[name][1:] if name in known else (None,) * 3
            row += [None if value is None else scale * value for value in ends]
        row.append(round(max(map(abs, fit.law.residuals_percent), default=0.0), DECIMALS))
        errors = [round(held.error_percent, DECIMALS) for held in fit.held_out]
        middle = statistics.median(map(abs, errors)) if errors else None
        covered = sum(held.is_covered for held in fit.held_out)
        rows.append([*row, len(errors), covered, middle, max(errors, key=abs, default=None)])
    of_terms = (
        f"{what} [{unit}]" for name, unit, _ in by.terms.values() for what in (name, "from", "to")
    )
    columns = (
        *("series", "sizes", "left out", *of_terms, "largest residual [%]", "held out", "covered"),
        *("median error [%]", "largest error [%]"),
    )
    note = (
        f"{range_kind(fits).meaning} A term whose range reaches 0 may not be there. {LEFT_OUT} "
        "A term without a figure is one that the sizes do not tell from the others."
    )
    return Table(f"{by.id}_laws", title, columns, rows, note)


LEFT_OUT = "Left out: the smallest sizes, where they have their peak at another moment."
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


def held_out_table(fits: Sequence[SeriesFit], by: Quantity) -> Table:
    """By problem size over all its series."""
    rows: list[list[Cell]] = []
    for size, cells in held_out_by_size(fits).items():
        errors = [round(abs(held.error_percent), DECIMALS) for held in cells]
        covered = 100.0 * sum(held.is_covered for held in cells) / len(cells)
        middle = statistics.median(errors)
        width = statistics.median(held.width_percent for held in cells)
        verdict = f"{'within' if middle <= by.goal else 'above'} {by.goal:g} %"
        rows.append([size, len(cells), middle, verdict, max(errors), covered, width])
    columns = (
        *("size", "held-out cells", "median error [%]", "which is", "largest error [%]"),
        *("covered [%]", "median width [%]"),
    )
    kind = range_kind(fits)
    note = (
        "Cells of half the largest batch x sequence and more were left out of the fit and "
        "predicted from the others: they are of the same rounds. Covered: how many lie in the "
        f"law's range ({kind.short}), whose median width is given in percent. {kind.meaning}"
    )
    title = "Held-out cells by size"
    return Table(f"held_out_{by.id}", title, columns, rows, note, is_key=True)


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
        "laws describe the grid that they were fitted to; other model sizes are under Predictions.",
        f"{with_law} of {len(fits)} series of cases support a law.",
    ]
    _draw(page, shown_fits(fits), TIME)
    laws = law_table("Laws of time", fits, TIME)
    page.tables += [held_out_table(fits, TIME), laws, exponent_table(fits)]


# amp_* keeps parameters and moments in float32
NARROW = ("bf16", "f16")
PARTS_NOTE = (
    "Weights and AdamW's two moments are alive throughout. How many gradients there are at the peak"
    " does not follow from any count: a training run's memory profile has them."
)
WEIGHTS, MOMENTS = "weights", "AdamW moments"
REST = "gradients, activations, scratch"
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
        laws = law_table("Laws of peak memory", fits, MEMORY)
        page.tables += [table for table in (held_out_table(fits, MEMORY), laws) if table.rows]
        _agreement(page, inputs)
    if not page.figures and not page.tables:
        raise Missing(f"no peak memory was measured; {NO_RESULT}")
