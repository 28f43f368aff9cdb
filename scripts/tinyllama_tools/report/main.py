"""scripts/report: reads results, builds the document and writes it.

Exit status: 0 written; 1 written, but some part had errors; 2 nothing usable, a bad option, or a
file that cannot be written; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import INTERRUPTED, PROJECT, BadInputError, changed_files
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.data.publish import REFERENCE
from tinyllama_tools.report.build import build_document
from tinyllama_tools.report.document import Omission
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.kinds import Kind, Source, source_of
from tinyllama_tools.report.loading import read_inputs
from tinyllama_tools.report.newest import Newest, newest_sources
from tinyllama_tools.report.options import parse_options
from tinyllama_tools.report.publish import (
    Place,
    check_publishable,
    publish_data,
    publish_page,
)
from tinyllama_tools.report.sections.left_out import grouped
from tinyllama_tools.report.wording import count_of, listed
from tinyllama_tools.report.writing import write_report

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


def _let_go_of_output() -> None:
    """What is left in its buffer would fail once more when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command."""
    try:
        status = report(parse_options(arguments))
        sys.stdout.flush()
        return status
    except BadInputError as error:
        say(f"scripts/report: {error}")
    except BrokenPipeError:
        _let_go_of_output()
        say("scripts/report: whoever reads standard output stopped before the end")
    except OSError as error:
        _let_go_of_output()
        say(f"scripts/report: {error}")
    except KeyboardInterrupt:
        say("scripts/report: interrupted, and nothing was written")
        return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        say(f"scripts/report: not foreseen: {type(error).__name__}: {error}; where stands above")
    return NOTHING_USABLE


if __name__ == "__main__":
    sys.exit(main())
