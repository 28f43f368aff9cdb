"""scripts/scaling: measures, reads again what was measured, and writes what follows."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.commands.ranks import BUILD_IT, PROGRAM, measure
from tinyllama_tools.commands.scaling_page import overview_lines, page, scaling_document
from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    BadInputError,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import positive, positive_list, script_parser, seconds
from tinyllama_tools.data.nameless import make_nameless, names_alone
from tinyllama_tools.data.names import STRONG, WEAK
from tinyllama_tools.data.ranks import ReadRun, read_again, read_results, result_file
from tinyllama_tools.data.studies import SCALING_FILE, SCALING_PAGE
from tinyllama_tools.models.collectives import Interconnect, read_interconnects
from tinyllama_tools.models.local_steps import check_local_steps, local_steps
from tinyllama_tools.models.scaling_projection import analyse, projections_of

DEFAULT_SIZE = "small"
INTERCONNECTS = PROJECT / "fixtures/interconnects.json"
BENCH = Path("benchmarks/tiny_llama_bench")
HELP = "--help"
# of a result: lists and objects with a line an item
EXPANDED = ("benchmarks", "rank_samples")
# what --from has no use for
MEASURING = (
    *("processes", "weak", "strong", "threads_per_process", "oversubscribe", "timeout"),
    "program",
)
# what this command gives the program itself, and what to do instead
OWN = {
    **dict.fromkeys(("--benchmark_out", "--benchmark_format"), "leave it out"),
    "--benchmark_out_format": "leave it out",
    "--threads": "use --threads-per-process",
    "--timeout": "use --timeout before --",
}
EPILOG = """\
Starts tiny_llama_scaling as local processes, one number of ranks after the other, each rank on
cores of its own, and watches them: where one ends badly, the others are ended too. What follows --
is for tiny_llama_scaling (--size, --dtype, --batch, --rounds, --bucket-mb, ...); see -- --help.
Writes results/<UTC time>_scaling/: ranks_<N>.json and ranks_<N>.log for each number of ranks,
scaling.json and scaling.md (efficiencies with 95 % intervals, where the loss went, latency and
bandwidth of each collective, projections to 4,096 devices). docs/distributed.md explains them.

Exit status: 0 done; 1 a wrong result, or a rank died or hung; 2 bad option or file, or the set-up
failed; 130 interrupted. What was measured until then is written in every case."""


def make_parser() -> argparse.ArgumentParser:
    """All options before --."""
    parser = script_parser("scaling", "Data-parallel scaling on this machine, and further.", EPILOG)
    add = parser.add_argument
    add(
        "--processes",
        type=positive_list,
        metavar="LIST",
        help="numbers of ranks, measured in this order (default: 1,2)",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--weak", action="store_true", help="a batch for each rank (default)")
    kind.add_argument("--strong", action="store_true", help="one batch for all ranks together")
    add("--threads-per-process", type=positive, metavar="N", help="default: 1")
    add("--oversubscribe", action="store_true", help="let ranks share cores")
    add("--timeout", type=seconds, help="of a collective, in seconds (default: 60)")
    add("--from", dest="source", type=Path, metavar="FOLDER", help="read results again")
    local_help = "result of scripts/bench, scripts/study or tiny_llama_scaling; repeatable"
    add("--local-step", type=Path, action="append", default=[], metavar="RESULT", help=local_help)
    add("--interconnects", metavar="NAMES", help="of --interconnects-file (default: all)")
    add("--interconnects-file", type=Path, default=INTERCONNECTS)
    batch_help = "samples of a step of strong projections (default: 4096)"
    add("--projected-global-batch", type=positive, default=4096, metavar="N", help=batch_help)
    add("--results", type=Path, default=RESULTS, help="folder of the folders (default: results)")
    add("--build-folder", type=Path, default=PROJECT / "build", help="default: build")
    return parser


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """Of `--option VALUE` or `--option=VALUE`, the last one; None where it is not there."""
    found = None
    for index, text in enumerate(arguments):
        if text.startswith(f"{option}="):
            found = text.partition("=")[2]
        elif text == option and index + 1 < len(arguments):
            found = arguments[index + 1]
    return found


def _global_batch(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int | None:
    """Of all ranks together; None with weak scaling."""
    given = value_of(options.program, "--global-batch")
    if not options.strong:
        if given is not None:
            parser.error(f"'--global-batch {given}' after --: is for --strong; add that")
        return None
    if value_of(options.program, "--batch") is not None:
        parser.error(
            "'--batch' after --: with --strong, give --global-batch, of all ranks together"
        )
    size = value_of(options.program, "--size") or DEFAULT_SIZE
    of = problem_sizes().get(size)
    if given is None and of is None:
        parser.error(f"--strong with size '{size}': give --global-batch after --")
    if given is not None and (not given.isdecimal() or int(given) < 1):
        parser.error(f"'--global-batch {given}': must be a whole number of 1 or more")
    batch = int(given) if given is not None else of["batch"]
    for ranks in options.processes:
        if batch % ranks:
            remedy = "give --global-batch after --, or other --processes"
            parser.error(
                f"--processes {ranks}: a batch of {batch} samples does not divide by it; {remedy}"
            )
    return batch


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """`program`: what follows `--`, `global_batch`: with --strong, `scaling`: WEAK or STRONG.

    A bad value ends the program with status 2.
    """
    given = list(arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = make_parser()
    options = parser.parse_args(given[:cut])
    options.program = tuple(given[cut + 1 :])
    if options.source is not None:
        for name in MEASURING:
            if getattr(options, name):
                flag = "what follows --" if name == "program" else f"--{name.replace('_', '-')}"
                parser.error(f"{flag}: nothing is measured with --from; leave it out")
    options.processes = options.processes or (1, 2)
    options.threads_per_process = options.threads_per_process or 1
    options.timeout = options.timeout or 60.0
    options.scaling = STRONG if options.strong else WEAK
    for text in options.program:
        name = text.partition("=")[0]
        if name in OWN:
            parser.error(f"'{text}' after --: scripts/scaling gives {name} itself; {OWN[name]}")
    options.global_batch = _global_batch(options, parser)
    names = (options.interconnects or "").split(",")
    options.interconnects = tuple(filter(None, (name.strip() for name in names))) or None
    return options


def say(text: str) -> None:
    """To standard error: standard output holds results."""
    print(text, file=sys.stderr, flush=True)


def show(line: str) -> None:
    """The latest word of rank 0, on a terminal only, in a line that goes away."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]}\033[K", end="\r", file=sys.stderr, flush=True)


