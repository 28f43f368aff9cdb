"""scripts/study --grid: a run of the suite over batch x sequence x size; beside it GEMMs, some
steps of a larger size, costs of all problem sizes, and what fits into memory.

Every measured case is in a journal at once, so that --resume continues whatever ended it.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.commands.predicted import print_predictions
from tinyllama_tools.core.app import (
    INTERRUPTED,
    SUITE_FILE,
    BadInputError,
    Json,
    command_text,
    now_text,
    problem_sizes,
    read_json,
    run_folder,
    say_line,
    write_whole,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.installation import RESULTS, typed
from tinyllama_tools.core.options import (
    add_build_folder,
    add_out,
    add_plugin,
    list_of,
    plugin_options,
    positive,
    positive_list,
    script_parser,
)
from tinyllama_tools.core.process import ProgramError, Progress, program_in, run_program
from tinyllama_tools.core.text import say
from tinyllama_tools.data import studies
from tinyllama_tools.data.names import BASELINE, STEP, SWITCHES, TRAIN
from tinyllama_tools.data.programs import (
    NUMBERS,
    SuiteProgram,
    ask_costs,
    ask_dry_run,
    ask_json,
    case_options,
)
from tinyllama_tools.data.results import read_result_set
from tinyllama_tools.models.collectives import read_interconnects
from tinyllama_tools.models.machine_file import read_machine

# ---- what a grid consists of

# each component has one or two of them; forward_loss is the model's
PASSES = ("forward_backward", "update", TRAIN, "forward_loss")
# as rows, peaks of all shapes of the grid would take longer than the grid
NO_PEAKS = "--benchmark_filter=-^peak/"
PRODUCTS_ONLY = "--benchmark_filter=^peak/gemm/[^/]+/[0-9]"
THREE = "--benchmark_repetitions=3"
MEASURING = (THREE, "--benchmark_min_time=0.1s", "--max-seconds-per-case=30")
# The size whose steps predictions are checked by; the program skips steps that would take longer.
CHECK_SIZE, NO_CHECK = "medium", "off"
CHECKING = (THREE, "--benchmark_min_time=1x", "--max-seconds-per-case=60", "--verify=off")
EPILOG = """\
Measures every component and the full step at each batch, sequence and SIZE in one run of the suite,
then GEMMs at each size's own shape and a few steps of a larger size, by which predictions are
checked. Axes are as tiny_llama_bench takes them. results/README.md describes the files;
scripts/report makes a page of them. A time is of one stretch of the run: on a disturbed machine
measure again, and believe what both pages say.

With --machine nothing is measured: the full step of each size, batch, sequence, dtype and variant
is predicted from that file, which scripts/report --format machine made, on this machine or another;
with --ranks also over so many ranks, shared as ddp, zero1, zero3. What the file lacks is refused.

Ctrl-C, SIGTERM or a closed terminal keep every case that was measured: the same command with
--resume goes on.

