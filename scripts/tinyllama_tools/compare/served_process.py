"""A served program: a resident process that measures when it is asked, and else computes nothing.

docs/serve.md describes the lines of JSON that go both ways.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinyllama_tools.core.app import REFUSED_OPTIONS, BadInputError, Json, placed_threads
from tinyllama_tools.core.text import last_words

MOST_PADDING_BYTES = 4096
# How long OpenMP's workers spin before they sleep: about a millisecond, since a processor's pause
# takes 40 to 140 cycles. Spinning for longer, as is the default, they would disturb the other side.
# Not spinning at all (a passive wait policy) changes what is measured: between the operators of an
# optimizer update they would sleep and be woken 700 times, and the update take three times as long.
SHORT_SPIN = {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"}
# What says how workers wait, for whoever wants them to wait otherwise.
WAITING = ("OMP_WAIT_POLICY", *SHORT_SPIN)


@dataclass(frozen=True)
class ServedProgram:
    """How a side's process is started. `environment`: added to that of this process."""

    name: str
    program: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        """What is executed."""
        return (str(self.program), *self.arguments, "--serve")

    def environment_with(self, padding: int) -> dict[str, str]:
        """Everything the process sees. Where `padding` bytes begin, the stack begins: an effect of
        its place is thus drawn anew with each process instead of being taken for a difference.
        Threads are placed as the program itself would place them, which saves its second start."""
        around = placed_threads({**os.environ, **self.environment})
        wait = {} if any(name in around for name in WAITING) else SHORT_SPIN
        return {**around, **wait, "TINY_LLAMA_PADDING": "x" * padding}


@dataclass(frozen=True)
class Greeting:
    """The first line: what can be opened, and the context of a result file."""

    cases: tuple[str, ...]
    context: Json


@dataclass(frozen=True)
class OpenedCase:
    """`seconds`: of one warm iteration."""

    seconds: float
    counters: dict[str, float]


SECONDS_TO_END = 5.0
# an answer of a whole minute of the fastest case is shorter
LONGEST_ANSWER_BYTES = 64 * 2**20
LAST_BYTES = 20_000
SHOWN_CHARACTERS = 80


class CaseFailedError(Exception):
    """The process says that this case failed; it can be asked for others."""


class CaseSkippedError(Exception):
    """The process does not run this case; the message is its reason."""


class ProcessLostError(Exception):
    """The process ended, hung or answered nonsense, and has been ended."""


