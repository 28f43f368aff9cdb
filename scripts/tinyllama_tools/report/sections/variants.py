"""Variants side by side: at each size, dtype, batch and sequence the time of every variant and its
speed-up over the baseline, as tables and over the axes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import Json, shown_path
from tinyllama_tools.data.names import BASELINE, CaseName
from tinyllama_tools.report.cases import CaseFigures, figures_of
from tinyllama_tools.report.document import (
    FULL,
    KILO,
    SMALL,
    Cell,
    Missing,
    Section,
    Shown,
    Table,
    axis,
    number_text,
    trace,
)
from tinyllama_tools.report.order import (
    WHOLE_PASSES,
    best_of_each,
    main_step,
    symbol_of,
    variant_colours,
    variant_rank,
)
from tinyllama_tools.stats.rank_tests import Interval

if TYPE_CHECKING:
    from tinyllama_tools.data.results import ResultSet
    from tinyllama_tools.report.inputs import ReportInputs

# of the same component, pass, size, dtype, batch and sequence, by variant
Row = Mapping[str, CaseFigures]


def _rows(figures: Iterable[CaseFigures]) -> list[Row]:
    """Those of several variants, in the order of tables."""
    found: dict[object, dict[str, CaseFigures]] = {}
    for of in figures:
        found.setdefault(replace(of.name, variant=""), {})[of.name.variant] = of
    return [row for row in found.values() if len(row) > 1]


def _groups(rows: Iterable[Row], *axes: str) -> list[list[Row]]:
    """Rows that are alike in these axes of their names."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        name = next(iter(row.values())).name
        found.setdefault(tuple(getattr(name, of) for of in axes), []).append(row)
    return list(found.values())


# ---- tables


def marks_of(row: Row) -> Mapping[str, str]:
    """By variant: a full star is the fastest; hollow ones are the fastest and those that are not
    shown to be slower, or the fastest alone where an interval is not known."""
    best, *others = sorted(row.values(), key=lambda of: of.seconds)
    unsure = [of for of in others if not of.over(best).shows_difference]
    alike = [of for of in unsure if of.ends and best.ends]
    return {of.name.variant: "☆" if unsure else "★" for of in (best, *alike)}


def _cell(of: CaseFigures | None, mark: str) -> Cell:
    if of is None:
        return None
    milliseconds = KILO * of.seconds
    speedup = f"\n{of.speedup.marked_text()}" if of.speedup else ""
    return Shown(milliseconds, f"{number_text(milliseconds)} {mark}".rstrip() + speedup)


# side by side at 1,300 pixels, where long names wrap
MOST_VARIANTS = 6
AXES = ("size", "dtype", "batch", "seq")
NOTE = (
    "Time, and below it the speed-up over the baseline with its 95 % interval; ~: no difference "
    "shown. ★: the fastest; ☆: the fastest and those that are not shown to be slower."
)


