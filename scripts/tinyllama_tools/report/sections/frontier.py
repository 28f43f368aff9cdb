"""The out-of-memory frontier: the largest batch for each sequence length, and the reverse."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllama_tools.frontier.axis import AXES, BY_SEQ
from tinyllama_tools.report.document import Cell, Column, Figure, Section, Table, text_column
from tinyllama_tools.report.frontier_file import FrontierFile, FrontierLine, FrontierPart
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import Kind
from tinyllama_tools.report.plots import DASHES, MEASURED, SYMBOLS, axis, layout, line, markers
from tinyllama_tools.report.wording import bytes_text, count_of

ID, TITLE = "frontier", "What fits into memory"
MISSING = f"no frontier was given; {Kind.FRONTIER.command} predicts one, and so does a grid study"
MIB = 2**20
COMMIT_DIGITS, DAY = 8, 10


def _table(found: FrontierPart) -> Table:
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
        "Needs: predicted with the largest measured misfit, of the smallest step where none "
        "fits. Apart: prediction over confirmed."
    )
    return Table(f"frontier_{found.axis.given}", title, columns, rows, note, is_key=True)


def _by_name(lines: Sequence[FrontierLine]) -> dict[str, list[FrontierLine]]:
    """By size and variant; what does not fit at all has no place on a logarithmic axis."""
    found: dict[str, list[FrontierLine]] = {}
    for of in lines:
        if of.largest:
            found.setdefault(f"{of.size}, {of.variant}", []).append(of)
    return found


def _figure(found: FrontierPart, dtype: str, note: str) -> Figure | None:
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


def _text(file: FrontierFile, found: FrontierPart) -> str:
    """What the part rests on: limit, overhead, tries, device."""
    tried = sum(of.is_tried for of in found.lines)
    confirmed = (
        f"{tried} of {count_of(len(found.lines), 'point')} were tried."
        if tried
        else f"None was tried: `{Kind.FRONTIER.command} --confirm` does."
    )
    commit = f"commit {file.git_commit[:COMMIT_DIGITS]}" if file.git_commit else ""
    made = ", ".join(filter(None, (file.device, commit, file.date[:DAY])))
    return (
        f"{found.axis.title.capitalize()} within {bytes_text(file.limit_bytes)} "
        f"({file.limit_source}), predicted from the cost formulas; memory beyond them: "
        f"{file.overhead}. {confirmed}{f' Made on {made}.' if made else ''}"
    )


def _device(inputs: ReportInputs) -> str:
    context = inputs.main.context if inputs.main is not None else {}
    return str((context.get("device") or {}).get("name") or "")


def chosen(inputs: ReportInputs) -> list[tuple[FrontierFile, FrontierPart]]:
    """The frontier over sequences and that over batches: the newest that is not known to be of
    another device than the analysed one, where there is none the newest of all; a study's own comes
    before one without a date."""
    device = _device(inputs)

    def preference(file: FrontierFile) -> tuple[bool, bool, str]:
        is_own = any(study.frontier is file for study in inputs.studies)
        is_same = file.device in {"", device} or not device
        return (is_same, bool(file.date) or is_own, file.date)

    found: dict[str, tuple[FrontierFile, FrontierPart]] = {}
    # of equals the first stays first
    for file in sorted(inputs.frontiers, key=preference, reverse=True):
        for part in file.parts:
            found.setdefault(part.axis.given, (file, part))
    return [found[given] for given in AXES if given in found]


def build(inputs: ReportInputs) -> Section:
    """The frontier over sequences, and that over batches."""
    every = chosen(inputs)
    if not every:
        return Section(ID, TITLE, missing=MISSING)
    texts = [_text(file, part) for file, part in every]
    figures = [
        figure
        for (_, part), text in zip(every, texts, strict=True)
        for dtype in dict.fromkeys(of.dtype for of in part.lines)
        if (figure := _figure(part, dtype, text)) is not None
    ]
    tables = [_table(part) for _, part in every]
    return Section(ID, TITLE, texts, figures=figures, tables=tables)
