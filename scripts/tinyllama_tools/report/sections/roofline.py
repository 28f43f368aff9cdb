"""Every case and every matrix product under the machine's own roofline, and what bounds it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tinyllama_tools.compare.output import seconds_text
from tinyllama_tools.data.machine import Machine
from tinyllama_tools.data.names import CaseName
from tinyllama_tools.data.results import ResultSet
from tinyllama_tools.models.roofline import (
    RooflinePoint,
    launch_cost,
    left_out_of_roofline,
    product_points,
    roofline_points,
)
from tinyllama_tools.report.document import Column, Omission, Section, Table, text_column
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import Kind
from tinyllama_tools.report.roofline_figures import (
    BOUND_SYMBOLS,
    GIGA,
    launch_figure,
    roofline_figure,
)
from tinyllama_tools.report.selection import name_rank
from tinyllama_tools.report.wording import count_of, rate_text

ID, TITLE = "roofline", "Roofline"
MAKE = f"make one: {Kind.SUITE.command}"
# of more cases than the first, only the second number is listed: the page has to be mailed
ALL_ROWS, MOST_ROWS = 500, 250
# of every reason, which the text says once
LAUNCH_SOURCE = re.compile(r" \([^()]* each, inferred from [^()]*\)")
POINT_COLUMNS = (
    text_column("case"),
    Column("intensity", "FLOP/byte"),
    Column("rate", "GFLOP/s"),
    Column("attainable", "GFLOP/s"),
    Column("of the attainable", "%", digits=3),
    text_column("bound"),
    text_column("why"),
)


def case_of(point: RooflinePoint) -> CaseName:
    """Of a point that is no product."""
    assert point.case is not None
    return point.case


def _lost(point: RooflinePoint, results: ResultSet) -> float:
    """Seconds above what the roofline allows."""
    share = (point.percent or 100.0) / 100.0
    return results.cases[point.name].median_seconds * (1.0 - share)


def _rows(points: Sequence[RooflinePoint]) -> list[list[str | float | None]]:
    return [
        [
            point.name,
            point.intensity,
            point.flops_per_second / GIGA,
            point.attainable / GIGA,
            point.percent,
            point.bound,
            LAUNCH_SOURCE.sub("", point.why),
        ]
        for point in points
    ]


def _table(points: Sequence[RooflinePoint], results: ResultSet) -> Table:
    shown, note = points, ""
    if len(points) > ALL_ROWS:
        shown = sorted(points, key=lambda point: _lost(point, results), reverse=True)[:MOST_ROWS]
        note = (
            f"The {MOST_ROWS} of {len(points):,} cases that lose most time against the roofline; "
            f"the figure shows all."
        )
    return Table("roofline_points", "Cases under the roofline", POINT_COLUMNS, _rows(shown), note)


def _products_table(products: Sequence[RooflinePoint]) -> Table:
    columns = (text_column("product"), *POINT_COLUMNS[1:])
    note = "Each at its own shape: m x n x k, or so many at once x m x n x k."
    return Table("product_points", "Matrix products", columns, _rows(products)[:ALL_ROWS], note)


def bounds_text(points: Sequence[RooflinePoint]) -> str:
    """How many cases each bound has."""
    counts = {bound: sum(p.bound == bound for p in points) for bound in BOUND_SYMBOLS}
    parts = [f"{number:,} by {bound}" for bound, number in counts.items() if number]
    return f"{count_of(len(points), 'case')}: bound {', '.join(parts)}."


def _omissions(results: ResultSet, points: Sequence[RooflinePoint]) -> list[Omission]:
    lost = [text.partition(": ") for text in left_out_of_roofline(results)]
    found = [Omission("roofline", name, reason) for name, _, reason in lost]
    return found + [
        Omission("roofline", point.name, point.error, is_error=True)
        for point in points
        if point.error
    ]


def build(inputs: ReportInputs) -> Section:
    """Of the first result. BadInputError for a file without measured peaks."""
    results = inputs.main
    if results is None:
        return Section(ID, TITLE, missing=f"no result of the suite was given; {MAKE}")
    machine = Machine.from_context(results.context)
    products = product_points(results)
    points = sorted(roofline_points(results), key=lambda point: name_rank(case_of(point)))
    omissions = _omissions(results, points)
    if not points and not products:
        missing = f"no case of {results.title} has FLOPs, bytes and a measured peak; {MAKE}"
        return Section(ID, TITLE, missing=missing, omissions=omissions)
    memory = machine.memory_bandwidth
    of_memory = f"Memory gives {rate_text(memory, 'B/s')}, the" if memory is not None else "The"
    text = [
        f"{of_memory} last-level cache gives {rate_text(machine.cache_bandwidth, 'B/s')}. "
        f"{bounds_text(points)}"
    ]
    figures = [roofline_figure(points, products, machine)]
    launch = launch_cost(results, machine)
    if launch is not None:
        text.append(
            f"Starting an operator takes at most {seconds_text(launch.seconds)}. That is inferred "
            f"from this data, not measured: it is what the fastest operators, those of "
            f"{launch.source}, take beyond their roofline time. That case is not called "
            "latency-bound by it."
        )
        launches = launch_figure(points, results, machine, launch)
        figures += [launches] if launches is not None else []
    else:
        text.append("No case is small enough to show what the start of an operator costs.")
    tables = [_table(points, results)] if points else []
    if products:
        tables.append(_products_table(products))
    else:
        text.append(
            f"No matrix product was measured at its own shape; `{Kind.STUDY.command}` measures "
            f"them."
        )
    return Section(ID, TITLE, text, figures=figures, tables=tables, omissions=omissions)