def _tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Of one component and pass; an axis in which no row differs stands in the title."""
    names = [next(iter(row.values())).name for row in rows]
    values = {of: [getattr(name, of) for name in names] for of in AXES}
    axes = [of for of, every in values.items() if len({*every}) > 1]
    fixed = [of for of in AXES if of not in axes]
    same = [f"{values[of][0]}" if of in AXES[:2] else f"{of} {values[of][0]}" for of in fixed]
    title = ": ".join(
        filter(None, (f"{names[0].component}, {names[0].pass_name}", ", ".join(same)))
    )
    every = list(dict.fromkeys(name for row in rows for name in row))
    for start in range(0, len(every), MOST_VARIANTS):
        records = []
        for name, row in zip(names, rows, strict=True):
            marks, best = marks_of(row), min(row.values(), key=lambda of: of.seconds)
            record: dict[str, Cell] = {of: getattr(name, of) for of in axes}
            for variant in every[start : start + MOST_VARIANTS]:
                record[f"{variant} [ms]"] = _cell(row.get(variant), marks.get(variant, ""))
            record["fastest [tokens/s]"] = best.case.counters.get("tokens_per_second")
            records.append(record)
        identity = f"variants_{names[0].component}_{names[0].pass_name}_{start}"
        further = ", further variants" if start else ""
        yield Table(identity, title + further, records, is_key=True)


# ---- figures


def _ends(points: Iterable[tuple[Interval | None, float]]) -> tuple[list[float], list[float]]:
    """Of error bars; the value itself where there is no interval."""
    ends = [(of.low, of.high) if of else (value, value) for of, value in points]
    return [low for low, _ in ends], [high for _, high in ends]


def _lines(
    rows: Sequence[Row], axis_of: str, colours: Mapping[str, str], *, is_speedup: bool
) -> Iterator[Json]:
    """A line a variant, with error bars."""
    for variant in dict.fromkeys(name for row in rows for name in row):
        own = [row[variant] for row in rows if variant in row]
        if is_speedup:
            own = [of for of in own if of.speedup]
        values = [of.speedup.median if is_speedup else KILO * of.seconds for of in own]
        bars = [of.speedup.interval if is_speedup else of.interval_ms for of in own]
        if own:
            more = {"mode": "lines+markers", "colour": colours[variant]}
            more |= {"symbol": symbol_of(own[0].name.component)}
            more |= {"ends": _ends(zip(bars, values, strict=True))}
            yield trace(variant, [getattr(of.name, axis_of) for of in own], values, **more)


def _figures(page: Section, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    """Of one component, pass, size and dtype: over the sequence at the batch that has most of them;
    over the batch where no batch has two."""
    names = [next(iter(row.values())).name for row in rows]
    given, of_axis, unit = "batch", "seq", "sequence [tokens]"
    if max(Counter(name.batch for name in names).values()) < 2:
        given, of_axis, unit = "seq", "batch", "batch"
    count, fixed = max((n, of) for of, n in Counter(getattr(n, given) for n in names).items())
    if count < 2:
        return
    first = names[0]
    shown = [row for name, row in zip(names, rows, strict=True) if getattr(name, given) == fixed]
    x = axis(unit, log=True, ticks=[getattr(name, of_axis) for name in names])
    what = f"{first.component}: {first.size}, {first.dtype}, {given} {fixed}"
    identity = re.sub(r"\W", "_", f"{first.component}_{first.pass_name}_{first.size}_{first.dtype}")
    for kind, y in (
        ("time", axis("time [ms]", log=True)),
        ("speed-up", axis("speed-up over the baseline")),
    ):
        traces = list(_lines(shown, of_axis, colours, is_speedup=kind == "speed-up"))
        page.figure(f"variants_{kind}_{identity}", f"{what}: {kind}", traces, x, y, columns=SMALL)


def _label(name: CaseName) -> str:
    is_whole = name.pass_name in WHOLE_PASSES
    return name.component if is_whole else f"{name.component}, {name.pass_name}"


def _overview(
    page: Section, rows: Sequence[Row], results: ResultSet, colours: Mapping[str, str]
) -> None:
    """Speed-ups of every component at the main step's size, dtype and shape."""
    step = main_step(results)
    wanted = [getattr(step.name, of) for of in AXES] if step else []
    found: dict[str, dict[str, CaseFigures]] = {}
    for variant, of in ((variant, of) for row in rows for variant, of in row.items()):
        if of.speedup and [getattr(of.name, axis) for axis in AXES] == wanted:
            found.setdefault(variant, {})[_label(of.name)] = of
    if not found:
        return
    labels = list(dict.fromkeys(label for own in found.values() for label in own))
    traces = [trace("baseline", labels, [1] * len(labels), mode="lines", colour=colours[BASELINE])]
    for variant, own in found.items():
        speedups = [of.speedup for of in own.values()]
        symbols = [symbol_of(of.name.component) for of in own.values()]
        ends = _ends((of.interval, of.median) for of in speedups)
        more = {"colour": colours[variant], "symbol": symbols, "ends": ends}
        traces.append(trace(variant, own, [of.median for of in speedups], **more))
    size, dtype, batch, seq = wanted
    title = f"Speed-up over the baseline at {size}, {dtype}, {batch} x {seq}"
    x, y = axis("", type="category"), axis("speed-up", log=True)
    page.figure(
        "speedups_plot",
        title,
        traces,
        x,
        y,
        "Bars: 95 % intervals.",
        columns=FULL,
        has_legend=False,
    )


def variants(page: Section, inputs: ReportInputs) -> None:
    """Where at least two variants were measured at one point."""
    results = inputs.main_result()
    if inputs.compared.cases:
        results = inputs.compared
        page.text.append(f"Of another run: {shown_path(results.paths[0])}, {results.title}.")
    rows = _rows(figures_of(results))
    if not rows:
        what = f"{inputs.main.title} has no two variants at one size, dtype, batch and sequence"
        raise Missing(f"{what}; measure some: scripts/bench --variants baseline,optimized")
    page.legend |= (colours := variant_colours(results))
    _overview(page, rows, results, colours)
    whole = (row for row in rows if next(iter(row.values())).name.pass_name in WHOLE_PASSES)
    series = _groups(whole, "component", "pass_name", "size", "dtype")

    def first(of: Sequence[Row]) -> CaseFigures:
        return next(iter(of[0].values()))

    for of in best_of_each(
        series,
        lambda of: (first(of).name.component, first(of).name.size),
        lambda of: variant_rank(first(of).name),
    ):
        _figures(page, of, colours)
    for of in _groups(rows, "component", "pass_name"):
        page.tables += _tables(of)
    page.tables[0] = replace(page.tables[0], note=NOTE)
