"""Reads the options of `compare run` and `compare calibrate` before anything is built for them.

Says what is wrong with an option, or the help, and ends the process; otherwise does nothing.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

MODULES = {
    "run": "tinyllama_tools.compare.run_command",
    "calibrate": "tinyllama_tools.calibrate.command",
}


def read_early(arguments: Sequence[str]) -> None:
    """`arguments`: the command and its options. SystemExit as argparse raises it, with 0 after the
    help and 2 for a bad option."""
    command, *options = arguments
    module = importlib.import_module(MODULES[command])
    parser = argparse.ArgumentParser(
        prog=f"scripts/compare {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_options(parser)
    parser.parse_args(options)


if __name__ == "__main__":
    read_early(sys.argv[1:])
