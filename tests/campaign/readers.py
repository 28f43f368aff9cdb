"""Damaged files in every reader of the tools; fuzzing.py has those of the programs."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from campaign.damage import LEVELS, damaged
from campaign.python_readers import Reader, all_readers
from campaign.tally import Scope, Tally, scratch
from tinyllama_tools.core.app import ToolError

# damaged files of a reader in Python, and of a whole command, which takes a hundred times as long
READS, COMMANDS = 20_000, 1_000
HANG_S = 10.0
LONGEST_MESSAGE = 20_000
# of one kind of fault, by reader and words, that are kept
MOST_ALIKE = 1


class HangError(BaseException):
    """Not an Exception, which a reader may catch."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """HangError in the main thread when it is over."""

    def end(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault_of(reader: Reader, folder: Path) -> str:
    """How the reader breaks its promise on what the folder holds; empty where it keeps it."""
    file = folder / reader.damaged
    try:
        with time_limit(HANG_S):
            reader.read(folder, file)
    except HangError:
        return f"no end within {HANG_S:g} s"
    except reader.errors as error:
        words = str(error)
        if not words.strip():
            return f"{type(error).__name__} without a message"
        if len(words) > LONGEST_MESSAGE:
            return f"a message of {len(words)} characters"
        if ToolError in reader.errors and folder.name not in words and file.name not in words:
            return f"names no file: {words[:200]}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {str(error)[:400]}"
    return ""


def try_reader(reader: Reader, draws: list[random.Random]) -> Tally:
    """One damaged file a draw, and one of arrays within each other that nothing can read."""
    tally = Tally()
    kind = f"damaged file of {reader.name}"
    seen: Counter[str] = Counter()
    with scratch() as folder:
        for name, content in reader.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        # otherwise nothing behind the first check is tried
        reader.read(folder, folder / reader.damaged)
        original = reader.files[reader.damaged]
        contents = (damaged(reader.damaged, original, draw) for draw in draws)
        for number, content in enumerate(itertools.chain([b"[" * LEVELS + b"\n"], contents)):
            (folder / reader.damaged).write_bytes(content)
            fault = fault_of(reader, folder)
            alike = re.sub(r"'[^']*'|[0-9]+", "", fault)[:50]
            seen[alike] += 1
            tally.add(kind, [fault] if fault and seen[alike] <= MOST_ALIKE else [])
            if fault and seen[alike] <= MOST_ALIKE:
                print(f"{kind}, {number}: {fault}", flush=True)
    return tally


def _tried(scope: Scope, name: str) -> Tally:
    (reader,) = (one for one in all_readers() if one.name == name)
    return try_reader(reader, scope.draws(name, COMMANDS if reader.is_slow else READS))


def run_part(scope: Scope) -> Iterator[Tally]:
    """Every reader, or those that the scope names, some at once."""
    names = [reader.name for reader in all_readers() if scope.has(reader.name)]
    # what a reader takes for hung is ended by a signal, which only a process of its own gets
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(scope.jobs, mp_context=processes) as pool:
        for name, tried in zip(names, pool.map(_tried, [scope] * len(names), names), strict=True):
            print(f"{name}: {tried.violations or 'nothing'}", flush=True)
            yield tried
