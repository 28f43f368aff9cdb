"""Sides that are interleaved at one case: our program, and the processes of LlamaForCausalLM.

Who runs when and how often, and what becomes of the times, knows neither processes nor torch, so
that tests can play any side. A peer's malloc keeps its memory: glibc's maps and unmaps every large
tensor, which costs a small step a tenth to a third.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tinyllama_tools.commands.peer_forms import PeerForm
from tinyllama_tools.core.app import PROJECT, Json, problem_sizes
from tinyllama_tools.core.process import placed_threads
from tinyllama_tools.core.text import last_words
from tinyllama_tools.data.names import CaseName, full_step
from tinyllama_tools.data.programs import CaseRun as SuiteCaseRun
from tinyllama_tools.data.programs import SuiteError, SuiteProgram
from tinyllama_tools.stats.rank_tests import Ratio, ratio_of_turns

# in the order of preference, as -l would name them
LIBRARIES = ("tcmalloc_minimal", "tcmalloc", "jemalloc")
# jemalloc gives memory back after ten seconds unless told otherwise
JEMALLOC_KEEPS = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
# above any tensor here; the names with a last underscore are glibc's
GLIBC_KEEPS = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}


@dataclass(frozen=True)
class CachingMalloc:
    """What a process needs in its environment, and how that is called in a result."""

    environment: dict[str, str]
    description: str


def caching_malloc(
    find: Callable[[str], str | None] = ctypes.util.find_library,
) -> CachingMalloc:
    """The first library that is installed, or glibc's with its thresholds raised.

    `find`: answers a library's name with its file's.
    """
    for library in LIBRARIES:
        file = find(library)
        if file:
            more = JEMALLOC_KEEPS if library == "jemalloc" else {}
            return CachingMalloc({"LD_PRELOAD": file, **more}, f"{file} preloaded")
    kept = glibc_that_keeps()
    absent = f"{kept.description}: none of {', '.join(LIBRARIES)} is installed"
    return CachingMalloc(kept.environment, absent)


def glibc_that_keeps() -> CachingMalloc:
    """The system's own, with its thresholds raised."""
    settings = ", ".join(f"{name}={value}" for name, value in GLIBC_KEEPS.items())
    return CachingMalloc(GLIBC_KEEPS, f"glibc with {settings}")


SCRIPTS = PROJECT / "scripts"
SECONDS_TO_END = 10


class PeerError(Exception):
    """A peer did not do what was asked; the message names it and has its last words."""


