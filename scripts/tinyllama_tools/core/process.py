"""Runs a program to its end; progress on standard error."""

import contextlib
import functools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from tinyllama_tools.core.app import INTERRUPTED, REFUSED_OPTIONS, ToolError, naming
from tinyllama_tools.core.installation import (
    BUILD,
    GET_PROGRAMS,
    INSTALL_AGAIN,
    IS_CHECKOUT,
    VERSION,
    is_prefix,
    program_path,
)
from tinyllama_tools.core.text import duration, last_words


class Progress:
    """Shows which step of how many is in hand, and about how long the rest takes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.begin(0)

    def begin(self, total: int, done: int = 0, title: str = "") -> None:
        """Starts to count `total` steps, of which `done` were made before."""
        self.total, self.done, self.kept = total, done, done
        self.title = f"{title} " if title else ""
        self.start = time.monotonic()

    def line(self, text: str) -> None:
        """Prints a line that stays."""
        self.end()
        print(text, file=self.stream, flush=True)

    def passing(self, text: str) -> None:
        """Prints a line that the next one replaces, on a terminal only."""
        if self.stream.isatty():
            # one that wraps could not be taken away
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:columns]}\033[K", end="", file=self.stream, flush=True)

    def step(self, text: str) -> None:
        """Begins the next step. A terminal shows each, any other output every tenth of them all."""
        made, left = self.done - self.kept, ""
        if made:
            elapsed = time.monotonic() - self.start
            left = f", {duration(elapsed / made * (self.total - self.done))} left"
        message = f"{self.title}[{self.done + 1}/{self.total}{left}] {text}"
        if self.stream.isatty():
            self.passing(message)
        elif self.done % max(1, self.total // 10) == 0:
            print(message, file=self.stream, flush=True)
        self.done += 1

    def end(self) -> None:
        """Takes the line of the step in hand away."""
        self.passing("")


class ProgramError(ToolError):
    """A program did not do what was asked; the message names it and has its last words.

    `exit_status`: of a command that cannot go on: 2 where the program is missing or refused its
    options, else 1.
    """

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class TimedOutError(ToolError):
    """A program did not end in time, and was ended."""


@dataclass(frozen=True)
class Ended:
    """`output`: standard output, with standard error in it where they were read as one. `words`:
    the last of what was said. `seconds`: from start to end, loading included. `is_interrupted`:
    Ctrl-C came, and the program ended as it should all the same."""

    status: int
    output: str
    words: str
    seconds: float
    is_interrupted: bool


ENDING = "interrupted: ending after what is in hand; Ctrl-C once more ends at once"
SAID_NOTHING = "it said nothing"
ENDING_S = 30.0


def how_ended(status: int) -> str:
    """`ended with 3`, `was ended by signal SIGKILL`."""
    if status >= 0:
        return f"ended with {status}"
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"was ended by signal {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def signal_all(process: subprocess.Popen, number: signal.Signals) -> None:
    """To the program and all that it started, which would keep processors busy and its pipe
    open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _listen(
    process: subprocess.Popen[str], heard: list[str], hear: Callable[[str], object], at_once: bool
) -> bool:
    """Reads until it ends; whether a KeyboardInterrupt came meanwhile. The first one asks it to end
    after what is in hand, or is raised (`at_once`); the second one kills it."""
    is_interrupted = False
    while process.returncode is None:
        try:
            for line in process.stderr or process.stdout or ():
                heard.append(line)
                hear(line.rstrip("\n"))
            process.wait()
        except KeyboardInterrupt:
            if at_once:
                raise
            signal_all(process, signal.SIGKILL if is_interrupted else signal.SIGINT)
            if not is_interrupted:
                Progress().line(ENDING)
            is_interrupted = True
    return is_interrupted


# for a program to end by itself what it started, once its time is over
LATE_S = 10.0


