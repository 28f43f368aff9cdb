"""The out-of-memory frontier: the largest batch for each sequence length, and the reverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinyllama_tools.data.studies import AXES, BY_SEQ
from tinyllama_tools.report.document import (
    DASHES,
    MEASURED,
    SYMBOLS,
    Cell,
    Column,
    Figure,
    Section,
    Table,
    axis,
    bytes_text,
    count_of,
    layout,
    line,
    markers,
    text_column,
)
from tinyllama_tools.report.sources import FrontierFile, FrontierLine, FrontierPart, Kind

if TYPE_CHECKING:
    from tinyllama_tools.report.inputs import ReportInputs

ID, TITLE = "frontier", "What fits into memory"
MISSING = f"no frontier was given; {Kind.FRONTIER.command} writes one with its grid"
TRIED, NOT_TRIED = "tried", "not_tried"
MIB = 2**20
COMMIT_DIGITS, DAY = 8, 10


@dataclass(frozen=True)
class Shown:
    """A part of a file that the report shows. `kind`: of the second one of an axis, whether it was
    tried; empty of the first."""

    file: FrontierFile
    part: FrontierPart
    kind: str = ""

    @property
    def id(self) -> str:
        """Of its table, and the beginning of its figures'."""
        return f"frontier_{self.part.axis.given}{self.kind and f'_{self.kind}'}"

    @property
    def title(self) -> str:
        """`Largest batch`, `Largest batch within 2 GiB`."""
        within = f" within {bytes_text(self.file.limit_bytes)}" if self.kind else ""
        return f"{self.part.axis.title.capitalize()}{within}"


def _table(shown: Shown) -> Table:
    found = shown.part
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
    note = (
        "Needs: predicted with the largest measured misfit, of the smallest step where none "
        "fits. Apart: prediction over confirmed."
    )
    return Table(shown.id, shown.title, columns, rows, note, is_key=True)


def _by_name(lines: Sequence[FrontierLine]) -> dict[str, list[FrontierLine]]:
    """By size and variant; what does not fit at all has no place on a logarithmic axis."""
    found: dict[str, list[FrontierLine]] = {}
    for of in lines:
        if of.largest:
            found.setdefault(f"{of.size}, {of.variant}", []).append(of)
    return found


def _figure(shown: Shown, dtype: str, note: str) -> Figure | None:
    traces, found = [], shown.part
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
    names = ("sequence", "tokens") if found.axis is BY_SEQ else ("batch",)
    given = axis(*names, log=True, ticks=[x for trace in traces for x in trace["x"]])
    axes = layout(given, axis(found.axis.title, log=True))
    return Figure(f"{shown.id}_{dtype}", f"{shown.title}, {dtype}", traces, axes, note)


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


def _is_tried(part: FrontierPart) -> bool:
    return any(line.is_tried for line in part.lines)


def chosen(inputs: ReportInputs) -> list[Shown]:
    """The frontier over sequences and that over batches: the newest that is not known to be of
    another device than the analysed one, where there is none the newest of all; a study's own comes
    before one without a date. Behind them, of each axis, the next one of that device that was tried
    where the first was not, or the reverse: tries go up to a limit that they are given."""
    device = _device(inputs)

    def is_same(file: FrontierFile) -> bool:
        return file.device in {"", device} or not device

    def preference(file: FrontierFile) -> tuple[bool, bool, str]:
        is_own = any(study.frontier is file for study in inputs.studies)
        return (is_same(file), bool(file.date) or is_own, file.date)

    found: dict[str, Shown] = {}
    beside: dict[str, Shown] = {}
    # of equals the first stays first
    for file in sorted(inputs.frontiers, key=preference, reverse=True):
        for part in file.parts:
            first = found.setdefault(part.axis.given, Shown(file, part))
            if is_same(file) and _is_tried(part) != _is_tried(first.part):
                kind = TRIED if _is_tried(part) else NOT_TRIED
                beside.setdefault(part.axis.given, Shown(file, part, kind))
    return [of[given] for of in (found, beside) for given in AXES if given in of]


def build(inputs: ReportInputs) -> Section:
    """The frontier over sequences, and that over batches; and what was tried of them."""
    every = chosen(inputs)
    if not every:
        return Section(ID, TITLE, missing=MISSING)
    texts = [_text(one.file, one.part) for one in every]
    figures = [
        figure
        for one, text in zip(every, texts, strict=True)
        for dtype in dict.fromkeys(of.dtype for of in one.part.lines)
        if (figure := _figure(one, dtype, text)) is not None
    ]
    tables = [_table(one) for one in every]
    return Section(ID, TITLE, texts, figures=figures, tables=tables)
