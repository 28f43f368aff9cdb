"""scripts/compare: stored results, or the subcommand that the first argument names."""

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType

# imported when needed: stored results do not need what builds and measures
COMMANDS = {
    "run": "tinyllama_tools.compare.run",
    "calibrate": "tinyllama_tools.calibrate.command",
    "history": "tinyllama_tools.compare.history",
}
STORED = "tinyllama_tools.compare.stored"


def _command(arguments: Sequence[str]) -> tuple[ModuleType, Sequence[str]]:
    is_named = bool(arguments) and arguments[0] in COMMANDS
    module = importlib.import_module(COMMANDS[arguments[0]] if is_named else STORED)
    return module, arguments[1:] if is_named else arguments


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """SystemExit as argparse raises it, with 2 for a bad option."""
    module, options = _command(arguments)
    return module.parse_options(options)


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command. Nothing that goes wrong ends with 1, which is a regression's
    own."""
    module, options = _command(arguments)
    return module.main(options)
