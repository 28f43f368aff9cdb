"""scripts/study: trains each problem size that fits and compares them, or measures the grid."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tinyllama_tools.commands.grid import (
    GridStudy,
    add_grid_options,
    finish_grid_options,
    run_study,
    unfinished_study,
)
from tinyllama_tools.commands.sizes import train
from tinyllama_tools.core.app import (
    PROJECT,
    RESULTS,
    command_text,
    problem_sizes,
    run_folder,
    say_line,
)
from tinyllama_tools.core.app import shown_path as shown
from tinyllama_tools.core.options import DTYPES, list_of, minutes, positive, script_parser
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.programs import Predictor, SuiteProgram, TrainingProgram, ask_costs
from tinyllama_tools.data.studies import KIND

EPILOG = """\
Each size goes to results/performance_results_SIZE_TIME/: config.json, training_output.log,
performance_summary.json and, with --enable-profilers, pytorch_profiles/; the comparison to
results/performance_study_TIME.md. A size that does not fit in memory, or that by a sample of three
steps would take longer than --max-minutes, is named beforehand and not attempted. Ctrl-C keeps the
sizes that are done and writes the table from them.

--grid: every component and the full step over batch x sequence x size, in rounds. Each round has an
order of its own, so that drift of the machine does not fall on the same cases each time; the first
round proves every case before it times it. Results go to results/TIME_grid/, whose files
results/README.md describes. Lists are 8 or 4,8,16 or '64:512:*2' or 128:1024:+128. Ctrl-C, SIGTERM
or a closed terminal keep every case that was measured; scripts/study --resume [--results FOLDER]
[--build-folder DIR] continues the newest grid that did not end, with the options it was begun with.
scripts/report makes a page of it.

Exit status: 0 all measured, or left out with a reason; 1 some run or case failed; 2 bad option, the
set-up failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options: `sizes` without repetition, `grid_plan` of --grid. A bad value ends the command
    with status 2."""
    names = tuple(problem_sizes())
    parser = script_parser(
        "study",
        "The performance study: trains each problem size and compares them, or with\n"
        "--grid measures every component over batch x sequence x size.",
        EPILOG,
    )
    add = parser.add_argument
    add("sizes", nargs="*", type=list_of(names, "size"), metavar="SIZE", help=", ".join(names))
    add("--enable-profilers", action="store_true", help="operators, memory and FLOPS as well")
    add("--num-steps", type=positive, default=50, help="of each size (default: 50)")
    add("--max-minutes", type=minutes, default=15.0, help="of each size (default: 15)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--dtype", type=str, choices=DTYPES, default="f32", help="default: f32")
    variants = "baseline (default), fused, optimized or switches joined by +"
    add("--variant", default="baseline", help=variants)
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    add("--results", type=Path, default=RESULTS, help="folder of the folders (default: results)")
    add("--build-folder", type=Path, default=PROJECT / "build", help="default: build")
    add_grid_options(parser)
    options = parser.parse_args(arguments)
    options.sizes = tuple(dict.fromkeys(name for names in options.sizes for name in names))
    finish_grid_options(parser, options)
    return options


def _show_step(line: str) -> None:
    if line.startswith("Step "):
        Progress().passing(line)


def main(
    arguments: Sequence[str],
    program: TrainingProgram | None = None,
    predictor: Predictor | None = None,
) -> int:
    """Trains the sizes or measures the grid; the exit status. Tests replace `program` and
    `predictor`."""
    options = parse_options(arguments)
    command, plan = command_text(["scripts/study", *arguments]), options.grid_plan
    programs = options.build_folder / "benchmarks"
    suite = programs / "tiny_llama_bench"
    if options.resume:
        grid = unfinished_study(options.results, suite)
        say_line(f"Resuming {shown(grid.folder)}, begun as: {grid.command}")
        return run_study(grid)
    if plan is None:
        device = (f"--device={options.device}",)
        program = program or TrainingProgram(programs / "tiny_llama_train", device, _show_step)
        return train(options, command, program, predictor or partial(ask_costs, suite))
    # before any folder is made: only the program knows every variant
    cases = SuiteProgram(program=suite).list_cases(plan.grid())
    if options.dry_run:
        say_line(plan.in_words(len(cases)))
        return 0
    folder = run_folder(KIND, options.results)
    folder.mkdir(parents=True)
    return run_study(GridStudy(folder, suite, plan, command))
