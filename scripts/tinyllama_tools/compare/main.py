"""scripts/compare: stored results, or the subcommand that the first argument names."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from tinyllama_tools.compare.interrupts import INTERRUPTED, ended_as_by_ctrl_c
from tinyllama_tools.judging.outcome import BAD_INPUT
from tinyllama_tools.reading.errors import BadInputError

# imported when needed: stored results do not need what builds and measures
COMMANDS = {
    "run": "tinyllama_tools.compare.run_command",
    "calibrate": "tinyllama_tools.calibrate.command",
    "history": "tinyllama_tools.history.command",
}
STORED = "tinyllama_tools.compare.stored_command"


def _say(text: str, command: str = "") -> None:
    print(f"{' '.join(filter(None, ['scripts/compare', command]))}: {text}", file=sys.stderr)


def _let_go_of_output() -> None:
    """What is left in its buffer would fail once more when the interpreter ends, with a status of
    its own."""
    with contextlib.suppress(OSError, ValueError):
        output = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)


def _all_said(status: int) -> int:
    """`status`, once everything is out. Whoever stops reading (`| head`) changes no verdict."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_output()
    except OSError as error:
        _let_go_of_output()
        _say(f"standard output cannot be written: {error}")
        return BAD_INPUT
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command. Nothing that goes wrong ends with 1, which is a regression's
    own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    try:
        with ended_as_by_ctrl_c():
            module = importlib.import_module(COMMANDS.get(name, STORED))
            return _all_said(module.main(given[1:] if name in COMMANDS else given))
    except BadInputError as error:
        _say(str(error), name if name in COMMANDS else "")
        return _all_said(BAD_INPUT)
    except BrokenPipeError:
        _let_go_of_output()
        _say("whoever reads standard output stopped before the end")
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        _say(f"not foreseen: {type(error).__name__}: {error}; where it happened stands above")
        return _all_said(BAD_INPUT)


if __name__ == "__main__":
    sys.exit(main())
