"""Writes the report in the format that was asked for."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

from tinyllama_tools.core.app import BadInputError, write_whole
from tinyllama_tools.report.document import Document
from tinyllama_tools.report.figures_of_merit import figures_of_merit, figures_text
from tinyllama_tools.report.inputs import ReportInputs
from tinyllama_tools.report.markdown import markdown_of


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
        from tinyllama_tools.report.png import write_pngs

        folder = output or default_path("_png", results)
        try:
            written = write_pngs(document.as_json(), folder)
        except OSError as error:
            raise BadInputError(f"{folder}: cannot be written: {error.strerror}") from error
        if not written:
            raise BadInputError("the report has no figure to draw; --format md writes its tables")
        return written
    from tinyllama_tools.report.page import page_of

    return [_write(output or default_path(".html", results), page_of(document.as_json()))]
