"""The out-of-memory frontier: the largest batch for each sequence length, and the reverse."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.report.document import Cell, Column, Figure, Section, Table, text_column
from tinyllama_tools.report.frontier_file import BY_SEQ, FrontierFile, FrontierLine
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import Kind
from tinyllama_tools.report.plots import DASHES, MEASURED, SYMBOLS, axis, layout, line, markers
from tinyllama_tools.report.wording import bytes_text, count_of

ID, TITLE = "frontier", "What fits into memory"
MISSING = f"no frontier was given; {Kind.FRONTIER.command} predicts one, and so does a grid study"
MIB = 2**20


def _table(found: FrontierFile) -> Table:
    rows: list[list[Cell]] = [
        [
            of.size,
            of.variant,
            of.dtype,
            of.given,
            of.largest,
            of.predicted_bytes / MIB,
            of.confirmed,
            of.apart_percent,
            of.remark,
        ]
        for of in found.lines
    ]
    columns = (
        text_column("size"),
        text_column("variant"),
        text_column("dtype"),
        Column("sequence" if found.axis is BY_SEQ else "batch", digits=7),
        Column(found.axis.title, digits=7),
        Column("it needs", "MiB"),
        Column("confirmed", digits=7),
        Column("apart", "%", digits=3),
        text_column("remark"),
    )
    title = found.axis.title.capitalize()
    note = (
        "Needs: predicted, of the smallest step where none fits. Apart: prediction over confirmed."
    )
    return Table(f"frontier_{found.axis.given}", title, columns, rows, note, is_key=True)


def _by_name(lines: Sequence[FrontierLine]) -> dict[str, list[FrontierLine]]:
    """By size and variant; what does not fit at all has no place on a logarithmic axis."""
    found: dict[str, list[FrontierLine]] = {}
    for of in lines:
        if of.largest:
            found.setdefault(f"{of.size}, {of.variant}", []).append(of)
    return found


def _figure(found: FrontierFile, dtype: str, note: str) -> Figure | None:
    traces = []
    every = _by_name([of for of in found.lines if of.dtype == dtype])
    for number, (name, lines) in enumerate(every.items()):
        dash, symbol = DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)]
        trace = line(name, [of.given for of in lines], [of.largest for of in lines], dash=dash)
        traces.append(trace | {"mode": "lines+markers", "marker": {"symbol": symbol}})
    tried = [(of.given, of.confirmed) for lines in every.values() for of in lines if of.confirmed]
    if tried:
        xs, ys = [given for given, _ in tried], [confirmed for _, confirmed in tried]
        traces.append(markers("confirmed by trying", xs, ys, role=MEASURED, symbol="cross"))
    if not traces:
        return None
    given = (
        axis("sequence", "tokens", log=True) if found.axis is BY_SEQ else axis("batch", log=True)
    )
    axes = layout(given, axis(found.axis.title, log=True))
    title = f"{found.axis.title.capitalize()}, {dtype}"
    return Figure(f"frontier_{found.axis.given}_{dtype}", title, traces, axes, note)


def _text(found: FrontierFile) -> str:
    limit = bytes_text(found.limit_bytes) if found.limit_bytes else "an unknown limit"
    tried = sum(of.is_tried for of in found.lines)
    confirmed = (
        f"{tried} of {count_of(len(found.lines), 'point')} were tried."
        if tried
        else f"None was tried: `{Kind.FRONTIER.command} --confirm` does."
    )
    return (
        f"{found.axis.title.capitalize()}, predicted from the cost formulas and the measured "
        f"overhead for {limit} ({found.limit_source}). {confirmed}"
    )


def build(inputs: ReportInputs) -> Section:
    """The first frontier over sequences, and the first over batches."""
    shown = {found.axis.given: found for found in reversed(inputs.frontiers)}
    if not shown:
        return Section(ID, TITLE, missing=MISSING)
    files = [shown[given] for given in ("seq", "batch") if given in shown]
    texts = [_text(found) for found in files]
    figures = [
        figure
        for found, text in zip(files, texts, strict=True)
        for dtype in dict.fromkeys(of.dtype for of in found.lines)
        if (figure := _figure(found, dtype, text)) is not None
    ]
    return Section(ID, TITLE, texts, figures=figures, tables=[_table(found) for found in files])
