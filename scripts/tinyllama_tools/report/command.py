"""scripts/report: reads results, puts the sections together and writes the document."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllama_tools.core.app import RESULTS, BadInputError, shown_path, write_whole
from tinyllama_tools.core.options import script_parser
from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.models.prediction import RatesRefusedError
from tinyllama_tools.report.document import (
    Document,
    Fact,
    Kind,
    Missing,
    Omission,
    Section,
    count_of,
    grouped,
    listed,
    not_foreseen,
)
from tinyllama_tools.report.inputs import ReportInputs, newest_sources, read_inputs, source_of
from tinyllama_tools.report.output import figures_of_merit, markdown_of, page_of, write_pngs
from tinyllama_tools.report.sections import costs, data_parallel, laws, machine, runs, step
from tinyllama_tools.report.sections.summary import SUMMARY
from tinyllama_tools.stats.laws import LawRefusedError

# In the order in which they are read; what was left out comes last, when all of it is known. Each
# fills a Section, and raises Missing where there is nothing to show.
SECTIONS: Sequence[tuple[str, str, Callable[[Section, ReportInputs], None]]] = (
    ("cases", "Cases", machine.cases),
    ("environment", "Environment", machine.environment),
    ("roofline", "Roofline", step.roofline),
    ("time", "Where the time goes", step.time),
    ("scaling", "Scaling", laws.scaling),
    ("memory", "Memory", laws.memory),
    ("frontier", "What fits into memory", costs.frontier),
    ("predictions", "Predictions", costs.predictions),
    ("data_parallel", "Data-parallel scaling", data_parallel.build),
    ("ablation", "What each optimisation buys", runs.ablation),
    ("training", "Training runs", runs.training),
    ("comparison", "Comparison", machine.comparison),
)

REFUSALS = (BadInputError, LawRefusedError, RatesRefusedError, SuiteError)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, REFUSALS) else not_foreseen(error)


def build_document(inputs: ReportInputs, title: str = "") -> Document:
    """Every section, in order; `title`: instead of the one made from the data. A fault of ours in
    one part must not cost the reader the others."""
    facts: list[Fact] = []
    sections: list[Section] = []
    omissions = [*inputs.omissions, *machine.case_omissions(inputs)]
    for what, find in SUMMARY:
        try:
            facts += find(inputs)
        except Exception as error:
            omissions.append(Omission("summary", what, _reason(error), is_error=True))
    for identity, name, fill in SECTIONS:
        page = Section(identity, name)
        try:
            fill(page, inputs)
        except Missing as missing:
            page.missing = str(missing)
        except Exception as error:
            page = Section(identity, name, missing=_reason(error))
            page.omissions.append(Omission("section", name, page.missing, is_error=True))
        page.tables = [table for table in page.tables if table.rows]
        page.figures = [figure for figure in page.figures if figure.points]
        sections.append(page)
        omissions += page.omissions
    last = Section("left_out", "Left out")
    machine.left_out(last, omissions)
    of = inputs.main.title if inputs.main else next((s.path.name for s in inputs.sources), "")
    return Document(
        title or f"Tiny LLaMA on {of}",
        datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        facts,
        [*sections, last],
        omissions,
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


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Ends with 2 on a bad option, as argparse does."""
    parser = script_parser(
        "report", "One document about a machine, from what was measured on it.", EPILOG
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT", help="see below")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="of png: a folder")
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("--title", default="", metavar="T", help="default: device, commit and date")
    parser.add_argument(
        "--results-folder", type=Path, default=RESULTS, metavar="FOLDER", help="default: results"
    )
    return parser.parse_args(arguments)


def write_report(document: Document, inputs: ReportInputs, of: argparse.Namespace) -> list[Path]:
    """The files written; md and fom go to standard output unless a file is named. BadInputError
    where that cannot be written."""
    path = of.output
    if path is None and of.format in ("html", "png"):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        end = ".html" if of.format == "html" else "_png"
        path = of.results_folder / f"report_{now}{end}"
    try:
        if of.format == "png":
            written = write_pngs(document, path)
            if not written:
                raise BadInputError("the report has no figure to draw; --format md has its tables")
            return written
        if of.format == "html":
            text = page_of(document)
        elif of.format == "md":
            text = markdown_of(document)
        else:
            text = figures_of_merit(inputs, document.errors)
        if path is None:
            sys.stdout.write(text)
            return []
        if path.is_dir():
            raise BadInputError(f"{path}: is a folder; name a file, such as {path}/report.html")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
        return [path]
    except OSError as error:
        raise BadInputError(
            f"{path}: cannot be written: {error.strerror}; name another file with -o"
        ) from error


def _say(text: str) -> None:
    """To standard error: standard output may be the report."""
    print(text, file=sys.stderr)


def _say_omissions(omissions: Sequence[Omission]) -> None:
    for first, names in grouped(omissions):
        mark = "error" if first.is_error else "left out"
        _say(f"{mark}: {first.kind} {listed(names, 5)}: {first.reason}")


def _read_named(paths: Sequence[Path]) -> ReportInputs:
    sources, unknown = [], []
    for path in paths:
        try:
            sources.append(source_of(path))
        except BadInputError as error:
            reason = str(error).removeprefix(f"{path}: ")
            unknown.append(Omission("file", str(path), reason, is_error=True))
    return read_inputs(sources, unknown=unknown)


def _read_newest(results: Path) -> ReportInputs:
    """The newest of each kind, which is said."""
    found = newest_sources(results)
    for source in found.sources:
        _say(f"taking {shown_path(source.path)}: {source.kind.words}")
    for kind in found.absent:
        what = kind.words.partition(" ")[2]
        _say(f"no {what} in {shown_path(results)}: {kind.command} makes one")
    return read_inputs(*found)


def main(arguments: Sequence[str]) -> int:
    """The exit status. BadInputError where nothing can be used or written."""
    options = parse_options(arguments)
    named, folder = options.results, options.results_folder
    inputs = _read_named(named) if named else _read_newest(folder)
    if inputs.is_empty:
        _say_omissions(inputs.omissions)
        where = ", ".join(map(str, named)) or str(folder)
        raise BadInputError(
            f"{where}: nothing to report on; measure something: {Kind.STUDY.command}"
        )
    document = build_document(inputs, options.title)
    _say_omissions(document.omissions)
    written = write_report(document, inputs, options)
    if len(written) == 1:
        _say(f"wrote {written[0]}")
    elif written:
        _say(f"wrote {count_of(len(written), 'file')} to {written[0].parent}")
    return 1 if document.errors else 0
