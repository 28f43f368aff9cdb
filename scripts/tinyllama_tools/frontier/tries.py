"""One try of a training step, in a process of its own that may die of it."""

from __future__ import annotations

import math
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tinyllama_tools.frontier.asking import Asker, free_memory
from tinyllama_tools.frontier.axis import Axis, Line
from tinyllama_tools.frontier.confirmation import Try
from tinyllama_tools.suite_run import REFUSED_OPTIONS, CaseRun, SuiteCase, SuiteError, SuiteProgram

MIB = 2**20
OUT_OF_MEMORY = "out of memory"
# How the kernel ends what used up the memory, and libraries what they cannot go on with.
KILLED, ABORTED = -signal.SIGKILL, -signal.SIGABRT
# words of libraries that found no memory
NO_MEMORY = (OUT_OF_MEMORY, "bad_alloc", "cannot allocate memory", "not enough memory")
# Free memory comes and goes a little between one try and the next.
MOST_SHARE = 0.95


@dataclass
class MortalProgram(SuiteProgram):
    """Remembers how its last process ended: the exit status, less the signal that killed it; None
    where it was stopped for taking too long, or never started."""

    last_status: int | None = None

    def _start(self, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.last_status = None
        finished = super()._start(options)
        self.last_status = finished.returncode
        return finished


def signal_name(number: int) -> str:
    """`SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Trial:
    """What all tries of a confirmation share; `max_seconds` is the program's time limit too."""

    program: MortalProgram
    asker: Asker
    limit_bytes: int
    max_seconds: float

    def attempt(self, axis: Axis, line: Line, value: int) -> Try:
        """Runs one step of the line, unless too little memory is free by now.

        SuiteError where the program refuses its options or cannot be started.
        """
        free = free_memory(self.asker).memory_budget_bytes
        if self.limit_bytes > MOST_SHARE * free:
            gib = f"{free / 2**30:.2f} GiB"
            return Try(value, None, f"only {gib} are free by now, too few for a try at the limit")
        name = line.case(axis, value)
        case = SuiteCase(name.size, name.dtype, name.batch, name.seq, name.variant)
        more = (
            "--admit=all",
            f"--memory-limit={self.limit_bytes}",
            f"--max-seconds-per-case={self.max_seconds:g}",
        )
        try:
            (run,) = self.program.run([case], 1, more=more).cases
        except SuiteError as error:
            return self._without_result(value, error)
        return self._with_result(value, run)

    def _without_result(self, value: int, error: SuiteError) -> Try:
        status = self.program.last_status
        if isinstance(error.__cause__, subprocess.TimeoutExpired):
            return Try(value, None, f"took more than {self.max_seconds:g} s (--max-seconds)")
        if status is None or status == REFUSED_OPTIONS:
            raise error
        is_memory = any(words in str(error).lower() for words in NO_MEMORY)
        if status == KILLED or (is_memory and status in {ABORTED, *range(1, 128)}):
            how = f"killed by {signal_name(-status)}" if status < 0 else OUT_OF_MEMORY
            return Try(value, False, how)
        if status < 0:
            return Try(value, None, f"killed by {signal_name(-status)}: {error}")
        return Try(value, None, str(error))

    def _with_result(self, value: int, run: CaseRun) -> Try:
        if run.failed:
            is_memory = OUT_OF_MEMORY in run.failed
            return Try(value, False, OUT_OF_MEMORY) if is_memory else Try(value, None, run.failed)
        if not run.seconds:
            return Try(value, None, run.skipped or "no time was measured")
        peak = run.counters.get("peak_memory_MiB", math.nan) * MIB
        if not peak > 0:
            return Try(value, None, "it ran, but its peak_memory_MiB was not measured")
        # The allocator of a GPU knows no limit of ours.
        if peak > self.limit_bytes:
            return Try(value, False, f"needed {peak / MIB:.1f} MiB", peak)
        return Try(value, True, "", peak)
