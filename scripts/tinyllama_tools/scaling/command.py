"""scripts/scaling: measures, reads again what was measured, and writes what follows.

Exit status: 0 done; 1 a wrong result, or a rank died or hung; 2 bad option or file; 130
interrupted, with what was measured written.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import (
    INTERRUPTED,
    PROJECT,
    RESULTS,
    BadInputError,
    changed_files,
    problem_sizes,
    run_folder,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import machine, positive, positive_list, script_parser, seconds
from tinyllama_tools.data.programs import REFUSED_OPTIONS
from tinyllama_tools.data.publish import REFERENCE, names_alone
from tinyllama_tools.models.collectives import (
    STRONG,
    WEAK,
    Interconnect,
    ScalingResult,
    read_interconnects,
    read_scaling_result,
)
from tinyllama_tools.models.projection import GLOBAL_BATCH, analyse
from tinyllama_tools.scaling.output import overview_lines, page
from tinyllama_tools.scaling.ranks import (
    BUILD_IT,
    Patience,
    RankProcess,
    WorldEnd,
    allowed_cores,
    core_order,
    core_sets,
    end_all,
    free_port,
    rank_environment,
    siblings_of,
    watch,
)
from tinyllama_tools.scaling.results import (
    DOCUMENT,
    PAGE,
    Failure,
    check_local_steps,
    check_publishable,
    log_file,
    place_of,
    projections_of,
    publish_results,
    read_again,
    read_results,
    result_file,
    result_files,
    scaling_document,
)

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


PROGRAM = Path("benchmarks/tiny_llama_scaling")
FINISHING = "interrupted: the ranks finish the round in hand and write; Ctrl-C again kills them"
# a rank that still computes notices a loss within one timeout and asks who it was within another
TIMEOUTS = 2
# beyond those: 11 s of asking at the most, and the end of a process
GRACE_SECONDS = 15.0
# somebody else may take a free port before the ranks do
PORT_TRIES = 3
NOT_STARTED = "not started, since the command ended before"
PORT_IN_USE = re.compile(r"in use|EADDRINUSE", re.IGNORECASE)
Say = Callable[[str], None]


@dataclass
class Measured:
    """`failures`: numbers of ranks that did not come to their end. `status`: of the command.
    `ended`: numbers of ranks whose processes have ended, well or not."""

    failures: list[Failure] = field(default_factory=list)
    status: int = 0
    ended: list[int] = field(default_factory=list)


def program_arguments(options: argparse.Namespace, out: Path) -> list[str]:
    """What every rank is called with."""
    own = [
        f"--benchmark_out={out}",
        f"--threads={options.threads_per_process}",
        f"--timeout={options.timeout:g}",
    ]
    given = list(options.program)
    if options.global_batch is not None and not any("--global-batch" in text for text in given):
        own.append(f"--global-batch={options.global_batch}")
    return [str(options.build_folder / PROGRAM), *own, *given]


def _start(
    command: Sequence[str], sets: Sequence[tuple[int, ...]], port: int, say: Say
) -> list[RankProcess]:
    started: list[RankProcess] = []
    try:
        for rank, cores in enumerate(sets):
            environment = rank_environment(rank, len(sets), port)
            started.append(RankProcess(rank, command, environment, cores))
        say(f"{len(sets)} ranks on cores {'; '.join(','.join(map(str, one)) for one in sets)}")
    except BaseException:
        end_all(started)
        raise
    return started


def run_world(
    command: Sequence[str],
    sets: Sequence[tuple[int, ...]],
    patience: Patience,
    log: Path,
    say: Say,
    show: Say,
) -> WorldEnd:
    """One world of as many ranks as there are sets of cores. What they say goes to `log`, and what
    rank 0 says to `show`. A taken port is tried again with another one."""
    for attempt in range(PORT_TRIES):
        with log.open("a", encoding="utf-8") as stream:

            def keep(rank: int, line: str, stream=stream) -> None:  # noqa: ANN001
                stream.write(f"[rank {rank}] {line}\n")
                if rank == 0 and line.strip():
                    show(line)

            started = _start(command, sets, free_port(), say)
            end = watch(started, patience, keep, lambda: say(FINISHING))
        taken = end.status == REFUSED_OPTIONS and PORT_IN_USE.search(end.words)
        if not taken or attempt == PORT_TRIES - 1:
            break
        say("the port was taken meanwhile: trying another one")
    return end


def measure(options: argparse.Namespace, folder: Path, say: Say, show: Say) -> Measured:
    """Every number of ranks in its order. A refused option ends it, a world that failed does not.

    BadInputError where there are too few cores, before anything is started, or where the program
    cannot be started.
    """
    ordered = core_order(allowed := allowed_cores(), siblings_of(allowed))
    every = {
        ranks: core_sets(
            ranks, options.threads_per_process, ordered, oversubscribe=options.oversubscribe
        )
        for ranks in options.processes
    }
    folder.mkdir(parents=True, exist_ok=True)
    measured = Measured()
    try:
        _measure_worlds(options, folder, every, measured, (say, show))
    except KeyboardInterrupt:
        # between two worlds
        measured.status = INTERRUPTED
    left = (ranks for ranks in every if ranks not in measured.ended)
    measured.failures += [Failure(ranks, measured.status, NOT_STARTED) for ranks in left]
    return measured


def _measure_worlds(
    options: argparse.Namespace,
    folder: Path,
    every: Mapping[int, Sequence[tuple[int, ...]]],
    measured: Measured,
    talk: tuple[Say, Say],
) -> None:
    say, show = talk
    patience = Patience(TIMEOUTS * options.timeout + GRACE_SECONDS)
    for ranks, sets in every.items():
        command = program_arguments(options, result_file(folder, ranks))
        end = run_world(command, sets, patience, log_file(folder, ranks), say, show)
        measured.ended.append(ranks)
        if end.status == 0:
            continue
        words = f"; its last words: {end.words}" if end.words else ""
        what = "interrupted" if end.is_interrupted else f"{end.first}{words}"
        measured.failures.append(Failure(ranks, end.status, what))
        say(f"{ranks} ranks: {what}")
        if end.killed:
            say(f"{ranks} ranks: ended by force: {', '.join(map(str, end.killed))}")
        measured.status = end.status if end.status in {REFUSED_OPTIONS, INTERRUPTED} else 1
        if end.status in {REFUSED_OPTIONS, INTERRUPTED}:
            return


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


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command."""
    return run(parse_options(arguments), shlex.join(["scripts/scaling", *arguments]))