@contextlib.contextmanager
def _ended_after(process: subprocess.Popen[str], limit_s: float) -> Iterator[threading.Event]:
    """Asks the program to end after so many seconds, and kills it LATE_S later. Set: it was
    asked."""
    is_late = threading.Event()

    def ask() -> None:
        is_late.set()
        signal_all(process, signal.SIGINT)

    timers = []
    if limit_s < math.inf:
        timers.append(threading.Timer(limit_s, ask))
        kill = (process, signal.SIGKILL)
        timers.append(threading.Timer(limit_s + LATE_S, signal_all, kill))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield is_late
    finally:
        for timer in timers:
            timer.cancel()


def _end(process: subprocess.Popen[str]) -> None:
    """Asks it to end, since nobody listens any more, and kills what is left after ENDING_S."""
    signal_all(process, signal.SIGINT)
    try:
        process.communicate(timeout=ENDING_S)  # reads on: a full pipe would hold it up
    except subprocess.TimeoutExpired:
        pass
    finally:
        # also after a Ctrl-C meanwhile
        signal_all(process, signal.SIGKILL)
        process.wait()


def run_program(
    command: Sequence[str],
    error: type[ProgramError],
    *,
    ok: Collection[int] = (0,),
    hear: Callable[[str], object] = lambda _: None,
    log: Path | None = None,
    as_one: bool = False,
    stop_at_once: bool = False,
    limit_s: float = math.inf,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a program to its end. `hear` gets each line of standard error as it comes, `as_one`
    those of standard output too; `log` keeps them. After Ctrl-C it may end what is in hand, unless
    `stop_at_once`. `environment`: added to that of this process.

    Raises `error` where it cannot be started, refuses its options (status 2) or ends with another
    status than those in `ok`; KeyboardInterrupt where that is because it, or we, were interrupted;
    TimedOutError where it takes longer than `limit_s`.
    """
    name, heard, started = Path(command[0]).name, [], time.monotonic()
    with contextlib.ExitStack() as open_files:
        if log:
            open_files.enter_context(naming(log))
        try:
            keep = open_files.enter_context(log.open("w", encoding="utf-8")) if log else None
        except OSError as failure:
            message = f"{log}: the program's output cannot be kept: {failure.strerror}"
            raise error(message, REFUSED_OPTIONS) from failure

        def hear_and_keep(line: str) -> None:
            if keep:
                print(line, file=keep, flush=True)
            hear(line)

        written = open_files.enter_context(tempfile.TemporaryFile())
        try:
            # A session of its own: a terminal's Ctrl-C reaches us only, and the program once, from
            # us. It would die of the second one.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if as_one else written,
                stderr=subprocess.STDOUT if as_one else subprocess.PIPE,
                start_new_session=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **environment} if environment else None,
            )
        except OSError as failure:
            message = f"{name} cannot be started: {failure}; {GET_PROGRAMS}"
            raise error(message, REFUSED_OPTIONS) from failure
        try:
            with _ended_after(process, limit_s) as is_late:
                is_interrupted = _listen(process, heard, hear_and_keep, stop_at_once)
        finally:
            if process.poll() is None:
                _end(process)
            (process.stderr or process.stdout).close()
        written.seek(0)
        output = "".join(heard) if as_one else written.read().decode("utf-8", errors="replace")
    status, seconds = process.returncode, time.monotonic() - started
    words = last_words("".join(heard))
    if is_late.is_set() and not is_interrupted:
        said = f"; it last said: {words}" if words else ""
        raise TimedOutError(f"{name} did not end within {limit_s:.0f} s{said}")
    if status in ok:
        return Ended(status, output, words, seconds, is_interrupted)
    if is_interrupted or status == INTERRUPTED:
        raise KeyboardInterrupt
    if status == REFUSED_OPTIONS:
        # the program's own line names the option, its value and what is allowed
        line = (words or SAID_NOTHING).splitlines()[-1]
        raise error(line if line.startswith(name) else f"{name}: {line}", REFUSED_OPTIONS)
    if problem := loader_problem(Path(command[0]), status, words):
        raise error(problem, REFUSED_OPTIONS)
    raise error(f"{name} {how_ended(status)}: {words or SAID_NOTHING}")


# ---- whether programs are those of these tools


# what the loader says, and how a program that it cannot start ends
LOADER = re.compile(r"error while loading shared libraries|symbol lookup error")
LOADER_STATUS = 127


def _torch_found(program: Path) -> str:
    """`torch 2.13.0 of FOLDER`: what the loader would take; empty where it finds none."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    libraries = re.findall(r"^\s*libtorch_cpu\.so => (/.*) \(0x", done.stdout, re.MULTILINE)
    for library in map(Path, libraries):
        with contextlib.suppress(OSError):
            text = (library.parents[1] / "version.py").read_text(encoding="utf-8")
            if found := re.search(r"^__version__ = '(.*)'", text, re.MULTILINE):
                return f"torch {found[1]} of {library.parent}"
    return f"the libtorch of {Path(libraries[0]).parent}" if libraries else ""


def _torch_built_with(program: Path) -> str:
    """`libtorch 2.13.0`, as the CMake files beside an installed program have it."""
    for file in sorted(program.parent.parent.glob("lib*/cmake/tiny_llama/*.cmake")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"built with libtorch ([0-9][\w.+]*)", text):
            return f"libtorch {found[1]}"
    return "another libtorch"


def loader_problem(program: Path, status: int, words: str) -> str:
    """Why the loader could not start the program, and what to do; empty where it could. A torch
    that was moved or changed after the build has other libraries or symbols."""
    if status != LOADER_STATUS or not LOADER.search(words):
        return ""
    there = "none is found"
    with contextlib.suppress(OSError):  # no ldd
        if found := _torch_found(program):
            there = f"{found} is found"
    why = next(line for line in words.splitlines() if LOADER.search(line))
    remedy = f"{GET_PROGRAMS}, beside the torch that is to be used"
    return (
        f"{program.name} cannot be started: {why.removeprefix(f'{program}: ')}; it was built with "
        f"{_torch_built_with(program)}, and {there}: put that torch back, name its lib/ in "
        f"LD_LIBRARY_PATH, or {remedy}"
    )


def program_version(program: Path) -> list[str]:
    """What it says of itself: `tiny_llama_bench 1.0.0`, then lines such as `commit HASH`. ToolError
    where it cannot be started, or refuses the libtorch that it finds."""
    done = run_program([str(program), "--version"], ProgramError, limit_s=60.0)
    return done.output.splitlines()


@functools.cache
def _check_version(program: Path) -> None:
    first = (program_version(program) or [""])[0]
    if first.split()[1:] != [VERSION]:
        raise ProgramError(
            f"{program}: is '{first}', these tools are of version {VERSION}; {INSTALL_AGAIN}, or "
            "name the prefix of that version: --build-folder",
            REFUSED_OPTIONS,
        )


def program_in(folder: Path, name: str) -> Path:
    """A program of a build folder or a prefix. ProgramError where it is missing, or, in a prefix,
    of another version than these tools: a build folder has those that its checkout gave it."""
    program = program_path(folder, name)
    if shutil.which(program) is None:
        message = f"{program}: no such program that can be started; {GET_PROGRAMS}"
        raise ProgramError(message, REFUSED_OPTIONS)
    if is_prefix(folder):
        _check_version(program)
    return program


def version_text() -> str:
    """`tiny-llama 1.0.0`, and what the programs say of themselves. ToolError where they cannot."""
    own = f"tiny-llama {VERSION}"
    program = program_path(BUILD, "tiny_llama_bench")
    if IS_CHECKOUT and not program.is_file():
        return f"{own}\n{program.name} is not built: scripts/bench --setup-only"
    return "\n".join([own, *program_version(program_in(BUILD, program.name))])


def become(program: Path, arguments: Sequence[str]) -> NoReturn:
    """The program instead of this process."""
    sys.stdout.flush()
    # Python ignores it, and what is ignored stays so
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(program, [str(program), *arguments])
