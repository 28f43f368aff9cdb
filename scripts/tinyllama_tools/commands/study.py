"""scripts/study: trains each problem size that fits and compares them; --grid is another command,
in grid.py."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tinyllama_tools.commands import grid
from tinyllama_tools.commands.sizes import train
from tinyllama_tools.core.app import PROJECT, RESULTS, command_text, problem_sizes
from tinyllama_tools.core.options import DTYPES, list_of, positive, script_parser, seconds
from tinyllama_tools.core.process import Progress
from tinyllama_tools.data.programs import Predictor, TrainingProgram, ask_costs

EPILOG = """\
scripts/study --grid SIZE... measures every component over batch x sequence x size instead:
scripts/study --grid --help.

Each size goes to results/performance_results_SIZE_TIME/: config.json, training_output.log,
performance_summary.json and, with --enable-profilers, pytorch_profiles/; the comparison to
results/performance_study_TIME.md. A size that does not fit in memory, or that by a sample of three
steps would take longer than --max-seconds-per-case, is named beforehand and not attempted. Ctrl-C
keeps the sizes that are done and writes the table from them.

Exit status: 0 all measured, or left out with a reason; 1 some run failed; 2 bad option, the set-up
failed, or files that cannot be written; 130 interrupted."""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options: `sizes` without repetition. A bad value ends the command with status 2."""
    if "--grid" in arguments:
        return grid.parse_options(arguments)
    names = tuple(problem_sizes())
    about = "The performance study: trains each problem size and compares them."
    parser = script_parser("study", about, EPILOG)
    add = parser.add_argument
    add("sizes", nargs="+", type=list_of(names, "size"), metavar="SIZE", help=", ".join(names))
    add("--enable-profilers", action="store_true", help="operators, memory and FLOPS as well")
    add("--num-steps", type=positive, default=50, help="of each size (default: 50)")
    limit = "leave out a size whose steps are predicted to take longer (default: 900)"
    add("--max-seconds-per-case", type=seconds, default=900.0, metavar="S", help=limit)
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--dtype", type=str, choices=DTYPES, default="f32", help="default: f32")
    variants = "baseline (default), fused, optimized or switches joined by +"
    add("--variant", default="baseline", help=variants)
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    output = "folder of the folders (default: results)"
    add("--output", type=Path, default=RESULTS, metavar="FOLDER", help=output)
    add("--build-folder", type=Path, default=PROJECT / "build", help="default: build")
    options = parser.parse_args(arguments)
    options.sizes = tuple(dict.fromkeys(name for names in options.sizes for name in names))
    return options


def _show_step(line: str) -> None:
    if line.startswith("Step "):
        Progress().passing(line)


def main(
    arguments: Sequence[str],
    program: TrainingProgram | None = None,
    predictor: Predictor | None = None,
) -> int:
    """The exit status. Tests replace `program` and `predictor`."""
    if "--grid" in arguments:
        return grid.main(arguments)
    options = parse_options(arguments)
    programs, device = options.build_folder / "benchmarks", (f"--device={options.device}",)
    program = program or TrainingProgram(programs / "tiny_llama_train", device, _show_step)
    predictor = predictor or partial(ask_costs, programs / "tiny_llama_bench")
    return train(options, command_text(["scripts/study", *arguments]), program, predictor)
