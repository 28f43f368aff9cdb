"""Options of scripts/scaling. Needs the standard library only: it runs before any set-up."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import PROJECT, RESULTS
from tinyllama_tools.core.options import machine, positive, positive_list, script_parser, seconds
from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.scaling.weak_strong import STRONG, WEAK

DEFAULT_PROCESSES = (1, 2)
DEFAULT_THREADS = 1
DEFAULT_SIZE = "small"
DEFAULT_TIMEOUT = 60.0
INTERCONNECTS = PROJECT / "fixtures/interconnects.json"
# what --from has no use for
MEASURING = (
    "processes",
    "weak",
    "strong",
    "threads_per_process",
    "oversubscribe",
    "timeout",
    "program",
)
# what this command gives the program itself
OWN = ("--benchmark_out", "--benchmark_format", "--threads", "--timeout", "--benchmark_out_format")
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
    publish_help = "with --from: to reference/ranks_NAME of the results, without names of hosts"
    add("--publish", type=machine, metavar="NAME", help=publish_help)
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


def _refuse_own(program: Sequence[str], parser: argparse.ArgumentParser) -> None:
    for text in program:
        name = text.partition("=")[0]
        if name in OWN:
            instead = {"--threads": "--threads-per-process", "--timeout": "--timeout before --"}
            remedy = f"use {instead[name]}" if name in instead else "leave it out"
            parser.error(f"'{text}' after --: scripts/scaling gives {name} itself; {remedy}")


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


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`program`: what follows `--`, `global_batch`: with --strong, `scaling`: WEAK or STRONG.

    A bad value ends the program with status 2.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = make_parser()
    options = parser.parse_args(given[:cut])
    options.program = tuple(given[cut + 1 :])
    if options.source is not None:
        for name in MEASURING:
            if getattr(options, name):
                flag = "what follows --" if name == "program" else f"--{name.replace('_', '-')}"
                parser.error(f"{flag}: nothing is measured with --from; leave it out")
    elif options.publish is not None:
        parser.error("--publish: publishes what was measured; name it with --from FOLDER")
    options.processes = options.processes or DEFAULT_PROCESSES
    options.threads_per_process = options.threads_per_process or DEFAULT_THREADS
    options.timeout = options.timeout or DEFAULT_TIMEOUT
    options.scaling = STRONG if options.strong else WEAK
    _refuse_own(options.program, parser)
    options.global_batch = _global_batch(options, parser)
    names = (options.interconnects or "").split(",")
    options.interconnects = tuple(filter(None, (name.strip() for name in names))) or None
    return options


if __name__ == "__main__":
    parse_options()
