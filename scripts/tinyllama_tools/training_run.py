"""Runs tiny_llama_train in a process of its own and reads the summary that it wrote."""

from __future__ import annotations

import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tinyllama_tools.profile_files import SUMMARY, BadProfileError, read_profile
from tinyllama_tools.suite_run import PROJECT, REFUSED_OPTIONS, Json, last_words

PROGRAM = PROJECT / "build/benchmarks/tiny_llama_train"
# With one of these, files go to --profile-dir; without, to --output-dir.
PROFILER_FLAGS = frozenset(
    {
        "--enable-pytorch-profiler",
        "--profile-memory",
        "--enable-deepspeed-flops",
        "--enable-flops-profiler",
    }
)
LOSS_NOT_FINITE = 1
INTERRUPTED = 130


class TrainingError(Exception):
    """The program did not do what was asked; the message names it and has its last words.

    `exit_status`: what a script that cannot go on ends with: 2 where the program refused what it
    was given or is not there, else 1.
    """

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True)
class TrainingRun:
    """One process that came to its end.

    `output`: standard output and errors as they came. `seconds`: from start to end of the process,
    loading included. `summary`: performance_summary.json of `folder`, None where this run wrote
    none.
    """

    command: tuple[str, ...]
    exit_status: int
    output: str
    seconds: float
    folder: Path | None
    summary: Json | None


def command_line(options: Sequence[str]) -> str:
    """How a user of the checkout would type it."""
    return shlex.join([str(PROGRAM.relative_to(PROJECT)), *options])


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file from the one that replaces it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit status. An interruption of ours, by whatever signal, asks the program to end after
    its current step."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.send_signal(signal.SIGINT)
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
        raise


@dataclass
class TrainingProgram:
    """tiny_llama_train with the options that all its runs share, e.g. `--device=cpu`."""

    program: Path = PROGRAM
    arguments: tuple[str, ...] = ()

    def run(self, options: Sequence[str], folder: Path, log: Path | None = None) -> TrainingRun:
        """Trains with these options, without a folder among them: its files go to `folder`.

        `log` gets all that the program says, while it says it. A loss that is not finite comes back
        as exit status 1. Raises TrainingError where the program cannot be started, refuses its
        options or what it was given, or does not come to its end; KeyboardInterrupt after Ctrl-C,
        once the program has written what it had.
        """
        arguments = [*self.arguments, *options]
        flag = "--profile-dir" if PROFILER_FLAGS & set(arguments) else "--output-dir"
        command = (str(self.program), *arguments, f"{flag}={folder}")
        before = _identity(folder / SUMMARY)
        started = time.monotonic()
        status, output = self._execute(command, log)
        seconds = time.monotonic() - started
        self._raise_unless_ended(status, output)
        written = _identity(folder / SUMMARY)
        # a summary of an earlier run is not this run's
        summary = self._summary(folder) if written not in {None, before} else None
        return TrainingRun(command, status, output, seconds, folder, summary)

    def _execute(self, command: Sequence[str], log: Path | None) -> tuple[int, str]:
        with tempfile.TemporaryDirectory(prefix="tiny_llama_train_") as temporary:
            path = log or Path(temporary) / "output"
            try:
                with path.open("wb") as file:
                    status = _wait(self._start(command, file))
                return status, path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                message = f"{path}: the program's output cannot be kept: {error.strerror}"
                raise TrainingError(message, REFUSED_OPTIONS) from error

    def _start(self, command: Sequence[str], file: BinaryIO) -> subprocess.Popen[bytes]:
        try:
            # a session of its own: a terminal's Ctrl-C reaches us only, and the program from us
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"{self.program.name} cannot be started: {error}"
            message = f"{reason}; build it: scripts/bench --setup-only"
            raise TrainingError(message, REFUSED_OPTIONS) from error

    def _raise_unless_ended(self, status: int, output: str) -> None:
        words = last_words(output) or "it said nothing"
        name = self.program.name
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if status == REFUSED_OPTIONS:
            # the program's own line names the option, its value and what is allowed
            line = words.splitlines()[-1]
            message = line if line.startswith(name) else f"{name}: {line}"
            raise TrainingError(message, REFUSED_OPTIONS)
        if status < 0:
            raise TrainingError(f"{name} was ended by {signal.strsignal(-status)}: {words}")
        if status not in {0, LOSS_NOT_FINITE}:
            raise TrainingError(f"{name} ended with {status}: {words}")

    def _summary(self, folder: Path) -> Json:
        try:
            return read_profile(folder).summary
        except BadProfileError as error:
            raise TrainingError(f"{self.program.name} wrote a bad summary: {error}") from error