def peer_environment(
    form: PeerForm, malloc: CachingMalloc, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Threads placed as our program places its own, the form's malloc, and where code is kept."""
    added = {
        "PYTHONPATH": str(SCRIPTS),
        "TORCHINDUCTOR_CACHE_DIR": inherited.get(
            "TORCHINDUCTOR_CACHE_DIR", str(PROJECT / ".deps" / "torchinductor")
        ),
    }
    if form.malloc:
        added |= malloc.environment
    return placed_threads(inherited) | added


class PeerProcess:
    """A running peer. In a session of its own: Ctrl-C is for us, who then close its input."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str],
        command: Sequence[str] = (
            # which has torch and transformers; scripts/peers says which, where it is not this one
            os.environ.get("TINY_LLAMA_ORACLE_PYTHON", sys.executable),
            "-W",
            "ignore",
            "-m",
            "tinyllama_tools.commands.peer_process",
        ),
    ) -> None:
        self.name = name
        # closed in close(), with the process
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )

    def send(self, do: str, **what: object) -> None:
        """Asks for something; `receive` has to follow. That the process has ended is said there."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
                self._process.stdin.flush()

    def receive(self) -> Json:
        """The answer. PeerError where it says that it could not, or has ended."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise PeerError(self._ended())
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, do: str, **what: object) -> Json:
        """Both of them."""
        self.send(do, **what)
        return self.receive()

    def _ended(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        words = last_words(self._said.read()) or "it said nothing"
        return f"{self.name}: its process ended with {status}: {words}"

    @property
    def is_running(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """Lets it end, and makes it where it does not."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._said.close()


def start_peer(form: PeerForm, malloc: CachingMalloc) -> PeerProcess:
    """The process of one form, with this process's environment beneath its own."""
    return PeerProcess(form.variant, peer_environment(form, malloc, os.environ))


# What our program needs of a step besides the timed ones: it refuses a case that it cannot warm up,
# meter and time within its limit.
FEWEST_ITERATIONS = 3
# How far a step may be above what its FLOPs say, seen from a smaller one, before it is believed.
PREDICTION_MARGIN = 1.5


def of_variant(case: CaseName, variant: str) -> CaseName:
    """The same case of another variant."""
    return full_step(case.size, case.dtype, case.batch, case.seq, variant)


def step_flops(case: CaseName) -> float:
    """model_flops of a full step: forward and twice as much backward, scores in full."""
    size = problem_sizes()[case.size]
    hidden, tokens = size["hidden_dim"], case.batch * case.seq
    kv_width = hidden // size["n_heads"] * size["n_kv_heads"]
    a_layer = 2 * hidden * (hidden + kv_width) + 3 * hidden * size["intermediate_dim"]
    weights = size["n_layers"] * a_layer + hidden * size["vocab_size"]
    scores = 2 * size["n_layers"] * case.seq * hidden
    return 6.0 * tokens * (weights + scores)


class OurSide:
    """One variant of tiny_llama_bench. Once verified, its turns are timed without the proof."""

    def __init__(self, variant: str, program: SuiteProgram, max_seconds: float) -> None:
        self.variant = variant
        self.contexts: list[Json] = []
        self.runs: dict[str, list[SuiteCaseRun]] = {}
        self._program = program
        self._limit = f"--max-seconds-per-case={FEWEST_ITERATIONS * max_seconds:g}"

    def _run(self, case: CaseName, steps: int, verify: bool) -> list[float]:
        own = of_variant(case, self.variant)
        try:
            result = self._program.run([own], steps, verify=verify, more=[self._limit])
        except SuiteError as error:
            raise SideError(str(error)) from error
        (run,) = result.cases
        self.contexts.append(result.context)
        if run.skipped:
            raise SideSkip(run.skipped)
        if run.failed:
            raise SideError(run.failed)
        self.runs.setdefault(str(case), []).append(run)
        return list(run.seconds)

    def start(self, case: CaseName) -> None:
        """Nothing: it has been built."""

    def wait_until_built(self) -> None:
        """Nothing to wait for."""

    def get_ready(self, case: CaseName) -> float:
        return min(self._run(case, 1, verify=True))

    def time(self, case: CaseName, steps: int) -> list[float]:
        return self._run(case, steps, verify=False)


class PeerSide:
    """One form of the peer, in a process that is started when it is needed, and again if it died.

    `settings`: what the process said of itself. `cpu_seconds`: of the steps timed, by case name, of
    the thread that runs them.
    """

    def __init__(
        self, form: PeerForm, start: Callable[[PeerForm], PeerProcess], threads: int, limit: float
    ) -> None:
        self.form = form
        self.variant = form.variant
        self.settings: Json = {}
        self.cpu_seconds: dict[str, list[float]] = {}
        self._start = start
        self._threads = threads
        self._max_seconds = limit
        self._process: PeerProcess | None = None
        # of each size and dtype, the case with most FLOPs so far and what its step took
        self._known: dict[tuple[str, str], tuple[CaseName, float]] = {}

    def _started(self) -> PeerProcess:
        if self._process is None or not self._process.is_running:
            self.close()
            self._process = self._start(self.form)
            form = self.form.as_json()
            self.settings = self._process.ask("hello", form=form, threads=self._threads)
        return self._process

    def _refuse(self, case: CaseName) -> None:
        known = self._known.get((case.size, case.dtype))
        if known is None:
            return
        other, seconds = known
        predicted = seconds * step_flops(case) / step_flops(other)
        if predicted > PREDICTION_MARGIN * self._max_seconds:
            raise SideSkip(
                f"a step needs about {predicted:.1f} s, going by its FLOPs and the {seconds:.1f} s "
                f"measured at batch:{other.batch}/seq:{other.seq}; more than "
                f"--max-seconds-per-case {self._max_seconds:g}"
            )

    def start(self, case: CaseName) -> None:
        self._refuse(case)
        size = problem_sizes()[case.size]
        shape = {"dtype": case.dtype, "batch": case.batch, "seq": case.seq}
        try:
            self._started().send("build", size=size, **shape)
        except PeerError as error:
            raise SideError(str(error)) from error

    def _answer(self, do: Callable[[PeerProcess], Json]) -> Json:
        # never of a process started anew, which would have nothing to answer
        if self._process is None:
            raise SideError(f"{self.variant}: its process was not started")
        try:
            return do(self._process)
        except PeerError as error:
            raise SideError(str(error)) from error

    def wait_until_built(self) -> None:
        self._answer(lambda process: process.receive())

    def get_ready(self, case: CaseName) -> float:
        limit_s = self._max_seconds
        answer = self._answer(lambda process: process.ask("warm_up", limit=limit_s))
        seconds = min(answer["seconds"])
        key = (case.size, case.dtype)
        if key not in self._known or step_flops(self._known[key][0]) < step_flops(case):
            self._known[key] = (case, seconds)
        if seconds > self._max_seconds:
            limit = f"--max-seconds-per-case {self._max_seconds:g}"
            raise SideSkip(f"a step took {seconds:.1f} s, more than {limit}")
        return seconds

    def time(self, case: CaseName, steps: int) -> list[float]:
        answer = self._answer(lambda process: process.ask("time", steps=steps))
        self.cpu_seconds.setdefault(str(case), []).extend(answer["cpu_seconds"])
        return answer["seconds"]

    def close(self) -> None:
        """Ends its process."""
        if self._process is not None:
            self._process.close()
            self._process = None


class SideError(Exception):
    """A side failed at a case; the message names it."""


class SideSkip(Exception):  # noqa: N818 -- not an error: the case is left out on purpose
    """A side's case is left out; the message says why, with the figures."""


class Side(Protocol):
    """One of the programs that are compared. Every method raises SideError or SideSkip."""

    variant: str

    def start(self, case: CaseName) -> None:
        """Begins to build the case, without waiting."""

    def wait_until_built(self) -> None:
        """Until then it may keep every processor busy; from then on only when it is asked."""

    def get_ready(self, case: CaseName) -> float:
        """Warms up; seconds of a step, as far as they are known then."""

    def time(self, case: CaseName, steps: int) -> list[float]:
        """Seconds of so many steps."""


@dataclass(frozen=True)
class Effort:
    """Turns of a case, steps of a turn, and the seconds of timed steps that a side may have."""

    turns: int
    steps: int
    max_seconds: float

    def for_step_of(self, seconds: float) -> Effort:
        """What of it there is time for: first fewer steps, then fewer turns, at least one."""
        affordable = max(1, int(self.max_seconds / seconds))
        turns = min(self.turns, affordable)
        return Effort(turns, max(1, min(self.steps, affordable // turns)), self.max_seconds)


@dataclass
class SideRun:
    """What one side did at a case: seconds of the steps of each turn, or why there are none."""

    variant: str
    turns: list[list[float]] = field(default_factory=list)
    skipped: str = ""
    failed: str = ""

    @property
    def medians(self) -> list[float]:
        """The median step of each turn."""
        return [statistics.median(turn) for turn in self.turns]

    @property
    def seconds(self) -> float | None:
        """The median over turns of a turn's median."""
        return statistics.median(self.medians) if self.turns else None


@dataclass
class CaseRun:
    """One case (its variant is that of our first side) and what each side did."""

    case: CaseName
    sides: dict[str, SideRun]

    def ratio(self, other: str, ours: str) -> Ratio | None:
        """Times of `other` over those of `ours`, over the turns that both had: above 1, ours is
        faster."""
        pairs = list(zip(self.sides[other].medians, self.sides[ours].medians, strict=False))
        if not pairs:
            return None
        return ratio_of_turns([pair[0] for pair in pairs], [pair[1] for pair in pairs])


class Turns:
    """One case while it is measured. `result` fills meanwhile: whoever interrupts still has it."""

    def __init__(self, case: CaseName, sides: Sequence[Side], effort: Effort) -> None:
        self.result = CaseRun(case, {side.variant: SideRun(side.variant) for side in sides})
        self._case = case
        self._effort = effort
        self._sides = list(sides)
        self._efforts: dict[str, Effort] = {}

    def _attempt(self, side: Side, do: Callable[[Side], None]) -> bool:
        """Does it and returns True, or keeps the reason why not, and no times beside it."""
        run = self.result.sides[side.variant]
        try:
            do(side)
        except SideSkip as reason:
            run.skipped = str(reason)
        except SideError as error:
            run.failed = str(error)
        if run.skipped or run.failed:
            run.turns.clear()
            return False
        return True

    def _start(self, side: Side) -> None:
        side.start(self._case)

    def _wait_until_built(self, side: Side) -> None:
        side.wait_until_built()

    def _get_ready(self, side: Side) -> None:
        seconds = side.get_ready(self._case)
        self._efforts[side.variant] = self._effort.for_step_of(seconds)

    def _time(self, side: Side) -> None:
        steps = self._efforts[side.variant].steps
        self.result.sides[side.variant].turns.append(side.time(self._case, steps))

    def prepare(self) -> None:
        """Builds all sides at once and, when all are built, warms them up one by one, since what
        a step takes then decides over its turns. Who cannot go on is out."""
        for prepare in (self._start, self._wait_until_built, self._get_ready):
            self._sides = [side for side in self._sides if self._attempt(side, prepare)]

    def take(self, turn: int) -> None:
        """Each side that has time for this turn once; who begins moves on by one each turn."""
        sides = [s for s in self._sides if turn < self._efforts[s.variant].turns]
        first = turn % len(sides) if sides else 0
        for side in (*sides[first:], *sides[:first]):
            if not self._attempt(side, self._time):
                self._sides.remove(side)


def measure_case(
    case: CaseName,
    sides: Sequence[Side],
    effort: Effort,
    say: Callable[[str], None],
    keep: Callable[[CaseRun], None],
) -> None:
    """All sides at one case; `keep` gets its result before anything is measured."""
    turns = Turns(case, sides, effort)
    keep(turns.result)
    turns.prepare()
    for turn in range(effort.turns):
        turns.take(turn)
        if turn == 0:
            say(f"  {turn_text(list(turns.result.sides.values()))}")


def turn_text(runs: Sequence[SideRun]) -> str:
    """`baseline 150.1 ms, peer:eager skipped: ...`: every side in the first turn."""
    texts = []
    for run in runs:
        if run.failed:
            texts.append(f"{run.variant} FAILED: {run.failed}")
        elif run.skipped:
            texts.append(f"{run.variant} skipped: {run.skipped}")
        elif run.turns:
            texts.append(f"{run.variant} {1e3 * run.medians[0]:.1f} ms")
    return ", ".join(texts)
