"""Every case in one table: time, what it gains over the baseline, how near it is to what can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyllama_tools.report.analysis import is_own_shape, name_rank
from tinyllama_tools.report.document import Cell, Column, Section, Table, text_column
from tinyllama_tools.report.sources import Kind

if TYPE_CHECKING:
    from tinyllama_tools.data.results import MeasuredCase
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "cases", "Cases"
MILLI = 1e3
COLUMNS = (
    text_column("case"),
    Column("time", "ms"),
    Column("shortest", "ms"),
    Column("longest", "ms"),
    Column("speed-up", digits=3),
    Column("MFU", "%", digits=3),
    Column("of the roofline", "%", digits=3),
    text_column("bound"),
)
NOTE = (
    "Time: median over repetitions and rounds, of which the shortest and the longest stand beside "
    "it. Speed-up: over the baseline of the same run. MFU: model FLOPs utilisation, the FLOPs that "
    "the model asks for, over time, of the peak. Bound: what an ideal implementation would wait "
    "for."
)
# the page has to be mailed
MOST_ROWS = 500


def ideal_bound(case: MeasuredCase) -> str | None:
    """compute or bandwidth: which of the roofline's two times is the larger; None without one."""
    roof = case.counters.get("roof_percent")
    if not roof:
        return None
    # equal ones may differ in their last digit
    return "bandwidth" if case.counters.get("peak_percent", 0.0) < 0.99999 * roof else "compute"


def _row(case: MeasuredCase) -> list[Cell]:
    low, high = case.extremes or (None, None)
    return [
        str(case.name),
        MILLI * case.median_seconds,
        low and MILLI * low,
        high and MILLI * high,
        *(case.counters.get(key) for key in ("speedup", "MFU_percent", "roof_percent")),
        ideal_bound(case),
    ]


def build(inputs: ReportInputs) -> Section:
    """Of the first result."""
    if inputs.main is None:
        missing = f"no result of the suite was given; make one: {Kind.SUITE.command}"
        return Section(ID, TITLE, missing=missing)
    cases = sorted(inputs.main.cases.values(), key=lambda case: name_rank(case.name))
    note = NOTE
    if len(cases) > MOST_ROWS:
        # where each size begins
        cases.sort(key=lambda case: not is_own_shape(case.name))
        note = f"{MOST_ROWS} of {len(cases):,} cases, each size's own shape first. {NOTE}"
    rows = [_row(case) for case in cases[:MOST_ROWS]]
    table = Table("all_cases", "Every case", COLUMNS, rows, note, is_key=True)
    return Section(ID, TITLE, tables=[table])