Exit status: 0 all measured, or left out with a reason; 1 some case failed; 2 bad option, the set-up
failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a bad value ends the command with status 2. Of values on axes, the program
    decides."""
    names = tuple(problem_sizes())
    parser = script_parser("study --grid", "Every component over batch x sequence x size.", EPILOG)
    add = parser.add_argument
    add("sizes", nargs="+", type=list_of(names, "size"), metavar="SIZE", help=", ".join(names))
    add("--grid", action="store_true", help=argparse.SUPPRESS)
    add("--batch", default="1,2,4,8", metavar="LIST", help="default: %(default)s")
    add("--seq", default="64,128,256,512", metavar="LIST", help="default: %(default)s")
    add("--components", metavar="LIST", help="default: all")
    add("--variants", default="baseline", metavar="LIST", help="default: %(default)s")
    add("--dtypes", default="f32", metavar="LIST", help="default: %(default)s")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--threads", type=positive, metavar="N", help="of the processor (default: all)")
    check = f"whose steps are timed at the end, to check predictions by (default: {CHECK_SIZE})"
    add("--check-size", choices=(*names, NO_CHECK), default=CHECK_SIZE, help=check)
    add_plugin(parser)
    machine_help = "machine.json: predict the grid's steps from it, and measure nothing"
    add("--machine", type=Path, metavar="FILE", help=machine_help)
    add("--ranks", type=positive_list, metavar="LIST", help="predict them over so many ranks too")
    names_of_links = [one["name"] for one in read_interconnects()]
    links_help = (
        "of fixtures/interconnects.json, with commas: predict over these (default: the link that "
        "the file's ranks measured)"
    )
    links = list_of(names_of_links, "interconnect")
    add("--interconnects", type=links, default=(), metavar="NAMES", help=links_help)
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    add("--resume", action="store_true", help="go on with the newest that did not end")
    add_out(parser, "default: results/<UTC time>_grid")
    add_build_folder(parser)
    options = parser.parse_args(arguments)
    options.sizes = tuple(dict.fromkeys(name for names in options.sizes for name in names))
    if options.machine is None and (options.ranks or options.interconnects):
        parser.error("--ranks, --interconnects: what is predicted takes a --machine")
    if options.interconnects and not options.ranks:
        parser.error("--interconnects: over how many --ranks?")
    return options


def check_axes(options: argparse.Namespace) -> dict[str, str]:
    """Axes of the steps that check predictions: the size's own shape, and smaller batches. Empty
    where nothing is checked, as where the size is in the grid that rates are calibrated on."""
    has_steps = STEP in (options.components or STEP).split(",")
    if options.check_size in (NO_CHECK, *options.sizes) or not has_steps:
        return {}
    own = problem_sizes()[options.check_size]
    batches = [own["batch"] >> i for i in reversed(range(own["batch"].bit_length()))]
    axes = {"sizes": options.check_size, "batch": batches, "seq": [own["seq"]]}
    return {n: v if isinstance(v, str) else ",".join(map(str, v)) for n, v in axes.items()}


def shared_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Of every process."""
    threads = (f"--threads={options.threads}",) if options.threads else ()
    return (*threads, *plugin_options(options))


def cases_at(options: argparse.Namespace, **axes: str | None) -> list[str]:
    """Options for the grid's passes and variants over these axes."""
    own = {"dtypes": options.dtypes, "variants": options.variants, "passes": ",".join(PASSES)}
    return case_options(options.device, NO_PEAKS, *shared_options(options), **own, **axes)


def grid_of(options: argparse.Namespace) -> list[str]:
    """Options for the cases of the grid. Without --components, a component that a variant does not
    change makes no case of it."""
    axes = {name: getattr(options, name) for name in ("batch", "seq", "components")}
    return cases_at(options, sizes=",".join(options.sizes), **axes)


def runs_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """The files that are measured, in their order, each by one process with these options."""
    sizes, axes = ",".join(options.sizes), check_axes(options)
    asked = {"dtypes": options.dtypes, "components": "peak", "sizes": sizes}
    shared = shared_options(options)
    how = ("--verify=off", THREE, PRODUCTS_ONLY, *shared)
    products = case_options(options.device, *how, **asked)
    found = {SUITE_FILE: [*grid_of(options), *MEASURING], studies.PRODUCTS: products}
    steps = {"dtypes": options.dtypes, "components": STEP, "variants": options.variants, **axes}
    return found | (
        {studies.CHECK: case_options(options.device, *CHECKING, *shared, **steps)} if axes else {}
    )


# ---- its folder, and how far it is


def keep_state(folder: Path, command: str, finished: str = "") -> None:
    """Writes study.json. `finished`: the UTC time, or empty."""
    document = {"kind": studies.KIND, "schema_version": 1, "command": command, "finished": finished}
    write_whole(folder / studies.STUDY, json.dumps(document, indent=1) + "\n")


def begin(options: argparse.Namespace, command: str) -> Path:
    """The folder: a new one, or with --resume that of a grid which did not end. BadInputError where
    --resume finds none that was begun so, or without it there are files in the folder."""
    folder = options.out or run_folder(studies.KIND, RESULTS)
    if options.resume and not options.out:
        every = sorted(RESULTS.glob(f"*_{studies.KIND}/{studies.STUDY}"), reverse=True)
        of = (path.parent for path in every if not read_json(path)[0].get("finished"))
        folder = next(of, folder)
    if options.resume:
        path = folder / studies.STUDY
        begun = read_json(path)[0].get("command") if path.is_file() else None
        if begun is None:
            raise BadInputError(f"--resume: {folder.parent} holds no grid that did not end")
        if begun != command:
            raise BadInputError(f"--resume: {folder} was begun as: {begun}; give the same options")
    elif folder.is_dir() and any(folder.iterdir()):
        raise BadInputError(f"{folder}: holds files; name another folder, or add --resume")
    folder.mkdir(parents=True, exist_ok=True)
    keep_state(folder, command)
    return folder