def _positive(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


class ServedProcess:
    """A running process, in a session of its own: Ctrl-C is for us, who then end it.

    `limit`: seconds that one answer may take. Every request raises ProcessLostError where no proper
    answer came; the process is gone then.
    """

    def __init__(self, program: ServedProgram, *, limit: float, padding: int) -> None:
        self.name = program.name
        self._limit = limit
        self._buffer = b""
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                program.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=program.environment_with(padding),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._said.close()
            message = f"{program.program} cannot be started: {error.strerror}"
            raise BadInputError(f"{message}; build it: scripts/bench --setup-only") from error
        self._selector = selectors.DefaultSelector()
        if self._process.stdout:
            os.set_blocking(self._process.stdout.fileno(), False)
            self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def __enter__(self) -> ServedProcess:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    def greet(self) -> Greeting:
        """Waits for the first line. BadInputError where --serve or another option is refused."""
        try:
            line = self._answer("its start")
        except ProcessLostError:
            words = self.last_words
            if self._process.returncode == REFUSED_OPTIONS:
                line = words.splitlines()[-1] if words else "refused without a word"
                if "--serve" in line.partition(";")[0]:
                    raise BadInputError(
                        f"{self.name}: this build does not know --serve; compare stored results of "
                        "both sides instead: scripts/compare BASE.json NEW.json"
                    ) from None
                raise BadInputError(f"{self.name}: {line}") from None
            raise
        cases, context = line.get("cases"), line.get("context")
        if line.get("turns") != 1 or not isinstance(cases, list) or not isinstance(context, dict):
            raise self._nonsense("its start", json.dumps(line))
        return Greeting(tuple(map(str, cases)), context)

    def open(self, case: str, *, verify: bool = False, meter: bool = False) -> OpenedCase:
        """Builds and warms up a case. CaseFailedError, CaseSkippedError: it is not open."""
        self.ask_to_open(case, verify=verify, meter=meter)
        return self.opened(case)

    def ask_to_open(self, case: str, *, verify: bool = False, meter: bool = False) -> None:
        """The first half of open(), so that both sides can build at once; opened() has to follow,
        since no other request would get its own answer before."""
        self._send({"do": "open", "case": case, "verify": verify, "meter": meter})

    def opened(self, case: str) -> OpenedCase:
        """The second half."""
        answer = self._said_of(f"open {case}")
        if not _positive(answer.get("seconds")):
            raise self._nonsense("open", json.dumps(answer))
        found = answer.get("counters", {})
        counters = {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}
        return OpenedCase(float(answer["seconds"]), counters)

    def time(self, case: str, seconds: float) -> list[float]:
        """Seconds of each iteration of one slice. CaseFailedError: the case is open no more."""
        answer = self._ask({"do": "time", "case": case, "seconds": seconds})
        found = answer.get("seconds")
        if not isinstance(found, list) or not found or not all(map(_positive, found)):
            raise self._nonsense("time", json.dumps(answer))
        return [float(value) for value in found]

    def close_case(self, case: str) -> None:
        """Lets go of its memory."""
        self._ask({"do": "close", "case": case})

    def close(self, *, wait: bool = True) -> None:
        """Lets it end, and makes it where it does not; at once without `wait`."""
        if self._said.closed:
            return
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_END)
        self._kill()
        self._selector.close()
        if self._process.stdout:
            self._process.stdout.close()
        self._said.close()

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""
        return not self._said.closed and self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of what it said on standard error."""
        size = os.fstat(self._said.fileno()).st_size
        said = os.pread(self._said.fileno(), LAST_BYTES, max(0, size - LAST_BYTES))
        return last_words(said.decode("utf-8", errors="replace"))

    def _ask(self, request: Json) -> Json:
        self._send(request)
        return self._said_of(f"{request['do']} {request['case']}")

    def _send(self, request: Json) -> None:
        if self._process.stdin:
            # that it has ended shows where the answer is missing
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def _said_of(self, what: str) -> Json:
        answer = self._answer(what)
        if "failed" in answer:
            raise CaseFailedError(str(answer["failed"]))
        if "skipped" in answer:
            raise CaseSkippedError(str(answer["skipped"]))
        if "error" in answer:
            raise CaseFailedError(f"{what}: {answer['error']}")
        return answer

    def _answer(self, what: str) -> Json:
        text = self._line(what)
        try:
            answer = json.loads(text)
        except ValueError:
            raise self._nonsense(what, text.decode("utf-8", errors="replace")) from None
        if not isinstance(answer, dict):
            raise self._nonsense(what, text.decode("utf-8", errors="replace"))
        return answer

    def _line(self, what: str) -> bytes:
        deadline = time.monotonic() + self._limit
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._lost(f"gave no answer to {what} within {self._limit:g} s")
            if not self._selector.select(left) or not self._process.stdout:
                continue
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise self._ended(what)
            self._buffer += piece
            if len(self._buffer) > LONGEST_ANSWER_BYTES:
                raise self._lost(f"answered {what} without an end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ended(self, what: str) -> ProcessLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS_TO_END)
        status = self._process.poll()
        if status is None:
            return self._lost(f"closed its output at {what}")
        if status < 0:
            return self._lost(f"was ended by signal {signal.Signals(-status).name} at {what}")
        return self._lost(f"ended with {status} at {what}")

    def _nonsense(self, what: str, text: str) -> ProcessLostError:
        return self._lost(f"answered {what} with '{_shown(text)}'")

    def _lost(self, how: str) -> ProcessLostError:
        self._kill()
        words = self.last_words
        return ProcessLostError(
            f"the process {how}" + (f"; it last said: {words}" if words else "")
        )

    def _kill(self) -> None:
        if self._process.poll() is None:
            # the whole session: children would keep processors busy
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def start_all(
    programs: Sequence[ServedProgram], *, limit: float, paddings: Sequence[int]
) -> list[ServedProcess]:
    """Starts them all at once, so that they load while the others do; none where one cannot be."""
    started: list[ServedProcess] = []
    try:
        for program, padding in zip(programs, paddings, strict=True):
            started.append(ServedProcess(program, limit=limit, padding=padding))
    except BaseException:
        for process in started:
            process.close(wait=False)
        raise
    return started
