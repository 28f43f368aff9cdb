"""What each optimisation buys, alone and taken away again, from scripts/ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.models.ablations import Kind, Point, Row, rows_at
from tinyllama_tools.report.document import (
    MEASURED,
    Cell,
    Column,
    Figure,
    Section,
    Table,
    axis,
    bars,
    error_bars,
    layout,
    text_column,
)
from tinyllama_tools.report.sources import Kind as ResultKind

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import Ablation, ReportInputs

ID, TITLE = "ablation", "What each optimisation buys"
MISSING = f"no ablation was given; make one: {ResultKind.ABLATION.command}"
COLUMNS = (
    text_column("row"),
    Column("time", "ms"),
    Column("ratio", "x", digits=3),
    Column("from", "x", digits=3),
    Column("to", "x", digits=3),
    Column("memory", "x", digits=3),
    Column("MFU", "%", digits=3),
    text_column("why not"),
)
EXPLANATION = (
    "Ratio: the baseline's time over the row's; of `optimized without X`, its time over that of "
    "`optimized`: above 1, the switch was worth having. Median over turns with its interval. "
    "Memory: peak over the baseline's, or over that of `optimized`."
)


def _cells(row: Row) -> list[Cell]:
    seconds, ratio = row.cell.seconds, row.ratio
    interval = ratio.interval if ratio else None
    return [
        row.row.name,
        seconds * 1e3 if seconds else None,
        ratio.median if ratio else None,
        interval.low if interval else None,
        interval.high if interval else None,
        row.memory_ratio,
        row.mfu_percent,
        row.cell.note,
    ]


def _figure(number: int, title: str, rows: Sequence[Row]) -> Figure | None:
    shown = [row for row in rows if row.ratio is not None and row.row.kind != Kind.baseline]
    if not shown:
        return None
    medians = [row.ratio.median for row in shown if row.ratio]
    lows = [
        r.ratio.interval.low if r.ratio and r.ratio.interval else m
        for r, m in zip(shown, medians, strict=True)
    ]
    highs = [
        r.ratio.interval.high if r.ratio and r.ratio.interval else m
        for r, m in zip(shown, medians, strict=True)
    ]
    trace = bars(
        "speed-up",
        [row.row.name for row in shown],
        medians,
        role=MEASURED,
        error_y=error_bars(medians, lows, highs),
    )
    return Figure(
        f"ablation_plot_{number}",
        title,
        [trace],
        layout(axis("variant", automargin=True), axis("ratio of times", "x")),
        EXPLANATION,
    )


def _title(point: Point) -> str:
    return f"Optimisations at {point.title}"


def _parts(ablation: Ablation) -> tuple[list[Figure], list[Table]]:
    figures, tables = [], []
    study = ablation.study
    for number, point in enumerate(study.main.points(), start=1):
        rows = rows_at(study.main, study.rows, point)
        figure = _figure(number, _title(point), rows)
        figures += [figure] if figure is not None else []
        cells = [_cells(row) for row in rows]
        identity, is_first = f"ablation_{number}", number == 1
        tables.append(Table(identity, _title(point), COLUMNS, cells, EXPLANATION, is_key=is_first))
    return figures, tables


def build(inputs: ReportInputs) -> Section:
    """A figure and a table for each test point of the first ablation."""
    if not inputs.ablations:
        return Section(ID, TITLE, missing=MISSING)
    ablation = inputs.ablations[0]
    figures, tables = _parts(ablation)
    if not tables:
        where = shown(ablation.path)
        return Section(ID, TITLE, missing=f"{where} has no measured point; {MISSING}")
    context, meta = ablation.study.context, ablation.study.meta
    device = (context.get("device") or {}).get("name") or "unknown device"
    commit = str(context.get("git_commit") or "unknown")[:8]
    text = f"Measured on {device}, commit {commit}, {meta.get('date', 'at an unknown time')}."
    more = [f"Not shown: {shown(a.path)}." for a in inputs.ablations[1:]]
    return Section(ID, TITLE, [text, *more], figures=figures, tables=tables)
