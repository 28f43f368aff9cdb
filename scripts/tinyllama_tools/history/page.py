"""Trend pages: one HTML file with everything in it, a chart a case, change points marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline

from tinyllama_tools.compare.wording import change_text, seconds_text
from tinyllama_tools.history.change_points import FEWEST_FILES, ChangePoint
from tinyllama_tools.history.entries import Machine, Series, StoredResult
from tinyllama_tools.history.wording import ADVISORY, before_text, between_text, files_text

TEMPLATE = Path(__file__).with_name("history_page.html.j2")
SCRIPT = Path(__file__).with_name("history_page.js")
MOST_CHANGES_AT_THE_TOP = 30
DIGITS = 5

Json = dict[str, Any]


@dataclass(frozen=True)
class ChangeView:
    """A change point in words. `block`: numbers of the results after it, whose rows it links to.
    `index`: of its first file in the series. `place`: the newest is the last."""

    case: str
    anchor: str
    change: str
    slower: bool
    commit: str
    text: str
    remark: str
    block: tuple[int, ...]
    index: int
    place: tuple[str, str, int]


@dataclass(frozen=True)
class CaseView:
    """One chart, with what is said beside it."""

    name: str
    anchor: str
    latest: str
    against: str
    too_few: bool
    changes: tuple[ChangeView, ...]


@dataclass(frozen=True)
class MachineView:
    """One machine's cases and files, in order. `data`: what its charts are drawn from."""

    name: str
    results: tuple[StoredResult, ...]
    cases: tuple[CaseView, ...]
    data: Json


def page_of(series: Sequence[Series], points: Sequence[ChangePoint]) -> str:
    """The HTML; texts from files are escaped. `points`: those of these series."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    names = list(dict.fromkeys(one.machine for one in series))
    machines = [_machine_view(number, name, series, points) for number, name in enumerate(names)]
    views = (view for machine in machines for case in machine.cases for view in case.changes)
    newest = sorted(views, key=lambda view: view.place, reverse=True)
    return template.render(
        machines=machines,
        changes=newest[:MOST_CHANGES_AT_THE_TOP],
        more=max(0, len(newest) - MOST_CHANGES_AT_THE_TOP),
        advisory=ADVISORY,
        fewest=FEWEST_FILES,
        data=[machine.data for machine in machines],
        script=SCRIPT.read_text(encoding="utf-8"),
        plotly=plotly.offline.get_plotlyjs(),
    )


def _machine_view(
    number: int, machine: Machine, series: Sequence[Series], points: Sequence[ChangePoint]
) -> MachineView:
    own = [one for one in series if one.machine == machine]
    files = {point.result.number: point.result for one in own for point in one.points}
    results = tuple(sorted(files.values(), key=lambda result: result.place))
    places = {result.number: place for place, result in enumerate(results)}
    by_case: dict[str, list[ChangePoint]] = {}
    for point in points:
        if point.machine == machine:
            by_case.setdefault(point.case, []).append(point)
    cases, data = [], []
    for index, one in enumerate(own):
        found = sorted(by_case.get(one.case, []), key=lambda point: point.after[0].place)
        case = _case_view(f"case-{number}-{index}", one, found)
        cases.append(case)
        data.append(_case_data(case, one, found, places))
    return MachineView(str(machine), results, tuple(cases), _data(results, data))


def _case_view(anchor: str, series: Series, points: Sequence[ChangePoint]) -> CaseView:
    seconds = [point.seconds for point in series.points]
    numbers = [point.result.number for point in series.points]
    return CaseView(
        name=series.case,
        anchor=anchor,
        latest=seconds_text(seconds[-1]),
        against=before_text(seconds),
        too_few=len(seconds) < FEWEST_FILES,
        changes=tuple(_change_view(anchor, point, numbers) for point in points),
    )


def _change_view(anchor: str, point: ChangePoint, numbers: Sequence[int]) -> ChangeView:
    return ChangeView(
        case=point.case,
        anchor=anchor,
        change=change_text(point.ratio),
        slower=point.ratio > 1,
        commit=point.after[0].label,
        text=f"{between_text(point)}; {files_text(point)}",
        remark=point.remark,
        block=tuple(result.number for result in point.after),
        index=numbers.index(point.after[0].number),
        place=point.after[0].place,
    )


def _data(results: Sequence[StoredResult], cases: list[Json]) -> Json:
    files = [
        {
            "number": result.number,
            "label": result.label,
            "commit": result.commit,
            "committed": result.commit_time,
            "date": result.date,
            "torch": result.torch_version,
            "file": result.file,
        }
        for result in results
    ]
    return {"files": files, "cases": cases}


def _case_data(
    case: CaseView, series: Series, points: Sequence[ChangePoint], places: dict[int, int]
) -> Json:
    """`files`: places in the machine's list. `levels`: a segment's median, from an index on."""
    first = points[0].seconds_before if points else None
    levels = [] if first is None else [[0, first]]
    for view, point in zip(case.changes, points, strict=True):
        levels.append([view.index, point.seconds_after])
    return {
        "anchor": case.anchor,
        "files": [places[point.result.number] for point in series.points],
        "seconds": [float(f"{point.seconds:.{DIGITS}g}") for point in series.points],
        "levels": levels,
        "changes": [{"index": view.index, "change": view.change} for view in case.changes],
    }
