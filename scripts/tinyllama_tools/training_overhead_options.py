"""Options of scripts/training_overhead."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tinyllama_tools.option_values import DTYPES, machine, positive, variants
from tinyllama_tools.result_files import changed_files
from tinyllama_tools.suite_run import PROJECT, problem_sizes

DESCRIPTION = """\
What tiny_llama_train adds to a step: beside full_step of tiny_llama_bench, and with its profilers
on. The sides take turns.
"""
FEWEST_STEPS = 16


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`variants` is a tuple without repetition; a bad value ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="scripts/training_overhead", description=DESCRIPTION, allow_abbrev=False
    )
    add = parser.add_argument
    add("--size", default="tiny", choices=tuple(problem_sizes()))
    add("--dtype", default="f32", choices=DTYPES)
    add("--variants", type=variants, default=("baseline", "optimized"), help="joined by commas")
    add("--turns", type=positive, default=8)
    add("--steps", type=positive, default=20, help="timed steps of a side")
    add("--publish", type=machine, metavar="MACHINE")
    options = parser.parse_args(arguments)
    if options.steps < FEWEST_STEPS:
        parser.error(
            f"--steps {options.steps}: must be {FEWEST_STEPS} or more, beyond those profiled"
        )
    if options.publish and (changed := changed_files(PROJECT)):
        parser.error(f"--publish: tracked files differ from the commit:\n{changed}")
    return options


if __name__ == "__main__":
    parse_options()
