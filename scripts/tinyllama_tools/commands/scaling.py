"""scripts/scaling: measures a step on several numbers of ranks, or reads an earlier run, and writes
efficiencies, losses and what collectives take."""

import argparse
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tinyllama_tools.commands.ranks import PROGRAM, measure
from tinyllama_tools.core.app import (
    REFUSED_OPTIONS,
    BadInputError,
    Json,
    command_text,
    now_text,
    run_folder,
    say_line,
    without_folders,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.installation import typed
from tinyllama_tools.core.options import (
    add_build_folder,
    add_out,
    positive,
    positive_list,
    script_parser,
    seconds,
)
from tinyllama_tools.core.process import Progress, program_in
from tinyllama_tools.core.text import count_of, section
from tinyllama_tools.data.rank_results import Failure, ScalingResult, read_scaling_run
from tinyllama_tools.data.studies import (
    SCALING_FILE,
    SCALING_KIND,
    SCALING_PAGE,
    SCALING_SCHEMA_VERSION,
)
from tinyllama_tools.models.data_parallel import EFFICIENCY, Analysis, analyse
from tinyllama_tools.report.document import markdown_section, number_text
from tinyllama_tools.report.sections import data_parallel

EPILOG = """\
Sets up what is missing and builds, then starts tiny_llama_scaling as local processes, one number of
ranks after the other, each rank on cores of its own (GPUs: each on its own device), and watches
them. What follows -- is for tiny_llama_scaling (--size, --dtype, --variant, --plugin, --batch,
--seq, --rounds, --bucket-mb, --no-overlap, --share, --components, --device, ...;
--global-batch for strong scaling, one batch for all ranks together); -- --help lists all.
Writes results/<UTC time>_scaling/: ranks_<N>.json and ranks_<N>.log for each number of ranks,
scaling.json and scaling.md: parallel efficiency, what communication costs and what of it is hidden,
where the rest went, latency and bandwidth of each collective. The files hold no name of a host and
no path outside the checkout. docs/distributed.md explains all. From them and a grid study,
scripts/report --format machine makes what other numbers of ranks are predicted from.

If a rank dies or hangs, the others end within twice --timeout and 20 s; no process is
left, and finished results are kept. Exit status: 0 done; 1 a wrong result, or a rank died or hung;
2 bad option or file, the set-up failed, or a folder that takes no files (the tables are printed
before); 130 interrupted, with what was measured written."""


# options that measuring alone uses, and options that this command gives the program itself
MEASURING = ("--processes", "--threads", "--oversubscribe", "--timeout", "--out")
OWN = ("--benchmark_out", "--benchmark_format", "--benchmark_out_format", "--threads", "--timeout")


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; `program`: those for tiny_llama_scaling. A bad value ends the command with
    status 2."""
    parser = script_parser("scaling", "Data-parallel scaling on this machine.", EPILOG)
    parser.usage = "%(prog)s [OPTION...] [-- OPTION OF tiny_llama_scaling...]"
    add = parser.add_argument
    processes_help = "numbers of ranks, measured in this order (default: 1,2)"
    add("--processes", type=positive_list, default=(1, 2), metavar="LIST", help=processes_help)
    add("--threads", type=positive, default=1, metavar="N", help="of a rank (default: 1)")
    add("--oversubscribe", action="store_true", help="let ranks share cores")
    add("--timeout", type=seconds, default=60.0, metavar="S", help="default: 60")
    from_help = "read results again, and measure nothing; of one file: show the tables only"
    add("--from", dest="source", type=Path, metavar="FOLDER", help=from_help)
    add_out(parser, "a new folder (default: results/<UTC time>_scaling)")
    add_build_folder(parser)
    given = list(arguments)
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    options.program = tuple(given[cut + 1 :])
    used = [name for name in MEASURING if name in {text.partition("=")[0] for text in given[:cut]}]
    used += ["what follows --"] * bool(options.program)
    if options.source is not None and used:
        parser.error(f"{used[0]}: nothing is measured with --from; leave it out")
    for text in options.program:
        if text.partition("=")[0] in OWN:
            parser.error(f"'{text}' after --: {typed('scaling')} gives it itself, --help says how")
    return options


def scaling_document(analysis: Analysis, command: str, failures: Iterable[Failure]) -> Json:
    """The content of scaling.json: times in s, bandwidths in bytes/s, shares in percent."""
    return {
        "kind": SCALING_KIND,
        "schema_version": SCALING_SCHEMA_VERSION,
        "command": command,
        "date": now_text(),
        # of the program that measured
        "git_commit": analysis.results[0].context.get("git_commit"),
        "device": analysis.device,
        "processes": [one.ranks for one in analysis.results],
        "files": [one.path.name for one in analysis.results],
        "scaling": analysis.results[0].scaling,
        "warnings": analysis.warnings,
        "failures": [asdict(failure) for failure in failures],
        "not_measured": analysis.failed,
        "points": [asdict(point) for point in analysis.points],
        "losses": analysis.losses,
        "fits": [asdict(fit) for fit in analysis.fits],
        "fits_refused": analysis.refused,
    }


def answer(analysis: Analysis) -> str:
    """How well the most ranks share a step, in one sentence: medians of the tables."""
    if not analysis.points:
        return "No step was measured: what collectives take alone is below."
    # the last world is the largest, its main way of a step the first
    ranks = analysis.points[-1].ranks
    point = next(point for point in analysis.points if point.ranks == ranks)
    if ranks == 1 or point.speedup is None or point.efficiency is None:
        missing = "how a step scales needs 2 ranks or more, and a rank that is timed alone"
        rate = number_text(point.samples_per_second)
        return f"{count_of(ranks, 'rank')}: {rate} samples/s; {missing}."
    losses = [
        f"{part['name']} ({part['percent']:.1f} %)"
        for part in sorted(analysis.losses, key=lambda part: -part["percent"])
        if part["ranks"] == ranks and part["name"] != EFFICIENCY
    ]
    why = f"; the rest of the step is {', '.join(losses)}" if losses else ""
    return (
        f"{ranks} ranks: {point.speedup.median:.2f} x the samples/s of one rank alone, efficiency "
        f"{point.efficiency.median:.1f} %{why}.{waited_for(analysis.results[-1])}"
    )


def waited_for(result: ScalingResult) -> str:
    """A sentence about the rank that all others wait for, as the program says it in the label of a
    step; else empty."""
    entries = result.step.rounds.values() if result.step else ()
    parts = [part for entry in entries for part in entry.get("label", "").split("; ")]
    return next((f" R{part[1:]}." for part in parts if " arrives last in " in part), "")


# the tables that are printed; the page has all
ON_TERMINAL = (*("parallel_efficiency", "scaling_losses", "collective_fits", "held_out_ranks"),)


def write_results(
    results: Sequence[ScalingResult], failures: Sequence[Failure], folder: Path | None, command: str
) -> None:
    """Prints the answer and the main tables; writes scaling.json and scaling.md into `folder`, if
    there is one. BadInputError where they cannot be written."""
    analysis = analyse(results)
    head = [answer(analysis), ""]
    head += [f"- {text}" for text in data_parallel.facts(analysis)]
    omissions = data_parallel.omissions_of(analysis, failures, "run")
    left_out = [
        f"- {' '.join(f'{omission.kind} {omission.name}: {omission.reason}'.split())}"
        for omission in omissions
    ]
    left_out = section("Left out", left_out) if left_out else []
    tables = {table.id: markdown_section(table) for table in data_parallel.tables_of(analysis)}
    few = [line for name, lines in tables.items() if name in ON_TERMINAL for line in lines]
    # first, since writing the files may fail after hours of measuring
    say_line("\n".join([*head, "", *few, *left_out]))
    if folder is not None:
        document = scaling_document(analysis, command, failures)
        text = without_folders(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False))
        page = ["# Data-parallel scaling", "", *head, "", *itertools.chain(*tables.values())]
        page += [*left_out, f"Made by `{command}`. docs/distributed.md says how.", ""]
        try:
            write_whole(folder / SCALING_FILE, text + "\n")
            write_whole(folder / SCALING_PAGE, without_folders("\n".join(page)))
        except OSError as error:
            raise BadInputError(
                f"{shown(folder)} takes no files ({error.strerror}), so {SCALING_FILE} and "
                f"{SCALING_PAGE} are not written; the tables stand above. --from writes into its "
                "folder: copy that to where you may write, or name one file in it"
            ) from error
        say_line(f"{shown(folder / SCALING_PAGE)}\n{shown(folder / SCALING_FILE)}")


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 after a wrong result, or where a rank died or hung; 130 after an
    interruption, with what was measured written. BadInputError where nothing can be measured or
    read."""
    options = parse_options(arguments)
    command = command_text([*typed("scaling").split(), *arguments])
    if not {"--help", "-h"}.isdisjoint(options.program):
        program = program_in(options.build_folder, PROGRAM)
        return subprocess.run([program, "--help"], check=False).returncode
    if options.source is not None:
        (results, failures), status = read_scaling_run(options.source), 0
        # for a single file nothing is written: scaling.json is about the whole folder
        folder = options.source if options.source.is_dir() else None
    else:
        folder = options.out or run_folder("scaling")
        status, failures = measure(options, folder, Progress())
        try:
            results, failures = read_scaling_run(folder, failures)
        except BadInputError as error:
            if status == REFUSED_OPTIONS:
                # the rank's last words said why; an empty run needs no folder
                shutil.rmtree(folder)
                return status
            what = f"no result can be used: {error}; what the ranks said is in {shown(folder)}"
            Progress().line(what)
            return status or 1
    write_results(results, failures, folder, command)
    return status or int(bool(failures) or any(one.failed for one in results))
