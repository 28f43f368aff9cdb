"""Variants side by side: at each size, dtype, batch and sequence the time of every variant and its
speed-up over the baseline, as tables and over the axes."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tinyllama_tools.core.app import Json, shown_path
from tinyllama_tools.core.installation import typed
from tinyllama_tools.data.names import BASELINE, CaseName
from tinyllama_tools.data.results import MeasuredCase, ResultSet
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
    error_bars,
    number_text,
    trace,
)
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.order import (
    HOLLOW,
    WHOLE_PASSES,
    best_of_each,
    in_order,
    main_step,
    symbol_of,
    variant_colours,
    variant_rank,
)

# by variant, the cases of one component, pass, size, dtype, batch and sequence
Row = Mapping[str, MeasuredCase]


def _rows(cases: Iterable[MeasuredCase]) -> list[Row]:
    """Those of several variants, in the order of tables."""
    found: dict[object, dict[str, MeasuredCase]] = {}
    for case in cases:
        found.setdefault(replace(case.name, variant=""), {})[case.name.variant] = case
    return [row for row in found.values() if len(row) > 1]


def _name_of(row: Row) -> CaseName:
    """That of its first case: all axes but the variant are the row's."""
    return next(iter(row.values())).name


def _groups(rows: Iterable[Row], *axes: str) -> list[list[Row]]:
    """Rows that have the same values on these axes."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(getattr(_name_of(row), axis) for axis in axes), []).append(row)
    return list(found.values())


# ---- tables


def stars_of(row: Row) -> Mapping[str, str]:
    """By variant. Where every other variant is shown to be slower than the fastest, that has the
    full star; else it and those that are not shown to be slower have hollow ones. A variant without
    an interval is not shown to be slower, and has no star."""
    best, *others = sorted(row.values(), key=lambda case: case.median_seconds)
    unsure = [case for case in others if not case.over(best).shows_difference]
    alike = [case for case in unsure if case.ends and best.ends]
    return {case.name.variant: "☆" if unsure else "★" for case in (best, *alike)}


def _cell(case: MeasuredCase | None, star: str) -> Cell:
    if case is None:
        return None
    milliseconds = KILO * case.median_seconds
    time = " ".join(filter(None, (number_text(milliseconds), case.mark, star)))
    return Shown(milliseconds, time + (f"\n{case.speedup.marked_text()}" if case.speedup else ""))


# side by side at 1,300 pixels, where long names wrap
MOST_VARIANTS = 6
AXES = ("size", "dtype", "batch", "seq")
NOTE = (
    "Time, and below it the speed-up over the baseline with its 95 % interval; ~: no difference "
    "shown. ★: the fastest; ☆: the fastest and those that are not shown to be slower. !: disturbed,"
    " with the reason under Cases."
)


def _tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Of one component and pass; an axis in which no row differs stands in the title."""
    names = [_name_of(row) for row in rows]
    values = {axis: [getattr(name, axis) for name in names] for axis in AXES}
    axes = [axis for axis, own in values.items() if len({*own}) > 1]
    same = [
        f"{own[0]}" if axis in ("size", "dtype") else f"{axis} {own[0]}"
        for axis, own in values.items()
        if axis not in axes
    ]
    title = f"{names[0].component}, {names[0].pass_name}"
    title += f": {', '.join(same)}" if same else ""
    variants = list(dict.fromkeys(variant for row in rows for variant in row))
    for start in range(0, len(variants), MOST_VARIANTS):
        records = []
        for name, row in zip(names, rows, strict=True):
            stars, best = stars_of(row), min(row.values(), key=lambda case: case.median_seconds)
            record: dict[str, Cell] = {axis: getattr(name, axis) for axis in axes}
            for variant in variants[start : start + MOST_VARIANTS]:
                record[f"{variant} [ms]"] = _cell(row.get(variant), stars.get(variant, ""))
            record["fastest [tokens/s]"] = best.counters.get("tokens_per_second")
            records.append(record)
        identity = f"variants_{names[0].component}_{names[0].pass_name}_{start}"
        further = ", further variants" if start else ""
        yield Table(identity, title + further, records, is_key=True)


# ---- figures


