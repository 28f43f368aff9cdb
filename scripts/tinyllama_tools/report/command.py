"""scripts/report: reads results, puts the sections together and writes the document."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tinyllama_tools.core.app import RESULTS, BadInputError, write_whole
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import script_parser
from tinyllama_tools.data.nameless import without_places
from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.models.prediction import RatesRefusedError
from tinyllama_tools.report.document import (
    Document,
    Omission,
    Section,
    count_of,
    listed,
    not_foreseen,
)
from tinyllama_tools.report.inputs import ReportInputs, read_inputs
from tinyllama_tools.report.output import (
    figures_of_merit,
    figures_text,
    markdown_of,
    page_of,
    write_pngs,
)
from tinyllama_tools.report.sections import (
    ablation,
    cases,
    comparison,
    data_parallel,
    environment,
    frontier,
    left_out,
    memory,
    predictions,
    roofline,
    scaling,
    speed_of_light,
    time,
    training,
)
from tinyllama_tools.report.sources import Kind, Source, newest_sources, source_of
from tinyllama_tools.report.summary import SENTENCES, cost_sentence
from tinyllama_tools.stats.laws import LawRefusedError

# in the order in which they are read; what was left out comes last, when all of it is known
BUILDERS: Sequence[tuple[str, str, Callable[[ReportInputs], Section]]] = tuple(
    (module.ID, module.TITLE, module.build)
    for module in (
        *(cases, environment, roofline, speed_of_light, time, scaling, memory, frontier),
        *(predictions, data_parallel, ablation, training, comparison),
    )
)
ALL_SENTENCES: Sequence[tuple[str, Callable[[ReportInputs], str]]] = (
    *SENTENCES,
    (
        "what fits and what bigger sizes cost",
        lambda inputs: cost_sentence(inputs, frontier.chosen(inputs)),
    ),
)
REFUSALS = (BadInputError, LawRefusedError, RatesRefusedError, SuiteError)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, REFUSALS) else not_foreseen(error)


def _section(
    identity: str, title: str, build: Callable[[ReportInputs], Section], inputs: ReportInputs
) -> Section:
    """One that cannot be made names its reason, and a table without a row, or a figure without a
    point, becomes a sentence."""
    try:
        section = build(inputs)
    except Exception as error:
        # a fault of ours in one section must not cost the reader the others
        missed = Omission("section", title, reason := _reason(error), is_error=True)
        return Section(identity, title, missing=reason, omissions=[missed])
    tables = [table for table in section.tables if table.rows]
    figures = [figure for figure in section.figures if figure.points]
    empty = [table.title for table in section.tables if not table.rows]
    empty += [figure.title for figure in section.figures if not figure.points]
    text = list(section.text)
    if empty and not section.missing:
        text.append(f"Nothing was measured for: {'; '.join(empty)}.")
    return replace(section, tables=tables, figures=figures, text=text)


def _sentences(inputs: ReportInputs) -> tuple[list[str], list[Omission]]:
    """Five, and those of them that cannot be made."""
    texts, omissions = [], []
    for what, sentence in ALL_SENTENCES:
        try:
            texts.append(sentence(inputs))
        except Exception as error:
            texts.append(f"There is no sentence on {what}: Left out says why.")
            omissions.append(Omission("summary", what, _reason(error), is_error=True))
    return texts, omissions


def _default_title(inputs: ReportInputs) -> str:
    """Of the first result, else of the first of anything."""
    if inputs.main is not None:
        return f"Tiny LLaMA on {inputs.main.title}"
    return f"Tiny LLaMA: {inputs.sources[0].path.name}" if inputs.sources else "Tiny LLaMA"


def build_document(inputs: ReportInputs, title: str = "") -> Document:
    """Every section, in order; `title`: instead of the one made from the data."""
    sections = [_section(*builder, inputs) for builder in BUILDERS]
    sentences, unsaid = _sentences(inputs)
    of_sections = (omission for section in sections for omission in section.omissions)
    omissions = without_places(
        [*inputs.omissions, *left_out.case_omissions(inputs), *unsaid, *of_sections]
    )
    now = datetime.datetime.now(datetime.timezone.utc)
    return Document(
        title or _default_title(inputs),
        now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        without_places(sentences),
        [environment.set_summary(results) for results in inputs.sets],
        without_places([*sections, left_out.build(omissions)]),
        comparison.comparison_json(inputs.sets),
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


def _default_path(end: str, results: Path) -> Path:
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"report_{now.strftime('%Y%m%dT%H%M%SZ')}{end}"


def _write(path: Path, text: str) -> list[Path]:
    if path.is_dir():
        raise BadInputError(
            f"{path}: is a folder; name a file to write, such as {path}/report.html"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return [path]


def write_report(document: Document, inputs: ReportInputs, of: argparse.Namespace) -> list[Path]:
    """The files written; md and fom go to standard output unless a file is named. BadInputError
    where that cannot be written."""
    path = of.output
    try:
        if of.format == "html":
            path = path or _default_path(".html", of.results_folder)
            return _write(path, page_of(document.as_json()))
        if of.format == "png":
            path = path or _default_path("_png", of.results_folder)
            written = write_pngs(document.as_json(), path)
            if not written:
                raise BadInputError("the report has no figure to draw; --format md has its tables")
            return written
        if of.format == "md":
            text = markdown_of(document)
        else:
            text = figures_text(figures_of_merit(inputs), document.errors)
        if path is not None:
            return _write(path, text)
    except OSError as error:
        raise BadInputError(
            f"{path}: cannot be written: {error.strerror}; name another file with -o"
        ) from error
    sys.stdout.write(text)
    return []


WRITTEN, WITH_ERRORS = 0, 1
# names that share a reason, in a line on standard error
MOST_NAMES = 5


def _say(text: str) -> None:
    """To standard error: standard output may be the report."""
    print(text, file=sys.stderr)


def _say_omissions(omissions: Sequence[Omission]) -> None:
    for first, names in left_out.grouped(omissions):
        mark = "error" if first.is_error else "left out"
        _say(f"{mark}: {first.kind} {listed(names, MOST_NAMES)}: {first.reason}")


def _read_named(paths: Sequence[Path]) -> ReportInputs:
    sources: list[Source] = []
    unknown: list[Omission] = []
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
        _say(f"taking {shown(source.path)}: {source.kind.words}")
    for kind in found.absent:
        _say(f"no {kind.words.partition(' ')[2]} in {shown(results)}: {kind.command} makes one")
    return read_inputs(found.sources, found.absent, found.passed_over)


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
    return WITH_ERRORS if document.errors else WRITTEN
