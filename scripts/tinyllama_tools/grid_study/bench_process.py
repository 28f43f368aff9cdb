"""One process of tiny_llama_bench that is listened to while it measures, and ends in order."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyllama_tools.core.app import INTERRUPTED, Json
from tinyllama_tools.core.process import LAST_WORDS
from tinyllama_tools.data.programs import REFUSED_OPTIONS
from tinyllama_tools.data.studies import journal_of

OWN_SUFFIXES = re.compile(r"(/iterations:\d+)?(/repeats:\d+)?(/manual_time)?$")
OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Ending:
    """How a process ended: status, last words, and whether we were interrupted meanwhile."""

    status: int
    words: str
    is_interrupted: bool


class StoppedError(Exception):
    """The program cannot go on; the message has its reason. `exit_status`: of scripts/study."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        # A session of its own: Ctrl-C reaches us only, and the program once, from us. It would
        # die of the second one.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        name = Path(command[0]).name
        message = f"{name} cannot be started: {error}; build it: scripts/bench --setup-only"
        raise StoppedError(message, REFUSED_OPTIONS) from error


def listen(command: Sequence[str], on_line: OnLine, on_interrupt: Callable[[], None]) -> Ending:
    """Runs it to its end and hands on what it says on standard error.

    A KeyboardInterrupt asks it to end after the case in hand, a second one kills it.
    """
    process = _start(command)
    words: deque[str] = deque(maxlen=LAST_WORDS)
    is_interrupted = False
    try:
        while True:
            try:
                for line in process.stderr or ():
                    words.append(line.rstrip("\n"))
                    on_line(words[-1])
                status = process.wait()
                break
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL if is_interrupted else signal.SIGINT)
                if not is_interrupted:
                    on_interrupt()
                is_interrupted = True
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stderr:
            process.stderr.close()
    return Ending(status, "\n".join(line for line in words if line.strip()), is_interrupted)


def check_ending(ending: Ending, name: str, what: str) -> None:
    """KeyboardInterrupt where we were interrupted before it had done its work, StoppedError where
    it did not come to its end. Cases that failed (status 1) are results."""
    if ending.status in {0, 1}:
        return
    if ending.is_interrupted or ending.status == INTERRUPTED:
        raise KeyboardInterrupt
    words = ending.words or "it said nothing"
    if ending.status == REFUSED_OPTIONS:
        # the program's own line names the option, its value and what is allowed
        raise StoppedError(words.splitlines()[-1], REFUSED_OPTIONS)
    how = f"ended with {ending.status}"
    if ending.status < 0:
        how = f"was ended by signal {signal.Signals(-ending.status).name}"
    raise StoppedError(f"{name} {how} in {what}; its last words: {words}", 1)


def _header(journal: Path) -> Json | None:
    """The first line, None where it is not there whole."""
    try:
        with journal.open(encoding="utf-8", errors="replace") as stream:
            line = stream.readline()
        document = json.loads(line) if line.endswith("\n") else None
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) and "header" in document else None


def journal_options(result: Path, like: Path, verify: str) -> list[str]:
    """--journal, and --resume where there is something to continue.

    A new journal begins with the header of the journal `like`, without its peaks: the program then
    refuses to go on where commit, device, libtorch, threads or seed are others than they were.
    """
    journal = journal_of(result)
    if _header(journal) is None:
        # a journal without a whole header is one that was killed before its first case
        journal.unlink(missing_ok=True)
        header = _header(like)
        if header is None:
            return [f"--journal={journal}"]
        circumstances = {k: v for k, v in header["header"].items() if k != "peaks"}
        first = header | {"header": circumstances | {"verify": verify}}
        journal.write_text(json.dumps(first) + "\n", encoding="utf-8")
    return [f"--journal={journal}", "--resume"]


def read_document(path: Path) -> Json:
    """A result that the program has just written; StoppedError where it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document["context"], dict) and all(map(case_of, document["benchmarks"])):
            return document
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoppedError(f"tiny_llama_bench wrote no result to {path}: {error}", 1) from error
    raise StoppedError(f"tiny_llama_bench wrote no result to {path}", 1)


def case_of(entry: Json) -> str:
    """The name that --list prints for the case of a row; Google Benchmark appends to it."""
    return OWN_SUFFIXES.sub("", entry["run_name"])