def _lines(
    rows: Sequence[Row], along: str, colours: Mapping[str, str], *, is_speedup: bool
) -> Iterator[Json]:
    """A line for each variant over the axis `along`, with error bars."""
    for variant in dict.fromkeys(variant for row in rows for variant in row):
        own = [row[variant] for row in rows if variant in row]
        if is_speedup:
            own = [case for case in own if case.speedup]
        medians = [case.speedup if is_speedup else case.milliseconds for case in own]
        if own:
            more = {"mode": "lines+markers", "colour": colours[variant]}
            more |= {"symbol": [symbol_of(c.name.component, c) for c in own]}
            more |= {"ends": error_bars(medians)}
            values = [median.median for median in medians]
            yield trace(variant, [getattr(case.name, along) for case in own], values, **more)


def _figures(page: Section, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    """Of one component, pass, size and dtype: over the sequence, at the batch with the most
    sequences; over the batch where no batch has two."""
    names = [_name_of(row) for row in rows]
    given, along, unit = "batch", "seq", "sequence [tokens]"
    if max(Counter(name.batch for name in names).values()) < 2:
        given, along, unit = "seq", "batch", "batch"
    count, fixed = max((n, value) for value, n in Counter(getattr(n, given) for n in names).items())
    if count < 2:
        return
    first = names[0]
    shown = [row for name, row in zip(names, rows, strict=True) if getattr(name, given) == fixed]
    x = axis(unit, log=True, ticks=[getattr(name, along) for name in names])
    what = f"{first.component}: {first.size}, {first.dtype}, {given} {fixed}"
    identity = re.sub(r"\W", "_", f"{first.component}_{first.pass_name}_{first.size}_{first.dtype}")
    for kind, y in (
        ("time", axis("time [ms]", log=True)),
        ("speed-up", axis("speed-up over the baseline")),
    ):
        traces = list(_lines(shown, along, colours, is_speedup=kind == "speed-up"))
        page.figure(f"variants_{kind}_{identity}", f"{what}: {kind}", traces, x, y, columns=SMALL)


def _label(name: CaseName) -> str:
    is_whole = name.pass_name in WHOLE_PASSES
    return name.component if is_whole else f"{name.component}, {name.pass_name}"


def _overview(
    page: Section, rows: Sequence[Row], results: ResultSet, colours: Mapping[str, str]
) -> None:
    """Speed-ups of every component at the main step's size, dtype and shape."""
    step = main_step(results)
    wanted = [getattr(step.name, axis) for axis in AXES] if step else []
    found: dict[str, dict[str, MeasuredCase]] = {}
    for variant, case in (pair for row in rows for pair in row.items()):
        if case.speedup and [getattr(case.name, axis) for axis in AXES] == wanted:
            found.setdefault(variant, {})[_label(case.name)] = case
    if not found:
        return
    labels = list(dict.fromkeys(label for own in found.values() for label in own))
    traces = [trace("baseline", labels, [1] * len(labels), mode="lines", colour=colours[BASELINE])]
    for variant, own in found.items():
        speedups = [case.speedup for case in own.values()]
        symbols = [symbol_of(case.name.component, case) for case in own.values()]
        more = {"colour": colours[variant], "symbol": symbols, "ends": error_bars(speedups)}
        traces.append(trace(variant, own, [speedup.median for speedup in speedups], **more))
    size, dtype, batch, seq = wanted
    title = f"Speed-up over the baseline at {size}, {dtype}, {batch} x {seq}"
    x, y = axis("", type="category"), axis("speed-up", log=True)
    note = f"Bars: 95 % intervals. {HOLLOW}"
    page.figure("speedups_plot", title, traces, x, y, note, columns=FULL, has_legend=False)


def variants(page: Section, inputs: ReportInputs) -> None:
    """Where at least two variants were measured at one size, dtype, batch and sequence."""
    inputs.main_result()
    results = inputs.with_variants
    if results is not inputs.main:
        page.text.append(f"Of another run: {shown_path(results.paths[0])}, {results.title}.")
    rows = _rows(in_order(results))
    if not rows:
        what = f"{inputs.main.title} has no two variants at one size, dtype, batch and sequence"
        raise Missing(f"{what}; measure some: {typed('bench')} --variants baseline,optimized")
    page.legend |= (colours := variant_colours(results))
    _overview(page, rows, results, colours)
    whole = (row for row in rows if _name_of(row).pass_name in WHOLE_PASSES)
    for series in best_of_each(
        _groups(whole, "component", "pass_name", "size", "dtype"),
        lambda series: (_name_of(series[0]).component, _name_of(series[0]).size),
        lambda series: variant_rank(_name_of(series[0])),
    ):
        _figures(page, series, colours)
    for group in _groups(rows, "component", "pass_name"):
        page.tables += _tables(group)
    page.tables[0] = replace(page.tables[0], note=NOTE)