# its line for a case on standard error: "[3/96] attention/...  1.27 ms"
CASE_LINE = re.compile(r"\[\d+/\d+\] (\S+)  (.*)")
# what Google Benchmark appends to the name that --list prints
OWN_SUFFIXES = re.compile(r"(/iterations:\d+)?(/repeats:\d+)?(/manual_time)?$")


def measure(program: Path, options: Sequence[str], result: Path) -> None:
    """Runs the program to its end, or continues its journal; nothing where the file is whole.

    Raises KeyboardInterrupt after Ctrl-C, with every finished case in the journal; ProgramError
    where the result lacks a case.
    """
    journal, title = studies.journal_of(result), result.stem
    if result.is_file() and not journal.is_file():
        return
    names, progress = SuiteProgram(program=program).list_cases(options), Progress()
    kept = len(set(names) & set(studies.journaled_names(journal)))
    progress.begin(len(names), kept, title)
    progress.line(f"{title}: {len(names) - kept} cases")

    def hear(line: str) -> None:
        """Counts a finished case; a failed one gets a line that stays."""
        if found := CASE_LINE.fullmatch(line):
            name, outcome = found.groups()
            if outcome.startswith("FAILED: "):
                progress.line(f"{name}: {outcome}")
            progress.step(f"{name}  {outcome}")

    # one without a whole header is begun anew
    journal.touch()
    kept_in = (f"--journal={journal}", "--resume", f"--benchmark_out={result}")
    try:
        # status 1: some cases failed, which the result says
        done = run_program([str(program), *options, *kept_in], ProgramError, ok=(0, 1), hear=hear)
    except ProgramError as error:
        raise ProgramError(f"{title}: {error}", error.exit_status) from error
    finally:
        progress.end()
    rows = read_json(result)[0]["benchmarks"] if result.is_file() else []
    missing = set(names) - {OWN_SUFFIXES.sub("", row["run_name"]) for row in rows}
    if missing:
        # as where it could not write its journal
        what = f"{result.name} lacks {len(missing)} of {len(names)} cases"
        raise ProgramError(f"{what}; last words of {program.name}: {done.words}")
    if done.is_interrupted:
        raise KeyboardInterrupt
    journal.unlink()


def write_costs(program: Path, options: argparse.Namespace, path: Path) -> None:
    """Writes costs.json, unless it is there: of the grid, of every component of every problem size
    at its own batch and sequence, and of the steps that check predictions."""
    if path.is_file():
        return
    priced = [grid_of(options), cases_at(options, sizes=",".join(problem_sizes()))]
    priced += [cases_at(options, **axes)] if (axes := check_axes(options)) else []
    answers = [ask_dry_run(program, asked)[0] for asked in priced]
    keys = ("name", *NUMBERS, "fits", "reason")
    cases = [{key: case.get(key, "") for key in keys} for a in answers for case in a["cases"]]
    head = ("device", "git_commit", "memory_budget_bytes", "memory_budget_source")
    document = {key: answers[0].get(key, "") for key in head}
    document["cases"] = list({case["name"]: case for case in cases}.values())
    write_whole(path, json.dumps(document, indent=1) + "\n")


FRONTIER_CASES = {"variants": ("baseline", "optimized"), "dtypes": ("f32", "bf16")}
FRONTIER_GIVEN = {"seq": (128, 256, 512, 1024, 2048), "batch": (1, 2, 4, 8, 16)}