def write_results(
    read: ReadRun,
    folder: Path | None,
    options: argparse.Namespace,
    links: Sequence[Interconnect],
    command: str,
) -> None:
    """The tables on standard output; scaling.json and scaling.md where there is a folder for it."""
    analysis = analyse(read.results)
    projections = projections_of(
        analysis,
        lambda dtype, variant: local_steps(
            read.results, options.local_step, options.build_folder / BENCH, dtype, variant
        ),
        links,
        options.projected_global_batch,
    )
    written = []
    if folder is not None:
        document = scaling_document(analysis, projections, command, read.failures)
        text = json.dumps(names_alone(document), indent=1)
        write_whole(folder / SCALING_FILE, text + "\n")
        write_whole(
            folder / SCALING_PAGE, names_alone(page(analysis, projections, command, read.failures))
        )
        written = [shown(folder / SCALING_PAGE), shown(folder / SCALING_FILE)]
    lines = [*overview_lines(analysis, projections, read.failures), "", *written]
    print("\n".join(map(str, lines)), flush=True)


def _show_program_help(options: argparse.Namespace) -> int:
    command = [str(options.build_folder / PROGRAM), HELP]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    except OSError as error:
        raise BadInputError(f"{command[0]} cannot be started: {error}; {BUILD_IT}") from error


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 for a wrong result, or where a rank died or hung; 130 where it was
    interrupted, with what was measured written. BadInputError where nothing can be measured or
    read."""
    options = parse_options(arguments)
    command = shlex.join(["scripts/scaling", *arguments])
    links = read_interconnects(options.interconnects_file, options.interconnects)
    if options.source is not None:
        read = read_again(options.source)
        # one file alone leaves the folder's own scaling.json as it is
        folder = options.source if options.source.is_dir() else None
        write_results(read, folder, options, links, command)
        return 1 if read.unread else 0
    if not {HELP, "-h"}.isdisjoint(options.program):
        return _show_program_help(options)
    check_local_steps(options.local_step)
    folder = run_folder("scaling", options.results)
    measured = measure(options, folder, say, show)
    written = [path for n in options.processes if (path := result_file(folder, n)).exists()]
    if not written:
        say(f"nothing was measured; what the ranks said is in {shown(folder)}")
        return measured.status or 1
    for path in written:
        make_nameless(path)
    try:
        read = read_results(folder, measured.failures)
    except BadInputError as error:
        say(f"no result can be used: {error}; what the ranks said is in {shown(folder)}")
        return measured.status or 1
    write_results(read, folder, options, links, command)
    return measured.status or (1 if read.unread or any(one.failed for one in read.results) else 0)
