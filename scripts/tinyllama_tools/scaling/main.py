"""scripts/scaling: measures, reads again what was measured, and writes what follows.

Exit status: 0 done; 1 a wrong result, or a rank died or hung; 2 bad option or file; 130
interrupted, with what was measured written.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    BadInputError,
    changed_files,
    ended_as_by_ctrl_c,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.text import shown_path as shown
from tinyllama_tools.data.programs import SuiteError
from tinyllama_tools.data.publish import REFERENCE, names_alone
from tinyllama_tools.scaling.analysis import analyse
from tinyllama_tools.scaling.document import scaling_document
from tinyllama_tools.scaling.failure import Failure
from tinyllama_tools.scaling.files import DOCUMENT, PAGE, result_file, result_files
from tinyllama_tools.scaling.interconnects import Interconnect, read_interconnects
from tinyllama_tools.scaling.local_step_sources import check_local_steps
from tinyllama_tools.scaling.measuring import PROGRAM, measure
from tinyllama_tools.scaling.options import INTERCONNECTS, parse_options
from tinyllama_tools.scaling.page import overview_lines, page
from tinyllama_tools.scaling.projection import GLOBAL_BATCH
from tinyllama_tools.scaling.projections import projections_of
from tinyllama_tools.scaling.publish import check_publishable, place_of, publish_results
from tinyllama_tools.scaling.rank_process import BUILD_IT
from tinyllama_tools.scaling.reading_run import read_again, read_results
from tinyllama_tools.scaling.scaling_result import ScalingResult, read_scaling_result

BENCH = Path("benchmarks/tiny_llama_bench")
HELP = "--help"
BAD = 2


def say(text: str) -> None:
    """To standard error: standard output holds results."""
    print(text, file=sys.stderr, flush=True)


def show(line: str) -> None:
    """The latest word of rank 0, on a terminal only, in a line that goes away."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]}\033[K", end="\r", file=sys.stderr, flush=True)


def write_results(
    results: Sequence[ScalingResult],
    folder: Path | None,
    options: argparse.Namespace,
    links: Sequence[Interconnect],
    command: str,
    failures: Sequence[Failure] = (),
) -> None:
    """The tables on standard output; scaling.json and scaling.md where there is a folder for it."""
    analysis = analyse(results)
    projections = projections_of(
        analysis,
        options.local_step,
        links,
        options.build_folder / BENCH,
        options.projected_global_batch,
    )
    written = []
    if folder is not None:
        document = scaling_document(analysis, projections, command, failures)
        write_whole(folder / DOCUMENT, json.dumps(document, indent=1) + "\n")
        write_whole(folder / PAGE, page(analysis, projections, command, failures))
        written = [shown(folder / PAGE), shown(folder / DOCUMENT)]
    lines = [*overview_lines(analysis, projections, failures), "", *written]
    print("\n".join(map(str, lines)), flush=True)


def _made_again(options: argparse.Namespace, place: Path) -> str:
    """The command that makes the tables of what is published from it."""
    words = ["scripts/scaling", "--from", f"results/{REFERENCE}/{place.name}"]
    for path in options.local_step:
        words += ["--local-step", str(shown(path))]
    if options.interconnects is not None:
        words += ["--interconnects", ",".join(options.interconnects)]
    if options.interconnects_file != INTERCONNECTS:
        words += ["--interconnects-file", str(shown(options.interconnects_file))]
    if options.projected_global_batch != GLOBAL_BATCH:
        words += ["--projected-global-batch", str(options.projected_global_batch)]
    return shlex.join(names_alone(words))


def _publish(options: argparse.Namespace, links: Sequence[Interconnect]) -> int:
    """What is there already stays until everything is known to be readable."""
    results = [read_scaling_result(file) for file in result_files(options.source)]
    place = place_of(options.results, options.publish)
    check_publishable(options.source, results, changed_files(PROJECT))
    write_results(results, None, options, links, "")
    publish_results(options.source, place)
    published = [read_scaling_result(file) for file in result_files(place)]
    write_results(published, place, options, links, _made_again(options, place))
    return 0


def _read_again(options: argparse.Namespace, links: Sequence[Interconnect], command: str) -> int:
    """One file alone leaves the folder's own scaling.json as it is."""
    read = read_again(options.source)
    folder = options.source if options.source.is_dir() else None
    write_results(read.results, folder, options, links, command, read.failures)
    return 1 if read.unread else 0


def _show_program_help(options: argparse.Namespace) -> int:
    command = [str(options.build_folder / PROGRAM), HELP]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise BadInputError(f"{command[0]} cannot be started: {error}; {BUILD_IT}") from error


def run(options: argparse.Namespace, command: str) -> int:
    """The exit status. BadInputError where nothing can be measured or read."""
    links = read_interconnects(options.interconnects_file, options.interconnects)
    if options.publish is not None:
        return _publish(options, links)
    if options.source is not None:
        return _read_again(options, links, command)
    if not {HELP, "-h"}.isdisjoint(options.program):
        return _show_program_help(options)
    check_local_steps(options.local_step)
    folder = run_folder("scaling", options.results)
    measured = measure(options, folder, say, show)
    if not any(result_file(folder, ranks).exists() for ranks in options.processes):
        say(f"nothing was measured; what the ranks said is in {shown(folder)}")
        return measured.status or 1
    try:
        read = read_results(folder, measured.failures)
    except BadInputError as error:
        say(f"no result can be used: {error}; what the ranks said is in {shown(folder)}")
        return measured.status or 1
    write_results(read.results, folder, options, links, command, read.failures)
    return measured.status or (1 if read.unread or any(one.failed for one in read.results) else 0)


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
