"""scripts/compare history: results of many days and commits, kept and looked at.

Advisory: nothing here is a verdict, and no exit status depends on a change point.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import plotly.offline

from tinyllama_tools.commands.history_changes import (
    FEWEST_FILES,
    MARGIN,
    ChangePoint,
    find_change_points,
)
from tinyllama_tools.commands.history_store import (
    DEFAULT_STORE,
    HistoryStore,
    KnownResultError,
    Machine,
    Series,
    StoredResult,
    read_entry,
)
from tinyllama_tools.compare.options import fraction, regular_expression
from tinyllama_tools.core.app import BadInputError, Json, write_whole
from tinyllama_tools.core.text import change_text, markdown_table, seconds_text
from tinyllama_tools.stats.verdicts import BAD_INPUT

ADVISORY = (
    "Advisory: results of different days are not paired, so a change point is a hint where to look "
    "and has no stated error rate. Only scripts/compare run gives a verdict."
)


def before_text(seconds: Sequence[float]) -> str:
    """The last value against the median of those before it: `+2.1 % of 9.8 ms (15 before)`."""
    *before, last = seconds
    if not before:
        return "the first"
    median = statistics.median(before)
    return f"{change_text(last / median)} of {seconds_text(median)} ({len(before)} before)"


def between_text(point: ChangePoint) -> str:
    """`between 0007abcdef and 0008abcdef`, the two commits around it."""
    return f"between {point.before[-1].label} and {point.after[0].label}"


def files_text(point: ChangePoint) -> str:
    """`12.1 ms in 8 files after, 10.0 ms in 8 before`."""
    return (
        f"{seconds_text(point.seconds_after)} in {len(point.after)} files after, "
        f"{seconds_text(point.seconds_before)} in {len(point.before)} before"
    )


MOST_FILES = 10


def _by_machine(series: Sequence[Series]) -> dict[Machine, list[Series]]:
    found: dict[Machine, list[Series]] = {}
    for one in series:
        found.setdefault(one.machine, []).append(one)
    return found


def _files(series: Sequence[Series]) -> list[StoredResult]:
    files = {point.result.number: point.result for one in series for point in one.points}
    return sorted(files.values(), key=lambda result: result.place)


def show_text(series: Sequence[Series]) -> str:
    """For each machine: its newest files, and each case's latest time beside those before."""
    lines: list[str] = []
    for machine, own in _by_machine(series).items():
        files = _files(own)
        lines += [f"{machine}: {len(files)} file{'' if len(files) == 1 else 's'}", ""]
        rows = [(str(f.number), f.label, f.date, f.torch_version, f.file) for f in files]
        lines += markdown_table(
            ("result", "commit", "measured", "libtorch", "file"), rows[-MOST_FILES:]
        )
        if len(files) > MOST_FILES:
            lines.append(f"and {len(files) - MOST_FILES} before them")
        cases = [
            (
                one.case,
                str(len(one.points)),
                seconds_text(one.points[-1].seconds),
                before_text([point.seconds for point in one.points]),
            )
            for one in own
        ]
        lines += ["", *markdown_table(("case", "files", "latest", "against the median"), cases), ""]
    return "\n".join(lines).rstrip()


def show_as_json(series: Sequence[Series]) -> list[Json]:
    """One object a machine and case, its points in order, seconds of an iteration."""
    return [
        {
            "machine": str(one.machine),
            "case": one.case,
            "points": [
                {
                    "result": point.result.number,
                    "commit": point.result.commit,
                    "dirty": point.result.dirty,
                    "date": point.result.date,
                    "seconds": point.seconds,
                }
                for point in one.points
            ],
        }
        for one in series
    ]


def changes_text(series: Sequence[Series], points: Sequence[ChangePoint]) -> str:
    """The change points, newest first, under the sentence that says what they are worth."""
    enough = sum(len(one.points) >= FEWEST_FILES for one in series)
    looked = f"{enough} of {len(series)} series have the {FEWEST_FILES} files that it takes."
    lines = [ADVISORY, looked, ""]
    for machine in dict.fromkeys(point.machine for point in points):
        own = [point for point in points if point.machine == machine]
        rows = [
            (
                change_text(point.ratio),
                point.after[0].label,
                point.case,
                f"{between_text(point)}; {files_text(point)}",
                f"{point.after[0].number} to {point.after[-1].number}",
                point.remark,
            )
            for point in own
        ]
        header = ("change", "commit", "case", "where", "results", "remark")
        lines += [f"{machine}:", "", *markdown_table(header, rows), ""]
    if not points:
        lines.append("No change point.")
    return "\n".join(lines).rstrip()


