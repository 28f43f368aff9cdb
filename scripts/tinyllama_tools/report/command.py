"""scripts/report: reads results, puts the sections together and writes the document."""

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tinyllama_tools.core.app import BadInputError, shown_path, write_whole
from tinyllama_tools.core.installation import RESULTS
from tinyllama_tools.core.options import add_out, script_parser
from tinyllama_tools.core.text import count_of, listed, say
from tinyllama_tools.data.results import title_of
from tinyllama_tools.models.machine_file import machine_document, machine_text
from tinyllama_tools.report.document import (
    Document,
    Kind,
    Missing,
    Omission,
    Section,
    omission_lines,
)
from tinyllama_tools.report.frame import FRAMES, read_frame
from tinyllama_tools.report.inputs import (
    ReportInputs,
    Source,
    newest_sources,
    read_inputs,
    source_of,
)
from tinyllama_tools.report.output import (
    figures_of_merit,
    markdown_of,
    page_of,
    refuse_several,
    write_pngs,
)
from tinyllama_tools.report.sections import (
    data_parallel,
    devices,
    gpu_check,
    growth,
    kernels,
    measured,
    predictions,
    variants,
)

Fill = Callable[[Section, ReportInputs], None]
# In the order of the report; each raises Missing where there is nothing to show.
SECTIONS: Sequence[tuple[str, str, Fill]] = (
    ("time", "Where the time goes", measured.time),
    ("variants", "Variants", variants.variants),
    ("roofline", "Roofline", measured.roofline),
    ("scaling", "Scaling", growth.scaling),
    ("data_parallel", "Data-parallel scaling", data_parallel.build),
    ("memory", "Memory", growth.memory),
    ("frontier", "What fits into memory", growth.frontier),
    ("predictions", "Predictions", predictions.predictions),
    ("cases", "Cases", measured.cases),
    ("environment", "Environment", measured.environment),
)


def _filled(identity: str, name: str, fill: Fill, inputs: ReportInputs) -> Section:
    """A fault of ours in one section must not cost the reader the others."""
    page = Section(identity, name)
    try:
        fill(page, inputs)
    except Missing as missing:
        page.missing = str(missing)
    except Exception as error:
        is_known = isinstance(error, BadInputError)
        why = str(error) if is_known else f"not foreseen: {type(error).__name__}: {error}"
        page = Section(identity, name, missing=why)
        page.leave_out("section", name, why, is_error=True)
    return page


def _sections(inputs: ReportInputs) -> Iterator[Section]:
    """Every section; of several devices one each, below each other."""
    if inputs.others:
        yield _filled("devices", "Devices", devices.devices, inputs)
    for number, one in enumerate(inputs.devices, start=1):
        if one.checks:
            page = _filled("gpu_check", "GPU check", gpu_check.build, one)
            if inputs.others:
                page.label(one.device, number)
            yield page
    if inputs.profiles:
        yield _filled("kernels", "Kernel time by component", kernels.build, inputs)
    if not any(one.has_results for one in inputs.devices):
        return
    for identity, name, fill in SECTIONS:
        for number, one in enumerate(inputs.devices, start=1):
            page = _filled(identity, name, fill, one)
            if inputs.others:
                page.label(one.device, number)
            yield page


def build_document(inputs: ReportInputs, title: str = "") -> Document:
    """`title`: instead of the one made from the data."""
    sections = list(_sections(inputs))
    omissions = [omission for one in inputs.devices for omission in one.omissions]
    omissions += [omission for page in sections for omission in page.omissions]
    last = Section("left_out", "Left out")
    measured.left_out(last, omissions)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = [one.device or title_of(one.context) for one in inputs.devices if one.context]
    files = listed([one.path.name for one in inputs.profiles], 3)
    own = f"Tiny LLaMA on {' and '.join(known)}" if known else f"Kernels of {files}"
    # of several devices, the first section has such figures in columns
    facts = [] if inputs.others else [*gpu_check.facts(inputs), *measured.facts(inputs)]
    return Document(title or own, now, facts, [*sections, last], omissions)


