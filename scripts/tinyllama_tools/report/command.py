"""scripts/report: reads results, builds the document and writes it."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import (
    RESULTS,
    BadInputError,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import script_parser
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Document, Omission, count_of, listed
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.output import figures_of_merit, figures_text, markdown_of
from tinyllama_tools.report.sections.left_out import grouped
from tinyllama_tools.report.sources import (
    Kind,
    Newest,
    Source,
    newest_sources,
    source_of,
)

FORMATS = ("html", "md", "png", "fom")
EPILOG = """\
RESULT: a result file of the suite, the folder of a grid study, of a run of the suite, of a training
run, of a frontier, of a data-parallel run or of an ablation. Of several results of the suite, the
first that has a training step with all its parts is analysed; all are compared. Without any, the
newest of each kind in results/ is taken, and what is taken and what is missing is said.

html writes results/report_<UTC time>.html and png a folder of pictures, unless -o says where; md
and fom then write to standard output. Exit status: 0 written; 1 written, but some part had errors,
which are named; 2 nothing usable, a bad option, or a file that cannot be written; 130 interrupted,
and nothing was written."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT", help="see below")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="of png: a folder")
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("--title", default="", metavar="T", help="default: device, commit and date")
    parser.add_argument(
        "--results-folder", type=Path, default=RESULTS, metavar="FOLDER", help="default: results"
    )


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Ends with 2 on a bad option, as argparse does."""
    parser = script_parser(
        "report",
        "One document about a machine, from what was measured on it.",
        EPILOG,
    )
    add_options(parser)
    return parser.parse_args(arguments)


def default_path(suffix: str, results: Path) -> Path:
    """results/report_<UTC time><suffix>."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"report_{now.strftime('%Y%m%dT%H%M%SZ')}{suffix}"


def _write(path: Path, text: str) -> Path:
    if path.is_dir():
        raise BadInputError(
            f"{path}: is a folder; name a file to write, such as {path}/report.html"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise BadInputError(
            f"{path}: cannot be written: {error.strerror}; name another file with -o"
        ) from error
    return path


def _print_or_write(text: str, output: Path | None) -> list[Path]:
    if output is not None:
        return [_write(output, text)]
    sys.stdout.write(text)
    return []


def write_report(
    document: Document, inputs: ReportInputs, kind: str, output: Path | None, results: Path
) -> list[Path]:
    """The files written; md and fom go to standard output unless `output` names a file. `results`:
    the folder of pages without a name.

    BadInputError where that cannot be written.
    """
    if kind == "fom":
        return _print_or_write(figures_text(figures_of_merit(inputs), document.errors), output)
    if kind == "md":
        return _print_or_write(markdown_of(document), output)
    # drawing takes packages that the texts above do without
    if kind == "png":
        from tinyllama_tools.report.output import write_pngs

        folder = output or default_path("_png", results)
        try:
            written = write_pngs(document.as_json(), folder)
        except OSError as error:
            raise BadInputError(f"{folder}: cannot be written: {error.strerror}") from error
        if not written:
            raise BadInputError("the report has no figure to draw; --format md writes its tables")
        return written
    from tinyllama_tools.report.output import page_of

    return [_write(output or default_path(".html", results), page_of(document.as_json()))]


WRITTEN, WITH_ERRORS, NOTHING_USABLE = 0, 1, 2
# names that share a reason, in a line on standard error
MOST_NAMES = 5


def say(text: str) -> None:
    """To standard error: standard output may be the report."""
    print(text, file=sys.stderr)


def _named_sources(paths: Sequence[Path]) -> tuple[list[Source], list[Omission]]:
    sources, unknown = [], []
    for path in paths:
        try:
            sources.append(source_of(path))
        except BadInputError as error:
            reason = str(error).removeprefix(f"{path}: ")
            unknown.append(Omission("file", str(path), reason, is_error=True))
    return sources, unknown


def _say_what_was_taken(found: Newest, results: Path) -> None:
    for source in found.sources:
        say(f"taking {shown(source.path)}: {source.kind.words}")
    for kind in found.absent:
        say(f"no {kind.words.partition(' ')[2]} in {shown(results)}: {kind.command} makes one")


def read_all(options: argparse.Namespace) -> ReportInputs:
    """What was named, or the newest of each kind."""
    if options.results:
        sources, unknown = _named_sources(options.results)
        return read_inputs(sources, unknown=unknown)
    found = newest_sources(options.results_folder)
    _say_what_was_taken(found, options.results_folder)
    return read_inputs(found.sources, found.absent, found.passed_over)


def _say_omissions(omissions: Sequence[Omission]) -> None:
    for first, names in grouped(omissions):
        mark = "error" if first.is_error else "left out"
        say(f"{mark}: {first.kind} {listed(names, MOST_NAMES)}: {first.reason}")


def report(options: argparse.Namespace) -> int:
    """The exit status. BadInputError where nothing can be used or written."""
    inputs = read_all(options)
    if inputs.is_empty:
        _say_omissions(inputs.omissions)
        where = ", ".join(map(str, options.results)) or str(options.results_folder)
        raise BadInputError(
            f"{where}: nothing to report on; measure something: {Kind.STUDY.command}"
        )
    document = build_document(inputs, options.title)
    _say_omissions(document.omissions)
    written = write_report(document, inputs, options.format, options.output, options.results_folder)
    if len(written) == 1:
        say(f"wrote {written[0]}")
    elif written:
        say(f"wrote {count_of(len(written), 'file')} to {written[0].parent}")
    return WITH_ERRORS if document.errors else WRITTEN


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command."""
    return report(parse_options(arguments))