def write_frontier(program: Path, device: str, path: Path) -> None:
    """Writes frontier.json: the largest batch of each sequence, and the longest sequence of each
    batch, that the program's --find-limit predicts to fit into the memory that is free now."""
    lists: dict[str, Json] = {}
    for axis in studies.AXES.values():
        cases = {"components": (STEP,), "sizes": tuple(problem_sizes()), **FRONTIER_CASES}
        cases[axis.given] = FRONTIER_GIVEN[axis.given]
        asked = {name: ",".join(map(str, values)) for name, values in cases.items()}
        how = (f"--find-limit={axis.searched}", "--benchmark_format=json")
        answer = ask_json(program, case_options(device, *how, **asked))
        lists[axis.key] = [
            {
                **{key: row[key] for key in ("size", "variant", "dtype", axis.given)},
                axis.largest_key: row["largest"],
                "predicted_bytes": row["predicted_memory_bytes"],
                "limit_bytes": answer["memory_limit_bytes"],
            }
            for row in answer["limits"]
            if not row["skip_reason"]
        ]
    document = {
        "kind": "frontier",
        "schema_version": 1,
        "device": str(answer["device"].get("name") or ""),
        "git_commit": answer["git_commit"],
        "date": now_text(),
        "command": typed("study"),
        "limit_bytes": answer["memory_limit_bytes"],
        "limit_source": answer["memory_limit_source"],
        "overhead": {"source": "none is added: the prediction is of what tensors take"},
        **lists,
    }
    write_whole(path, json.dumps(document, indent=1) + "\n")


# ---- in place of measuring


def predict(options: argparse.Namespace) -> int:
    """The grid's steps from --machine; the exit status. BadInputError where the file cannot be used
    or lacks what that takes."""
    file = read_machine(options.machine)
    asked = [(d, v) for d in options.dtypes.split(",") for v in options.variants.split(",")]
    # a variant's parts may be the baseline's
    variants = ",".join(dict.fromkeys([BASELINE, *options.variants.split(",")]))
    axes = {"components": ",".join([*SWITCHES, STEP]), "passes": ",".join(PASSES)}
    axes |= {"dtypes": options.dtypes, "variants": variants}
    axes |= {"sizes": ",".join(options.sizes), "batch": options.batch, "seq": options.seq}
    how = (NO_PEAKS, *shared_options(options))
    program = program_in(options.build_folder, "tiny_llama_bench")
    costs = ask_costs(program, case_options(options.device, *how, **axes))
    return print_predictions(file, costs, asked, options.ranks or (), options.interconnects)


# ---- the whole study


def _outcomes(folder: Path, names: Sequence[str]) -> int:
    """Says what became of the cases of each file; 1 where some failed."""
    failures = 0
    for name in names:
        found = read_result_set([folder / name])
        failed = sum(bool(case.failed) for case in found.left_out.values())
        left_out = len(found.left_out) - failed
        measured = len(found.cases) or len(found.products)
        of = f"{measured} measured, {left_out} left out, {failed} failed"
        say_line(f"  {shown(folder / name)}: {of}")
        failures += failed
    return int(bool(failures))


def main(arguments: Sequence[str]) -> int:
    """Measures what the grid lacks; the exit status. An early end keeps what was measured and tells
    how to continue."""
    options = parse_options(arguments)
    if options.machine is not None:
        return predict(options)
    program = program_in(options.build_folder, "tiny_llama_bench")
    command = command_text([*typed("study").split(), *(it for it in arguments if it != "--resume")])
    # before any folder is made: only the program knows every axis
    cases = len(SuiteProgram(program=program).list_cases(grid_of(options)))
    say_line(f"Grid: {cases} cases; then {', '.join(list(runs_of(options))[1:])}.")
    if options.dry_run:
        return 0
    folder = begin(options, command)
    say_line(f"Output Directory: {shown(folder)}")
    again = "the same command with --resume continues"
    try:
        write_costs(program, options, folder / studies.COSTS)
        for name, asked in runs_of(options).items():
            measure(program, asked, folder / name)
        Progress().line("predicting the largest batch of every sequence")
        write_frontier(program, options.device, folder / studies.FRONTIER)
    except KeyboardInterrupt:
        say(f"{typed('study')}: interrupted, and nothing is lost; {again}")
        return INTERRUPTED
    except ProgramError as error:
        say(f"{typed('study')}: {error}")
        condition = "with the build, commit and machine that it was begun with"
        say(f"{typed('study')}: what was measured is in {shown(folder)}; {again}, {condition}")
        return error.exit_status
    keep_state(folder, command, now_text())
    status = _outcomes(folder, list(runs_of(options)))
    say_line(f"{typed('report')} makes a page of it.")
    return status