def changes_as_json(points: Sequence[ChangePoint]) -> list[Json]:
    """One object a change point; `advisory` is true of each."""
    return [
        {
            "advisory": True,
            "machine": str(point.machine),
            "case": point.case,
            "ratio": point.ratio,
            "commit": point.after[0].commit,
            "last_commit_before": point.before[-1].commit,
            "seconds_before": point.seconds_before,
            "seconds_after": point.seconds_after,
            "results_before": [result.number for result in point.before],
            "results_after": [result.number for result in point.after],
            "remark": point.remark,
        }
        for point in points
    ]


TEMPLATE = Path(__file__).parent / "templates/history_page.html.j2"
SCRIPT = Path(__file__).parent / "templates/history_page.js"
MOST_CHANGES_AT_THE_TOP = 30
DIGITS = 5


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


# a page of more is slow to open on a phone
LARGE_PAGE_BYTES = 6_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """The subcommands add, show, changes and page."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|show|changes|page")
    add = commands.add_parser("add", help="add result files to the history")
    add.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add.add_argument("--skip-known", action="store_true", help="pass over files that are in it")
    add.set_defaults(run=_add)
    show = commands.add_parser("show", help="the files, and each case's latest time")
    show.set_defaults(run=_show)
    changes = commands.add_parser("changes", help="change points; advisory")
    changes.set_defaults(run=_changes)
    page = commands.add_parser("page", help="trends as one HTML file; advisory")
    page.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.html")
    page.set_defaults(run=_page)
    for command in (add, show, changes, page):
        command.add_argument(
            "--store", type=Path, default=DEFAULT_STORE, help="default: results/history.sqlite"
        )
    for command in (show, changes, page):
        command.add_argument(
            "--case", type=regular_expression, metavar="REGEX", help="only these cases"
        )
        command.add_argument("--machine", metavar="NAME", help="only machines of such a name")
    for command in (show, changes):
        command.add_argument("--format", choices=("text", "json"), default="text")
    for command in (changes, page):
        command.add_argument(
            "--margin",
            type=fraction,
            default=MARGIN,
            help="smaller changes are left out (default: %(default)s)",
        )


def _chosen(options: argparse.Namespace, store: HistoryStore) -> list[Series]:
    every = store.series()
    found = [
        one
        for one in every
        if (options.case is None or options.case.search(one.case))
        and (options.machine is None or options.machine.lower() in str(one.machine).lower())
    ]
    if not found:
        machines = "; ".join(dict.fromkeys(str(one.machine) for one in every)) or "none"
        case = options.case.pattern if options.case else "any"
        raise BadInputError(
            f"{store.path} has no time of --case {case} on --machine {options.machine or 'any'}; "
            f"its machines: {machines}"
        )
    return found


def _add(options: argparse.Namespace) -> int:
    status = 0
    with HistoryStore(options.store, create=True) as store:
        for path in options.files:
            # one bad file keeps none of the others out
            try:
                stored = store.add(read_entry(path))
            except KnownResultError as error:
                if not options.skip_known:
                    status = _tell(error)
                continue
            except BadInputError as error:
                status = _tell(error)
                continue
            print(f"result {stored.number}: {stored.label} on {stored.machine}, {path}")
    return status


def _show(options: argparse.Namespace) -> int:
    with HistoryStore(options.store) as store:
        series = _chosen(options, store)
    print(json.dumps(show_as_json(series)) if options.format == "json" else show_text(series))
    return 0


def _changes(options: argparse.Namespace) -> int:
    with HistoryStore(options.store) as store:
        series = _chosen(options, store)
    points = find_change_points(series, options.margin)
    as_json = options.format == "json"
    print(json.dumps(changes_as_json(points)) if as_json else changes_text(series, points))
    return 0


def _page(options: argparse.Namespace) -> int:
    with HistoryStore(options.store) as store:
        series = _chosen(options, store)
    text = page_of(series, find_change_points(series, options.margin))
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(options.output, text)
    except OSError as error:
        raise BadInputError(
            f"--output {options.output}: cannot be written: {error.strerror}; name a file that can"
        ) from error
    if len(text.encode()) > LARGE_PAGE_BYTES:
        print(
            f"{len(text.encode()) / 1e6:.1f} MB: --case or --machine make a page that opens faster",
            file=sys.stderr,
        )
    print(options.output)
    return 0


def _tell(error: BadInputError) -> int:
    print(f"scripts/compare history: {error}", file=sys.stderr)
    return BAD_INPUT


def main(arguments: Sequence[str]) -> int:
    """`arguments`: what follows `history`. The exit status: 0, 2 or 130."""
    parser = argparse.ArgumentParser(prog="scripts/compare history", description=__doc__)
    add_options(parser)
    options = parser.parse_args(arguments)
    return options.run(options)
