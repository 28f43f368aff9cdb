"""How a step's time and memory grow with batch and sequence: laws, held-out cells, and the parts of
the peak; and what fits into memory.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinyllama_tools.core.app import Json
from tinyllama_tools.core.text import MIB
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.studies import AXES, BY_SEQ, Axis
from tinyllama_tools.report.document import (
    COLOURS,
    GIB,
    KILO,
    SMALL,
    Cell,
    Kind,
    Missing,
    Section,
    Shown,
    axis,
    bars,
    number_text,
    shape_text,
    trace,
)
from tinyllama_tools.report.inputs import ReportInputs, SeriesFit
from tinyllama_tools.report.order import HOLLOW, WHOLE_PASSES, best_of_each, steps, variant_rank
from tinyllama_tools.stats.laws import RANGES, HeldOutCell, Law

# of a law's curve, which is drawn as straight pieces
CURVE_POINTS = 13


def _law_figure(page: Section, fit: SeriesFit) -> None:
    """The series over the sequence, with a curve for each batch; without a law the points alone."""
    name, traces = fit.name, []
    for batch in sorted({point.batch for point in fit.points}):
        points = sorted((p for p in fit.points if p.batch == batch), key=lambda point: point.seq)
        lengths, label = [point.seq for point in points], f"batch {batch}"
        own = {"colour": page.legend[label], "legendgroup": label}
        cases = [fit.cases[batch, seq] for seq in lengths]
        symbols = ["circle-open" if case.disturbance else "circle" for case in cases]
        values = [KILO * point.value for point in points]
        traces.append(trace(label, lengths, values, symbol=symbols, **own))
        if fit.law is not None and len(lengths) > 1:
            curve = [round(seq) for seq in np.geomspace(lengths[0], lengths[-1], CURVE_POINTS)]
            fitted = [KILO * fit.law.at(batch, seq) for seq in curve]
            more = {"mode": "lines", "showlegend": False}
            traces.append(trace(f"law, {label}", curve, fitted, **own, **more))
    note = f"No law: {fit.refused[0].reason}." if fit.law is None else fit.law.formula
    if fit.law is not None and fit.held_out:
        note += ". Bars: the law's range."
        values, *ends = (
            [KILO * getattr(cell, key) for cell in fit.held_out] for key in ("value", "low", "high")
        )
        texts = [
            f"batch {cell.point.batch}: {cell.error_percent:+.1f} % of the measured"
            for cell in fit.held_out
        ]
        where = [cell.point.seq for cell in fit.held_out]
        more = {"text": texts, "ends": ends, "symbol": "x"}
        traces.append(trace("predicted without them", where, values, **more))
    x = axis("sequence [tokens]", log=True, ticks=[point.seq for point in fit.points])
    identity = re.sub(r"\W", "_", f"time_{fit.series}".replace("+", "_plus_"))
    title = f"{name.component}, {name.pass_name}: {name.size}, {name.variant}, {name.dtype}"
    page.figure(identity, title, traces, x, axis("time [ms]", log=True), note, columns=SMALL)


def _shown_fits(fits: Sequence[SeriesFit]) -> list[SeriesFit]:
    """One for each component and size: of the pass that a step consists of, `optimized` and f32
    where there is a choice."""
    return best_of_each(
        (f for f in fits if f.name.pass_name in WHOLE_PASSES and len(f.points) > 1),
        lambda fit: (fit.name.component, fit.name.size),
        lambda fit: (fit.law is None, variant_rank(fit.name)),
    )


def _law_row(fit: SeriesFit, law: Law) -> Mapping[str, Any]:
    """A law with its errors at the cells that were held out."""
    errors = [cell.error_percent for cell in fit.held_out]
    units = ("launch", 1e6), ("per token", 1e9), ("per token and token", 1e12)
    terms = {}
    for (name, scale), term in zip(units, law.coefficients, strict=True):
        value, low, high = (number_text(scale * end) for end in (term.value, term.low, term.high))
        terms[name] = Shown(scale * term.value, f"{value} ({low} to {high})")
    return {
        **terms,
        "name": fit.name,
        "cells": len(law.points),
        "largest residual": 100 * float(abs(law.residuals).max()),
        "held out": len(errors),
        "covered": sum(cell.is_covered for cell in fit.held_out),
        "median error": statistics.median(map(abs, errors)) if errors else None,
        "largest error": max(errors, key=abs, default=None),
    }


def _held_out_row(size: str, cells: Sequence[HeldOutCell]) -> Mapping[str, Cell]:
    """`cells`: of all series of a problem size."""
    errors = [abs(cell.error_percent) for cell in cells]
    return {
        "size": size,
        "held-out cells": len(cells),
        "median error": statistics.median(errors),
        "largest error": max(errors),
        "covered": 100.0 * sum(cell.is_covered for cell in cells) / len(cells),
        "median width": statistics.median(cell.width_percent for cell in cells),
    }


def scaling(page: Section, inputs: ReportInputs) -> None:
    inputs.main_result()
    fits = inputs.time_fits
    page.omissions += [omission for fit in fits for omission in fit.refused]
    with_law = sum(fit.law is not None for fit in fits)
    if not with_law:
        why = fits[0].refused[0].reason if fits else "no case was measured"
        raise Missing(f"no law of time: {why}; make a grid: {Kind.STUDY.command}")
    page.text += [
        "At one model size, time = launch + a B S + b B S², with batch B and sequence S. A law "
        "holds for the grid that it was fitted to; other model sizes are under Predictions.",
        f"{with_law} of {len(fits)} series have a law"
        f"{'' if with_law == len(fits) else '; Left out says why the others have none'}. Crosses: "
        f"the largest cells, predicted by a law of the others. {HOLLOW}",
    ]
    shown = _shown_fits(fits)
    batches = sorted({point.batch for fit in shown for point in fit.points})
    colours = (COLOURS[number % len(COLOURS)] for number in range(len(batches)))
    page.legend |= {f"batch {n}": colour for n, colour in zip(batches, colours, strict=True)}
    for fit in shown:
        _law_figure(page, fit)
    by_size = [_held_out_row(size, cells) for size, cells in inputs.held_out.items()]
    page.table("held_out_time", by_size, ranges=RANGES)
    laws = [_law_row(fit, fit.law) for fit in fits if fit.law is not None]
    page.table("time_laws", laws, ranges=RANGES)


# types of parameters and moments that are not float32, which amp_* keeps
NARROW = ("bf16", "f16")
PARTS_NOTE = (
    "Weights and AdamW's two moments are alive throughout. How many gradients are alive at the "
    "peak was not measured here: the memory profile of a training run shows it."
)


def memory_parts(name: CaseName, parameters: float, peak: float) -> Mapping[str, float]:
    """Bytes of each part; together they are the peak. Empty where the peak is not known, or less
    than what is alive throughout: then something is wrong."""
    weights = parameters * (2 if name.dtype in NARROW else 4)
    rest = peak - 3 * weights
    parts = {"weights": weights, "AdamW moments": 2 * weights}
    return {**parts, "gradients, activations, scratch": rest} if weights and rest >= 0 else {}


def memory(page: Section, inputs: ReportInputs) -> None:
    """The parts of a step's peak at every batch and sequence, for each size in its first variant;
    and measured against predicted peaks."""
    every = steps(main := inputs.main_result())
    for first in best_of_each(every, lambda c: c.name.size, lambda c: variant_rank(c.name)):
        alike = (first.name.size, first.name.variant, first.name.dtype)
        stacks: dict[str, dict[str, float]] = {}
        for case in every:
            if (case.name.size, case.name.variant, case.name.dtype) == alike:
                parameters = case.counters.get("parameters", 0.0)
                peak = MIB * case.counters.get("peak_memory_MiB", 0.0)
                for part, size in memory_parts(case.name, parameters, peak).items():
                    stacks.setdefault(part, {})[shape_text(case.name)] = size / MIB
        title = f"Peak of a step by part, batch x sequence: {', '.join(alike)}"
        x, y = axis("batch x sequence", type="category"), axis("memory [MiB]")
        identity = f"memory_parts_{first.name.size}"
        page.figure(identity, title, bars(stacks), x, y, barmode="stack")
    keys = ("peak_memory_MiB", "predicted_memory_MiB")
    pairs = [(case.name, *map(case.counters.get, keys)) for case in main.cases.values()]
    pairs = [pair for pair in pairs if pair[1] and pair[2]]
    if not pairs:
        raise Missing(f"no case of {main.title} has a measured and a predicted peak of memory")
    page.text.append(
        f"Peak bytes alive in tensors, from the allocator that served them. {PARTS_NOTE}"
    )
    found: dict[str, list[float]] = {}
    for name, measured, predicted in pairs:
        found.setdefault(name.component, []).append(100 * (measured / predicted - 1))
    rows = [
        {
            "component": name,
            "cases": len(percents),
            "median": statistics.median(percents),
            "largest": max(percents, key=abs),
        }
        for name, percents in found.items()
    ]
    page.table("memory_agreement", rows)


def _frontier(page: Section, file: Json, over: Axis) -> None:
    """Largest batches over sequences, or longest sequences over batches: a table, and a figure for
    each dtype, without models that do not fit at all: 0 has no place on a logarithmic axis."""
    given = "sequence" if over is BY_SEQ else "batch"
    commit = f"commit {file['git_commit'][:8]}" if file.get("git_commit") else ""
    made = filter(None, (file.get("device"), commit, file.get("date", "")[:10]))
    points = [
        point | {"remark": "" if point[over.largest_key] else "not even 1 fits"}
        for point in file[over.key]
    ]
    limit, overhead = f"{file['limit_bytes'] / GIB:.4g} GiB", file["overhead"]["source"]
    about = {"limit": limit, "limit_source": file["limit_source"], "overhead": overhead}
    table = page.table(f"frontier_{over.given}", points, **about, made=", ".join(made))
    rows = table.records
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        lines: dict[str, list[Mapping[str, Cell]]] = {}
        for row in rows:
            if row["dtype"] == dtype and row[over.title]:
                lines.setdefault(f"{row['size']}, {row['variant']}", []).append(row)
        traces = []
        for name, points in lines.items():
            xs, ys = ([row[key] for row in points] for key in (given, over.title))
            traces.append(trace(name, xs, ys, mode="lines+markers"))
        x = axis(given, log=True, ticks=[row[given] for row in rows])
        y = axis(over.title, log=True)
        names = (f"{table.id}_{dtype}", f"{table.title}, {dtype}")
        page.figure(*names, traces, x, y)


def frontier(page: Section, inputs: ReportInputs) -> None:
    file = inputs.study.frontier if inputs.study else None
    if file is None:
        raise Missing(f"no frontier was given; {Kind.STUDY.command} writes one with its grid")
    for over in AXES.values():
        if file.get(over.key):
            _frontier(page, file, over)
