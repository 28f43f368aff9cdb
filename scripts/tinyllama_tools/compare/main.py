"""scripts/compare: stored results, or the subcommand that the first argument names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from tinyllama_tools.compare.errors import CompareError
from tinyllama_tools.judging.outcome import BAD_INPUT

# imported when needed: stored results do not need what builds and measures
COMMANDS = {
    "run": "tinyllama_tools.compare.run_command",
    "calibrate": "tinyllama_tools.calibrate.command",
    "history": "tinyllama_tools.history.command",
}
STORED = "tinyllama_tools.compare.stored_command"
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    module = importlib.import_module(COMMANDS.get(name, STORED))
    try:
        return module.main(given[1:] if name in COMMANDS else given)
    except CompareError as error:
        print(f"scripts/compare: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
