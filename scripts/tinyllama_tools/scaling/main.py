"""scripts/scaling: measures, reads again what was measured, and writes what follows.

Exit status: 0 done; 1 a wrong result, or a rank died or hung; 2 bad option or file; 130
interrupted, with what was measured written.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.compare.interrupts import INTERRUPTED, ended_as_by_ctrl_c
from tinyllama_tools.profile_text import shown
from tinyllama_tools.reading.errors import BadInputError
from tinyllama_tools.result_files import run_folder, write_whole
from tinyllama_tools.scaling.analysis import analyse
from tinyllama_tools.scaling.document import scaling_document
from tinyllama_tools.scaling.failure import Failure
from tinyllama_tools.scaling.files import DOCUMENT, PAGE, result_file, result_files
from tinyllama_tools.scaling.interconnects import Interconnect, read_interconnects
from tinyllama_tools.scaling.measuring import measure
from tinyllama_tools.scaling.options import parse_options
from tinyllama_tools.scaling.page import overview_lines, page
from tinyllama_tools.scaling.projections import projections_of
from tinyllama_tools.scaling.scaling_result import ScalingResult, read_scaling_result
from tinyllama_tools.suite_run import SuiteError

BENCH = Path("benchmarks/tiny_llama_bench")
BAD = 2


def say(text: str) -> None:
    """To standard error: standard output holds results."""
    print(text, file=sys.stderr, flush=True)


def show(line: str) -> None:
    """The latest word of rank 0, on a terminal only, in a line that goes away."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]}\033[K", end="\r", file=sys.stderr, flush=True)


def _usable(folder: Path, failures: list[Failure]) -> list[ScalingResult]:
    """What was measured; a file that cannot be used becomes a failure of its world."""
    found = []
    for path in result_files(folder):
        try:
            found.append(read_scaling_result(path))
        except BadInputError as error:
            ranks = path.stem.rpartition("_")[2]
            failures.append(Failure(int(ranks) if ranks.isdecimal() else 0, 1, str(error)))
    return found


def write_results(
    results: Sequence[ScalingResult],
    folder: Path,
    options: argparse.Namespace,
    links: Sequence[Interconnect],
    command: str,
    failures: Sequence[Failure] = (),
) -> None:
    """scaling.json and scaling.md, and the tables on standard output."""
    analysis = analyse(results)
    projections = projections_of(
        analysis,
        options.local_step,
        links,
        options.build_folder / BENCH,
        options.projected_global_batch,
    )
    document = scaling_document(analysis, projections, command, failures)
    write_whole(folder / DOCUMENT, json.dumps(document, indent=1) + "\n")
    write_whole(folder / PAGE, page(analysis, projections, command, failures))
    print("\n".join([*overview_lines(analysis, projections, failures), ""]))
    print(f"{shown(folder / PAGE)}\n{shown(folder / DOCUMENT)}", flush=True)


def _read_again(options: argparse.Namespace, links: Sequence[Interconnect], command: str) -> int:
    path = options.source
    results = [read_scaling_result(file) for file in result_files(path)]
    write_results(results, path if path.is_dir() else path.parent, options, links, command)
    return 0


def run(options: argparse.Namespace, command: str) -> int:
    """The exit status. BadInputError where nothing can be measured or read."""
    links = read_interconnects(options.interconnects_file, options.interconnects)
    if options.source is not None:
        return _read_again(options, links, command)
    folder = run_folder("scaling", options.results)
    measured = measure(options, folder, say, show)
    if not any(result_file(folder, ranks).exists() for ranks in options.processes):
        say(f"nothing was measured; what the ranks said is in {shown(folder)}")
        return measured.status or 1
    failures = list(measured.failures)
    results = _usable(folder, failures)
    if results:
        write_results(results, folder, options, links, command, failures)
    unread = len(failures) > len(measured.failures)
    return measured.status or (1 if unread or any(one.failed for one in results) else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse_options(given)
    try:
        with ended_as_by_ctrl_c():
            return run(options, shlex.join(["scripts/scaling", *given]))
    except (BadInputError, SuiteError, OSError) as error:
        say(f"scripts/scaling: {error}")
        return BAD
    except KeyboardInterrupt:
        say("scripts/scaling: interrupted")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
