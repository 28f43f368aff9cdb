"""Reads the options of `compare run` and `compare calibrate` before anything is built for them.

Says what is wrong with an option, or the help, and ends the process; otherwise does nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tinyllama_tools.compare.main import COMMANDS


def read_early(arguments: Sequence[str]) -> None:
    """`arguments`: the command and its options. SystemExit as argparse raises it, with 0 after the
    help and 2 for a bad option."""
    command, *options = arguments
    importlib.import_module(COMMANDS[command]).read_options(options)


if __name__ == "__main__":
    read_early(sys.argv[1:])
