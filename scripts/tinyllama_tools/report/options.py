"""The options of scripts/report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import RESULTS
from tinyllama_tools.core.options import machine, script_parser

FORMATS = ("html", "md", "png", "fom")
EPILOG = """\
RESULT: a result file of the suite, the folder of a grid study, of a run of the suite, of a training
run, of a frontier, of a data-parallel run or of an ablation. Of several results of the suite, the
first that has a training step with all its parts is analysed; all are compared. Without any, the
newest of each kind in results/ is taken, and what is taken and what is missing is said.

html writes results/report_<UTC time>.html and png a folder of pictures, unless -o says where; md
and fom then write to standard output. Exit status: 0 written; 1 written, but some part had errors,
which are named; 2 nothing usable, a bad option, or a file that cannot be written; 130 interrupted,
and nothing was written.

--publish takes one grid study that ended, of a commit, and frontiers made beside it. It writes, to
be tracked by git: study_MACHINE/, frontier_by_AXIS_MACHINE.json, the page scaling_MACHINE.html made
from them, and the README's picture roofline_MACHINE.png, all to the reference/ of the results."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT", help="see below")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="of png: a folder")
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("--title", default="", metavar="T", help="default: device, commit and date")
    parser.add_argument(
        "--publish", type=machine, metavar="MACHINE", help="a grid study, as reference/...MACHINE"
    )
    parser.add_argument(
        "--results-folder", type=Path, default=RESULTS, metavar="FOLDER", help="default: results"
    )


def _refuse_contradictions(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.publish is None:
        return
    if options.output is not None or options.format != "html":
        parser.error("--publish: says where and what to write, so without -o and --format")
    if not options.results:
        parser.error("--publish: name the folder of the grid study that is to be published")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Ends with 2 on a bad option, as argparse does."""
    parser = script_parser(
        "report",
        "One document about a machine, from what was measured on it.",
        EPILOG,
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    _refuse_contradictions(parser, options)
    return options


if __name__ == "__main__":
    parse_options(None)
