"""Options of scripts/study."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinyllama_tools.core.app import PROJECT, RESULTS
from tinyllama_tools.core.options import DTYPES, list_of, minutes, positive, script_parser
from tinyllama_tools.data.programs import problem_sizes
from tinyllama_tools.grid_study.options import add_grid_options, finish_grid_options

EPILOG = """\
Each size goes to results/performance_results_SIZE_TIME/: config.json, training_output.log,
performance_summary.json and, with --enable-profilers, pytorch_profiles/. A size that does not fit
in memory or would take longer than --max-minutes is said beforehand and not attempted.
Ctrl-C keeps the sizes that are done and writes the tables from them.

The grid goes to results/TIME_grid/: study.json, round_1.json, ..., products.json, check.json,
costs.json and frontier.json. Lists are 8 or 4,8,16 or '64:512:*2'. Ctrl-C keeps every case that was
measured, and scripts/study --resume [--results FOLDER] [--build-folder DIR] goes on from there with
the grid; sizes that were not trained yet stay so.

Exit status: 0 all measured, or left out with a reason; 1 some run failed; 2 bad option, the set-up
failed, or files that cannot be written; 130 interrupted."""


def make_parser() -> argparse.ArgumentParser:
    """All options."""
    names = tuple(problem_sizes())
    parser = script_parser(
        "study",
        "The performance study: trains each problem size and compares them, and "
        "measures every component over batch x sequence x size.",
        EPILOG,
    )
    add = parser.add_argument
    add("sizes", nargs="*", type=list_of(names, "size"), metavar="SIZE", help=", ".join(names))
    add("--enable-profilers", action="store_true", help="operators, memory and FLOPS as well")
    add("--num-steps", type=positive, default=50, help="of each size (default: 50)")
    add("--max-minutes", type=minutes, default=15.0, help="of each size (default: 15)")
    add("--device", default="auto", help="auto, cpu, cuda[:N] or hip[:N] (default: auto)")
    add("--dtype", type=str, choices=DTYPES, default="f32", help="default: f32")
    add("--variant", default="baseline", help="baseline, fused, optimized or switches joined by +")
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    add("--results", type=Path, default=RESULTS, help="folder of the folders (default: results)")
    add("--build-folder", type=Path, default=PROJECT / "build", help="default: build")
    add_grid_options(parser)
    return parser


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`sizes` is a tuple without repetition; `grid_plan`, `trains` and `unfinished` say what is to
    be done. A bad value ends the program with status 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    options.sizes = tuple(dict.fromkeys(name for names in options.sizes for name in names))
    finish_grid_options(parser, options)
    return options


if __name__ == "__main__":
    parse_options()