MACHINE = "machine"
FORMATS = ("html", "md", *FRAMES, "png", "fom", MACHINE)
EPILOG = """\
RESULT: a result file of the suite, or the folder of a grid study, of a run of the suite, of a
data-parallel run or of scripts/gpu_check, or a CSV file of a vendor's profiler
(docs/vendor_profilers.md). Without any, the newest of each kind but the last in results/ are taken,
all of one device, and named. Of several results of the suite from one device, the first that has a
training step with all its parts is analysed; where it has only one variant, the variants are those
of the first other result that has several. scripts/compare compares results. Results of several
devices become columns, and sections below each other, under the devices' names.

csv, jsonl and parquet are one flat table: a row for each case of every file, with the same columns
for every device (docs/report.md), for pandas, DuckDB and the like.

machine is what the results tell of their machine, machine.json: the bandwidth curve, rates of GEMMs
by shape, costs of a step's work, alpha and beta of collectives, each with its source. From it
scripts/study --grid --machine predicts steps, on any machine.

Without -o, html and parquet write results/report_<UTC time>.html or .parquet, png a folder of
pictures, and the others (fom, machine: of one device alone) write to standard output. --setup-only,
as the only argument, installs what every format but png and parquet needs, for a machine that has
no network later.

Exit status: 0 written; 1 written, but some part had errors, which are named; 2 nothing usable, a
bad option, or a file that cannot be written; 130 interrupted, and nothing was written."""


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Ends with 2 on a bad option, as argparse does."""
    parser = script_parser(
        "report", "One document about a machine, from what was measured on it.", EPILOG
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT", help="see below")
    add_out(parser, "of png: a folder", "FILE")
    parser.add_argument("--format", choices=FORMATS, default="html", help="default: html")
    parser.add_argument("--title", default="", metavar="T", help="default: device, commit and date")
    parser.add_argument(
        "--results-folder", type=Path, default=RESULTS, metavar="FOLDER", help="default: results"
    )
    return parser.parse_args(arguments)


# what is written to a file also without -o: how its name ends
ENDS = {"html": ".html", "png": "_png", "parquet": ".parquet"}


def _path_of(options: argparse.Namespace) -> Path | None:
    """None for standard output."""
    if options.out is not None or options.format not in ENDS:
        return options.out
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return options.results_folder / f"report_{now}{ENDS[options.format]}"


def _write(path: Path | None, content: str | bytes) -> str:
    """Returns what was written where; empty where it went to standard output."""
    if path is None:
        sys.stdout.write(content)
        return ""
    if path.is_dir():
        raise BadInputError(f"{path}: is a folder; name a file, such as {path}/report.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return f"wrote {path}"


def write_report(document: Document, inputs: ReportInputs, options: argparse.Namespace) -> str:
    """As _write()."""
    path = _path_of(options)
    if options.format == "png":
        written = write_pngs(document, path)
        if not written:
            raise BadInputError("the report has no figure to draw; --format md has its tables")
        return f"wrote {count_of(len(written), 'file')} to {path}"
    text = {
        "html": lambda: page_of(document),
        "md": lambda: markdown_of(document),
        "fom": lambda: figures_of_merit(inputs, document.errors),
    }[options.format]()
    return _write(path, text)


def _write_machine(inputs: ReportInputs, options: argparse.Namespace) -> int:
    """As _report(). BadInputError for several devices: a figure is of one."""
    refuse_several(inputs, "a machine file")
    document = machine_document(inputs.main, [run.analysis for run in inputs.scalings])
    _say_omissions(inputs.omissions)
    for section, why in document["missing"].items():
        say(f"left out: {section}: {why}")
    if said := _write(_path_of(options), machine_text(document)):
        say(said)
    return sum(one.is_error for one in inputs.omissions)


def _report(
    sources: Sequence[Source], unknown: Sequence[Omission], options: argparse.Namespace
) -> int:
    """Reads, writes and says what was left out. Returns how many errors there were."""
    if options.format in FRAMES:
        frame, omissions = read_frame(sources, unknown)
        _say_omissions(omissions)
        said = _write(_path_of(options), FRAMES[options.format](frame))
        errors = sum(one.is_error for one in omissions)
    else:
        inputs = read_inputs(sources, unknown)
        if not (inputs.has_results or inputs.checks or inputs.profiles):
            _say_omissions(inputs.omissions)
            where = ", ".join(map(str, options.results)) or str(options.results_folder)
            raise BadInputError(
                f"{where}: nothing to report on; measure something: {Kind.STUDY.command}"
            )
        if options.format == MACHINE:
            return _write_machine(inputs, options)
        document = build_document(inputs, options.title)
        _say_omissions(document.omissions)
        said = write_report(document, inputs, options)
        errors = document.errors
    if said:
        say(said)
    return errors


def _say_omissions(omissions: Sequence[Omission]) -> None:
    for is_error, line in omission_lines(omissions, 5):
        say(f"{'error' if is_error else 'left out'}: {line}")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status. BadInputError where nothing can be used or written."""
    options = parse_options(arguments)
    named, folder = options.results, options.results_folder
    sources, unknown = ([], []) if named else newest_sources(folder)
    for source in sources:
        say(f"taking {shown_path(source.path)}: {source.kind.words}")
    for path in named:
        try:
            sources.append(source_of(path))
        except BadInputError as error:
            reason = str(error).removeprefix(f"{path}: ")
            unknown.append(Omission("file", str(path), reason, is_error=True))
    try:
        return 1 if _report(sources, unknown, options) else 0
    except OSError as error:
        if options.out is None and error.filename is None:
            raise
        what = f"{error.filename or options.out}: cannot be written"
        raise BadInputError(f"{what}: {error.strerror}; name another file with -o") from error
