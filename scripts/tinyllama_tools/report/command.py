"""scripts/report: reads results, builds the document and writes it.

--publish: a grid study, its page and the README's picture, to be tracked by git. The page is made
from the files that are published, so that anybody can make it again from them.

Exit status: 0 written; 1 written, but some part had errors; 2 nothing usable, a bad option, or a
file that cannot be written; 130 interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    BadInputError,
    Json,
    changed_files,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import machine, script_parser
from tinyllama_tools.data.publish import REFERENCE, published_text, replace_folder
from tinyllama_tools.data.studies import AXES, CHECK, COSTS, FRONTIER, PRODUCTS, STUDY, rounds_of
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Document, Omission, count_of, listed
from tinyllama_tools.report.inputs import GridStudy, ReportInputs, read_inputs
from tinyllama_tools.report.output import figures_of_merit, figures_text, markdown_of
from tinyllama_tools.report.sections.left_out import grouped
from tinyllama_tools.report.sources import (
    FrontierFile,
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


def published_texts(folder: Path) -> Mapping[str, str]:
    """The files of a study by name, as far as they are there; journals are none of them.

    BadInputError for one that cannot be read.
    """
    beside = (STUDY, PRODUCTS, COSTS, CHECK, FRONTIER)
    paths = [*rounds_of(folder), *(folder / name for name in beside)]
    return {path.name: published_text(path) for path in paths if path.is_file()}


# of everything that one call publishes, and of the picture in the README
MOST_BYTES, MOST_PICTURE_BYTES = 4_000_000, 300_000
# the figure that is shown in the README
PICTURE = "roofline_plot"


@dataclass(frozen=True)
class Place:
    """Where a machine's study is published. `folder`: results/reference; `machine`: a part of file
    names."""

    folder: Path
    machine: str

    @property
    def study(self) -> Path:
        """The folder of the study's files."""
        return self.folder / f"study_{self.machine}"

    @property
    def page(self) -> Path:
        """The report."""
        return self.folder / f"scaling_{self.machine}.html"

    @property
    def picture(self) -> Path:
        """The roofline, for the README."""
        return self.folder / f"roofline_{self.machine}.png"

    def frontier(self, axes: Iterable[str]) -> Path:
        """Of a frontier over these axes, which was made beside the study."""
        return self.folder / f"frontier_by_{'_'.join(axes)}_{self.machine}.json"


def _refuse(name: object, what: str) -> BadInputError:
    return BadInputError(f"--publish: {name}: {what}")


def _the_study(inputs: ReportInputs) -> GridStudy:
    if len(inputs.studies) != 1:
        count = len(inputs.studies)
        raise _refuse(f"{count} grid studies", "must be one; name the folder of scripts/study")
    study = inputs.studies[0]
    name, context = study.folder.name, study.results.context if study.results is not None else {}
    if not study.description.get("finished"):
        raise _refuse(name, "the study did not end; scripts/study --resume goes on with it")
    if context.get("git_dirty") is not False:
        raise _refuse(name, "measured with changed files; commit, build and measure again")
    return study


def _refuse_other_device(frontier: FrontierFile, study: GridStudy) -> None:
    context = study.results.context if study.results is not None else {}
    name = (context.get("device") or {}).get("name")
    if frontier.device not in {"", name}:
        what = f"is of {frontier.device}, the study of {name}; leave it out"
        raise _refuse(frontier.path.name, what)


def check_publishable(inputs: ReportInputs, place: Place, changed: str) -> None:
    """BadInputError unless there is one study that ended, of a commit, and nothing else but
    frontiers of its device and what is in the reference folder already. `changed`: files of the
    checkout that differ from its commit."""
    if changed:
        raise BadInputError(f"--publish: commit first, these files are changed:\n{changed}")
    study = _the_study(inputs)
    errors = [omission for omission in inputs.omissions if omission.is_error]
    if errors:
        raise _refuse(errors[0].name, errors[0].reason)
    for source in inputs.sources:
        is_there = source.path.resolve().is_relative_to(place.folder.resolve())
        if source.kind not in {Kind.STUDY, Kind.FRONTIER} and not is_there:
            raise _refuse(
                source.path, f"{source.kind.words} is not published with it; leave it out"
            )
    for frontier in inputs.frontiers:
        _refuse_other_device(frontier, study)


def publish_data(inputs: ReportInputs, place: Place) -> list[Source]:
    """Writes the files; where the report's results then are. BadInputError, OSError where they
    cannot be read or written."""
    axes = {f.path: [part.axis.given for part in f.parts] for f in inputs.frontiers}
    found: list[Source] = []
    for source in dict.fromkeys(inputs.sources):
        if source.kind == Kind.STUDY:
            path = place.study
            # a study that is published already is published anew, under the name that is asked for
            replace_folder(path, published_texts(source.path))
        elif source.kind == Kind.FRONTIER:
            path = place.frontier(given for given in AXES if given in axes[source.path])
            if any(one.path == path for one in found):
                raise _refuse(source.path, f"would be {path.name} as another one; leave one out")
            write_whole(path, published_text(source.path))
        else:
            path = source.path
        found.append(Source(source.kind, path))
    return found


def _data_files(sources: Sequence[Source], place: Place) -> list[Path]:
    """Those that this call has written."""
    folders = sorted(place.study.glob("*.json"))
    return [*folders, *(one.path for one in sources if one.kind == Kind.FRONTIER)]


def _refuse_large(paths: Sequence[Path], most: int) -> None:
    sizes = {path.name: path.stat().st_size for path in paths}
    if sum(sizes.values()) > most:
        named = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise _refuse(f"{sum(sizes.values()):,} bytes", f"must be {most:,} at most: {named}")


def publish_page(document: Document, sources: Sequence[Source], place: Place) -> list[Path]:
    """The page and the picture; everything that was published. BadInputError where the picture
    cannot be drawn or the files are too large."""
    # drawing takes packages that the texts of a report do without
    from tinyllama_tools.report.output import page_of, picture_of

    content: Json = document.as_json()
    write_whole(place.page, page_of(content))
    place.picture.write_bytes(picture_of(content, PICTURE))
    paths = [*_data_files(sources, place), place.page, place.picture]
    _refuse_large([place.picture], MOST_PICTURE_BYTES)
    _refuse_large(paths, MOST_BYTES)
    return paths


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


def _publish(options: argparse.Namespace, inputs: ReportInputs) -> int:
    """The exit status. The page is of what was published, not of where it was measured."""
    place = Place(options.results_folder / REFERENCE, options.publish)
    check_publishable(inputs, place, changed_files(PROJECT))
    sources = publish_data(inputs, place)
    document = build_document(read_inputs(sources), options.title)
    _say_omissions(document.omissions)
    for path in publish_page(document, sources, place):
        say(f"wrote {shown(path)}")
    return WITH_ERRORS if document.errors else WRITTEN


def report(options: argparse.Namespace) -> int:
    """The exit status. BadInputError where nothing can be used or written."""
    inputs = read_all(options)
    if inputs.is_empty:
        _say_omissions(inputs.omissions)
        where = ", ".join(map(str, options.results)) or str(options.results_folder)
        raise BadInputError(
            f"{where}: nothing to report on; measure something: {Kind.STUDY.command}"
        )
    if options.publish is not None:
        return _publish(options, inputs)
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
