"""One local rank: a process group of its own that does not outlive the launcher."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tinyllama_tools.core.app import BadInputError

LAST_WORDS = 8
BUILD_IT = "build it: scripts/bench --setup-only"
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
# loaded before any fork: a child between fork and exec must not load libraries
LIBC = ctypes.CDLL(None, use_errno=True)


def _in_child(cores: Sequence[int], parent: int) -> Callable[[], None]:
    """Runs between fork and exec: the kernel ends the rank with the launcher, however that ends."""

    def prepare() -> None:
        if hasattr(LIBC, "prctl"):
            LIBC.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            # died before the line above
            if os.getppid() != parent:
                os._exit(1)
        os.sched_setaffinity(0, cores)

    return prepare


class RankProcess:
    """A started rank. `words`: the last lines it said, on standard output or error."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        cores: Sequence[int],
    ) -> None:
        self.rank = rank
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self._rest = b""
        try:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the launcher alone, and the ranks once, from it
                start_new_session=True,
                preexec_fn=_in_child(cores, os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            name = Path(command[0]).name
            raise BadInputError(f"{name} cannot be started: {error}; {BUILD_IT}") from error
        os.set_blocking(self.output.fileno(), False)

    @property
    def output(self) -> IO[bytes]:
        """Where it says things."""
        if self.process.stdout is None:
            raise ValueError("the rank was started without a pipe")
        return self.process.stdout

    @property
    def status(self) -> int | None:
        """None while it runs, -N where signal N ended it.

        It is looked at without being waited for: until then, its number is the number of its group
        and nobody else's.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self.process.pid, look)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def said(self) -> list[str]:
        """Whole lines since the last time; the rest too once it has ended."""
        data = self._rest
        with contextlib.suppress(OSError):
            while chunk := self.output.read():
                data += chunk
        *lines, self._rest = data.split(b"\n")
        if self.status is not None and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        texts = [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines]
        self.words.extend(text for text in texts if text.strip())
        return texts

    def signal_group(self, number: int) -> None:
        """To it and whatever it started; nothing where they are gone. Not after close()."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Waits for its end."""
        self.process.wait()
        self.output.close()


def ending_text(status: int) -> str:
    """`ended with 1`, `was ended by SIGKILL`."""
    if status >= 0:
        return f"ended with {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
