"""The checkout, how commands end, files written whole, and git."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[3]
Json = dict[str, Any]


class ToolError(Exception):
    """Ends a command with `exit_status`; the message names the value, the rule and what to do."""

    exit_status = 2


class BadInputError(ToolError):
    """Bad input, or nothing to work on; the message names the value, the rule and what to do."""


# of our programs
REFUSED_OPTIONS, INTERRUPTED = 2, 130
ASKING_TO_END = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """KeyboardInterrupt from these signals too, so that what was measured is judged and written.

    A signal that is ignored (nohup) stays ignored. Does nothing in a thread, where Python knows no
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ASKING_TO_END}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _let_go_of_output() -> None:
    """What is left in its buffer would fail once more when the interpreter ends, with a status of
    its own."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_command(name: str, command: Callable[[], int]) -> int:
    """The exit status of scripts/<name>: the command's own, 130 where it was interrupted, and where
    it fails that of the error, else 2; one line says why. Only the command itself ends with 1."""

    def say(text: str) -> None:
        print(f"scripts/{name}: {text}", file=sys.stderr)

    try:
        with ended_as_by_ctrl_c():
            status = command()
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # `| head` changes no verdict
            _let_go_of_output()
        return status
    except ToolError as error:
        say(str(error))
        return error.exit_status
    except BrokenPipeError:
        _let_go_of_output()
        say("broken pipe: standard output was closed before the end")
    except OSError as error:
        _let_go_of_output()
        named = f"{error.filename or 'output'}: {error.strerror}"
        say(named if error.strerror else str(error))
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        say(f"not foreseen: {type(error).__name__}: {error}; where it happened stands above")
    return ToolError.exit_status


PROBLEM_SIZES = PROJECT / "fixtures/problem_sizes.json"
RESULTS = PROJECT / "results"
# of a run of the suite, in its folder
SUITE_FILE = "results.json"


def write_whole(path: Path, text: str) -> None:
    """Never half a file, whatever happens meanwhile."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def shown_path(path: Path) -> str:
    """Relative to the checkout where it is inside."""
    whole = path.resolve()
    return str(whole.relative_to(PROJECT)) if whole.is_relative_to(PROJECT) else str(path)


def run_folder(kind: str, results: Path = RESULTS) -> Path:
    """results/<UTC time>_<kind>, not yet made."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return results / f"{now.strftime('%Y%m%dT%H%M%SZ')}_{kind}"


def head_commit(project: Path) -> str:
    """Of the checkout; empty where it is none."""
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()


def changed_files(project: Path) -> str:
    """Tracked files that differ from the commit, results apart."""
    git = ["git", "-c", "safe.directory=*", "status", "--porcelain", "--untracked-files=no"]
    command = [*git, "--", ":!results"]
    found = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def problem_sizes() -> dict[str, dict[str, int]]:
    """fixtures/problem_sizes.json."""
    return json.loads(PROBLEM_SIZES.read_text(encoding="utf-8"))
