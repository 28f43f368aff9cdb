"""scripts/compare history: results of many days and commits, kept and looked at.

Advisory: nothing here is a verdict, and no exit status depends on a change point.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllama_tools.compare.common_options import fraction, regular_expression
from tinyllama_tools.core.app import INTERRUPTED, BadInputError, write_whole
from tinyllama_tools.history.change_points import MARGIN, find_change_points
from tinyllama_tools.history.entries import Series
from tinyllama_tools.history.page import page_of
from tinyllama_tools.history.result_file import read_entry
from tinyllama_tools.history.store import DEFAULT_STORE, HistoryStore, KnownResultError
from tinyllama_tools.history.tables import changes_as_json, changes_text, show_as_json, show_text
from tinyllama_tools.stats.verdicts import BAD_INPUT

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
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except BadInputError as error:
        return _tell(error)
    except KeyboardInterrupt:
        print("interrupted; what was added is kept", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
